#include "ops/quantized_linear.h"

#include <algorithm>

#include "kernels/gemv/gemv.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantized_matmul.h"
#include "ops/gemv.h"
#include "ops/linear_checks.h"
#include "ops/product.h"
#include "ops/reduce.h"

namespace ds::ops {
namespace {

using kernels::kPanelRows;

// What a part of w may take as floating point numbers: on the CPU it stays in the outer cache
// levels, on a GPU products of parts should still fill it.
constexpr int64_t kCpuScratchBytes = 4 << 20, kGpuScratchBytes = 64 << 20;

kernels::QuantizedShape kernel_shape(const Shape& shape, const QuantizeOptions& options) {
  kernels::QuantizedShape s;
  s.bits = options.bits;
  s.minima = !options.symmetric;
  s.n = shape[0];
  s.k = shape[1];
  s.group = options.group_size;
  return s;
}

kernels::QuantizedMatrix kernel_matrix(const Op& op, const QuantizedWeight& w) {
  kernels::QuantizedMatrix m;
  static_cast<kernels::QuantizedShape&>(m) = kernel_shape(w.shape, w.options);
  check_elements(w.codes, op, "codes of w", DType::kUInt8, m.code_bytes());
  check_elements(w.scales, op, "scales of w", DType::kBFloat16, m.scale_count());
  if (m.minima) {
    check_elements(w.minimum, op, "minima of w", DType::kBFloat16, m.scale_count());
  }
  m.codes = static_cast<const uint8_t*>(w.codes.raw());
  m.scales = static_cast<const bfloat16*>(w.scales.raw());
  m.minimum = static_cast<const bfloat16*>(w.minimum.raw());
  return m;
}

// Panels of w at a time become rows of w^T, and a float product takes those.
void multiply_many(const OpContext& ctx, const Tensor& x, const kernels::QuantizedMatrix& w,
                   const Tensor& bias, Tensor& y) {
  const int64_t item = dtype_size(x.dtype());
  const int64_t bytes =
      ctx.device->kind() == DeviceKind::kCpu ? kCpuScratchBytes : kGpuScratchBytes;
  const int64_t fit = bytes / std::max<int64_t>(1, w.k * item) / kPanelRows;
  const int64_t step = std::min(std::max<int64_t>(fit, 2), w.panels());
  const Tensor part = ctx.workspace(x.dtype(), {w.k, step * kPanelRows});
  kernels::Matmul p;
  p.in = matmul_type(x);
  p.out = matmul_type(y);
  p.m = row_count(x);
  p.k = w.k;
  p.a = {x.raw(), w.k, false};
  p.c_stride = w.n;
  for (int64_t first = 0; first < w.panels(); first += step) {
    const int64_t panels = std::min(step, w.panels() - first), column = first * kPanelRows;
    run(ctx, [&](auto& on) {
      kernels::dequantize_panels(w, first, panels, float_type(x), part.raw(), on);
    });
    p.n = std::min(panels * kPanelRows, w.n - column);
    p.b = {part.raw(), panels * kPanelRows, false};
    p.bias = bias ? static_cast<const std::byte*>(bias.raw()) + column * item : nullptr;
    p.c = static_cast<std::byte*>(y.raw()) + column * dtype_size(y.dtype());
    multiply(ctx, p);
  }
}

// Rows of x become codes, too.
void multiply_codes(const OpContext& ctx, const Tensor& x, const kernels::QuantizedMatrix& w,
                    const Tensor& bias, Tensor& y) {
  const int64_t rows = row_count(x);
  const Tensor scratch = ctx.workspace(DType::kUInt8, {kernels::quantized_matmul_scratch(w, rows)});
  if (!ctx.device->computes()) return;
  kernels::quantized_matmul({.w = w,
                             .type = float_type(x),
                             .out = float_type(y),
                             .m = rows,
                             .x = x.raw(),
                             .bias = bias.raw(),
                             .y = y.raw(),
                             .scratch = scratch.raw()},
                            *ctx.pool);
}

}  // namespace

QuantizedWeight make_quantized(const OpContext& ctx, const Shape& shape,
                               const QuantizeOptions& options) {
  const Op op{ctx, "quantize"};
  DS_CHECK(shape.dims() == 2, Code::kInvalidArgument, op, ": w ", shape.text(), " must be [N, K]");
  DS_CHECK(options.bits == 8 || options.bits == 4, Code::kUnsupported, op, ": ", options.bits,
           " bits are not available; 8 and 4 are");
  DS_CHECK(options.symmetric || options.bits == 4, Code::kUnsupported, op,
           ": only 4 bits have minima; 8 bits are symmetric");
  DS_CHECK(options.group_size >= 0 && options.group_size % 8 == 0, Code::kInvalidArgument, op,
           ": groups of ", options.group_size, " are not available; a multiple of 8, or 0, is");
  QuantizedWeight out;
  out.shape = shape;
  out.options = options;
  const kernels::QuantizedShape s = kernel_shape(out.shape, options);
  const auto make = [&](DType dtype, int64_t count) {
    return Tensor::empty(ctx.device, dtype, {count}, MemoryTag::kParameters);
  };
  out.codes = make(DType::kUInt8, s.code_bytes());
  out.scales = make(DType::kBFloat16, s.scale_count());
  if (!options.symmetric) out.minimum = make(DType::kBFloat16, s.scale_count());
  return out;
}

void quantize_rows(const OpContext& ctx, const Tensor& rows, int64_t first, QuantizedWeight& w) {
  const Op op{ctx, "quantize"};
  check_dense(rows, op, "w", DType::kFloat32);
  const int64_t n = rows.dims() == 2 ? rows.size(0) : 0, all = w.shape[0];
  DS_CHECK(rows.dims() == 2 && rows.size(1) == w.shape[1] && first >= 0 && n <= all - first &&
               first % kPanelRows == 0 && (n % kPanelRows == 0 || first + n == all),
           Code::kInvalidArgument, op, ": rows ", rows.shape().text(), " from row ", first,
           " on are no panels of ", w.shape.text());
  const int64_t bad = first_non_finite(ctx, rows);
  DS_CHECK(bad < 0, Code::kInvalidArgument, op, ": element ", first * w.shape[1] + bad,
           " of w is not a finite number: it has no scale");
  kernels::QuantizedShape s = kernel_shape(w.shape, w.options);
  const int64_t panel = first / kPanelRows, scale = panel * s.groups() * kPanelRows;
  const auto from_scale = [&](const Tensor& of) {
    return of ? static_cast<bfloat16*>(of.raw()) + scale : nullptr;
  };
  s.n = n;
  run(ctx, [&](auto& on) {
    kernels::quantize(s, rows.data<float>(),
                      static_cast<uint8_t*>(w.codes.raw()) + panel * s.panel_bytes(),
                      from_scale(w.scales), from_scale(w.minimum), on);
  });
}

QuantizedWeight quantize(const OpContext& ctx, const Tensor& w, const QuantizeOptions& options) {
  QuantizedWeight out = make_quantized(ctx, w.shape(), options);
  quantize_rows(ctx, w, 0, out);
  return out;
}

Tensor dequantize(const OpContext& ctx, const QuantizedWeight& w) {
  const kernels::QuantizedMatrix m = kernel_matrix(Op{ctx, "dequantize"}, w);
  Tensor out = Tensor::empty(ctx.device, DType::kFloat32, w.shape, MemoryTag::kOther);
  run(ctx, [&](auto& on) { kernels::dequantize(m, out.data<float>(), on); });
  return out;
}

void quantized_linear(const OpContext& ctx, const Tensor& x, const QuantizedWeight& w,
                      const Tensor& bias, Tensor& y) {
  const Op op{ctx, "quantized_linear"};
  check_product(op, x, w.shape, bias, y);
  if (y.elements() == 0) return;
  const kernels::QuantizedMatrix matrix = kernel_matrix(op, w);
  const bool few = few_rows(x);
  const Int8Activations rounded = w.options.int8_activations;
  if ((few ? rounded == Int8Activations::kAllRows : rounded != Int8Activations::kNone) &&
      ctx.device->kind() == DeviceKind::kCpu && kernels::quantized_matmul_runs(matrix)) {
    return multiply_codes(ctx, x, matrix, bias, y);
  }
  if (!few) return multiply_many(ctx, x, matrix, bias, y);
  kernels::QuantizedGemv call;
  call.w = matrix;
  call.type = float_type(x);
  call.out = float_type(y);
  call.m = row_count(x);
  call.x = x.raw();
  call.bias = bias.raw();
  call.y = y.raw();
  run(ctx, [&](auto& on) { kernels::quantized_gemv(call, on); });
}

}  // namespace ds::ops
