#include "ops/product_choices.h"

#include "kernels/matmul/product_choices.h"
#include "ops/op.h"
#include "ops/product.h"

namespace ds::ops {
namespace {

// Calls body(stream) where there is a GPU.
template <class Body>
void on_gpu(const OpContext& ctx, const Body& body) {
  run(ctx, [&](auto& on) {
    if constexpr (kRunsOnGpu<decltype(on)>) body(on);
  });
}

}  // namespace

bool times_products(const OpContext& ctx) {
  return kWithCuda && ctx.device->kind() == DeviceKind::kCuda && ctx.gpu.time_products;
}

void begin_product_timing(const OpContext& ctx) {
  on_gpu(ctx, [](const kernels::GpuStream& on) {
    kernels::forget_timed_products(on);
    kernels::open_timing(on);
  });
}

void end_product_timing(const OpContext& ctx) {
  on_gpu(ctx, [](const kernels::GpuStream& on) { kernels::close_timing(on); });
}

int64_t timed_products(const OpContext& ctx) {
  int64_t count = 0;
  on_gpu(ctx, [&](const kernels::GpuStream& on) { count = kernels::timed_products(on); });
  return count;
}

void forget_timed_products(const OpContext& ctx) {
  on_gpu(ctx, [](const kernels::GpuStream& on) { kernels::forget_timed_products(on); });
}

std::string export_timed_products(const OpContext& ctx) {
  std::string text;
  on_gpu(ctx, [&](const kernels::GpuStream& on) {
    const std::vector<std::byte> bytes = kernels::export_timed_products(on);
    if (!bytes.empty()) text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return text;
}

std::string import_timed_products(const OpContext& ctx, std::string_view bytes) {
  std::string why;
  on_gpu(ctx, [&](const kernels::GpuStream& on) {
    why = kernels::import_timed_products(std::as_bytes(std::span(bytes.data(), bytes.size())), on);
  });
  return why;
}

}  // namespace ds::ops
