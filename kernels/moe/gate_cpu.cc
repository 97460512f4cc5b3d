// Gates. Loops over one token's experts, of which there are few hundred: products with the experts'
// weights take the time.
#include "kernels/moe/gate.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/softmax/softmax.h"

namespace ds::kernels {
namespace {

// Tokens that one thread takes at a time.
int64_t token_grain(int64_t experts) {
  return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, experts));
}

float noise_of(GateNoise kind, uint32_t bits, float strength) {
  switch (kind) {
    case GateNoise::kUniform:
      return uniform_from_bits(bits);
    case GateNoise::kGumbel: {
      const double u = (static_cast<double>(bits) + 0.5) * 0x1.0p-32;  // neither 0 nor 1
      return static_cast<float>(-std::log(-std::log(u)));
    }
    case GateNoise::kJitter:
      return 1 + strength * (2 * uniform_from_bits(bits) - 1);
  }
  return 0;
}

// Chooses for one token after the other.
class Chooser {
 public:
  explicit Chooser(const ExpertChoice& call)
      : call_(call), group_size_(call.experts / call.groups) {}

  void choose(int64_t token) const {
    int32_t* const chosen = call_.chosen + token * call_.choices;
    if (call_.used != nullptr && call_.used[token] == 0) {
      std::fill_n(chosen, call_.choices, -1);
      return;
    }
    const float* const first = call_.first + token * call_.experts;
    const float* const others = call_.others + token * call_.experts;
    const uint64_t groups = call_.groups > 1 ? best_groups(first) : 1;
    for (int64_t j = 0; j < call_.choices; ++j) {
      chosen[j] = best(j == 0 ? first : others, groups, chosen, chosen + j);
    }
  }

 private:
  float value(const float* values, int64_t expert) const {
    return values[expert] + (call_.bias != nullptr ? call_.bias[expert] : 0.0f);
  }

  // The largest of those not taken yet; where numbers are NaN, one of them all the same.
  int32_t best(const float* values, uint64_t groups, const int32_t* taken,
               const int32_t* taken_end) const {
    int64_t best = -1;
    for (int64_t group = 0; group < call_.groups; ++group) {
      if ((groups >> group & 1) == 0) continue;
      for (int64_t e = group * group_size_; e < (group + 1) * group_size_; ++e) {
        if (std::find(taken, taken_end, e) != taken_end) continue;
        if (best < 0 || value(values, e) > value(values, best)) best = e;
      }
    }
    return static_cast<int32_t>(best);
  }

  // Bits of the groups that a token may choose from.
  uint64_t best_groups(const float* values) const {
    std::array<float, kMostExpertGroups> sums{};
    for (int64_t group = 0; group < call_.groups; ++group) {
      sums[static_cast<size_t>(group)] = best_sum(values + group * group_size_, group);
    }
    uint64_t kept = 0;
    for (int64_t n = 0; n < call_.kept_groups; ++n) {
      int64_t best = -1;
      for (int64_t g = 0; g < call_.groups; ++g) {
        if ((kept >> g & 1) != 0) continue;
        if (best < 0 || sums[static_cast<size_t>(g)] > sums[static_cast<size_t>(best)]) best = g;
      }
      kept |= uint64_t{1} << best;
    }
    return kept;
  }

  // The sum of the group's best values, one or two.
  float best_sum(const float* values, int64_t group) const {
    const float* const bias = call_.bias != nullptr ? call_.bias + group * group_size_ : nullptr;
    float best = -INFINITY, second = -INFINITY;
    for (int64_t e = 0; e < group_size_; ++e) {
      const float v = values[e] + (bias != nullptr ? bias[e] : 0.0f);
      if (v > best) {
        second = best;
        best = v;
      } else if (v > second) {
        second = v;
      }
    }
    return call_.group_best == 2 && group_size_ > 1 ? best + second : best;
  }

  const ExpertChoice& call_;
  const int64_t group_size_;
};

// The sum of the scores of a token's routes, and whether their weights are shares of it.
struct Share {
  float sum = 0;
  bool of_sum = false;  // else of the floor, a constant
};
Share share_of(const RouteWeights& call, int64_t token) {
  Share share;
  for (int64_t j = 0; j < call.choices; ++j) {
    const int32_t expert = call.chosen[token * call.choices + j];
    if (expert >= 0) share.sum += call.scores[token * call.experts + expert];
  }
  share.of_sum = !(share.sum < call.floor);
  return share;
}

float sum_of(const float* values, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += values[i];
  return sum;
}

// log(sum of e^x).
double log_sum(const float* x, int64_t n) {
  double top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, static_cast<double>(x[i]));
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - top);
  return top + std::log(sum);
}

// d[e] = the gradient of the token's score e.
void score_gradients(const GateBackward& call, int64_t token, float* d) {
  const RouteWeights& f = call.forward;
  const float* const scores = f.scores + token * f.experts;
  std::fill_n(d, f.experts, 0.0f);
  if (call.balance != nullptr && (call.counted == nullptr || call.counted[token] != 0)) {
    if (call.kind == GateScores::kSoftmax) {
      std::copy_n(call.balance, f.experts, d);
    } else {
      // Of shares q = s / sum: (dq - sum of q dq) / sum.
      const float sum = sum_of(scores, f.experts);
      float mean = 0;
      for (int64_t e = 0; e < f.experts; ++e) mean += scores[e] / sum * call.balance[e];
      for (int64_t e = 0; e < f.experts; ++e) d[e] = (call.balance[e] - mean) / sum;
    }
  }
  if (call.dweights == nullptr) return;
  const float* const dw = call.dweights + token * f.choices;
  const int32_t* const chosen = f.chosen + token * f.choices;
  float divisor = 1, mean = 0;
  if (f.normalise) {
    const Share share = share_of(f, token);
    divisor = share.of_sum ? share.sum : f.floor;
    for (int64_t j = 0; j < f.choices && share.of_sum; ++j) {
      if (chosen[j] >= 0) mean += dw[j] * scores[chosen[j]] / share.sum;
    }
  }
  for (int64_t j = 0; j < f.choices; ++j) {
    if (chosen[j] >= 0) d[chosen[j]] += f.scale * (dw[j] - mean) / divisor;
  }
}

}  // namespace

