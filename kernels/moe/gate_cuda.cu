// Gates on a GPU: a warp has one token's experts, lane l those with l, l + 32 and so on.
// Comparisons are those of the CPU, number by number, so equal scores make equal choices; sums over
// experts are added by lanes first.
#include <cmath>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/moe/gate.h"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kTokenWarps = 4;  // tokens of a block

__device__ __forceinline__ int lane_of() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp_of() { return static_cast<int>(threadIdx.x) / kWarp; }
// The token of a warp; the same for all its lanes.
__device__ __forceinline__ int64_t token_of() {
  return int64_t{blockIdx.x} * kTokenWarps + warp_of();
}
Grid token_grid(int64_t tokens) {
  return {(tokens + kTokenWarps - 1) / kTokenWarps, kTokenWarps * kWarp};
}

// ---- noise ----

__device__ __forceinline__ float noise_of(GateNoise kind, uint32_t bits, float strength) {
  const float uniform = static_cast<float>(bits >> 8) * 0x1.0p-24f;
  if (kind == GateNoise::kJitter) return 1 + strength * (2 * uniform - 1);
  if (kind == GateNoise::kUniform) return uniform;
  const double u = (static_cast<double>(bits) + 0.5) * 0x1.0p-32;  // neither 0 nor 1
  return static_cast<float>(-log(-log(u)));
}

// A thread makes the four numbers of a random block.
__global__ void make_noise(NoiseCall call, int64_t blocks) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < call.samples * blocks;
       i += step) {
    const int64_t sample = i / blocks, at = i % blocks * 4;
    const uint64_t element =
        (static_cast<uint64_t>(sample) << RandomStream::kSampleBits) + static_cast<uint64_t>(at);
    const Random4 bits = random_block(call.stream, element / 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (at + k >= call.per_sample) continue;
      const int64_t to = sample * call.per_sample + at + k;
      const float factor = call.factors != nullptr ? call.factors[to] : 1.0f;
      call.out[to] = factor * noise_of(call.kind, bits.at[k], call.strength);
    }
  }
}

// ---- scores ----

// What is -inf has the probability 0, and all have it where all are.
__global__ void __launch_bounds__(kTokenWarps* kWarp)
    softmax_scores(const float* logits, int64_t tokens, int64_t experts, float* scores) {
  const int64_t token = token_of();
  if (token >= tokens) return;
  const float* const x = logits + token * experts;
  float* const y = scores + token * experts;
  float top = -INFINITY, sum = 0;
  for (int64_t e = lane_of(); e < experts; e += kWarp) top = x[e] > top ? x[e] : top;
  top = warp_max(top);
  if (top == -INFINITY) top = 0;
  for (int64_t e = lane_of(); e < experts; e += kWarp) sum += expf(x[e] - top);
  sum = warp_sum(sum);
  const float factor = sum == 0 ? 0.0f : 1 / sum;
  for (int64_t e = lane_of(); e < experts; e += kWarp) y[e] = expf(x[e] - top) * factor;
}

__global__ void sigmoid_scores(const float* logits, int64_t n, float* scores) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    scores[i] = 1 / (1 + expf(-logits[i]));
  }
}

// ---- choice ----

constexpr int32_t kNoExpert = INT32_MAX;

struct Candidate {
  float value;
  int32_t expert;

  __device__ __forceinline__ bool better(const Candidate& other) const {
    if (expert == kNoExpert || other.expert == kNoExpert) return other.expert == kNoExpert;
    return value > other.value || (value == other.value && expert < other.expert);
  }
};

// One token of a warp.
struct WarpChoice {
  const ExpertChoice& call;
  int32_t group_size;
  float* group_sums;  // of the warp, in shared memory

  __device__ __forceinline__ float value(const float* values, int64_t expert) const {
    return values[expert] + (call.bias != nullptr ? call.bias[expert] : 0.0f);
  }

  __device__ __forceinline__ bool taken(int32_t expert, const int32_t* chosen, int64_t n) const {
    for (int64_t j = 0; j < n; ++j) {
      if (chosen[j] == expert) return true;
    }
    return false;
  }

