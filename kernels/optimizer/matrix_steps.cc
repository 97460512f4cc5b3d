// The steps on the CPU.
#include "kernels/optimizer/matrix_steps.h"

#include <cmath>

#include "base/thread_pool.h"

namespace ds::kernels {
namespace {
constexpr int64_t kGrain = int64_t{1} << 15;
}

void combine(int64_t n, float a, const float* x, float b, float* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [=](int64_t begin, int64_t end) {
    if (b == 0) {
      for (int64_t i = begin; i < end; ++i) y[i] = a * x[i];
    } else {
      for (int64_t i = begin; i < end; ++i) y[i] = a * x[i] + b * y[i];
    }
  });
}

void divide_by_norm(int64_t n, const double* squares, double eps, float* y, ThreadPool& pool) {
  const auto factor = static_cast<float>(1 / (std::sqrt(*squares) + eps));
  pool.for_range(n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] *= factor;
  });
}

void add_to_diagonal(int64_t side, float value, float* y, ThreadPool&) {
  for (int64_t i = 0; i < side; ++i) y[i * side + i] += value;
}

}  // namespace ds::kernels
