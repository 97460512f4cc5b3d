#include "engine/expert_loads.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "comm/message_memory.h"

namespace ds {
namespace {

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

void ExpertLoads::add(const nn::RouterRecord& routers) {
  if (routers.layers().empty()) return;
  ++open_.passes;
  open_.balance_loss += routers.balance_loss();
  open_.z_loss += routers.z_loss();
  open_.layers.resize(std::max(open_.layers.size(), routers.layers().size()));
  for (size_t i = 0; i < routers.layers().size(); ++i) {
    const nn::RouterRecord::Layer& from = routers.layers()[i];
    Layer& to = open_.layers[i];
    to.chosen.resize(from.chosen.size());
    to.dropped.resize(from.chosen.size());
    to.tokens += from.all_tokens;
    for (size_t e = 0; e < from.chosen.size(); ++e) {
      to.chosen[e] += from.chosen[e];
      to.dropped[e] += from.chosen[e] - from.kept[e];
    }
  }
}

std::vector<int64_t> ExpertLoads::chosen(int64_t layer) const {
  const auto index = static_cast<size_t>(layer);
  if (!of_all_ranks_.empty()) return of_all_ranks_.at(index);
  return index < open_.layers.size() ? open_.layers[index].chosen : std::vector<int64_t>{};
}

void ExpertLoads::sum(const std::shared_ptr<Device>& host, const RankGroup& ranks, int64_t layers,
                      int64_t experts) {
  // Passes and losses; of each layer its tokens, and by expert who chose it and who was dropped.
  const int64_t per_layer = 1 + 2 * experts;
  const Tensor all =
      comm::message_memory(*ranks.comm, host, DType::kFloat64, {shared_numbers(layers, experts)},
                           MemoryTag::kCommunication);
  double* const sums = all.data<double>();
  std::fill_n(sums, all.elements(), 0.0);
  sums[0] = static_cast<double>(open_.passes);
  sums[1] = open_.balance_loss;
  sums[2] = open_.z_loss;
  open_.layers.resize(static_cast<size_t>(layers));
  double* at = sums + 3;
  for (const Layer& layer : open_.layers) {
    at[0] = static_cast<double>(layer.tokens);
    std::copy(layer.chosen.begin(), layer.chosen.end(), at + 1);
    std::copy(layer.dropped.begin(), layer.dropped.end(), at + 1 + experts);
    at += per_layer;
  }
  ranks->all_reduce(all, ReduceOp::kSum, {.label = "loads of experts", .blocking = true})->wait();
  of_all_ranks_.clear();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const double* const chosen = sums + 3 + layer * per_layer + 1;
    of_all_ranks_.emplace_back(chosen, chosen + experts);
  }
  if (open_.passes == 0) return;  // a rank that has joined reports nothing
  open_.passes = static_cast<int64_t>(sums[0]);
  open_.balance_loss = sums[1];
  open_.z_loss = sums[2];
  at = sums + 3;
  for (Layer& layer : open_.layers) {
    layer.tokens = static_cast<int64_t>(at[0]);
    for (size_t e = 0; e < layer.chosen.size(); ++e) {
      layer.chosen[e] = static_cast<int64_t>(at[1 + e]);
      layer.dropped[e] = static_cast<int64_t>(at[1 + static_cast<size_t>(experts) + e]);
    }
    at += per_layer;
  }
}

void ExpertLoads::finish(int64_t step) {
  of_all_ranks_.clear();
  if (open_.passes == 0) return;
  last_ = std::exchange(open_, {});
  const auto passes = static_cast<double>(last_.passes);
  last_.balance_loss /= passes;
  last_.z_loss /= passes;
  Json layers = Json::array();
  for (size_t i = 0; i < last_.layers.size(); ++i) {
    const Layer& layer = last_.layers[i];
    if (layer.chosen.empty()) continue;
    layers.push_back({{"layer", i},
                      {"tokens", layer.tokens},
                      {"chosen", layer.chosen},
                      {"dropped", layer.dropped}});
  }
  report_ = {{"step", step},
             {"balance_loss", last_.balance_loss},
             {"z_loss", last_.z_loss},
             {"layers", std::move(layers)}};
}

void ExpertLoads::add_to(std::vector<Metric>& metrics) const {
  if (last_.passes == 0) return;
  metrics.push_back({"Train/Experts/balance_loss", last_.balance_loss});
  metrics.push_back({"Train/Experts/z_loss", last_.z_loss});
  for (size_t i = 0; i < last_.layers.size(); ++i) {
    const Layer& layer = last_.layers[i];
    const int64_t routes = sum_of(layer.chosen);
    if (routes == 0) continue;
    const auto all = static_cast<double>(routes);
    const double mean = all / static_cast<double>(layer.chosen.size());
    const int64_t most = *std::max_element(layer.chosen.begin(), layer.chosen.end());
    metrics.push_back(
        {str_cat("Train/Experts/layer_", i, "_largest_load"), static_cast<double>(most) / mean});
    metrics.push_back({str_cat("Train/Experts/layer_", i, "_dropped"),
                       static_cast<double>(sum_of(layer.dropped)) / all});
  }
}

}  // namespace ds
