// An array whose first elements lie in memory and the others elsewhere.
#pragma once

#include <vector>

#include "tensor/array_store.h"

namespace ds {

class SplitArray final : public ArrayStore {
 public:
  // `memory` is flat host memory; `rest`, of the same type, may be none.
  SplitArray(Tensor memory, StoredArray rest);

  int64_t part_elements() const override;
  void prefetch(int64_t begin, int64_t end) override;
  void flush() override { rest_.flush(); }

 protected:
  Tensor open(int64_t begin, int64_t end, Access access) override;
  void write_back(Tensor memory, int64_t begin) override;
  void drop(Tensor memory) noexcept override;

 private:
  // A range that reaches into the rest: mapped there or, where it begins in memory, copied.
  struct Open {
    const void* at;
    ArrayLease rest;
  };
  int64_t in_memory() const { return memory_.elements(); }
  // What is open at an address, which is not open any more.
  ArrayLease take(const Tensor& memory) noexcept;

  const Tensor memory_;
  const StoredArray rest_;
  std::vector<Open> open_;
};

}  // namespace ds
