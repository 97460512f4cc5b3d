#include "tensor/device_array.h"

#include "tensor/transfer.h"

namespace ds {

DeviceArray::DeviceArray(Tensor memory, std::shared_ptr<Device> host)
    : ArrayStore(memory.dtype(), memory.elements()),
      memory_(std::move(memory)),
      host_(std::move(host)) {}

Tensor DeviceArray::open(int64_t begin, int64_t end, Access access) {
  Tensor out = Tensor::empty(host_, dtype(), {end - begin}, MemoryTag::kIo);
  if (access != Access::kWrite) copy_tensor(view(begin, end), out);
  return out;
}

void DeviceArray::write_back(Tensor memory, int64_t begin) {
  copy_tensor(memory, view(begin, begin + memory.elements()));
}

}  // namespace ds
