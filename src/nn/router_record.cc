#include "nn/router_record.h"

#include <utility>

#include "base/error.h"

namespace ds::nn {
namespace {

void add(std::vector<double>& sum, const std::vector<double>& more) {
  DS_CHECK(sum.size() == more.size(), Code::kInternal,
           "layers whose losses are taken together have ", sum.size(), " and ", more.size(),
           " experts");
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

// The number that the mean number of routes is divided by.
double choices_of(const RouterRecord::Layer& layer) {
  return layer.losses.per_choice ? static_cast<double>(layer.losses.counted_choices) : 1;
}

double balance_of(const RouterRecord::Layer& layer) {
  if (layer.tokens == 0) return 0;
  double sum = 0;
  for (size_t e = 0; e < layer.routes.size(); ++e) sum += layer.probabilities[e] * layer.routes[e];
  return static_cast<double>(layer.losses.balance) * static_cast<double>(layer.routes.size()) *
         sum / (layer.tokens * layer.tokens) / choices_of(layer);
}

}  // namespace

void RouterRecord::set(int64_t index, Layer layer) {
  if (std::ssize(layers_) <= index) layers_.resize(static_cast<size_t>(index) + 1);
  layers_[static_cast<size_t>(index)] = std::move(layer);
}

RouterRecord::Layer RouterRecord::pool_of(const Layer& layer) const {
  if (!layer.losses.pooled) return layer;
  Layer sum = layer;
  for (const Layer& other : layers_) {
    if (&other == &layer || !other.losses.pooled) continue;
    sum.tokens += other.tokens;
    add(sum.probabilities, other.probabilities);
    add(sum.routes, other.routes);
  }
  return sum;
}

double RouterRecord::balance_loss() const {
  double sum = 0;
  bool pooled = false;  // has been counted
  for (const Layer& layer : layers_) {
    if (layer.losses.balance == 0 || (layer.losses.pooled && std::exchange(pooled, true))) continue;
    sum += balance_of(pool_of(layer));
  }
  return sum;
}

double RouterRecord::z_loss() const {
  double sum = 0;
  for (const Layer& layer : layers_) {
    if (layer.tokens > 0) sum += double{layer.losses.z} * layer.z_sum / layer.tokens;
  }
  return sum;
}

double RouterRecord::loss() const { return balance_loss() + z_loss(); }

std::vector<float> RouterRecord::balance_gradient(int64_t index) const {
  const Layer& own = layers_.at(static_cast<size_t>(index));
  if (own.losses.balance == 0) return {};
  const Layer layer = pool_of(own);
  if (layer.tokens == 0) return {};
  const double factor = static_cast<double>(layer.losses.balance) *
                        static_cast<double>(layer.routes.size()) / (layer.tokens * layer.tokens) /
                        choices_of(layer);
  std::vector<float> gradient;
  for (const double routes : layer.routes) gradient.push_back(static_cast<float>(factor * routes));
  return gradient;
}

}  // namespace ds::nn
