// GPT-2's loss written out naively in double precision: the independent reference for the model,
// its gradients (by finite differences) and its decoder.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ds::testing {

using Vector = std::vector<double>;

struct ReferenceConfig {
  int64_t vocab, positions, width, layers, heads, inner;
  double epsilon = 1e-5;
  bool erf = false;
};

// Weights by name, matrices [out, in].
using Weights = std::map<std::string, Vector>;

inline Vector matvec(const Vector& w, const Vector& x, const Vector* bias) {
  const size_t n = w.size() / x.size();
  Vector y(n);
  for (size_t o = 0; o < n; ++o) {
    double sum = bias != nullptr ? (*bias)[o] : 0;
    for (size_t i = 0; i < x.size(); ++i) sum += w[o * x.size() + i] * x[i];
    y[o] = sum;
  }
  return y;
}

inline Vector norm(const Vector& x, const Vector& gamma, const Vector& beta, double epsilon) {
  double mean = 0, variance = 0;
  for (double v : x) mean += v / static_cast<double>(x.size());
  for (double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) / std::sqrt(variance + epsilon) * gamma[i] + beta[i];
  }
  return y;
}

inline double gelu(double x, bool erf_form) {
  if (erf_form) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

// Logits [T][V] of one sequence; keys where mask is 0 are not seen.
inline std::vector<Vector> reference_logits(const ReferenceConfig& c, const Weights& w,
                                            const std::vector<int32_t>& ids,
                                            const std::vector<int>& mask = {}) {
  const size_t length = ids.size(), width = static_cast<size_t>(c.width);
  const size_t head = width / static_cast<size_t>(c.heads);
  std::vector<Vector> x(length, Vector(width));
  for (size_t t = 0; t < length; ++t) {
    for (size_t i = 0; i < width; ++i) {
      x[t][i] = w.at("wte.weight")[static_cast<size_t>(ids[t]) * width + i] +
                w.at("wpe.weight")[t * width + i];
    }
  }
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const std::string p = "h." + std::to_string(layer) + ".";
    std::vector<Vector> qkv(length);
    for (size_t t = 0; t < length; ++t) {
      const Vector n = norm(x[t], w.at(p + "ln_1.weight"), w.at(p + "ln_1.bias"), c.epsilon);
      qkv[t] = matvec(w.at(p + "attn.c_attn.weight"), n, &w.at(p + "attn.c_attn.bias"));
    }
    for (size_t t = 0; t < length; ++t) {
      Vector mixed(width, 0.0);
      for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
        Vector score(t + 1, -INFINITY);
        double top = -INFINITY, total = 0;
        for (size_t s = 0; s <= t; ++s) {
          if (!mask.empty() && mask[s] == 0) continue;
          double dot = 0;
          for (size_t i = 0; i < head; ++i) {
            dot += qkv[t][h * head + i] * qkv[s][width + h * head + i];
          }
          score[s] = dot / std::sqrt(static_cast<double>(head));
          top = std::max(top, score[s]);
        }
        if (top == -INFINITY) continue;
        for (double& v : score) total += (v = std::exp(v - top));
        for (size_t s = 0; s <= t; ++s) {
          for (size_t i = 0; i < head; ++i) {
            mixed[h * head + i] += score[s] / total * qkv[s][2 * width + h * head + i];
          }
        }
      }
      const Vector out =
          matvec(w.at(p + "attn.c_proj.weight"), mixed, &w.at(p + "attn.c_proj.bias"));
      for (size_t i = 0; i < width; ++i) x[t][i] += out[i];
    }
    for (size_t t = 0; t < length; ++t) {
      const Vector n = norm(x[t], w.at(p + "ln_2.weight"), w.at(p + "ln_2.bias"), c.epsilon);
      Vector up = matvec(w.at(p + "mlp.c_fc.weight"), n, &w.at(p + "mlp.c_fc.bias"));
      for (double& v : up) v = gelu(v, c.erf);
      const Vector down = matvec(w.at(p + "mlp.c_proj.weight"), up, &w.at(p + "mlp.c_proj.bias"));
      for (size_t i = 0; i < width; ++i) x[t][i] += down[i];
    }
  }
  const auto head_weight = w.find("lm_head.weight");
  const Vector& output = head_weight == w.end() ? w.at("wte.weight") : head_weight->second;
  std::vector<Vector> logits(length);
  for (size_t t = 0; t < length; ++t) {
    logits[t] =
        matvec(output, norm(x[t], w.at("ln_f.weight"), w.at("ln_f.bias"), c.epsilon), nullptr);
  }
  return logits;
}

// Mean over the counted labels (not -100) of a batch of sequences.
inline double reference_loss(const ReferenceConfig& c, const Weights& w,
                             const std::vector<std::vector<int32_t>>& ids,
                             const std::vector<std::vector<int32_t>>& labels,
                             const std::vector<std::vector<int>>& masks = {}) {
  double total = 0;
  int64_t counted = 0;
  for (size_t b = 0; b < ids.size(); ++b) {
    const auto logits =
        reference_logits(c, w, ids[b], masks.empty() ? std::vector<int>() : masks[b]);
    for (size_t t = 0; t < ids[b].size(); ++t) {
      if (labels[b][t] == -100) continue;
      double top = -INFINITY, sum = 0;
      for (double v : logits[t]) top = std::max(top, v);
      for (double v : logits[t]) sum += std::exp(v - top);
      total += top + std::log(sum) - logits[t][static_cast<size_t>(labels[b][t])];
      ++counted;
    }
  }
  return counted == 0 ? 0 : total / static_cast<double>(counted);
}

}  // namespace ds::testing
