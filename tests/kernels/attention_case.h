// What the rows for attention run: random problems, the errors they allow, and comparisons with the
// reference.
//
// Tolerances. A score is a product of `head size` terms in fp32, rounded about like a random walk:
// its absolute error, which is the relative error of its weight, is u * sqrt(head size) * S, where
// S is the largest sum of |q_d k_d| * scale. Sums over keys or queries and the exponential add some
// more roundings. Errors of an output are relative to the sum of the magnitudes of its terms,
// computed beside the reference. fp32 products on bf16 tiles lose no more than fp32 arithmetic
// does. bf16 adds the rounding of the output and, in backward, that of the stored forward output,
// from which d out . out is taken. On tiles it also rounds the weights and their gradients, 2^-8 of
// each term at most, and takes exponentials within 2^-13, which the logarithms show. GPUs round
// weights and gradients of fp16 too. cuDNN also rounds the gradients of keys and values for each
// query head before it sums those that share a head of keys.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "kernels/attention/attention.h"
#include "kernels/case_util.h"
#include "kernels/reference_sums.h"
#include "ops/attention.h"

namespace ds::testing {

using kernels::AttentionProblem;

enum class Mask { kNone, kPadding, kRandom, kSomeEmpty };

// Segments as packing makes them (runs of equal numbers), and in any order.
enum class Segments { kNone, kPacked, kMixed };

struct Spec {
  const char* note;
  DType dtype = DType::kFloat32;
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  bool causal = true;
  Mask mask = Mask::kNone;
  double dropout = 0;
  bool packed = false;  // q, k, v (and their gradients) are views of one tensor
  uint32_t first_sample = 0;
  double deviation = 1;  // of q and k
  int64_t window = 0;
  Segments segments = Segments::kNone;
  bool by_cudnn = false;
  int64_t first_head = 0;
  int64_t value_dim = 0;  // 0: head_dim