void gate_noise(const NoiseCall& call, ThreadPool& pool) {
  constexpr int64_t kGrain = 4096;  // a multiple of a block's four numbers
  const int64_t pieces = (call.per_sample + kGrain - 1) / kGrain;
  if (pieces == 0) return;
  pool.run(call.samples * pieces, [&](int64_t piece) {
    const int64_t sample = piece / pieces, begin = piece % pieces * kGrain;
    const int64_t end = std::min(begin + kGrain, call.per_sample);
    const int64_t first = sample * call.per_sample;
    for (int64_t at = begin; at < end; at += 4) {
      const uint64_t element = RandomStream::first_of_sample(sample) + static_cast<uint64_t>(at);
      const Philox4 bits = call.stream.block(element / 4);
      for (int64_t i = at; i < std::min(at + 4, end); ++i) {
        const float factor = call.factors != nullptr ? call.factors[first + i] : 1.0f;
        call.out[first + i] =
            factor * noise_of(call.kind, bits[static_cast<size_t>(i - at)], call.strength);
      }
    }
  });
}

void gate_scores(GateScores kind, const float* logits, int64_t tokens, int64_t experts,
                 float* scores, ThreadPool& pool) {
  if (kind == GateScores::kSoftmax) {
    return softmax(
        {.batch = 1, .heads = 1, .queries = tokens, .keys = experts, .x = logits, .y = scores},
        pool);
  }
  pool.for_range(tokens * experts, 8192, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) scores[i] = 1 / (1 + std::exp(-logits[i]));
  });
}

void choose_experts(const ExpertChoice& call, ThreadPool& pool) {
  const Chooser chooser(call);
  pool.for_range(call.tokens, token_grain(call.experts), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) chooser.choose(token);
  });
}

void route_weights(const RouteWeights& call, float* weights, ThreadPool& pool) {
  pool.for_range(call.tokens, 2048, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      float divisor = 1;
      if (call.normalise) {
        const Share share = share_of(call, token);
        divisor = share.of_sum ? share.sum : call.floor;
      }
      for (int64_t j = 0; j < call.choices; ++j) {
        const int32_t expert = call.chosen[token * call.choices + j];
        const float score = expert < 0 ? 0.0f : call.scores[token * call.experts + expert];
        weights[token * call.choices + j] = expert < 0 ? 0.0f : call.scale * (score / divisor);
      }
    }
  });
}

void gate_sums(const GateSums& call, ThreadPool& pool) {
  if (call.all != nullptr) {
    const int64_t left_out =
        call.counted == nullptr ? 0 : std::count(call.counted, call.counted + call.tokens, 0);
    *call.all = static_cast<double>(call.tokens - left_out);
  }
  constexpr int64_t kColumns = 16;  // experts that one thread adds up, token after token
  pool.for_range(call.experts, kColumns, [&](int64_t begin, int64_t end) {
    std::fill(call.probabilities + begin, call.probabilities + end, 0.0);
    std::fill(call.routes + begin, call.routes + end, 0.0);
    for (int64_t token = 0; token < call.tokens; ++token) {
      if (call.counted != nullptr && call.counted[token] == 0) continue;
      const float* const scores = call.scores + token * call.experts;
      const double sum =
          call.kind == GateScores::kSigmoid ? double{sum_of(scores, call.experts)} : 1;
      for (int64_t e = begin; e < end; ++e) call.probabilities[e] += double{scores[e]} / sum;
      for (int64_t j = 0; j < call.counted_choices; ++j) {
        const int32_t expert = call.chosen[token * call.choices + j];
        if (expert >= begin && expert < end) call.routes[expert] += 1;
      }
    }
  });
}

void gate_z_sum(const GateZSum& call, ThreadPool& /*pool*/) {
  double sum = 0;
  for (int64_t token = 0; token < call.tokens; ++token) {
    if (call.counted != nullptr && call.counted[token] == 0) continue;
    const double z = log_sum(call.logits + token * call.experts, call.experts);
    sum += z * z;
  }
  *call.sum = sum;
}

void gate_backward(const GateBackward& call, ThreadPool& pool) {
  const RouteWeights& f = call.forward;
  pool.for_range(f.tokens, token_grain(f.experts), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      float* const d = call.dlogits + token * f.experts;
      const float* const scores = f.scores + token * f.experts;
      score_gradients(call, token, d);
      float mean = 0;
      if (call.kind == GateScores::kSoftmax) {
        for (int64_t e = 0; e < f.experts; ++e) mean += scores[e] * d[e];
      }
      for (int64_t e = 0; e < f.experts; ++e) {
        const float slope =
            call.kind == GateScores::kSoftmax ? scores[e] : scores[e] * (1 - scores[e]);
        d[e] = slope * (d[e] - mean);
      }
      if (call.z == 0 || (call.counted != nullptr && call.counted[token] == 0)) continue;
      const float* const logits = call.logits + token * f.experts;
      const double z = log_sum(logits, f.experts);
      for (int64_t e = 0; e < f.experts; ++e) {
        d[e] += static_cast<float>(2 * double{call.z} * z * std::exp(double{logits[e]} - z));
      }
    }
  });
}

}  // namespace ds::kernels
