// Turning weights into codes, and reading single elements. This happens once per model, so it is
// written for the portable target alone.
#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/quantize/rounding.h"

namespace ds::kernels {
namespace {

bfloat16 rounded_down(float x) {
  const bfloat16 r = to_bfloat16(x);
  return {bits_not_above(x, r.bits, to_float(r))};
}

struct Range {
  float low = 0, high = 0;
};
Range range_of(const float* w, int64_t n) {
  Range r{w[0], w[0]};
  for (int64_t i = 1; i < n; ++i) {
    r.low = std::min(r.low, w[i]);
    r.high = std::max(r.high, w[i]);
  }
  return r;
}

struct Codes {
  bfloat16 scale, minimum;
  float inverse = 0, base = 0;
  CodeRange range;
  int32_t operator()(float w) const {
    return nearest_code((w - base) * inverse, range.low, range.high) + range.shift;
  }
};

Codes codes_for(const QuantizedShape& s, const float* w, int64_t n) {
  const Range r = range_of(w, n);
  Codes c;
  c.range = code_range(s.bits, s.minima);
  if (s.minima) c.minimum = rounded_down(r.low);
  c.base = to_float(c.minimum);
  c.scale = to_bfloat16(group_scale(s.bits, s.minima, r.low, r.high, c.base));
  c.inverse = inverse_of(to_float(c.scale));
  return c;
}

void quantize_panel(const QuantizedShape& s, int64_t panel, const float* w, uint8_t* codes,
                    bfloat16* scales, bfloat16* minimum) {
  codes += panel * s.panel_bytes();
  // What no element fills must not disturb products: code 0 under scale 0 and minimum 0.
  std::fill_n(codes, s.panel_bytes(), uint8_t{0});
  const int64_t first = panel * s.groups() * kPanelRows;
  for (int64_t i = first; i < first + s.groups() * kPanelRows; ++i) {
    scales[i] = bfloat16{};
    if (s.minima) minimum[i] = bfloat16{};
  }
  for (int64_t r = 0; r < std::min(kPanelRows, s.n - panel * kPanelRows); ++r) {
    const float* row = w + (panel * kPanelRows + r) * s.k;
    for (int64_t g = 0; g < s.groups(); ++g) {
      const int64_t begin = g * s.group_length();
      const int64_t end = std::min(begin + s.group_length(), s.k);
      const Codes code = codes_for(s, row + begin, end - begin);
      scales[first + g * kPanelRows + r] = code.scale;
      if (s.minima) minimum[first + g * kPanelRows + r] = code.minimum;
      for (int64_t l = begin; l < end; ++l) {
        const int32_t q = code(row[l]);
        if (s.bits == 8) {
          codes[l * kPanelRows + r] = static_cast<uint8_t>(q);
        } else {
          auto* words = reinterpret_cast<uint32_t*>(codes);
          words[l / 8 * kPanelRows + r] |= static_cast<uint32_t>(q) << bit_of(l);
        }
      }
    }
  }
}

}  // namespace

float QuantizedMatrix::at(int64_t row, int64_t column) const {
  const uint8_t* panel = codes + row / kPanelRows * panel_bytes();
  const int64_t r = row % kPanelRows;
  if (bits == 8) {
    return static_cast<float>(static_cast<int8_t>(panel[column * kPanelRows + r])) *
           scale(row, column);
  }
  const uint32_t word = reinterpret_cast<const uint32_t*>(panel)[column / 8 * kPanelRows + r];
  const auto code = static_cast<float>(word >> bit_of(column) & 15u);
  return minima ? code * scale(row, column) + to_float(minimum[place(row, column)])
                : (code - 8) * scale(row, column);
}

void quantize(const QuantizedShape& shape, const float* w, uint8_t* codes, bfloat16* scales,
              bfloat16* minimum, ThreadPool& pool) {
  if (shape.k == 0) return;
  pool.for_range(shape.panels(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      quantize_panel(shape, p, w, codes, scales, minimum);
    }
  });
}

void dequantize(const QuantizedMatrix& w, float* out, ThreadPool& pool) {
  pool.for_range(w.n, kPanelRows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t l = 0; l < w.k; ++l) out[i * w.k + l] = w.at(i, l);
    }
  });
}

void quantize_ref(const QuantizedMatrix& stored, const double* w, double* out) {
  for (int64_t i = 0; i < stored.n; ++i) {
    for (int64_t l = 0; l < stored.k; ++l) {
      const double scale = stored.scale(i, l);
      const double base =
          stored.minima
              ? to_float(
                    stored.minimum[(i / kPanelRows * stored.groups() + l / stored.group_length()) *
                                       kPanelRows +
                                   i % kPanelRows])
              : 0.0;
      const double low = stored.bits == 8 ? -127 : stored.minima ? 0 : -8;
      const double high = stored.bits == 8 ? 127 : stored.minima ? 15 : 7;
      const double at = scale == 0 ? 0 : (w[i * stored.k + l] - base) / scale;
      out[i * stored.k + l] = std::clamp(std::nearbyint(at), low, high) * scale + base;
    }
  }
}

}  // namespace ds::kernels
