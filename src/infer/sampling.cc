#include "infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace ds::infer {

void check_sampling(const SamplingOptions& options) {
  DS_CHECK(std::isfinite(options.temperature) && options.temperature >= 0, Code::kInvalidArgument,
           "temperature must be 0 or more, not ", options.temperature);
  DS_CHECK(options.top_k >= 0, Code::kInvalidArgument, "top_k must be 0 or more, not ",
           options.top_k);
  DS_CHECK(options.top_p >= 0 && options.top_p <= 1, Code::kInvalidArgument,
           "top_p must lie in [0, 1], not ", options.top_p);
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     double uniform) {
  DS_CHECK(std::none_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); }),
           Code::kInternal, "the model produced NaN logits: its weights are damaged");
  const auto likeliest =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (options.temperature == 0) return likeliest;

  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto keep = options.top_k > 0
                        ? std::min<size_t>(static_cast<size_t>(options.top_k), order.size())
                        : order.size();
  // Only truncation needs an order; plain sampling walks the vocabulary as it is.
  const bool nucleus = options.top_p > 0 && options.top_p < 1;
  if (keep < order.size() || nucleus) {
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep), order.end(),
                      better);
    order.resize(keep);
  }
  const double top = logits[static_cast<size_t>(likeliest)];
  std::vector<double> weights;
  weights.reserve(order.size());
  double total = 0;
  for (const int32_t id : order) {
    weights.push_back(std::exp((logits[static_cast<size_t>(id)] - top) / options.temperature));
    total += weights.back();
  }
  if (nucleus) {
    double sum = 0;
    size_t n = 0;
    while (n < weights.size() && sum < options.top_p * total) sum += weights[n++];
    weights.resize(std::max<size_t>(n, 1));
    total = sum;
  }
  double rest = uniform * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    rest -= weights[i];
    if (rest < 0) return order[i];
  }
  return order[weights.size() - 1];
}

}  // namespace ds::infer
