#include "infer/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace ds::infer {
namespace {

// The likeliest token, the lowest id on ties. The loops keep sixteen maxima, so that compilers
// turn them into vectors: a vocabulary is long.
int32_t likeliest_token(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  constexpr uint32_t kMagnitude = 0x7FFFFFFFu, kInfinity = 0x7F800000u;
  std::array<float, kLanes> best{};
  std::array<uint32_t, kLanes> nan{};
  best.fill(-INFINITY);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      best[lane] = x > best[lane] ? x : best[lane];
      nan[lane] |= kInfinity - (std::bit_cast<uint32_t>(x) & kMagnitude);  // negative for a NaN
    }
  }
  bool broken = std::any_of(nan.begin(), nan.end(), [](uint32_t n) { return n >> 31 != 0; });
  float top = *std::max_element(best.begin(), best.end());
  for (; i < logits.size(); ++i) {
    broken = broken || std::isnan(logits[i]);
    top = std::max(top, logits[i]);
  }
  DS_CHECK(!broken, Code::kInternal, "the model produced NaN logits: its weights are damaged");
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), top) - logits.begin());
}

// A token and its logit; `before` orders them, the likelier first, the lower id on ties.
struct Candidate {
  float logit;
  int32_t id;
};
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The `count` likeliest tokens in order. Most of the vocabulary is compared with one number.
std::vector<Candidate> likeliest(std::span<const float> logits, size_t count) {
  count = std::min(count, logits.size());
  std::vector<Candidate> heap;  // its front is the least likely of those kept
  heap.reserve(count);
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate next{logits[i], static_cast<int32_t>(i)};
    if (heap.size() < count) {
      heap.push_back(next);
      std::push_heap(heap.begin(), heap.end(), before);
    } else if (next.logit > heap.front().logit) {
      std::pop_heap(heap.begin(), heap.end(), before);
      heap.back() = next;
      std::push_heap(heap.begin(), heap.end(), before);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), before);
  return heap;
}

}  // namespace

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
  const int32_t best = likeliest_token(logits);
  if (options.temperature == 0) return best;
  const float top = logits[static_cast<size_t>(best)];
  const auto weight = [&](float logit) {
    const double distance = static_cast<double>(logit) - top;
    return static_cast<double>(std::exp(static_cast<float>(distance / options.temperature)));
  };
  const size_t vocabulary = logits.size();
  const size_t keep = options.top_k > 0 && static_cast<uint64_t>(options.top_k) < vocabulary
                          ? static_cast<size_t>(options.top_k)
                          : vocabulary;
  const bool nucleus = options.top_p > 0 && options.top_p < 1;
  // Only truncation needs an order; plain sampling walks the vocabulary as it is.
  if (keep == vocabulary && !nucleus) {
    std::vector<double> weights(vocabulary);
    double total = 0;
    for (size_t i = 0; i < vocabulary; ++i) total += weights[i] = weight(logits[i]);
    double rest = uniform * total;
    for (size_t i = 0; i < vocabulary; ++i) {
      rest -= weights[i];
      if (rest < 0) return static_cast<int32_t>(i);
    }
    return best;  // what rounding leaves over
  }
  // Of the whole vocabulary a nucleus is nearly always a small part: it is sought in a growing one.
  double total = 0;
  size_t seek = keep;
  if (nucleus && keep == vocabulary) {
    for (const float logit : logits) total += weight(logit);
    seek = std::min<size_t>(keep, 256);
  }
  for (;; seek = std::min(keep, seek * 8)) {
    const std::vector<Candidate> order = likeliest(logits, seek);
    double sum = 0;
    if (keep < vocabulary) {
      for (const Candidate& c : order) total += weight(c.logit);
    }
    size_t n = 0;
    const double wanted = nucleus ? options.top_p * total : total;
    while (n < order.size() && (n == 0 || !nucleus || sum < wanted))
      sum += weight(order[n++].logit);
    if (nucleus && sum < wanted && seek < keep) continue;
    double rest = uniform * sum;
    for (size_t i = 0; i < n; ++i) {
      rest -= weight(order[i].logit);
      if (rest < 0) return order[i].id;
    }
    return order[n - 1].id;
  }
}

}  // namespace ds::infer
