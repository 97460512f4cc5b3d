// Tiles of the program's own in the place of AMX's, so that code for these runs on CPUs that have
// AVX-512 with bf16 conversions alone. Products of bf16 take subnormal numbers for zero and sum
// even and odd terms apart, as the instruction does; the order of its additions is not specified
// beyond that.
#pragma once

#include <cstdint>
#include <cstring>

namespace ds::kernels::amx {

struct Tile {
  uint8_t rows[16][64];  // zero beyond the shape
  int64_t row_count = 0, row_bytes = 0;
};
inline Tile& tile(int number) {
  static thread_local Tile tiles[8];
  return tiles[number];
}

// Of the operand: the bytes of a row from 16 on, 2 for each tile, the numbers of rows from 48 on.
inline void configure(const void* shapes) {
  const auto* const bytes = static_cast<const uint8_t*>(shapes);
  for (int64_t number = 0; number < 8; ++number) {
    Tile& to = tile(static_cast<int>(number));
    to = {};
    to.row_bytes = bytes[16 + 2 * number];
    to.row_count = bytes[48 + number];
  }
}
inline void release() {}

template <int kTile>
void zero() {
  std::memset(tile(kTile).rows, 0, sizeof(Tile::rows));
}
template <int kTile>
void load(const void* from, int64_t stride = 64) {
  Tile& to = tile(kTile);
  for (int64_t r = 0; r < to.row_count; ++r) {
    std::memcpy(to.rows[r], static_cast<const char*>(from) + r * stride,
                static_cast<size_t>(to.row_bytes));
  }
}
template <int kTile>
void load_once(const void* from, int64_t stride = 64) {
  load<kTile>(from, stride);
}
template <int kTile>
void store(void* to, int64_t stride = 64) {
  const Tile& from = tile(kTile);
  for (int64_t r = 0; r < from.row_count; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, from.rows[r],
                static_cast<size_t>(from.row_bytes));
  }
}

// A row of a tile as numbers, and back.
template <class T>
void read(const uint8_t* row, T (&to)[64 / sizeof(T)]) {
  std::memcpy(to, row, 64);
}

struct BFloat16Product {
  static float number(uint16_t bits) {
    const bool subnormal = (bits & 0x7F80u) == 0;
    const uint32_t wide = static_cast<uint32_t>(subnormal ? bits & 0x8000u : bits) << 16;
    float out;
    std::memcpy(&out, &wide, sizeof(out));
    return out;
  }
  // The even and the odd numbers of each row.
  struct Numbers {
    explicit Numbers(const Tile& of) {
      for (int r = 0; r < 16; ++r) {
        uint16_t row[32];
        read(of.rows[r], row);
        for (int n = 0; n < 16; ++n) {
          even[r][n] = number(row[2 * n]);
          odd[r][n] = number(row[2 * n + 1]);
        }
      }
    }
    float even[16][16], odd[16][16];
  };
  // A product of two numbers of 8 bits is exact in fp32.
  template <int kSum, int kLeft, int kRight>
  static void add() {
    const Numbers left(tile(kLeft)), right(tile(kRight));
    for (int r = 0; r < 16; ++r) {
      float sums[16], even[16] = {}, odd[16] = {};
      for (int k = 0; k < 16; ++k) {
        const float a = left.even[r][k], b = left.odd[r][k];
        for (int n = 0; n < 16; ++n) even[n] += a * right.even[k][n];
        for (int n = 0; n < 16; ++n) odd[n] += b * right.odd[k][n];
      }
      read(tile(kSum).rows[r], sums);
      for (int n = 0; n < 16; ++n) sums[n] += even[n] + odd[n];
      std::memcpy(tile(kSum).rows[r], sums, 64);
    }
  }
};

struct Int8Product {
  template <int kSum, int kLeft, int kRight>
  static void add() {
    for (int r = 0; r < 16; ++r) {
      int8_t left[64];
      int32_t sums[16];
      read(tile(kLeft).rows[r], left);
      read(tile(kSum).rows[r], sums);
      for (int k = 0; k < 16; ++k) {
        int8_t right[64];
        read(tile(kRight).rows[k], right);
        for (int n = 0; n < 16; ++n) {
          for (int e = 0; e < 4; ++e) sums[n] += left[4 * k + e] * right[4 * n + e];
        }
      }
      std::memcpy(tile(kSum).rows[r], sums, 64);
    }
  }
};

}  // namespace ds::kernels::amx