  // As the CPU, which goes from expert to expert and keeps what it has unless the next is larger: a
  // NaN stays where it is the first, and is passed over elsewhere.
  __device__ __forceinline__ int32_t best(const float* values, uint64_t groups,
                                          const int32_t* chosen, int64_t n) const {
    Candidate best{0, kNoExpert};
    int32_t first = kNoExpert;
    for (int64_t at = lane_of(); at < call.experts; at += kWarp) {
      const auto expert = static_cast<int32_t>(at);
      if ((groups >> (expert / group_size) & 1) == 0 || taken(expert, chosen, n)) continue;
      if (first == kNoExpert) first = expert;
      const Candidate next{value(values, at), expert};
      if (next.value == next.value && next.better(best)) best = next;
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const int32_t other_first = __shfl_xor_sync(kAllLanes, first, offset);
      if (other_first < first) first = other_first;
      const Candidate other{__shfl_xor_sync(kAllLanes, best.value, offset),
                            __shfl_xor_sync(kAllLanes, best.expert, offset)};
      if (other.better(best)) best = other;
    }
    if (first == kNoExpert) return -1;
    const float of_first = value(values, first);
    return of_first == of_first ? best.expert : first;
  }

  // The sum of a group's best values, one or two.
  __device__ __forceinline__ float best_sum(const float* values, int32_t group) const {
    float best = -INFINITY, second = -INFINITY;
    const int64_t begin = int64_t{group} * group_size;
    for (int64_t e = begin; e < begin + group_size; ++e) {
      const float v = value(values, e);
      if (v > best) {
        second = best;
        best = v;
      } else if (v > second) {
        second = v;
      }
    }
    return call.group_best == 2 && group_size > 1 ? best + second : best;
  }

  // Bits of the groups that the token may choose from.
  __device__ __forceinline__ uint64_t best_groups(const float* values) const {
    const auto groups = static_cast<int32_t>(call.groups);
    for (int32_t g = lane_of(); g < groups; g += kWarp) group_sums[g] = best_sum(values, g);
    __syncwarp();
    uint64_t kept = 0;
    for (int64_t n = 0; n < call.kept_groups; ++n) {
      int32_t best = -1;
      for (int32_t g = 0; g < groups; ++g) {
        if ((kept >> g & 1) != 0) continue;
        if (best < 0 || group_sums[g] > group_sums[best]) best = g;
      }
      kept |= uint64_t{1} << best;
    }
    return kept;
  }
};

__global__ void __launch_bounds__(kTokenWarps* kWarp) choose(ExpertChoice call) {
  __shared__ float group_sums[kTokenWarps][kMostExpertGroups];
  const int64_t token = token_of();
  if (token >= call.tokens) return;
  int32_t* const chosen = call.chosen + token * call.choices;
  if (call.used != nullptr && call.used[token] == 0) {
    for (int64_t j = lane_of(); j < call.choices; j += kWarp) chosen[j] = -1;
    return;
  }
  const WarpChoice one{call, static_cast<int32_t>(call.experts / call.groups),
                       group_sums[warp_of()]};
  const float* const first = call.first + token * call.experts;
  const float* const others = call.others + token * call.experts;
  const uint64_t groups = call.groups > 1 ? one.best_groups(first) : 1;
  for (int64_t j = 0; j < call.choices; ++j) {
    const int32_t expert = one.best(j == 0 ? first : others, groups, chosen, j);
    if (lane_of() == 0) chosen[j] = expert;
    __syncwarp();
  }
}

// ---- weights ----

struct Share {
  float sum = 0;
  bool of_sum = false;  // else of the floor, a constant
};
__device__ __forceinline__ Share share_of(const RouteWeights& call, int64_t token) {
  Share share;
  for (int64_t j = 0; j < call.choices; ++j) {
    const int32_t expert = call.chosen[token * call.choices + j];
    if (expert >= 0) share.sum += call.scores[token * call.experts + expert];
  }
  share.of_sum = !(share.sum < call.floor);
  return share;
}

__global__ void weigh_routes(RouteWeights call, float* weights) {
  const int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token >= call.tokens) return;
  float divisor = 1;
  if (call.normalise) {
    const Share share = share_of(call, token);
    divisor = share.of_sum ? share.sum : call.floor;
  }
  for (int64_t j = token * call.choices; j < (token + 1) * call.choices; ++j) {
    const int32_t expert = call.chosen[j];
    weights[j] =
        expert < 0 ? 0.0f : call.scale * (call.scores[token * call.experts + expert] / divisor);
  }
}

// ---- sums over tokens ----

__device__ __forceinline__ float scores_sum(const float* scores, int64_t experts) {
  float sum = 0;
  for (int64_t e = lane_of(); e < experts; e += kWarp) sum += scores[e];
  return warp_sum(sum);
}

