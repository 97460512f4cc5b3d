// Products of bf16 tiles for attention, in the layouts of tile_layouts.h: by AMX, or by AVX-512's
// dot products of bf16 pairs where a CPU has no more than these. Included by the same files.
//
// Both sum in fp32 and take subnormal numbers for 0; the order of additions differs.
#pragma once

#include <cstring>
#include <optional>

#include "kernels/amx_tiles.h"
#include "kernels/attention/tile_layouts.h"
#include "kernels/attention/tiles.h"
#include "kernels/cpu.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace ds::kernels::tile {

// A row of 2 x 2 results. Distances are in elements of their type unless they say bytes.
struct ResultRow {
  const uint16_t *left = nullptr, *right = nullptr;
  float* sums = nullptr;
  int64_t left_lower = 0, left_step = 0, left_part = 0, left_stride = 64;  // stride in bytes
  int64_t right_column = 0, right_step = 0;                                // columns of kSide
  int64_t sums_column = 0, sums_lower = 0, sums_stride = 64;               // stride in bytes
  int64_t steps = 0, count = 0;  // products per result, results
  bool add = false;              // to what sums hold
};

// ---- by AMX, for threads that have AmxTiles ----

inline void load_sums(const ResultRow& row, float* sums) {
  const float* const lower = sums + row.sums_lower;
  amx::load<0>(sums, row.sums_stride);
  amx::load<1>(sums + row.sums_column, row.sums_stride);
  amx::load<2>(lower, row.sums_stride);
  amx::load<3>(lower + row.sums_column, row.sums_stride);
}
inline void store_sums(const ResultRow& row, float* sums) {
  float* const lower = sums + row.sums_lower;
  amx::store<0>(sums, row.sums_stride);
  amx::store<1>(sums + row.sums_column, row.sums_stride);
  amx::store<2>(lower, row.sums_stride);
  amx::store<3>(lower + row.sums_column, row.sums_stride);
}
inline void begin_sums(const ResultRow& row, float* sums) {
  if (row.add) {
    load_sums(row, sums);
  } else {
    amx::zero_sums();
  }
}

// Left tiles have rows `stride` bytes apart.
inline void load_left(const uint16_t* upper, const uint16_t* lower, int64_t stride) {
  amx::load<4>(upper, stride);
  amx::load<5>(lower, stride);
}
// Right ones of one part are read once, and leave the first-level cache to the rest.
template <int kNumber>
inline void load_right(const uint16_t* first, const uint16_t* second) {
  amx::load_kept<6, kNumber != 1>(first, 64);
  amx::load_kept<7, kNumber != 1>(second, 64);
}
inline void add_loaded() {
  amx::BFloat16Product::add<0, 4, 6>();
  amx::BFloat16Product::add<1, 4, 7>();
  amx::BFloat16Product::add<2, 5, 6>();
  amx::BFloat16Product::add<3, 5, 7>();
}

// The part of either operand in each partial product: one changes at a time, and the largest
// product comes last.
template <int kNumber>
struct Partial {
  static constexpr int kCount = kNumber == 1 ? 1 : 6;
  static constexpr int kLeft[6] = {2, 1, 1, 0, 0, 0}, kRight[6] = {0, 0, 1, 1, 2, 0};
  static constexpr int left(int i) { return kNumber == 1 ? 0 : kLeft[i]; }
  static constexpr int right(int i) { return kNumber == 1 ? 0 : kRight[i]; }
  static constexpr bool new_left(int i) { return i == 0 || left(i) != left(i - 1); }
  static constexpr bool new_right(int i) { return i == 0 || right(i) != right(i - 1); }
};

// Adds all partial products of one step.
template <int kNumber>
inline void add_step(const ResultRow& row, const uint16_t* left, const uint16_t* right) {
  using Each = Partial<kNumber>;
#pragma GCC unroll 6
  for (int i = 0; i < Each::kCount; ++i) {
    const uint16_t* const a = left + Each::left(i) * row.left_part;
    const uint16_t* const b = right + Each::right(i) * kTile;
    if (Each::new_left(i)) load_left(a, a + row.left_lower, row.left_stride);
    if (Each::new_right(i)) load_right<kNumber>(b, b + row.right_column);
    add_loaded();
  }
}

template <int kNumber>
inline void multiply_on_amx(const ResultRow& row) {
  const uint16_t* right = row.right;
  float* sums = row.sums;
  for (int64_t i = 0; i < row.count; ++i) {
    begin_sums(row, sums);
    for (int64_t step = 0; step < row.steps; ++step) {
      add_step<kNumber>(row, row.left + step * row.left_step, right + step * row.right_step);
    }
    store_sums(row, sums);
    right += 2 * row.right_column;
    sums += 2 * row.sums_column;
  }
}

// ---- by dot products ----

inline constexpr int64_t kDotRows = 8;  // of sums in registers, two vectors each
static_assert(kSide % kDotRows == 0);

