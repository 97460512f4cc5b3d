// The gate of a mixture of experts: which experts tokens choose, which of these drop them, what
// outputs weigh, and the losses of that. Routers of models (nn/moe.h) and of programs that bring
// layers of their own run this one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "nn/router_record.h"
#include "ops/gate.h"
#include "ops/routes.h"
#include "tensor/transfer.h"

namespace ds::nn {

// Which tokens an expert gives up that more have chosen than it has room for.
enum class DropPolicy {
  kNone,         // it has room for all
  kPosition,     // the last ones
  kProbability,  // those with the lowest scores
  kRandom,       // any
};

struct Gate {
  ops::GateRule rule;
  RouterLosses losses;
  DropPolicy drop = DropPolicy::kNone;
  // Room of an expert: factor * choices * tokens / experts, and at least min_capacity.
  double capacity_factor = 1;
  int64_t min_capacity = 4;
  bool first_choices_first = false;  // routes are sorted so: before anybody's second choice
  bool sample_first = false;         // the best expert is drawn from the probabilities
  bool sample_others = false;        // and those after it
};

// The random numbers of a gate: one stream for each kind, asked for only where something is drawn;
// numbers are counted by sample, each of which has as many tokens.
struct GateDraws {
  enum Kind : uint32_t { kFirst, kOthers, kDropped };
  std::function<RandomStream(Kind)> stream;
  int64_t samples = 1;
};

// What outlives a call.
using MakeTensor = std::function<Tensor(DType, const Shape&)>;
ops::Routes make_routes(const MakeTensor& make, int64_t tokens, int64_t choices, int64_t experts);

// One pass, in the order of the functions.
class GateForward {
 public:
  // `logits` fp32 [tokens, experts]. Scores, and memory for routes.
  GateForward(const OpContext& ctx, const Gate& gate, const Tensor& logits, const MakeTensor& make);

  // `bias` fp32 [experts] or empty.
  void choose(const Tensor& bias, const GateDraws& draws);
  // Adds up what the losses take, for sums(), which may be left out with it. `counted`: uint8
  // [tokens], 0 where losses leave a token out, or empty.
  void count(const Tensor& counted);
  // Sorts routes by expert. On a GPU the host waits: for how many each expert has, and for what was
  // counted.
  void sort();
  // What the losses take up, and how many chose each expert.
  RouterRecord::Layer sums();
  // Lets each expert drop what it has no room for.
  void limit(const GateDraws& draws);
  // Routes of each expert.
  std::vector<int64_t> loads() const;
  // fp32 [tokens, choices].
  void weigh(Tensor& weights) const;

  Tensor scores;
  ops::Routes routes;

 private:
  Tensor drawn(ops::GateNoise kind, const RandomStream& stream, int64_t samples) const;

  OpContext ctx_;
  Gate gate_;
  Tensor logits_;
  Fetched sums_;  // of count()
};

// The gradient of the losses that a record keeps for a layer, each times its factor, as the gate's
// backward takes them.
void add_loss_gradients(const OpContext& ctx, const RouterRecord& record, int64_t index,
                        float by_balance, float by_z, ops::GateGradients& gradients);

}  // namespace ds::nn
