// Numbers of tensors between the host and devices. Whoever reads or writes them outside of an
// operator does it through here, or keeps them in host memory on purpose.
#pragma once

#include "tensor/tensor.h"

namespace ds {

// Whether data<T>() may be read by the calling thread.
inline bool on_host(const Tensor& x) { return x.storage()->device_kind() == DeviceKind::kCpu; }

// Host memory for numbers on their way to or from a device: of a GPU, memory that its copies reach
// directly; of the CPU, itself.
std::shared_ptr<Device> host_memory_of(const std::shared_ptr<Device>& device);

// Copies between packed tensors of equal bytes, wherever they lie, in the order of a GPU's default
// stream. The host may read or change its side on return, and waits for that where it must: numbers
// that come from a GPU, and those that go to it from memory that its copies reach directly.
void copy_tensor(const Tensor& from, const Tensor& to);
// The same from or to bytes of the host, as many as the tensor has.
void copy_to_host(const Tensor& from, void* to);
void copy_from_host(const void* from, const Tensor& to);

// A packed tensor on its way to the host, behind the work that its device has queued: nobody waits
// before the numbers are asked for. What the host reads already is not copied.
class Fetched {
 public:
  Fetched() = default;
  explicit Fetched(const Tensor& from);
  Fetched(Fetched&& other) noexcept { swap(other); }
  Fetched& operator=(Fetched&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Fetched();

  // Waits for it the first time.
  const Tensor& host();

 private:
  void swap(Fetched& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(copied_, other.copied_);
  }

  Tensor memory_;
  std::unique_ptr<Event> copied_;  // none once the numbers are there
};

// The packed tensor itself where the host reads it, else a copy in the memory of `host`.
Tensor to_host(const Tensor& x, const std::shared_ptr<Device>& host,
               MemoryTag tag = MemoryTag::kOther);
// A copy in the memory of `host`, wherever it lies.
Tensor copied_to_host(const Tensor& x, const std::shared_ptr<Device>& host,
                      MemoryTag tag = MemoryTag::kOther);
// The packed tensor itself where `device` has it, else a copy there. No tensor stays none.
Tensor to_device(const Tensor& x, const std::shared_ptr<Device>& device,
                 MemoryTag tag = MemoryTag::kWorkspace);

// Copies rows of bytes within a device's memory in the order of its default stream, and does not
// wait; row i begins i * pitch bytes after the first one.
struct Rows {
  void* first;
  int64_t pitch;
};
void copy_rows(Device& device, const Rows& to, const Rows& from, int64_t width, int64_t rows);

}  // namespace ds
