// Gates of a mixture of experts: which experts each token chooses and what their outputs weigh.
// Numbers are fp32 whatever the model computes in: logits, scores [tokens, experts], weights
// [tokens, choices]; chosen experts are int32 [tokens, choices], -1 where there is none.
#pragma once

#include "base/philox.h"
#include "kernels/moe/gate.h"
#include "ops/context.h"

namespace ds::ops {

using kernels::GateNoise;
using kernels::GateScores;

// How experts are chosen and weighed; see ExpertChoice and RouteWeights in kernels/moe/gate.h.
struct GateRule {
  GateScores scores = GateScores::kSoftmax;
  int64_t choices = 1;
  bool normalise = false;
  float floor = 0;
  float scale = 1;
  int64_t groups = 1;
  int64_t kept_groups = 1;
  int64_t group_best = 1;
};
// Throws kInvalidArgument, naming what does not fit, unless `rule` is one for so many experts.
void check_gate_rule(const GateRule& rule, int64_t experts);

// out fp32 [samples, ...]: each sample counts its own numbers, which are multiplied by those of
// `factors`; that may be `out`, or empty: 1.
struct NoiseOptions {
  GateNoise kind = GateNoise::kUniform;
  RandomStream stream;
  float strength = 0;
};
void gate_noise(const OpContext& ctx, const NoiseOptions& noise, const Tensor& factors,
                Tensor& out);
// scores may be the logits.
void gate_scores(const OpContext& ctx, GateScores kind, const Tensor& logits, Tensor& scores);
// `others` (empty: `first`): what all but the best one are chosen by; `bias` fp32 [experts] or
// empty; `used` uint8 [tokens] or empty.
void choose_experts(const OpContext& ctx, const GateRule& rule, const Tensor& first,
                    const Tensor& others, const Tensor& bias, const Tensor& used, Tensor& chosen);
void route_weights(const OpContext& ctx, const GateRule& rule, const Tensor& scores,
                   const Tensor& chosen, Tensor& weights);

// Which routes count: the first `choices` of each token that counts.
struct CountedRoutes {
  Tensor chosen;
  int64_t choices = 1;
  Tensor tokens = {};  // uint8 [tokens], 1 = counts; empty: all do
};
// Sums over tokens: probabilities and routes, float64 [experts], and how many tokens counted,
// float64 [1] or empty.
void gate_sums(const OpContext& ctx, GateScores kind, const Tensor& scores,
               const CountedRoutes& counted, Tensor& probabilities, Tensor& routes,
               const Tensor& all = {});
// Into float64 [1].
void gate_z_sum(const OpContext& ctx, const Tensor& logits, const Tensor& counted, Tensor& sum);

// dlogits from dweights (empty: none) and the losses of the gate: `balance` fp32 [experts] or
// empty, the gradient of the probabilities of counted tokens; `z` that of the sum of squared
// logarithms.
struct GateGradients {
  Tensor dweights;
  Tensor balance;
  Tensor counted;
  float z = 0;
};
void gate_backward(const OpContext& ctx, const GateRule& rule, const Tensor& logits,
                   const Tensor& scores, const Tensor& chosen, const GateGradients& gradients,
                   Tensor& dlogits);

}  // namespace ds::ops
