// What updates of some columns of matrices need: their elements packed and put back, and the
// gradients of the others added up. Elements are named by their places in ascending order.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool_fwd.h"

namespace ds::kernels {

using Places = std::span<const int32_t>;

// Elements of `item` bytes, 2 or 4: those at the places, packed; packed ones put there; and all of
// n but those, copied to the same places.
void gather_elements(const void* from, int64_t item, Places places, void* to, ThreadPool& pool);
void scatter_elements(const void* from, int64_t item, Places places, void* to, ThreadPool& pool);
void copy_others(const void* from, int64_t item, int64_t n, Places places, void* to,
                 ThreadPool& pool);
void clear_elements(Places places, float* array, ThreadPool& pool);

// sum = grad * scale, or that added to it.
void add_scaled(int64_t n, const float* grad, float scale, bool add, float* sum, ThreadPool& pool);
// out = (sum + grad * scale) / count; without `sum` that is zero. `out` may be `sum`.
void mean_of(int64_t n, const float* grad, float scale, const float* sum, int64_t count, float* out,
             ThreadPool& pool);

// Magnitudes by column, as whole multiples of 1 / unit, at most kMostUnits for an element and for
// one that is not a number: so the sums do not depend on how rows are shared. The first of the n
// elements is element `first` of the matrix.
inline constexpr int64_t kMostUnits = int64_t{1} << 38;
void add_column_sums(int64_t n, const float* grad, int64_t first, int64_t columns, double unit,
                     int64_t* sums, ThreadPool& pool);

}  // namespace ds::kernels