  int64_t value_size() const { return value_dim == 0 ? head_dim : value_dim; }
  std::string name() const {
    return str_cat("attention/", type_name(dtype), "/", note, "/", batch, "x", heads, "x", kv_heads,
                   "x", queries, "x", keys, "x", head_dim,
                   value_dim == 0 ? "" : str_cat("v", value_dim));
  }
};

// q, k, v or their gradients: three tensors, or views of one.
struct Qkv {
  Tensor whole, q, k, v;
};

inline Qkv make_qkv(const Spec& s) {
  const auto make = [&](int64_t tokens, int64_t heads, int64_t size) {
    return guarded_tensor(s.dtype, {s.batch, tokens, heads, size});
  };
  if (!s.packed) {
    return {{},
            make(s.queries, s.heads, s.head_dim),
            make(s.keys, s.kv_heads, s.head_dim),
            make(s.keys, s.kv_heads, s.value_size())};
  }
  const Tensor whole = make(s.keys, s.heads + 2 * s.kv_heads, s.head_dim);
  return {whole, whole.slice(2, 0, s.heads), whole.slice(2, s.heads, s.heads + s.kv_heads),
          whole.slice(2, s.heads + s.kv_heads, s.heads + 2 * s.kv_heads)};
}

inline Tensor make_mask(const Spec& s, Random& random) {
  if (s.mask == Mask::kNone) return {};
  Tensor mask = filled_tensor(DType::kUInt8, {s.batch, s.keys}, 1);
  for (int64_t b = 0; b < s.batch; ++b) {
    uint8_t* row = mask.data<uint8_t>() + b * s.keys;
    const int64_t length = std::uniform_int_distribution<int64_t>(1, s.keys)(random);
    for (int64_t j = 0; j < s.keys; ++j) {
      if (s.mask == Mask::kPadding) row[j] = j < length;
      if (s.mask == Mask::kRandom) row[j] = random() % 3 != 0;
      if (s.mask == Mask::kSomeEmpty) row[j] = b % 2 == 1 && j >= s.keys / 3;
    }
  }
  return mask;
}

inline Tensor make_segments(const Spec& s, Random& random) {
  if (s.segments == Segments::kNone) return {};
  Tensor segments = guarded_tensor(DType::kInt32, {s.batch, s.keys});
  for (int64_t b = 0; b < s.batch; ++b) {
    int32_t id = -2;
    for (int64_t j = 0; j < s.keys; ++j) {
      // Runs of about 40 tokens, or any of three numbers.
      if (random() % 40 == 0) ++id;
      segments.data<int32_t>()[b * s.keys + j] =
          s.segments == Segments::kPacked ? id : static_cast<int32_t>(random() % 3);
    }
  }
  return segments;
}

// Whether query i sees key j.
inline bool sees(const AttentionProblem& p, int64_t b, int64_t i, int64_t j) {
  const int64_t distance = i + p.keys - p.queries - j;  // how far back the key lies
  if (p.key_mask != nullptr && p.key_mask[b * p.keys + j] == 0) return false;
  if (p.segments != nullptr && p.segments[b * p.keys + i] != p.segments[b * p.keys + j]) {
    return false;
  }
  if (p.causal && distance < 0) return false;
  return p.window == 0 || std::abs(distance) < p.window;
}

// Inputs of one run, in their types and as doubles.
struct Inputs {
  Spec spec;
  Qkv in;
  Tensor mask, segments, dout;
  ops::AttentionOptions options;
  AttentionProblem problem;
  std::vector<double> q, k, v, weights;
};

inline Inputs make_inputs(const Spec& s, uint64_t seed) {
  Random random(seed);
  Inputs x{s,  make_qkv(s), make_mask(s, random), make_segments(s, random), {}, {}, {}, {}, {},
           {}, {}};
  fill_random(random, x.in.q, s.deviation);
  fill_random(random, x.in.k, s.deviation);
  fill_random(random, x.in.v, 1);
  x.dout = random_tensor(random, s.dtype, {s.batch, s.queries, s.heads, s.value_size()});
  x.options.causal = s.causal;
  x.options.scale = static_cast<float>(1.3 / std::sqrt(static_cast<double>(s.head_dim)));
  x.options.dropout = s.dropout;
  x.options.stream = {random(), static_cast<uint32_t>(random()), static_cast<uint32_t>(random())};
  x.options.stream.sample = s.first_sample;
  x.options.first_head = s.first_head;
  x.options.window = s.window;
  x.options.segments = x.segments;
  AttentionProblem& p = x.problem;
  p.batch = s.batch;
  p.heads = s.heads;
  p.kv_heads = s.kv_heads;
  p.queries = s.queries;
  p.keys = s.keys;
  p.head_dim = s.head_dim;
  p.value_dim = s.value_dim;
  p.causal = s.causal;
  p.scale = x.options.scale;
  p.dropout = s.dropout;
  p.stream = x.options.stream;
  p.first_head = s.first_head;
  p.window = s.window;
  if (x.segments) {
    p.segments = x.segments.data<int32_t>();
    p.segment_stride = s.keys;
  }
  if (x.mask) {
    p.key_mask = x.mask.data<uint8_t>();
    p.mask_stride = s.keys;
    // Whatever lies under the mask must not matter.
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto poison = [&](const Tensor& tensor) {
      const int64_t per_key = s.kv_heads * tensor.size(3);
      for_each_element(tensor, [&](int64_t flat, void* at) {
        if (p.key_mask[flat / per_key] == 0) set_element(s.dtype, at, nan);
      });
    };
    poison(x.in.k);
    poison(x.in.v);
  }
  x.q = doubles(x.in.q);
  x.k = doubles(x.in.k);
  x.v = doubles(x.in.v);
  x.weights = doubles(x.dout);
  return x;
}

inline Tolerance tolerance_of(const Inputs& x, double score) {
  const double rows = static_cast<double>(std::max(x.spec.queries, x.spec.keys));
  const double fp32 =
      0x1p-24 * (8 + 3 * std::sqrt(static_cast<double>(x.spec.head_dim)) * std::max(1.0, score) +
                 std::sqrt(rows));
  // An absolute floor of one part in 2^60: sums whose terms all underflow in fp32.
  return {fp32 + 2.5 * storage_roundoff(x.spec.dtype), 0x1p-60};
}

// What a weight or its gradient counts at least where GPUs round them to fp16, whose numbers below
// 2^-14 are 2^-24 apart: then half of that is within the tolerance.
inline double least_weight(const Inputs& x) {
  const bool rounded =
      x.spec.dtype == DType::kFloat16 && x.in.q.storage()->device_kind() == DeviceKind::kCuda;
  return rounded ? 0x1p-25 / tolerance_of(x, 1).relative : 0;
}

// Sums of the magnitudes of the terms of every output.
struct Magnitudes {
  double score = 0;  // S of the opening comment
  std::vector<double> out, dq, dk, dv;
};

inline Magnitudes magnitudes(const Inputs& x) {
  using kernels::reference_add, kernels::reference_dot;
  const AttentionProblem& p = x.problem;
  const int64_t group = p.heads / p.kv_heads, dim = p.head_dim, size_v = p.value_size();
  const auto without_signs = [](std::vector<double> values) {
    for (double& value : values) value = std::abs(value);
    return values;
  };
  const std::vector<double> all_q = without_signs(x.q), all_k = without_signs(x.k);
  const std::vector<double> all_v = without_signs(x.v), all_dout = without_signs(x.weights);
  const double least = least_weight(x);
  Magnitudes m;
  m.out.assign(x.weights.size(), 0);
  m.dq.assign(x.q.size(), 0);
  m.dk.assign(x.k.size(), 0);
  m.dv.assign(x.v.size(), 0);
  std::vector<double> row(static_cast<size_t>(p.keys)), drow(static_cast<size_t>(p.keys));
  for (int64_t flat = 0; flat < p.batch * p.queries * p.heads; ++flat) {
    const int64_t h = flat % p.heads, i = flat / p.heads % p.queries;
    const int64_t b = flat / p.heads / p.queries;
    const auto key_row = [&](int64_t j) { return (b * p.keys + j) * p.kv_heads + h / group; };
    const auto key = [&](int64_t j) { return key_row(j) * dim; };
    const auto value = [&](int64_t j) { return key_row(j) * size_v; };
    const auto seen = [&](int64_t j) { return sees(p, b, i, j); };
    const double *const q = all_q.data() + flat * dim, *const dout =
                                                           all_dout.data() + flat * size_v;
    double top = -1e300, sum = 0, weighted = 0;
    for (int64_t j = 0; j < p.keys; ++j) {
      if (!seen(j)) continue;
      double& score = row[static_cast<size_t>(j)];
      score = p.scale * reference_dot(x.q.data() + flat * dim, x.k.data() + key(j), dim);
      top = std::max(top, score);
      m.score = std::max(m.score, p.scale * reference_dot(q, all_k.data() + key(j), dim));
    }
    for (int64_t j = 0; j < p.keys; ++j) {
      if (seen(j)) sum += row[static_cast<size_t>(j)] = std::exp(row[static_cast<size_t>(j)] - top);
    }
    for (int64_t j = 0; j < p.keys; ++j) {
      if (!seen(j)) continue;
      const size_t n = static_cast<size_t>(j);
      const double* const v = all_v.data() + value(j);
      row[n] /= sum;
      const double weight = (row[n] + least) / (1 - p.dropout);
      reference_add(m.out.data() + flat * size_v, weight, v, size_v);
      reference_add(m.dv.data() + value(j), weight, dout, size_v);
      drow[n] = reference_dot(dout, v, size_v) / (1 - p.dropout);
      weighted += row[n] * drow[n];
    }
    for (int64_t j = 0; j < p.keys; ++j) {
      if (!seen(j)) continue;
      const size_t n = static_cast<size_t>(j);
      const double size = p.scale * (row[n] * (drow[n] + weighted) + least);
      reference_add(m.dq.data() + flat * dim, size, all_k.data() + key(j), dim);
      reference_add(m.dk.data() + key(j), size, q, dim);
    }
  }
  return m;
}

inline Tolerance key_tolerance_of(const Inputs& x, Tolerance tolerance) {
  const bool shared = x.spec.by_cudnn && x.spec.kv_heads < x.spec.heads;
  if (shared) tolerance.relative += storage_roundoff(x.spec.dtype);
  return tolerance;
}

struct Results {
  Tensor out, lse;
  Qkv grads;
};

// Backward may have a context of its own, with another policy.
inline Results run_operator(const OpContext& ctx, const OpContext& backward, const Inputs& x) {
  const Spec& s = x.spec;
  Results r{guarded_tensor(s.dtype, {s.batch, s.queries, s.heads, s.value_size()}),
            guarded_tensor(DType::kFloat32, {s.batch, s.heads, s.queries}), make_qkv(s)};
  ops::attention(ctx, {.q = x.in.q, .k = x.in.k, .v = x.in.v, .key_mask = x.mask}, x.options,
                 {.out = r.out, .lse = r.lse});
  ops::attention_backward(backward, {.q = x.in.q, .k = x.in.k, .v = x.in.v, .key_mask = x.mask},
                          x.options, {.out = r.out, .lse = r.lse}, x.dout,
                          {.dq = r.grads.q, .dk = r.grads.k, .dv = r.grads.v});
  return r;
}

inline Results run_operator(const OpContext& ctx, const Inputs& x) {
  return run_operator(ctx, ctx, x);
}

inline CaseResult check(const Spec& spec, const OpContext& ctx, const OpContext& backward,
                        uint64_t seed) {
  const Inputs x = make_inputs(spec, seed);
  const Results r = run_operator(ctx, backward, x);
  std::vector<double> out(x.weights.size()), lse(static_cast<size_t>(r.lse.elements()));
  std::vector<double> dq(x.q.size()), dk(x.k.size()), dv(x.v.size());
  kernels::attention_forward_ref(x.problem, x.q.data(), x.k.data(), x.v.data(), out.data(),
                                 lse.data());
  kernels::attention_backward_ref(x.problem, x.q.data(), x.k.data(), x.v.data(),
                                  {x.weights.data(), dq.data(), dk.data(), dv.data()});
  const Magnitudes m = magnitudes(x);
  const Tolerance tolerance = tolerance_of(x, m.score);
  CaseResult result;
  compare(result, "out", r.out, out, tolerance, m.out);
  const double lse_error =
      0x1p-24 * (8 + 3 * std::sqrt(static_cast<double>(spec.head_dim)) * std::max(1.0, m.score)) +
      (spec.dtype == DType::kBFloat16 ? 0x1p-13 : 0);
  compare(result, "lse", r.lse, lse, {0x1p-22, lse_error});
  compare(result, "dq", r.grads.q, dq, tolerance, m.dq);
  const Tolerance of_keys = key_tolerance_of(x, tolerance);
  compare(result, "dk", r.grads.k, dk, of_keys, m.dk);
  compare(result, "dv", r.grads.v, dv, of_keys, m.dv);
  if (r.grads.whole && !guards_intact(r.grads.whole)) {
    result.merge(std::numeric_limits<double>::infinity(), "bytes outside packed gradients");
  }
  return result;
}

inline CaseResult check(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  return check(spec, ctx, ctx, seed);
}

// Gradients beside central differences of the reference. Errors are relative to the magnitudes of
// terms here, too: the largest gradient may be the small rest of terms that cancel.
inline CaseResult check_differences(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  const Inputs x = make_inputs(spec, seed);
  const Results r = run_operator(ctx, x);
  std::vector<double> out(x.weights.size());
  const auto objective = [&](const std::vector<double>& q, const std::vector<double>& k,
                             const std::vector<double>& v) {
    kernels::attention_forward_ref(x.problem, q.data(), k.data(), v.data(), out.data(), nullptr);
    return weighted_sum(x.weights, out);
  };
  const Magnitudes m = magnitudes(x);
  // The absolute part is for gradients that cancel to 0, as of a query that sees one key.
  Tolerance tolerance = tolerance_of(x, m.score);
  tolerance.absolute = 2e-6;
  CaseResult result;
  const auto compare_with = [&](const char* name, const Tensor& actual,
                                const std::vector<double>& at, const auto& of,
                                const std::vector<double>& scale) {
    compare(result, name, actual, finite_differences(at, of), tolerance, scale);
  };
  // Differences of masked keys and values, which hold NaN, are 0 as the reference skips them.
  compare_with(
      "dq", r.grads.q, x.q, [&](const auto& q) { return objective(q, x.k, x.v); }, m.dq);
  compare_with(
      "dk", r.grads.k, x.k, [&](const auto& k) { return objective(x.q, k, x.v); }, m.dk);
  compare_with(
      "dv", r.grads.v, x.v, [&](const auto& v) { return objective(x.q, x.k, v); }, m.dv);
  return result;
}

// Forward alone, without asking for lse: what generation does.
inline CaseResult check_forward(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  const Inputs x = make_inputs(spec, seed);
  Tensor out = guarded_tensor(spec.dtype, x.dout.shape()), no_lse;
  ops::attention(ctx, {.q = x.in.q, .k = x.in.k, .v = x.in.v, .key_mask = x.mask}, x.options,
                 {.out = out, .lse = no_lse});
  std::vector<double> expected(x.weights.size());
  kernels::attention_forward_ref(x.problem, x.q.data(), x.k.data(), x.v.data(), expected.data(),
                                 nullptr);
  const Magnitudes m = magnitudes(x);
  CaseResult result;
  compare(result, "out", out, expected, tolerance_of(x, m.score), m.out);
  return result;
}

}  // namespace ds::testing
