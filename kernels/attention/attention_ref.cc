// The reference of attention: full rows of probabilities in double precision.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/reference_sums.h"

namespace ds::kernels {
namespace {

bool sees(const AttentionProblem& p, int64_t b, int64_t i, int64_t j) {
  if (p.key_mask != nullptr && p.key_mask[b * p.mask_stride + j] == 0) return false;
  if (p.segments != nullptr) {
    const int32_t* row = p.segments + b * p.segment_stride;
    if (row[i] != row[j]) return false;
  }
  const int64_t own = i + (p.keys - p.queries);
  if (p.causal && j > own) return false;
  if (p.window > 0 && j <= own - p.window) return false;
  return p.causal || p.window == 0 || j < own + p.window;
}

// 1 / (1 - dropout) where the probability is kept, else 0.
double keep_factor(const AttentionProblem& p, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (p.dropout == 0) return 1;
  const uint32_t bits = p.stream.bits(p.row_element(b, h, i) + static_cast<uint64_t>(j));
  return bits < dropout_threshold(p.dropout) ? 0 : 1 / (1 - p.dropout);
}

struct Sizes {
  explicit Sizes(const AttentionProblem& p) : problem(p), group(p.heads / p.kv_heads) {}
  const AttentionProblem& problem;
  int64_t group;

  int64_t query_row(int64_t b, int64_t i, int64_t h) const {
    return (b * problem.queries + i) * problem.heads + h;
  }
  int64_t key_row(int64_t b, int64_t j, int64_t h) const {
    return (b * problem.keys + j) * problem.kv_heads + h / group;
  }
  int64_t query(int64_t b, int64_t i, int64_t h) const {
    return query_row(b, i, h) * problem.head_dim;
  }
  int64_t out(int64_t b, int64_t i, int64_t h) const {
    return query_row(b, i, h) * problem.value_size();
  }
  int64_t key(int64_t b, int64_t j, int64_t h) const { return key_row(b, j, h) * problem.head_dim; }
  int64_t value(int64_t b, int64_t j, int64_t h) const {
    return key_row(b, j, h) * problem.value_size();
  }
};

// Fills one row of probabilities (0 where masked) and returns the log of the sum of exponentials.
double probabilities(const Sizes& sizes, const double* q, const double* k, int64_t b, int64_t h,
                     int64_t i, std::vector<double>& row) {
  const AttentionProblem& p = sizes.problem;
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  const double* query = q + sizes.query(b, i, h);
  double top = kHidden;
  bool any = false;
  for (int64_t j = 0; j < p.keys; ++j) {
    double& score = row[static_cast<size_t>(j)];
    score = kHidden;
    if (!sees(p, b, i, j)) continue;
    any = true;
    score = p.scale * reference_dot(query, k + sizes.key(b, j, h), p.head_dim);
    top = std::max(top, score);
  }
  if (!any) {
    std::fill(row.begin(), row.end(), 0.0);
    return kHidden;
  }
  double sum = 0;
  for (double& value : row) sum += value = value == kHidden ? 0 : std::exp(value - top);
  for (double& value : row) value /= sum;
  return top + std::log(sum);
}

template <class Visit>
void for_each_query(const AttentionProblem& p, const Visit& visit) {
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t i = 0; i < p.queries; ++i) visit(b, h, i);
    }
  }
}

}  // namespace

void attention_forward_ref(const AttentionProblem& p, const double* q, const double* k,
                           const double* v, double* out, double* lse) {
  const Sizes sizes(p);
  std::vector<double> row(static_cast<size_t>(p.keys));
  for_each_query(p, [&](int64_t b, int64_t h, int64_t i) {
    const double log_sum = probabilities(sizes, q, k, b, h, i, row);
    if (lse != nullptr) lse[(b * p.heads + h) * p.queries + i] = log_sum;
    double* to = out + sizes.out(b, i, h);
    std::fill(to, to + p.value_size(), 0.0);
    for (int64_t j = 0; j < p.keys; ++j) {
      const double weight = row[static_cast<size_t>(j)] * keep_factor(p, b, h, i, j);
      if (weight == 0) continue;
      reference_add(to, weight, v + sizes.value(b, j, h), p.value_size());
    }
  });
}

void attention_backward_ref(const AttentionProblem& p, const double* q, const double* k,
                            const double* v, const AttentionReferenceGradients& gradients) {
  const Sizes sizes(p);
  const double* const dout = gradients.dout;
  double *const dq = gradients.dq, *const dk = gradients.dk, *const dv = gradients.dv;
  std::fill(dq, dq + p.batch * p.queries * p.heads * p.head_dim, 0.0);
  std::fill(dk, dk + p.batch * p.keys * p.kv_heads * p.head_dim, 0.0);
  std::fill(dv, dv + p.batch * p.keys * p.kv_heads * p.value_size(), 0.0);
  std::vector<double> row(static_cast<size_t>(p.keys)), drow(static_cast<size_t>(p.keys));
  for_each_query(p, [&](int64_t b, int64_t h, int64_t i) {
    probabilities(sizes, q, k, b, h, i, row);
    const int64_t at = sizes.query(b, i, h);
    const double* const dy = dout + sizes.out(b, i, h);
    double weighted = 0;
    for (int64_t j = 0; j < p.keys; ++j) {
      const size_t n = static_cast<size_t>(j);
      drow[n] = 0;
      if (row[n] == 0) continue;  // masked: v may hold anything
      const double keep = keep_factor(p, b, h, i, j);
      drow[n] = keep * reference_dot(dy, v + sizes.value(b, j, h), p.value_size());
      weighted += row[n] * drow[n];
      reference_add(dv + sizes.value(b, j, h), row[n] * keep, dy, p.value_size());
    }
    for (int64_t j = 0; j < p.keys; ++j) {
      const size_t n = static_cast<size_t>(j);
      if (row[n] == 0) continue;
      const double dscore = p.scale * row[n] * (drow[n] - weighted);
      reference_add(dq + at, dscore, k + sizes.key(b, j, h), p.head_dim);
      reference_add(dk + sizes.key(b, j, h), dscore, q + at, p.head_dim);
    }
  });
}

}  // namespace ds::kernels
