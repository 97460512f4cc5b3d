// An array whose first elements lie in one place and the others in another, such as memory and a
// file, or a GPU and its host.
#pragma once

#include <vector>

#include "tensor/array_store.h"

namespace ds {

class SplitArray final : public ArrayStore {
 public:
  // Both of the same type, flat; memory is the host's. `rest` may be none.
  SplitArray(StoredArray first, StoredArray rest);

  int64_t part_elements() const override;
  void prefetch(int64_t begin, int64_t end) override;
  void flush() override;
  int64_t device_elements() const override { return first_.device_elements(); }
  Tensor view(int64_t begin, int64_t end) const override;

 protected:
  Tensor open(int64_t begin, int64_t end, Access access) override;
  void write_back(Tensor memory, int64_t begin) override;
  void drop(Tensor memory) noexcept override;

 private:
  // What is mapped in either place for a range that is no view of memory. Of one in both, `at` is
  // memory of its own.
  struct Open {
    const void* at = nullptr;
    ArrayLease first, rest;
  };
  // What is open at an address, which is not open any more.
  Open take(const Tensor& memory) noexcept;

  const StoredArray first_, rest_;
  std::vector<Open> open_;
};

}  // namespace ds
