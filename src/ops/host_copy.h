// Reading what an operator left on its device.
#pragma once

#include "ops/context.h"

namespace ds::ops {

// Waits for the queued work of the context's device and copies the bytes of a tensor to the host.
inline void copy_to_host(const OpContext& ctx, const Tensor& from, void* to) {
  Stream& stream = ctx.device->default_stream();
  ctx.device->copy(to, from.raw(), from.bytes(), stream);
  stream.synchronize();
}

}  // namespace ds::ops
