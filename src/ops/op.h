// An operator's call: its name for messages, and where it runs, on CPU threads or on a GPU.
#pragma once

#include "base/text.h"
#include "device/cuda_device.h"
#include "kernels/cuda/gpu_stream.h"
#include "ops/context.h"

namespace ds::ops {

// Whether this build has kernels for GPUs.
#ifdef DS_WITH_CUDA
inline constexpr bool kWithCuda = true;
#else
inline constexpr bool kWithCuda = false;
#endif

struct Op {
  const OpContext& ctx;
  const char* name;

  operator TextPart() const { return name; }  // in messages
  // Where the operands must lie.
  bool accepts(const Storage& storage) const {
    if (storage.device_kind() != ctx.device->kind()) return false;
    return storage.device_kind() == DeviceKind::kCpu ||
           storage.device_index() == ctx.device->index();
  }
};

// Calls body(on): `on` is the context's ThreadPool or, on a GPU, a GpuStream.
template <class Body>
void with_place(const OpContext& ctx, const Body& body) {
  if constexpr (kWithCuda) {
    if (ctx.device->kind() == DeviceKind::kCuda) {
      auto& device = static_cast<CudaDevice&>(*ctx.device);
      const DeviceScope scope(device);
      const kernels::GpuStream stream{.native = device.default_stream().native(),
                                      .processors = device.processors(),
                                      .gpu = device.index(),
                                      .capability = device.capability(),
                                      .policy = ctx.gpu};
      body(stream);
      return;
    }
  }
  body(*ctx.pool);
}

// Calls kernel(on), where the device computes. Families have the same functions for threads and a
// GPU.
template <class Kernel>
void run(const OpContext& ctx, const Kernel& kernel) {
  if (ctx.device->computes()) with_place(ctx, kernel);
}

// The same of a kernel(scratch, on) that needs as many fp32 numbers of scratch as numbers(on).
template <class Numbers, class Kernel>
void run(const OpContext& ctx, const Numbers& numbers, const Kernel& kernel) {
  with_place(ctx, [&](auto& on) {
    const Tensor scratch = ctx.workspace(DType::kFloat32, {numbers(on)});
    if (ctx.device->computes()) kernel(scratch.template data<float>(), on);
  });
}

}  // namespace ds::ops
