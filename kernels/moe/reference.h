// A mixture of experts' gates as the papers write them: dense tensors over tokens, experts and
// places, in double precision. Everything else in this folder is measured against it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/moe/gate.h"
#include "kernels/moe/routes.h"

namespace ds::kernels::reference {

// One row of logits.
std::vector<double> gate_scores(GateScores kind, const std::vector<double>& logits);

// The experts that a token chooses, best first; `groups` as in ExpertChoice.
std::vector<int32_t> choose_experts(const std::vector<double>& first,
                                    const std::vector<double>& others, int64_t choices,
                                    int64_t groups, int64_t kept_groups, int64_t group_best);

struct DenseGate {
  int64_t tokens = 0, experts = 0, choices = 1, capacity = 0;
  bool by_choice = false;
  RoutePriority priority = RoutePriority::kOrder;
  bool normalise = false;
  double floor = 0;
  double scale = 1;
};
// The combine weights [tokens, experts, capacity] of GShard (arXiv:2006.16668): the weight of the
// token's row at the expert's place, 0 elsewhere.
std::vector<double> dense_combine(const DenseGate& gate, const std::vector<double>& scores,
                                  const std::vector<int32_t>& chosen,
                                  const std::vector<double>& key);

// experts * sum over experts of the mean probability and the mean number of routes, of tokens that
// are counted (Switch Transformer, arXiv:2101.03961).
double balance_loss(GateScores kind, const std::vector<double>& scores,
                    const std::vector<int32_t>& chosen, int64_t experts, int64_t choices,
                    const std::vector<uint8_t>& counted);

}  // namespace ds::kernels::reference
