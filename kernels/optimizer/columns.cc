#include "kernels/optimizer/columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/thread_pool.h"

namespace ds::kernels {
namespace {

constexpr int64_t kGrain = int64_t{1} << 14;

template <class T>
void gather(const void* from, Places places, void* to, ThreadPool& pool) {
  const T* const in = static_cast<const T*>(from);
  T* const out = static_cast<T*>(to);
  pool.for_range(std::ssize(places), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = in[places[static_cast<size_t>(i)]];
  });
}

template <class T>
void scatter(const void* from, Places places, void* to, ThreadPool& pool) {
  const T* const in = static_cast<const T*>(from);
  T* const out = static_cast<T*>(to);
  pool.for_range(std::ssize(places), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[places[static_cast<size_t>(i)]] = in[i];
  });
}

}  // namespace

void gather_elements(const void* from, int64_t item, Places places, void* to, ThreadPool& pool) {
  item == 2 ? gather<uint16_t>(from, places, to, pool) : gather<uint32_t>(from, places, to, pool);
}

void scatter_elements(const void* from, int64_t item, Places places, void* to, ThreadPool& pool) {
  item == 2 ? scatter<uint16_t>(from, places, to, pool) : scatter<uint32_t>(from, places, to, pool);
}

// Of each place the elements between the one before it and itself; then those behind the last one.
void copy_others(const void* from, int64_t item, int64_t n, Places places, void* to,
                 ThreadPool& pool) {
  const auto* const in = static_cast<const std::byte*>(from);
  auto* const out = static_cast<std::byte*>(to);
  const int64_t count = std::ssize(places);
  const auto place = [&](int64_t i) {
    return i < 0 ? int64_t{-1} : i < count ? places[static_cast<size_t>(i)] : n;
  };
  pool.for_range(count + 1, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = place(i - 1) + 1, last = place(i);
      if (first == last) continue;
      std::memcpy(out + first * item, in + first * item,
                  static_cast<size_t>((last - first) * item));
    }
  });
}

void clear_elements(Places places, float* array, ThreadPool& pool) {
  pool.for_range(std::ssize(places), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) array[places[static_cast<size_t>(i)]] = 0;
  });
}

void add_scaled(int64_t n, const float* grad, float scale, bool add, float* sum, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    if (add) {
      for (int64_t i = begin; i < end; ++i) sum[i] += grad[i] * scale;
    } else {
      for (int64_t i = begin; i < end; ++i) sum[i] = grad[i] * scale;
    }
  });
}

void mean_of(int64_t n, const float* grad, float scale, const float* sum, int64_t count, float* out,
             ThreadPool& pool) {
  const auto divisor = static_cast<float>(count);
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    if (sum != nullptr) {
      for (int64_t i = begin; i < end; ++i) out[i] = (sum[i] + grad[i] * scale) / divisor;
    } else {
      for (int64_t i = begin; i < end; ++i) out[i] = grad[i] * scale / divisor;
    }
  });
}

// Threads share the columns, so that each sum has one writer.
void add_column_sums(int64_t n, const float* grad, int64_t first, int64_t columns, double unit,
                     int64_t* sums, ThreadPool& pool) {
  constexpr int64_t kColumns = 256;
  const int64_t offset = first % columns;  // of the first element's column
  const int64_t rows = (offset + n + columns - 1) / columns;
  pool.for_range(columns, kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t start = row * columns - offset;  // of the row, in the n elements
      const int64_t from = std::max(begin, -start), to = std::min(end, n - start);
      for (int64_t column = from; column < to; ++column) {
        const double units = std::fabs(static_cast<double>(grad[start + column])) * unit;
        sums[column] +=
            units < static_cast<double>(kMostUnits) ? static_cast<int64_t>(units) : kMostUnits;
      }
    }
  });
}

}  // namespace ds::kernels
