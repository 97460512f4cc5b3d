#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/moe/reference.h"

namespace ds::kernels::reference {
namespace {

using Places = std::vector<int64_t>;  // [tokens, experts], -1: not chosen or dropped

size_t at(int64_t i) { return static_cast<size_t>(i); }

// mask[token, expert] of choice j.
std::vector<bool> mask_of(const DenseGate& g, const std::vector<int32_t>& chosen, int64_t j) {
  std::vector<bool> mask(at(g.tokens * g.experts));
  for (int64_t t = 0; t < g.tokens; ++t) {
    const int32_t e = chosen[at(t * g.choices + j)];
    if (e >= 0) mask[at(t * g.experts + e)] = true;
  }
  return mask;
}

// Places by counting: the routes of one mask after the other, or of all masks together.
Places counted_places(const DenseGate& g, const std::vector<std::vector<bool>>& masks) {
  Places places(at(g.tokens * g.experts), -1);
  for (int64_t e = 0; e < g.experts; ++e) {
    int64_t next = 0;
    for (const std::vector<bool>& mask : masks) {
      for (int64_t t = 0; t < g.tokens; ++t) {
        if (!mask[at(t * g.experts + e)]) continue;
        if (next < g.capacity) places[at(t * g.experts + e)] = next;
        ++next;
      }
    }
  }
  return places;
}

}  // namespace

std::vector<double> gate_scores(GateScores kind, const std::vector<double>& logits) {
  std::vector<double> scores(logits.size());
  if (kind == GateScores::kSigmoid) {
    std::transform(logits.begin(), logits.end(), scores.begin(),
                   [](double x) { return 1 / (1 + std::exp(-x)); });
    return scores;
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - top);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = std::exp(logits[i] - top) / sum;
  return scores;
}

std::vector<int32_t> choose_experts(const std::vector<double>& first,
                                    const std::vector<double>& others, int64_t choices,
                                    int64_t groups, int64_t kept_groups, int64_t group_best) {
  const int64_t experts = std::ssize(first), size = experts / groups;
  const auto sorted = [](const std::vector<double>& values, std::vector<int32_t> order) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return values[at(a)] > values[at(b)]; });
    return order;
  };
  std::vector<double> group_values;
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<double> own(first.begin() + g * size, first.begin() + (g + 1) * size);
    std::sort(own.begin(), own.end(), std::greater<>());
    own.resize(at(std::min(group_best, size)));
    group_values.push_back(std::accumulate(own.begin(), own.end(), 0.0));
  }
  std::vector<int32_t> all(at(groups));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> kept = sorted(group_values, all);
  kept.resize(at(kept_groups));
  std::sort(kept.begin(), kept.end());
  std::vector<int32_t> candidates;
  for (const int32_t g : kept) {
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      candidates.push_back(static_cast<int32_t>(e));
    }
  }
  std::vector<int32_t> chosen{sorted(first, candidates).front()};
  for (const int32_t e : sorted(others, candidates)) {
    if (std::ssize(chosen) < choices && e != chosen.front()) chosen.push_back(e);
  }
  return chosen;
}

std::vector<double> dense_combine(const DenseGate& g, const std::vector<double>& scores,
                                  const std::vector<int32_t>& chosen,
                                  const std::vector<double>& key) {
  std::vector<std::vector<bool>> masks;
  std::vector<bool> any(at(g.tokens * g.experts));
  for (int64_t j = 0; j < g.choices; ++j) {
    masks.push_back(mask_of(g, chosen, j));
    for (size_t i = 0; i < any.size(); ++i) any[i] = any[i] || masks.back()[i];
  }
  if (g.priority == RoutePriority::kScore) {
    // The best of each expert survive; then places are counted again.
    for (int64_t e = 0; e < g.experts; ++e) {
      for (int64_t t = 0; t < g.tokens; ++t) {
        if (!any[at(t * g.experts + e)]) continue;
        int64_t before = 0;
        for (int64_t u = 0; u < g.tokens; ++u) {
          bool chose = false;
          for (int64_t j = 0; j < g.choices; ++j) chose |= chosen[at(u * g.choices + j)] == e;
          const double own = key[at(t * g.experts + e)], other = key[at(u * g.experts + e)];
          if (chose && (other > own || (other == own && u < t))) ++before;
        }
        if (before >= g.capacity) any[at(t * g.experts + e)] = false;
      }
    }
  }
  const bool together = !g.by_choice || g.priority == RoutePriority::kScore;
  const Places places =
      counted_places(g, together ? std::vector<std::vector<bool>>(1, any) : masks);
  std::vector<double> combine(at(g.tokens * g.experts * g.capacity));
  for (int64_t t = 0; t < g.tokens; ++t) {
    double sum = 0;
    for (int64_t e = 0; e < g.experts; ++e) {
      if (places[at(t * g.experts + e)] >= 0) sum += scores[at(t * g.experts + e)];
    }
    const double divisor = g.normalise ? std::max(sum, g.floor) : 1;
    for (int64_t e = 0; e < g.experts; ++e) {
      const int64_t place = places[at(t * g.experts + e)];
      if (place < 0) continue;
      combine[at((t * g.experts + e) * g.capacity + place)] =
          g.scale * scores[at(t * g.experts + e)] / divisor;
    }
  }
  return combine;
}

double balance_loss(GateScores kind, const std::vector<double>& scores,
                    const std::vector<int32_t>& chosen, int64_t experts, int64_t choices,
                    const std::vector<uint8_t>& counted) {
  const int64_t tokens = std::ssize(scores) / experts;
  std::vector<double> probability(at(experts)), routes(at(experts));
  double n = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if (!counted.empty() && counted[at(t)] == 0) continue;
    n += 1;
    double sum = 1;
    if (kind == GateScores::kSigmoid) {
      sum = std::accumulate(scores.begin() + t * experts, scores.begin() + (t + 1) * experts, 0.0);
    }
    for (int64_t e = 0; e < experts; ++e) probability[at(e)] += scores[at(t * experts + e)] / sum;
    for (int64_t j = 0; j < choices; ++j) {
      if (chosen[at(t * choices + j)] >= 0) routes[at(chosen[at(t * choices + j)])] += 1;
    }
  }
  double loss = 0;
  for (int64_t e = 0; e < experts; ++e) loss += probability[at(e)] / n * routes[at(e)] / n;
  return loss * static_cast<double>(experts);
}

}  // namespace ds::kernels::reference
