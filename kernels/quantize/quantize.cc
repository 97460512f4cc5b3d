// Turning weights into codes, and reading single elements. This happens once per model, so it is
// written for the portable target alone.
#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>

namespace ds::kernels {
namespace {

// Round to nearest, ties to even, for |x| < 2^22: the sum's low bits are the integer.
int32_t nearest(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return static_cast<int32_t>(x + kMagic - kMagic);
}

float inverse(float scale) {
  const float inverted = 1 / scale;
  return scale == 0 || !std::isfinite(inverted) ? 0.0f : inverted;
}

// The largest bf16 that is not above x: a minimum above it would cut elements off.
bfloat16 rounded_down(float x) {
  bfloat16 r = to_bfloat16(x);
  if (to_float(r) > x) r.bits = static_cast<uint16_t>(x > 0 ? r.bits - 1 : r.bits + 1);
  return r;
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
  int32_t low = 0, high = 0;  // of the codes
  int32_t shift = 0;          // added when they are stored
  int32_t operator()(float w) const {
    const float x = std::min(std::max((w - base) * inverse, -512.0f), 512.0f);
    return std::min(std::max(nearest(x), low), high) + shift;
  }
};

Codes codes_for(const QuantizedShape& s, const float* w, int64_t n) {
  const Range r = range_of(w, n);
  const float largest = std::max(std::abs(r.low), std::abs(r.high));
  Codes c;
  if (s.bits == 8) {
    c.scale = to_bfloat16(largest / 127);
    c.low = -127;
    c.high = 127;
  } else if (s.minima) {
    c.minimum = rounded_down(r.low);
    c.base = to_float(c.minimum);
    c.scale = to_bfloat16((r.high - c.base) / 15);
    c.high = 15;
  } else {
    c.scale = to_bfloat16((std::abs(r.low) >= std::abs(r.high) ? r.low : r.high) / -8);
    c.low = -8;
    c.high = 7;
    c.shift = 8;
  }
  c.inverse = inverse(to_float(c.scale));
  return c;
}

int64_t bit_of(int64_t column) { return 4 * (column % 8 / 2) + 16 * (column % 2); }

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
