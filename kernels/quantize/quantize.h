// Weight matrices [n, k] in 8 or 4 bits per element with a scale per group of a row, and products
// with them. Activations stay floating point.
//
// A group is `group` consecutive elements of a row (the last may be shorter), or the whole row. An
// element is code * scale, or code * scale + minimum. Codes are
//   8 bits  -127..127, scale = largest magnitude / 127
//   4 bits  -8..7, scale = the element of largest magnitude / -8: it may be negative
//   4 bits with minima  0..15, scale = (maximum - minimum) / 15
// rounded to nearest with the scale and minimum as they are stored, in bf16 (the minimum rounded
// down).
//
// Layout: panels of 16 rows, missing rows zero. A panel holds for every element of k, rounded up to
// a multiple of 8, the codes of its 16 rows side by side. 8 bits: [k][16] signed bytes. 4 bits:
// [k / 8][16] words of 32 bits; the word of a row holds elements 8 c + e, e = 0..7, from bit
// 4 (e / 2) + 16 (e % 2), as unsigned numbers (code + 8 without minima). Scales and minima:
// [panels][groups][16].
#pragma once

#include <cstdint>

#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/float_type.h"

namespace ds::kernels {

inline constexpr int64_t kPanelRows = 16;

struct QuantizedShape {
  int bits = 8;         // 8 or 4
  bool minima = false;  // 4 bits only
  int64_t n = 0;
  int64_t k = 0;
  int64_t group = 0;  // a multiple of 8, or 0 = the whole row

  constexpr int64_t panels() const { return (n + kPanelRows - 1) / kPanelRows; }
  constexpr int64_t padded_k() const { return (k + 7) / 8 * 8; }
  constexpr int64_t group_length() const {
    return group > 0 && group < padded_k() ? group : padded_k();
  }
  constexpr int64_t groups() const {
    return k == 0 ? 0 : (padded_k() + group_length() - 1) / group_length();
  }
  constexpr int64_t panel_bytes() const { return padded_k() * kPanelRows * bits / 8; }
  int64_t code_bytes() const { return panels() * panel_bytes(); }
  int64_t scale_count() const { return panels() * groups() * kPanelRows; }  // of minima too
};

struct QuantizedMatrix : QuantizedShape {
  const uint8_t* codes = nullptr;
  const bfloat16* scales = nullptr;
  const bfloat16* minimum = nullptr;  // with `minima`

  float scale(int64_t row, int64_t column) const { return to_float(scales[place(row, column)]); }
  // One element, for those who do not hurry.
  float at(int64_t row, int64_t column) const;

 private:
  int64_t place(int64_t row, int64_t column) const {
    return (row / kPanelRows * groups() + column / group_length()) * kPanelRows + row % kPanelRows;
  }
};

// w [n, k] of finite numbers; the outputs have the sizes that the shape gives. On a GPU, codes,
// scales and minima begin at multiples of 16 bytes, here and wherever they are read.
void quantize(const QuantizedShape& shape, const float* w, uint8_t* codes, bfloat16* scales,
              bfloat16* minimum, ThreadPool& pool);
void quantize(const QuantizedShape& shape, const float* w, uint8_t* codes, bfloat16* scales,
              bfloat16* minimum, const GpuStream& on);

// Back to fp32: out [n, k].
void dequantize(const QuantizedMatrix& w, float* out, ThreadPool& pool);
void dequantize(const QuantizedMatrix& w, float* out, const GpuStream& on);

// Columns first * 16 to (first + panels) * 16 of w^T as dense rows [k][panels * 16].
void dequantize_panels(const QuantizedMatrix& w, int64_t first, int64_t panels, FloatType type,
                       void* out, ThreadPool& pool);
void dequantize_panels(const QuantizedMatrix& w, int64_t first, int64_t panels, FloatType type,
                       void* out, const GpuStream& on);

// y = x w^T + bias for few rows of x, as kernels/gemv/gemv.h does it, with the same promises.
struct QuantizedGemv {
  QuantizedMatrix w;
  FloatType type = FloatType::kFloat32;  // of x and bias
  FloatType out = FloatType::kFloat32;   // of y
  int64_t m = 0;                         // 0..kMaxGemvRows
  const void* x = nullptr;               // [m, k]
  const void* bias = nullptr;            // [n] or null
  void* y = nullptr;                     // [m, n]
};
void quantized_gemv(const QuantizedGemv& call, ThreadPool& pool);
void quantized_gemv(const QuantizedGemv& call, const GpuStream& on);

// The reference of quantize in double, one element at a time: what `codes` should dequantize to,
// given the stored scales and minima. w and out [n, k].
void quantize_ref(const QuantizedMatrix& stored, const double* w, double* out);

}  // namespace ds::kernels
