// An array in the memory of a GPU for those who work with it on the host: what is mapped is a copy
// there, which goes back where it was written. Who computes on the GPU has the memory itself.
#pragma once

#include <memory>

#include "tensor/array_store.h"

namespace ds {

class DeviceArray final : public ArrayStore {
 public:
  // `memory` is flat. Ranges are mapped in the memory of `host`.
  DeviceArray(Tensor memory, std::shared_ptr<Device> host);

  // Larger copies would be no faster.
  int64_t part_elements() const override { return int64_t{1} << 20; }
  void flush() override {}
  int64_t device_elements() const override { return elements(); }
  Tensor view(int64_t begin, int64_t end) const override { return memory_.slice(0, begin, end); }

 protected:
  Tensor open(int64_t begin, int64_t end, Access access) override;
  void write_back(Tensor memory, int64_t begin) override;
  void drop(Tensor /*memory*/) noexcept override {}

 private:
  const Tensor memory_;
  const std::shared_ptr<Device> host_;
};

}  // namespace ds
