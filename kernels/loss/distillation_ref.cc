// The double-precision reference of distillation.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/loss/distillation.h"

namespace ds::kernels {
namespace {

// log softmax(x / temperature)
std::vector<double> log_softmax(const double* x, int64_t n, double temperature) {
  std::vector<double> out(x, x + n);
  for (double& value : out) value /= temperature;
  const double largest = *std::max_element(out.begin(), out.end());
  double sum = 0;
  for (const double value : out) sum += std::exp(value - largest);
  for (double& value : out) value -= largest + std::log(sum);
  return out;
}

}  // namespace

DistillationRow distillation_ref(const double* logits, const double* teacher, int32_t label,
                                 int64_t valid, double temperature) {
  if (label < 0) return {};
  const std::vector<double> q = log_softmax(logits, valid, temperature);
  const std::vector<double> p = log_softmax(teacher, valid, temperature);
  DistillationRow out;
  out.cross_entropy = -log_softmax(logits, valid, 1)[static_cast<size_t>(label)];
  for (size_t j = 0; j < p.size(); ++j) {
    const double share = std::exp(p[j]);
    if (share > 0) out.divergence += share * (p[j] - q[j]);
  }
  out.divergence *= temperature * temperature;
  return out;
}

void distillation_backward_ref(const DistillationRefRow& row, const DistillationRefWeights& weights,
                               double scale, double* dlogits) {
  std::fill(dlogits, dlogits + row.columns, 0.0);
  if (row.label < 0) return;
  const std::vector<double> s = log_softmax(row.logits, row.valid, 1);
  const std::vector<double> q = log_softmax(row.logits, row.valid, weights.temperature);
  const std::vector<double> p = log_softmax(row.teacher, row.valid, weights.temperature);
  for (size_t j = 0; j < p.size(); ++j) {
    const double hard = std::exp(s[j]) - (static_cast<int32_t>(j) == row.label ? 1 : 0);
    const double soft = weights.temperature * (std::exp(q[j]) - std::exp(p[j]));
    dlogits[j] = scale * (weights.labels * hard + weights.teacher * soft);
  }
}

}  // namespace ds::kernels
