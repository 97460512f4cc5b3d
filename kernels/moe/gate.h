// Gates of a mixture of experts: from the logits of a router [tokens, experts] to the experts that
// each token chooses and what their outputs weigh, and back. All numbers are fp32, whatever type
// the model computes in. A GPU chooses by the same comparisons as the CPU, and adds sums over
// experts and tokens in an order of its own, the same in every run.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

enum class GateScores {
  kSoftmax,  // over the experts of a token
  kSigmoid,  // of each logit
};

// Numbers by which gates choose at random. Each sample of a batch has `per_sample` of them, counted
// from its own first, so that they do not depend on how ranks and micro batches share a batch.
enum class GateNoise {
  kUniform,  // [0, 1)
  kGumbel,   // -log(-log(u)): adding it to logits makes argmax draw from their softmax
  kJitter,   // [1 - strength, 1 + strength)
};
// Each is multiplied by a number of `factors`, which may be `out`, or null: 1.
struct NoiseCall {
  GateNoise kind = GateNoise::kUniform;
  RandomStream stream;
  int64_t samples = 0, per_sample = 0;
  float strength = 0;
  const float* factors = nullptr;
  float* out = nullptr;
};
void gate_noise(const NoiseCall& call, ThreadPool& pool);
void gate_noise(const NoiseCall& call, const GpuStream& on);

// scores = softmax or sigmoid of the logits; may be the logits' own memory.
void gate_scores(GateScores kind, const float* logits, int64_t tokens, int64_t experts,
                 float* scores, ThreadPool& pool);
void gate_scores(GateScores kind, const float* logits, int64_t tokens, int64_t experts,
                 float* scores, const GpuStream& on);

inline constexpr int64_t kMostExpertGroups = 64;

// Which experts each token chooses: the `choices` largest values, best first, of equal ones the
// lower expert.
struct ExpertChoice {
  int64_t tokens = 0, experts = 0, choices = 1;
  const float* first = nullptr;   // [tokens, experts]: what the best one is chosen by
  const float* others = nullptr;  // and the others; may be `first`
  const float* bias = nullptr;    // [experts], added to both, or null
  const uint8_t* used = nullptr;  // [tokens]: where 0, the token chooses none; or null
  // Experts in so many groups of equal size, at most kMostExpertGroups, of which each token may
  // choose from `kept_groups`: those whose best value, or with `group_best` 2 the sum of whose two
  // best values, is largest (DeepSeek-V3, arXiv:2412.19437).
  int64_t groups = 1, kept_groups = 1, group_best = 1;
  int32_t* chosen = nullptr;  // [tokens, choices]; -1: none
};
// Needs choices <= kept_groups * (experts / groups).
void choose_experts(const ExpertChoice& call, ThreadPool& pool);
void choose_experts(const ExpertChoice& call, const GpuStream& on);

// What the output of each chosen expert weighs: its score, and with `normalise` its share of the
// scores that the token's routes have together (at least `floor`); times `scale`. 0 where a route
// is none.
struct RouteWeights {
  int64_t tokens = 0, experts = 0, choices = 1;
  const float* scores = nullptr;    // [tokens, experts]
  const int32_t* chosen = nullptr;  // [tokens, choices]
  bool normalise = false;
  float floor = 0;
  float scale = 1;
};
void route_weights(const RouteWeights& call, float* weights, ThreadPool& pool);
void route_weights(const RouteWeights& call, float* weights, const GpuStream& on);

// Sums over the tokens that are counted of what balancing losses compare: each expert's probability
// (with sigmoid scores its share of the token's scores), and how often it was chosen.
struct GateSums {
  GateScores kind = GateScores::kSoftmax;
  int64_t tokens = 0, experts = 0, choices = 1;
  const float* scores = nullptr;
  const int32_t* chosen = nullptr;   // before any was dropped
  int64_t counted_choices = 1;       // the first so many of each token
  const uint8_t* counted = nullptr;  // [tokens]: where 0, a token is left out; or null
  double* probabilities = nullptr;   // [experts]
  double* routes = nullptr;          // [experts]
  double* all = nullptr;             // the number of tokens that are counted; or null
  double* scratch = nullptr;         // see below
};
void gate_sums(const GateSums& call, ThreadPool& pool);
void gate_sums(const GateSums& call, const GpuStream& on);
// Sum over the tokens of the squared logarithm of the sum of e^logit (ST-MoE, arXiv:2202.08906).
struct GateZSum {
  int64_t tokens = 0, experts = 0;
  const float* logits = nullptr;
  const uint8_t* counted = nullptr;  // as in GateSums
  double* sum = nullptr;
  double* scratch = nullptr;
};
void gate_z_sum(const GateZSum& call, ThreadPool& pool);
void gate_z_sum(const GateZSum& call, const GpuStream& on);

// What sums need as scratch, in numbers of 8 bytes. A GPU adds up so many tokens apart, and then
// the sums.
inline constexpr int64_t kGateChunk = 128;
inline int64_t gate_chunks(int64_t tokens) { return (tokens + kGateChunk - 1) / kGateChunk; }
inline int64_t gate_sums_scratch(int64_t, int64_t, const ThreadPool&) { return 0; }
inline int64_t gate_sums_scratch(int64_t tokens, int64_t experts, const GpuStream&) {
  return gate_chunks(tokens) * (2 * experts + 1);
}
inline int64_t gate_z_scratch(int64_t, const ThreadPool&) { return 0; }
inline int64_t gate_z_scratch(int64_t tokens, const GpuStream&) { return gate_chunks(tokens); }

// The gradient of the logits.
struct GateBackward {
  GateScores kind = GateScores::kSoftmax;
  RouteWeights forward;
  const float* dweights = nullptr;   // [tokens, choices], or null: none
  const float* balance = nullptr;    // [experts]: the gradient of every counted token's probability
  const uint8_t* counted = nullptr;  // as in GateSums
  // By the sum that gate_z_sum gives; with 0 the logits are not read.
  float z = 0;
  const float* logits = nullptr;
  float* dlogits = nullptr;  // [tokens, experts], written; not the logits' memory
};
void gate_backward(const GateBackward& call, ThreadPool& pool);
void gate_backward(const GateBackward& call, const GpuStream& on);

}  // namespace ds::kernels
