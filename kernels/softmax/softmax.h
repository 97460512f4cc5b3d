// Softmax over rows of attention scores: plain, scaled, with a mask, causal, or all of these. Any
// number of rows and any length; arithmetic is fp32 whatever the element type.
#pragma once

#include <cstdint>

#include "base/thread_pool_fwd.h"
#include "kernels/float_type.h"

namespace ds::kernels {

// y = softmax(scale * x) over the keys of x [batch, heads, queries, keys]; y may be x. A key is
// hidden from a query where the mask is 0, or with `causal` where it lies behind the query, the
// last of both being aligned: query i sees keys 0 to i + keys - queries. What is hidden, or -inf,
// has the probability 0. A row that sees nothing is 0 throughout.
struct Softmax {
  FloatType type = FloatType::kFloat32;
  int64_t batch = 0, heads = 0, queries = 0, keys = 0;
  float scale = 1;
  bool causal = false;
  const void* x = nullptr;
  const uint8_t* mask = nullptr;  // rows of `keys` bytes, or null
  int64_t mask_strides[3] = {};   // of batch, heads and queries; 0 where they share rows
  void* y = nullptr;

  int64_t rows() const { return batch * heads * queries; }
};
void softmax(const Softmax& call, ThreadPool& pool);

// dx = scale * y * (dy - sum of y dy over the row), for `rows` rows of `keys` elements; dx may be y
// or dy.
struct SoftmaxBackward {
  FloatType type = FloatType::kFloat32;
  int64_t rows = 0, keys = 0;
  float scale = 1;
  const void* y = nullptr;
  const void* dy = nullptr;
  void* dx = nullptr;
};
void softmax_backward(const SoftmaxBackward& call, ThreadPool& pool);

namespace reference {
// One row, of which the first `visible` keys may be seen; `mask` may be null.
void softmax(const double* x, const uint8_t* mask, int64_t visible, int64_t keys, double scale,
             double* y);
void softmax_backward(const double* y, const double* dy, int64_t keys, double scale, double* dx);
}  // namespace reference

}  // namespace ds::kernels
