// Products of tiles (AMX) of 8 and 16-bit numbers.
//
// A tile is 16 rows of 64 bytes. In a product the left one holds 16 rows of terms, the right one
// groups of terms (of 4 bytes) for each of 16 columns, the sum 16 x 16 numbers of 4 bytes.
#pragma once

#include "kernels/amx_instructions.h"

namespace ds::kernels::amx {

// Sums of 2 x 2 results live in tiles 0 to 3.
inline __attribute__((always_inline)) void zero_sums() {
  zero<0>();
  zero<1>();
  zero<2>();
  zero<3>();
}

// A left operand of 32 rows: the tiles of its halves.
struct LeftRows {
  const void *upper, *lower;
  int64_t stride;  // bytes between rows
};
// A right operand of 32 columns.
struct RightColumns {
  const void *left, *right;
  int64_t stride;  // bytes between groups of terms
};

// Which operands are in the first-level cache when they are read, and stay there. Lines of the
// others would only take their places: so loaded, products are up to a quarter faster.
enum class Kept { kBoth, kLeft, kNone };

template <int kTile, bool kKept>
inline __attribute__((always_inline)) void load_kept(const void* from, int64_t stride) {
  if constexpr (kKept) {
    load<kTile>(from, stride);
  } else {
    load_once<kTile>(from, stride);
  }
}

// Adds left times right to the sums; uses tiles 4 to 7.
template <class Product, Kept kKept = Kept::kBoth>
inline __attribute__((always_inline)) void add_product(const LeftRows& a, const RightColumns& b) {
  constexpr bool kLeft = kKept != Kept::kNone, kRight = kKept == Kept::kBoth;
  load_kept<6, kRight>(b.left, b.stride);
  load_kept<4, kLeft>(a.upper, a.stride);
  Product::template add<0, 4, 6>();
  load_kept<5, kLeft>(a.lower, a.stride);
  Product::template add<2, 5, 6>();
  load_kept<7, kRight>(b.right, b.stride);
  Product::template add<1, 4, 7>();
  Product::template add<3, 5, 7>();
}

// The same, all loads first: where another thread of the core is at work, loads and products do not
// overlap, and each change from one to the other costs time.
template <class Product, Kept kKept>
inline __attribute__((always_inline)) void load_and_add_product(const LeftRows& a,
                                                                const RightColumns& b) {
  constexpr bool kLeft = kKept != Kept::kNone, kRight = kKept == Kept::kBoth;
  load_kept<6, kRight>(b.left, b.stride);
  load_kept<7, kRight>(b.right, b.stride);
  load_kept<4, kLeft>(a.upper, a.stride);
  load_kept<5, kLeft>(a.lower, a.stride);
  Product::template add<0, 4, 6>();
  Product::template add<1, 4, 7>();
  Product::template add<2, 5, 6>();
  Product::template add<3, 5, 7>();
}

}  // namespace ds::kernels::amx
