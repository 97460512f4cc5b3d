// Mixture of experts: a layer whose tokens each go through a few of many feed-forward networks, as
// a router chooses.
#pragma once

#include <vector>

#include "mesh/row_exchange.h"
#include "nn/gate.h"
#include "nn/layers.h"

namespace ds::nn {

// down(f(gate(x)) * up(x)), or down(f(up(x))) without a gate.
struct FeedForward {
  Projection gate;
  Projection up;
  Projection down;
};
Value feed_forward(Tape& tape, const Value& x, const FeedForward& layer, ops::Activation kind);

struct Router {
  ParamId weight = kNoParam;  // [experts, width]
  // fp32 [experts], added to scores while experts are chosen, and no part of what these weigh.
  ParamId bias = kNoParam;
  ops::GateRule rule;
  RouterLosses losses;
  DropPolicy drop = DropPolicy::kNone;
  // Room of an expert: factor * choices * tokens / experts, and at least min_capacity.
  double capacity_factor = 1;
  double eval_capacity_factor = 1;
  int64_t min_capacity = 4;
  bool first_choices_first = false;  // with kPosition: before anybody's second choice
  // Random choices, of training alone, by the token's place in the step.
  float jitter = 0;            // what the router sees is multiplied by 1 - jitter to 1 + jitter
  bool sample_first = false;   // the best expert is drawn from the probabilities
  bool sample_others = false;  // and those after it
};

struct Moe {
  int64_t index = 0;  // of the layer in the model
  Router router;
  std::vector<FeedForward> experts;
  ops::Activation activation = ops::Activation::kSilu;
  // A network that all tokens go through besides, where its down.weight is there; with a gate
  // [1, width] times its sigmoid.
  FeedForward shared;
  ParamId shared_gate = kNoParam;
  // Residual MoE (DeepSpeed-MoE, arXiv:2201.05596): such a network, and the softmax of
  // coefficients [2, width] by which the experts' output and its own are multiplied.
  FeedForward residual;
  Projection coefficients;
};

// What a pass brings to its layers of experts.
struct MoePass {
  Tensor counted;                  // uint8, one per token: 0 where losses leave it out; or empty
  RouterRecord* record = nullptr;  // lives until backward; null: nobody asks, losses are left out
  // Among whom each layer's experts are shared, in the order of the experts; these make the same
  // passes. Null: all experts are here.
  const ExchangeRanks* ranks = nullptr;
  // With `ranks`, without recording: the experts here serve the others' rows. What this pass itself
  // brings goes to no expert, and nobody reads what it gives.
  bool for_others = false;
};

// x [..., width], the first dimension counting samples. Every expert's weights are read, in the
// same order, whatever tokens chose: readers that gather weights from ranks rely on it; in a pass
// that is not recorded others (ParameterReader::in_step) are asked for chosen experts alone. Where
// ranks share experts, rows go to them and back (nn/expert_exchange.h).
Value moe(Tape& tape, const Value& x, const Moe& layer, const MoePass& pass);

}  // namespace ds::nn