inline __m512bh load_pairs(const uint16_t* p) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(p));
}
inline __m512bh broadcast_pair(const uint16_t* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

// kDotRows rows of a result from left, which lie left_stride bytes apart.
inline void multiply_rows(const ResultRow& row, const uint16_t* left, const uint16_t* right,
                          float* sums) {
  __m512 sum[kDotRows][2];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kDotRows; ++r) {
    const float* const from = sums + r * row.sums_stride / 4;
    sum[r][0] = row.add ? _mm512_load_ps(from) : _mm512_setzero_ps();
    sum[r][1] = row.add ? _mm512_load_ps(from + row.sums_column) : _mm512_setzero_ps();
  }
  for (int64_t step = 0; step < row.steps; ++step) {
    const uint16_t* a = left + step * row.left_step;
    const uint16_t* b = right + step * row.right_step;
    for (int64_t k = 0; k < kTerms; k += 2, a += 2, b += 2 * kSide) {
      const __m512bh b0 = load_pairs(b), b1 = load_pairs(b + row.right_column);
#pragma GCC unroll 8
      for (int64_t r = 0; r < kDotRows; ++r) {
        const __m512bh pair = broadcast_pair(a + r * row.left_stride / 2);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], pair, b0);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], pair, b1);
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < kDotRows; ++r) {
    float* const to = sums + r * row.sums_stride / 4;
    _mm512_store_ps(to, sum[r][0]);
    _mm512_store_ps(to + row.sums_column, sum[r][1]);
  }
}

inline void multiply_by_dots(const ResultRow& row) {
  const uint16_t* right = row.right;
  float* sums = row.sums;
  for (int64_t i = 0; i < row.count; ++i) {
    for (int64_t r = 0; r < kSide; r += kDotRows) {
      const uint16_t* const left = row.left + r * row.left_stride / 2;
      float* const to = sums + r * row.sums_stride / 4;
      multiply_rows(row, left, right, to);
      multiply_rows(row, left + row.left_lower, right, to + row.sums_lower);
    }
    right += 2 * row.right_column;
    sums += 2 * row.sums_column;
  }
}

// ---- by what the CPU has ----

template <int kNumber>
inline void multiply(TileUnit unit, const ResultRow& row) {
  if constexpr (kNumber == 1) {
    if (unit == TileUnit::kDots) return multiply_by_dots(row);
  }
  multiply_on_amx<kNumber>(row);
}

// The tiles of this thread, where they are AMX's.
class Session {
 public:
  explicit Session(TileUnit unit) {
    if (unit == TileUnit::kAmx) tiles_.emplace();
  }

 private:
  std::optional<AmxTiles> tiles_;
};

// A row of results, computed a partial product at a time on AMX, so that callers can do other work
// in between that leaves the tiles alone.
template <int kNumber>
struct Products : ResultRow {
  TileUnit unit = TileUnit::kAmx;

  bool done() const { return count == 0; }
  int64_t left_over() const {
    return count == 0 ? 0 : (count * steps - step_) * Partial<kNumber>::kCount - part_;
  }

  void advance() {
    using Each = Partial<kNumber>;
    if (step_ == 0 && part_ == 0) begin_sums(*this, sums);
    const uint16_t* a = left + step_ * left_step + Each::left(part_) * left_part;
    const uint16_t* b = right + step_ * right_step + Each::right(part_) * kTile;
    if (Each::new_left(part_)) load_left(a, a + left_lower, left_stride);
    if (Each::new_right(part_)) load_right<kNumber>(b, b + right_column);
    add_loaded();
    if (++part_ < Each::kCount) return;
    part_ = 0;
    if (++step_ < steps) return;
    step_ = 0;
    end();
  }
  void finish() {
    if constexpr (kNumber == 1) {
      if (unit == TileUnit::kDots) {
        multiply_by_dots(*this);
      } else {
        while (step_ > 0) advance();
        if (steps == 2) {
          multiply_two_steps();
        } else {
          multiply_on_amx<kNumber>(*this);
        }
      }
      count = 0;
    } else {
      while (!done()) advance();
    }
  }

 private:
  void end() {
    store_sums(*this, sums);
    right += 2 * right_column;
    sums += 2 * sums_column;
    --count;
  }
  // The four left tiles stay in registers: three tiles are loaded where the other way loads four.
  void multiply_two_steps() const {
    amx::load<4>(left, left_stride);
    amx::load<5>(left + left_step, left_stride);
    amx::load<6>(left + left_lower, left_stride);
    amx::load<7>(left + left_lower + left_step, left_stride);
    for (int64_t column = 0; column < 2 * count; ++column) {
      const uint16_t* b = right + column * right_column;
      float* const upper = sums + column * sums_column;
      float* const lower = upper + sums_lower;
      if (add) {
        amx::load<0>(upper, sums_stride);
        amx::load<1>(lower, sums_stride);
      } else {
        amx::zero<0>();
        amx::zero<1>();
      }
      amx::load_once<2>(b);
      amx::load_once<3>(b + right_step);
      amx::BFloat16Product::add<0, 4, 2>();
      amx::BFloat16Product::add<1, 6, 2>();
      amx::BFloat16Product::add<0, 5, 3>();
      amx::BFloat16Product::add<1, 7, 3>();
      amx::store<0>(upper, sums_stride);
      amx::store<1>(lower, sums_stride);
    }
  }
  int part_ = 0;
  int64_t step_ = 0;
};

}  // namespace ds::kernels::tile

#pragma GCC pop_options
