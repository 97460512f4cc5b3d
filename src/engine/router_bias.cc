#include "engine/router_bias.h"

#include <numeric>
#include <vector>

#include "engine/expert_loads.h"
#include "engine/run_context.h"
#include "tensor/transfer.h"

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

// `loads`: tokens of all ranks that chose each expert; there may be none.
void move_bias(RunContext& run, const RouterBias& bias, std::vector<int64_t> loads) {
  const OpContext ctx = run.context();
  zero::Masters& masters = run.state->masters();
  const Tensor old = to_host(masters.read(ctx, bias.bias), run.model->host());
  const int64_t experts = old.elements();
  loads.resize(static_cast<size_t>(experts));
  const double mean = static_cast<double>(std::accumulate(loads.begin(), loads.end(), int64_t{0})) /
                      static_cast<double>(experts);
  const Tensor moved = run.host_context().workspace(DType::kFloat32, old.shape());
  for (int64_t e = 0; e < experts; ++e) {
    const auto load = static_cast<double>(loads[static_cast<size_t>(e)]);
    const double sign = load < mean ? 1 : load > mean ? -1 : 0;
    moved.data<float>()[e] = static_cast<float>(old.data<float>()[e] + bias.rate * sign);
  }
  masters.write(ctx, bias.bias, to_device(moved, ctx.device));
}

}  // namespace

void move_router_biases(RunContext& run, const ExpertLoads& loads) {
  for (const RouterBias& bias : moving_biases(run)) move_bias(run, bias, loads.chosen(bias.layer));
}

}  // namespace ds
