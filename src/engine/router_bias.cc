#include "engine/router_bias.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/expert_loads.h"
#include "engine/run_context.h"

namespace ds {
namespace {

using RouterBias = models::ArchitectureInfo::RouterBias;

// Those of routers that training changes at all.
std::vector<RouterBias> moving_biases(const RunContext& run) {
  std::vector<RouterBias> out;
  if (!run.model->has_architecture()) return out;
  for (const RouterBias& bias : run.model->architecture().info().router_biases) {
    if (run.model->parameters()[bias.router].trainable) out.push_back(bias);
  }
  return out;
}

// Tokens that chose each expert of these layers, one layer after another, on all ranks that have
// micro batches of their own.
std::vector<double> summed_loads(RunContext& run, const std::vector<RouterBias>& biases,
                                 const ExpertLoads& loads) {
  std::vector<double> all;
  for (const RouterBias& bias : biases) {
    const int64_t experts = run.model->parameters()[bias.bias].shape.elements();
    // A rank without data has counted nothing.
    const std::vector<int64_t> own = loads.chosen(bias.layer);
    const size_t first = all.size();
    all.resize(first + static_cast<size_t>(experts), 0);
    std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(first));
  }
  if (run.gradient_ranks() == 1) return all;
  const Tensor sums = run.host_context().workspace(DType::kFloat64, {std::ssize(all)});
  std::copy(all.begin(), all.end(), sums.data<double>());
  run.gradient_group()
      ->all_reduce(sums, ReduceOp::kSum, {.label = "expert loads", .blocking = true})
      ->wait();
  return {sums.data<double>(), sums.data<double>() + all.size()};
}

void move_bias(RunContext& run, const RouterBias& bias, const double* loads) {
  const OpContext ctx = run.context();
  zero::Masters& masters = run.state->masters();
  const Tensor old = masters.read(ctx, bias.bias);
  const int64_t experts = old.elements();
  const double mean = std::accumulate(loads, loads + experts, 0.0) / static_cast<double>(experts);
  const Tensor moved = ctx.workspace(DType::kFloat32, old.shape());
  for (int64_t e = 0; e < experts; ++e) {
    const double sign = loads[e] < mean ? 1 : loads[e] > mean ? -1 : 0;
    moved.data<float>()[e] = static_cast<float>(old.data<float>()[e] + bias.rate * sign);
  }
  masters.write(ctx, bias.bias, moved);
}

}  // namespace

void move_router_biases(RunContext& run, const ExpertLoads& loads) {
  const std::vector<RouterBias> biases = moving_biases(run);
  if (biases.empty()) return;
  const std::vector<double> all = summed_loads(run, biases, loads);
  const double* at = all.data();
  for (const RouterBias& bias : biases) {
    move_bias(run, bias, at);
    at += run.model->parameters()[bias.bias].shape.elements();
  }
}

}  // namespace ds