// log(sum of e^x).
__device__ __forceinline__ double log_sum(const float* x, int64_t n) {
  double top = -INFINITY, sum = 0;
  for (int64_t i = lane_of(); i < n; i += kWarp) {
    const double wide = x[i];
    top = wide > top ? wide : top;
  }
  top = warp_max(top);
  for (int64_t i = lane_of(); i < n; i += kWarp) sum += exp(static_cast<double>(x[i]) - top);
  return top + log(warp_sum(sum));
}

constexpr int kSumWarps = 8;

// A block has 32 experts and a chunk of tokens, of which each warp takes every eighth.
__global__ void __launch_bounds__(kSumWarps* kWarp) sum_chunk(GateSums call) {
  __shared__ double sums[3][kSumWarps][kWarp];
  const int64_t expert = int64_t{blockIdx.y} * kWarp + lane_of();
  const int64_t begin = blockIdx.x * kGateChunk;
  const int64_t end = begin + kGateChunk < call.tokens ? begin + kGateChunk : call.tokens;
  double probability = 0, routes = 0, tokens = 0;
  for (int64_t token = begin + warp_of(); token < end; token += kSumWarps) {
    if (call.counted != nullptr && call.counted[token] == 0) continue;
    const float* const scores = call.scores + token * call.experts;
    double all = 1;
    if (call.kind == GateScores::kSigmoid) all = scores_sum(scores, call.experts);
    if (expert < call.experts) probability += static_cast<double>(scores[expert]) / all;
    const int32_t* const chosen = call.chosen + token * call.choices;
    for (int64_t j = 0; j < call.counted_choices; ++j) routes += chosen[j] == expert ? 1 : 0;
    tokens += 1;
  }
  sums[0][warp_of()][lane_of()] = probability;
  sums[1][warp_of()][lane_of()] = routes;
  sums[2][warp_of()][lane_of()] = tokens;
  __syncthreads();
  if (warp_of() > 2) return;
  double total = 0;
#pragma unroll
  for (int w = 0; w < kSumWarps; ++w) total += sums[warp_of()][w][lane_of()];
  double* const to = call.scratch + blockIdx.x * (2 * call.experts + 1);
  if (warp_of() < 2 && expert < call.experts) to[warp_of() * call.experts + expert] = total;
  if (warp_of() == 2 && expert == 0) to[2 * call.experts] = total;
}

__global__ void add_sums(GateSums call, int64_t chunks) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t columns = 2 * call.experts + 1;
  if (column >= columns) return;
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += call.scratch[chunk * columns + column];
  if (column < call.experts) {
    call.probabilities[column] = sum;
  } else if (column < 2 * call.experts) {
    call.routes[column - call.experts] = sum;
  } else if (call.all != nullptr) {
    *call.all = sum;
  }
}

__global__ void __launch_bounds__(kSumWarps* kWarp) sum_z_chunk(GateZSum call) {
  __shared__ double sums[kSumWarps];
  const int64_t begin = blockIdx.x * kGateChunk;
  const int64_t end = begin + kGateChunk < call.tokens ? begin + kGateChunk : call.tokens;
  double sum = 0;
  for (int64_t token = begin + warp_of(); token < end; token += kSumWarps) {
    if (call.counted != nullptr && call.counted[token] == 0) continue;
    const double z = log_sum(call.logits + token * call.experts, call.experts);
    sum += z * z;
  }
  if (lane_of() == 0) sums[warp_of()] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (int w = 0; w < kSumWarps; ++w) sum += sums[w];
  call.scratch[blockIdx.x] = sum;
}

__global__ void add_z_sums(GateZSum call, int64_t chunks) {
  double sum = 0;
  for (int64_t chunk = lane_of(); chunk < chunks; chunk += kWarp) sum += call.scratch[chunk];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) *call.sum = sum;
}

// ---- backward ----

