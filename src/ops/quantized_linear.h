// Weights of linear layers in 8 or 4 bits (kernels/quantize/quantize.h says how), and products with
// activations that stay floating point.
#pragma once

#include "kernels/quantize/quantize.h"
#include "ops/context.h"

namespace ds::ops {

// Which products round their activations to 8 bits, piece by piece, where the CPU multiplies
// integers faster for it (kernels/quantize/quantized_matmul.h): those with more rows than a decoder
// has (few_rows), or all.
enum class Int8Activations { kNone, kManyRows, kAllRows };

struct QuantizeOptions {
  int bits = 8;            // 8 or 4
  int64_t group_size = 0;  // elements of a row that share a scale, a multiple of 8; 0 = the row
  bool symmetric = true;   // false, for 4 bits: groups have a minimum beside their scale
  Int8Activations int8_activations = Int8Activations::kNone;
};

struct QuantizedWeight {
  Shape shape;  // [N, K]
  QuantizeOptions options;
  Tensor codes;    // uint8
  Tensor scales;   // bf16
  Tensor minimum;  // bf16, or empty when symmetric

  int64_t bytes() const { return codes.bytes() + scales.bytes() + (minimum ? minimum.bytes() : 0); }
};

// w fp32 [N, K]. Throws kInvalidArgument for numbers that are not finite.
QuantizedWeight quantize(const OpContext& ctx, const Tensor& w, const QuantizeOptions& options);

// The same a part at a time: room for [N, K], and rows from `first` on, fp32 [n, K]. Parts begin at
// multiples of so many rows, and all but the last have a multiple of them.
inline constexpr int64_t kQuantizedRows = kernels::kPanelRows;
QuantizedWeight make_quantized(const OpContext& ctx, const Shape& shape,
                               const QuantizeOptions& options);
void quantize_rows(const OpContext& ctx, const Tensor& rows, int64_t first, QuantizedWeight& w);

// fp32 [N, K].
Tensor dequantize(const OpContext& ctx, const QuantizedWeight& w);

// y[..., N] = x[..., K] * w^T + bias[N]. `bias` may be empty; y has the type of x, or fp32. Few
// rows are multiplied from the codes; for many, a part of w at a time takes the type of x, where
// the rows do not become codes, too.
void quantized_linear(const OpContext& ctx, const Tensor& x, const QuantizedWeight& w,
                      const Tensor& bias, Tensor& y);

}  // namespace ds::ops
