// The double-precision reference of softmax cross entropy.
#include <algorithm>
#include <cmath>

#include "kernels/loss/cross_entropy.h"

namespace ds::kernels {
namespace {

double log_sum_exp(const double* logits, int64_t valid) {
  const double largest = *std::max_element(logits, logits + valid);
  double sum = 0;
  for (int64_t j = 0; j < valid; ++j) sum += std::exp(logits[j] - largest);
  return largest + std::log(sum);
}

}  // namespace

CrossEntropyRow cross_entropy_ref(const double* logits, int32_t label, int64_t valid) {
  if (label < 0) return {};
  const double lse = log_sum_exp(logits, valid);
  return {lse - logits[label], lse};
}

void cross_entropy_backward_ref(const double* logits, int32_t label, int64_t columns, int64_t valid,
                                double scale, double* dlogits) {
  std::fill(dlogits, dlogits + columns, 0.0);
  if (label < 0) return;
  const double lse = log_sum_exp(logits, valid);
  for (int64_t j = 0; j < valid; ++j) dlogits[j] = scale * std::exp(logits[j] - lse);
  dlogits[label] -= scale;
}

}  // namespace ds::kernels
