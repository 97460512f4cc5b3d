// Blocks to codes and back. Plain loops: the way between ranks, not this, takes the time.
#include "kernels/quantize/block_quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/quantize/rounding.h"

namespace ds::kernels {
namespace {

using Block = std::array<float, kMostBlockElements>;

// Blocks that one thread takes at a time.
constexpr int64_t kGrain = 16;

template <class T>
void widen(const T* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_float(x[i]);
}

template <int kBits>
int32_t code_of(float x, float inverse) {
  constexpr int32_t kMost = (1 << (kBits - 1)) - 1;
  return nearest_code(x * inverse, -kMost - 1, kMost);
}

// The stored scale and what elements are multiplied with.
template <int kBits>
std::pair<float, float> scales_of(const float* x, int64_t n) {
  float low = 0, high = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    finite = finite && std::isfinite(x[i]);
  }
  if (!finite) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  const float scale = (-low >= high ? low : high) / static_cast<float>(-(1 << (kBits - 1)));
  const float inverse = inverse_of(scale);
  return {inverse == 0 ? 0.0f : scale, inverse};
}

template <int kBits>
void encode(const float* x, int64_t n, float inverse, uint8_t* codes) {
  if (inverse == 0) {
    std::fill_n(codes, (n * kBits + 7) / 8, uint8_t{0});
  } else if constexpr (kBits == 8) {
    for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(code_of<8>(x[i], inverse));
  } else {
    for (int64_t i = 0; i < n; i += 2) {
      const int32_t above = code_of<4>(x[i], inverse);
      const int32_t below = i + 1 < n ? code_of<4>(x[i + 1], inverse) : 0;
      codes[i / 2] = static_cast<uint8_t>((above & 15) << 4 | (below & 15));
    }
  }
}

template <int kBits>
void decode(const uint8_t* codes, int64_t n, float scale, float* out) {
  if constexpr (kBits == 8) {
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scale;
    }
  } else {
    for (int64_t i = 0; i < n; i += 2) {
      const auto pair = static_cast<int8_t>(codes[i / 2]);
      out[i] = static_cast<float>(pair >> 4) * scale;
      if (i + 1 < n) {
        out[i + 1] = static_cast<float>(static_cast<int8_t>(codes[i / 2] << 4) >> 4) * scale;
      }
    }
  }
}

template <int kBits>
void quantize_one(int64_t begin, int64_t n, float* x, uint8_t* codes, float& scale,
                  const RoundingError* error, int64_t index) {
  Block old;
  if (error != nullptr) {
    decode<8>(error->codes + begin, n, error->scales[index], old.data());
    for (int64_t i = 0; i < n; ++i) x[i] += old[static_cast<size_t>(i)];
  }
  const auto [stored, inverse] = scales_of<kBits>(x, n);
  scale = stored;
  encode<kBits>(x, n, inverse, codes);
  if (error == nullptr) return;
  Block sent;
  decode<kBits>(codes, n, stored, sent.data());
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    old[at] = error->beta * old[at] + (1 - error->beta) * (x[i] - sent[at]);
  }
  auto [error_scale, error_inverse] = scales_of<8>(old.data(), n);
  if (!std::isfinite(error_scale)) error_scale = error_inverse = 0;  // of an overflow: forgotten
  error->scales[index] = error_scale;
  encode<8>(old.data(), n, error_inverse, error->codes + begin);
}

template <class T>
void put(const float* values, int64_t n, bool add, T* y) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = from_float<T>(add ? to_float(y[i]) + values[i] : values[i]);
  }
}

}  // namespace

void quantize_blocks(const BlockQuantize& call, ThreadPool& pool) {
  pool.for_range(block_count(call.begins), kGrain, [&](int64_t first, int64_t last) {
    Block block;
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = call.begins[static_cast<size_t>(i)];
      const int64_t n = call.begins[static_cast<size_t>(i) + 1] - begin;
      with_float_type(call.type, [&]<class T>(T) {
        widen(static_cast<const T*>(call.x) + begin, n, block.data());
      });
      float& scale = call.scales[i];
      if (call.bits == 8) {
        quantize_one<8>(begin, n, block.data(), call.codes + begin, scale, call.error, i);
      } else {
        quantize_one<4>(begin, n, block.data(), call.codes + begin / 2, scale, call.error, i);
      }
    }
  });
}

void dequantize_blocks(const BlockDequantize& call, ThreadPool& pool) {
  pool.for_range(block_count(call.begins), kGrain, [&](int64_t first, int64_t last) {
    Block block;
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = call.begins[static_cast<size_t>(i)];
      const int64_t n = call.begins[static_cast<size_t>(i) + 1] - begin;
      const float scale = call.scales[i] * call.factor;
      if (call.bits == 8) {
        decode<8>(call.codes + begin, n, scale, block.data());
      } else {
        decode<4>(call.codes + begin / 2, n, scale, block.data());
      }
      with_float_type(call.type, [&]<class T>(T) {
        put(block.data(), n, call.add, static_cast<T*>(call.y) + begin);
      });
    }
  });
}

int quantize_block_element_ref(int bits, double x, float scale) {
  const double most = bits == 8 ? 127 : 7;
  if (!(std::abs(scale) > 0)) return 0;
  return static_cast<int>(std::clamp(std::nearbyint(x / scale), -most - 1, most));
}

}  // namespace ds::kernels
