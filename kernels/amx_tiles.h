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

// Adds left times right to the sums; uses tiles 4 to 7.
template <class Product>
inline __attribute__((always_inline)) void add_product(const LeftRows& a, const RightColumns& b) {
  load<6>(b.left, b.stride);
  load<4>(a.upper, a.stride);
  Product::template add<0, 4, 6>();
  load<5>(a.lower, a.stride);
  Product::template add<2, 5, 6>();
  load<7>(b.right, b.stride);
  Product::template add<1, 4, 7>();
  Product::template add<3, 5, 7>();
}

}  // namespace ds::kernels::amx
