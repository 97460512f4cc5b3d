#include "tensor/transfer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "device/cuda_device.h"
#include "device/cuda_lent.h"

namespace ds {
namespace {

constexpr int64_t kPiece = int64_t{4} << 20;  // bytes that travel at a time

template <class Wait>
void wait_quietly(const Wait& wait) noexcept {
  try {
    wait();
  } catch (const Error&) {  // whoever uses the GPU next gets it too
  }
}

// Two pieces of pinned memory that a long copy to the host uses in turn: the host moves one while
// the GPU moves the other.
class Staging {
 public:
  Staging(Device& gpu, int64_t bytes) : gpu_(gpu), bytes_(bytes) {
    const std::shared_ptr<Device>& pinned = static_cast<CudaDevice&>(gpu).pinned();
    for (int64_t i = 0; i < std::min<int64_t>(pieces(), 2); ++i) {
      slot(i).memory =
          Tensor::empty(pinned, DType::kUInt8, {std::min(bytes, kPiece)}, MemoryTag::kWorkspace);
    }
  }
  // The GPU is done with the pieces before they serve others, even after a failure.
  ~Staging() {
    if (!finished_) wait_quietly([&] { gpu_.default_stream().synchronize(); });
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void download(const void* from, void* to) {
    Stream& stream = gpu_.default_stream();
    for (int64_t i = 0; i < pieces() + 2; ++i) {
      if (i >= 2) {  // the piece that was in this slot
        slot(i).copied->synchronize();
        std::memcpy(at(to, i - 2), slot(i).memory.raw(), static_cast<size_t>(size(i - 2)));
      }
      if (i >= pieces()) continue;
      gpu_.copy(slot(i).memory.raw(), at(from, i), size(i), stream);
      slot(i).copied = stream.record();
    }
    finished_ = true;
  }

 private:
  struct Slot {
    Tensor memory;
    std::unique_ptr<Event> copied;
  };
  Slot& slot(int64_t piece) { return slots_[static_cast<size_t>(piece % 2)]; }
  int64_t pieces() const { return (bytes_ + kPiece - 1) / kPiece; }
  int64_t size(int64_t piece) const { return std::min(kPiece, bytes_ - piece * kPiece); }
  static const void* at(const void* first, int64_t piece) {
    return static_cast<const std::byte*>(first) + piece * kPiece;
  }
  static void* at(void* first, int64_t piece) {
    return static_cast<std::byte*>(first) + piece * kPiece;
  }

  Device& gpu_;
  const int64_t bytes_;
  std::array<Slot, 2> slots_;
  bool finished_ = false;
};

// GPU memory of somebody else is in the order of nobody's stream that is known here: what is copied
// from and to it is waited for.
bool is_lent(const Tensor& x) { return !on_host(x) && x.storage()->device() == nullptr; }
void copy_lent(const Tensor& lent, void* to, const void* from) {
  copy_lent_cuda(lent.storage()->device_index(), to, from, lent.bytes());
}

Device& gpu_of(const Tensor& x) { return *x.storage()->device(); }

// Whether copies of the GPU reach host memory themselves.
bool reached_directly(Device& gpu, const Tensor& x) {
  return x.storage()->device() == static_cast<CudaDevice&>(gpu).pinned();
}

void check_packed(const Tensor& x) {
  DS_CHECK(x && x.contiguous(), Code::kInternal, "only packed tensors travel between devices");
}

}  // namespace

std::shared_ptr<Device> host_memory_of(const std::shared_ptr<Device>& device) {
  if (device->kind() == DeviceKind::kCpu) return device;
  return static_cast<const CudaDevice&>(*device).pinned();
}

void copy_to_host(const Tensor& from, void* to) {
  check_packed(from);
  if (from.bytes() == 0) return;
  if (on_host(from)) {
    std::memcpy(to, from.raw(), static_cast<size_t>(from.bytes()));
  } else if (is_lent(from)) {
    copy_lent(from, to, from.raw());
  } else {
    Staging(gpu_of(from), from.bytes()).download(from.raw(), to);
  }
}

void copy_from_host(const void* from, const Tensor& to) {
  check_packed(to);
  if (to.bytes() == 0) return;
  if (on_host(to)) {
    std::memcpy(to.raw(), from, static_cast<size_t>(to.bytes()));
  } else if (is_lent(to)) {
    copy_lent(to, to.raw(), from);
  } else {
    static_cast<CudaDevice&>(gpu_of(to)).upload(to.raw(), from, to.bytes());
  }
}

void copy_tensor(const Tensor& from, const Tensor& to) {
  check_packed(from);
  check_packed(to);
  DS_CHECK(from.bytes() == to.bytes(), Code::kInternal, "copy of ", from.bytes(), " bytes to ",
           to.bytes());
  if (from.bytes() == 0) return;
  if (on_host(to) && (on_host(from) || is_lent(from))) return copy_to_host(from, to.raw());
  if (on_host(from) && is_lent(to)) return copy_from_host(from.raw(), to);
  DS_CHECK(on_host(from) || on_host(to) ||
               from.storage()->device_index() == to.storage()->device_index(),
           Code::kUnsupported, "tensors are copied between GPUs through the host only");
  if (is_lent(from) && is_lent(to)) return copy_lent(to, to.raw(), from.raw());
  Device& gpu = gpu_of(on_host(to) || is_lent(to) ? from : to);
  if (on_host(to) && !reached_directly(gpu, to)) return copy_to_host(from, to.raw());
  if (on_host(from) && !reached_directly(gpu, from)) return copy_from_host(from.raw(), to);
  gpu.copy(to.raw(), from.raw(), from.bytes(), gpu.default_stream());
  if (on_host(from) || on_host(to) || is_lent(from) || is_lent(to))
    gpu.default_stream().synchronize();
}

Fetched::Fetched(const Tensor& from) {
  check_packed(from);
  if (on_host(from) || from.bytes() == 0) {
    memory_ = from;
    return;
  }
  Device& gpu = gpu_of(from);
  Stream& stream = gpu.default_stream();
  memory_ = Tensor::empty(static_cast<CudaDevice&>(gpu).pinned(), from.dtype(), from.shape(),
                          MemoryTag::kWorkspace);
  gpu.copy(memory_.raw(), from.raw(), from.bytes(), stream);
  try {
    copied_ = stream.record();
  } catch (...) {
    wait_quietly([&] { stream.synchronize(); });
    throw;
  }
}

// The memory serves others only when the GPU is done with it.
Fetched::~Fetched() {
  if (copied_) wait_quietly([&] { static_cast<void>(host()); });
}

const Tensor& Fetched::host() {
  if (copied_ && !copied_->ready()) copied_->synchronize();
  copied_.reset();
  return memory_;
}

Tensor copied_to_host(const Tensor& x, const std::shared_ptr<Device>& host, MemoryTag tag) {
  Tensor copy = Tensor::empty(host, x.dtype(), x.shape(), tag);
  copy_tensor(x, copy);
  return copy;
}

Tensor to_host(const Tensor& x, const std::shared_ptr<Device>& host, MemoryTag tag) {
  return on_host(x) ? x : copied_to_host(x, host, tag);
}

Tensor to_device(const Tensor& x, const std::shared_ptr<Device>& device, MemoryTag tag) {
  if (!x || (x.storage()->device_kind() == device->kind() &&
             x.storage()->device_index() == device->index())) {
    return x;
  }
  Tensor copy = Tensor::empty(device, x.dtype(), x.shape(), tag);
  copy_tensor(x, copy);
  return copy;
}

void copy_rows(Device& device, const Rows& to, const Rows& from, int64_t width, int64_t rows) {
  if (!device.computes()) return;
  if (device.kind() == DeviceKind::kCuda) {
    return static_cast<CudaDevice&>(device).copy_rows(to.first, to.pitch, from.first, from.pitch,
                                                      width, rows, device.default_stream());
  }
  auto* target = static_cast<std::byte*>(to.first);
  const auto* source = static_cast<const std::byte*>(from.first);
  for (int64_t i = 0; i < rows; ++i, target += to.pitch, source += from.pitch) {
    std::memcpy(target, source, static_cast<size_t>(width));
  }
}

}  // namespace ds