// d[e] = the gradient of the token's score e, of a lane's own experts.
__device__ __forceinline__ void score_gradients(const GateBackward& call, int64_t token,
                                                bool counted, float* d) {
  const RouteWeights& f = call.forward;
  const float* const scores = f.scores + token * f.experts;
  const bool balanced = call.balance != nullptr && counted;
  float sum = 1, mean = 0;
  if (balanced && call.kind == GateScores::kSigmoid) {
    // Of shares q = s / sum: (dq - sum of q dq) / sum.
    sum = scores_sum(scores, f.experts);
    for (int64_t e = lane_of(); e < f.experts; e += kWarp)
      mean += scores[e] / sum * call.balance[e];
    mean = warp_sum(mean);
  }
  float divisor = 1, route_mean = 0;
  const float* const dw = call.dweights + token * f.choices;
  const int32_t* const chosen = f.chosen + token * f.choices;
  if (call.dweights != nullptr && f.normalise) {
    const Share share = share_of(f, token);
    divisor = share.of_sum ? share.sum : f.floor;
    for (int64_t j = 0; j < f.choices && share.of_sum; ++j) {
      if (chosen[j] >= 0) route_mean += dw[j] * scores[chosen[j]] / share.sum;
    }
  }
  for (int64_t e = lane_of(); e < f.experts; e += kWarp) {
    float gradient = balanced ? (call.balance[e] - mean) / sum : 0.0f;
    for (int64_t j = 0; j < f.choices && call.dweights != nullptr; ++j) {
      if (chosen[j] == e) gradient += f.scale * (dw[j] - route_mean) / divisor;
    }
    d[e] = gradient;
  }
}

__global__ void __launch_bounds__(kTokenWarps* kWarp) logit_gradients(GateBackward call) {
  const RouteWeights& f = call.forward;
  const int64_t token = token_of();
  if (token >= f.tokens) return;
  const bool counted = call.counted == nullptr || call.counted[token] != 0;
  const float* const scores = f.scores + token * f.experts;
  float* const d = call.dlogits + token * f.experts;
  score_gradients(call, token, counted, d);
  const bool softmax = call.kind == GateScores::kSoftmax;
  float mean = 0;
  if (softmax) {
    for (int64_t e = lane_of(); e < f.experts; e += kWarp) mean += scores[e] * d[e];
    mean = warp_sum(mean);
  }
  for (int64_t e = lane_of(); e < f.experts; e += kWarp) {
    const float slope = softmax ? scores[e] : scores[e] * (1 - scores[e]);
    d[e] = slope * (d[e] - mean);
  }
  if (call.z == 0 || !counted) return;
  const float* const logits = call.logits + token * f.experts;
  const double z = log_sum(logits, f.experts);
  for (int64_t e = lane_of(); e < f.experts; e += kWarp) {
    d[e] += static_cast<float>(2 * static_cast<double>(call.z) * z *
                               exp(static_cast<double>(logits[e]) - z));
  }
}

}  // namespace

void gate_noise(const NoiseCall& call, const GpuStream& on) {
  const int64_t blocks = (call.per_sample + 3) / 4;
  launch(on, "gate_noise", &make_noise, grid_for(on, call.samples * blocks), call, blocks);
}

void gate_scores(GateScores kind, const float* logits, int64_t tokens, int64_t experts,
                 float* scores, const GpuStream& on) {
  if (kind == GateScores::kSoftmax) {
    launch(on, "gate_scores", &softmax_scores, token_grid(tokens), logits, tokens, experts, scores);
  } else {
    launch(on, "gate_scores", &sigmoid_scores, grid_for(on, tokens * experts), logits,
           tokens * experts, scores);
  }
}

void choose_experts(const ExpertChoice& call, const GpuStream& on) {
  launch(on, "choose_experts", &choose, token_grid(call.tokens), call);
}

void route_weights(const RouteWeights& call, float* weights, const GpuStream& on) {
  launch(on, "route_weights", &weigh_routes, {(call.tokens + 127) / 128, 128}, call, weights);
}

void gate_sums(const GateSums& call, const GpuStream& on) {
  const int64_t chunks = gate_chunks(call.tokens);
  launch(on, "gate_sums", &sum_chunk,
         {chunks, kSumWarps * kWarp, 0, (call.experts + kWarp - 1) / kWarp}, call);
  launch(on, "gate_sums", &add_sums, {(2 * call.experts + 128) / 128, 128}, call, chunks);
}

void gate_z_sum(const GateZSum& call, const GpuStream& on) {
  const int64_t chunks = gate_chunks(call.tokens);
  launch(on, "gate_z_sum", &sum_z_chunk, {chunks, kSumWarps * kWarp}, call);
  launch(on, "gate_z_sum", &add_z_sums, {1, kWarp}, call, chunks);
}

void gate_backward(const GateBackward& call, const GpuStream& on) {
  launch(on, "gate_backward", &logit_gradients, token_grid(call.forward.tokens), call);
}

}  // namespace ds::kernels
