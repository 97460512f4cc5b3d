// Rows of the operator table for attention.
//
// Tolerances. A score is a product of `head size` terms in fp32, rounded about like a random walk:
// its absolute error, which is the relative error of its weight, is u * sqrt(head size) * S, where
// S is the largest sum of |q_d k_d| * scale. Sums over keys or queries and the exponential add some
// more roundings. Errors of an output are relative to the sum of the magnitudes of its terms,
// computed beside the reference. bf16 adds the rounding of the output and, in backward, that of the
// stored forward output, from which d out . out is taken.
#include <algorithm>
#include <memory>

#include "base/text.h"
#include "kernels/attention/attention.h"
#include "kernels/case_util.h"
#include "ops/attention.h"

namespace ds::testing {
namespace {

using kernels::AttentionProblem;

enum class Mask { kNone, kPadding, kRandom, kSomeEmpty };

struct Spec {
  const char* note;
  DType dtype = DType::kFloat32;
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  bool causal = true;
  Mask mask = Mask::kNone;
  double dropout = 0;
  bool packed = false;  // q, k, v (and their gradients) are views of one tensor
  int64_t first_batch = 0;
  double deviation = 1;  // of q and k

  std::string name() const {
    return str_cat("attention/", dtype == DType::kFloat32 ? "fp32" : "bf16", "/", note, "/", batch,
                   "x", heads, "x", kv_heads, "x", queries, "x", keys, "x", head_dim);
  }
};

// q, k, v or their gradients: three tensors, or views of one.
struct Qkv {
  Tensor whole, q, k, v;
};

Qkv make_qkv(const Spec& s) {
  const auto make = [&](int64_t tokens, int64_t heads) {
    return guarded_tensor(s.dtype, {s.batch, tokens, heads, s.head_dim});
  };
  if (!s.packed)
    return {{}, make(s.queries, s.heads), make(s.keys, s.kv_heads), make(s.keys, s.kv_heads)};
  const Tensor whole = make(s.keys, s.heads + 2 * s.kv_heads);
  return {whole, whole.slice(2, 0, s.heads), whole.slice(2, s.heads, s.heads + s.kv_heads),
          whole.slice(2, s.heads + s.kv_heads, s.heads + 2 * s.kv_heads)};
}

void fill_normal(Random& random, const Tensor& tensor, double deviation) {
  std::normal_distribution<double> normal(0, deviation);
  for_each_element(tensor,
                   [&](int64_t, void* at) { set_element(tensor.dtype(), at, normal(random)); });
}

Tensor make_mask(const Spec& s, Random& random) {
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

// Inputs of one run, in their types and as doubles.
struct Inputs {
  Spec spec;
  Qkv in;
  Tensor mask, dout;
  ops::AttentionOptions options;
  AttentionProblem problem;
  std::vector<double> q, k, v, weights;
};

Inputs make_inputs(const Spec& s, uint64_t seed) {
  Random random(seed);
  Inputs x{s, make_qkv(s), make_mask(s, random), {}, {}, {}, {}, {}, {}, {}};
  fill_normal(random, x.in.q, s.deviation);
  fill_normal(random, x.in.k, s.deviation);
  fill_normal(random, x.in.v, 1);
  x.dout = random_tensor(random, s.dtype, {s.batch, s.queries, s.heads, s.head_dim});
  x.options.causal = s.causal;
  x.options.scale = static_cast<float>(1.3 / std::sqrt(static_cast<double>(s.head_dim)));
  x.options.dropout = s.dropout;
  x.options.stream = {random(), static_cast<uint32_t>(random()), static_cast<uint32_t>(random())};
  x.options.first_batch = s.first_batch;
  AttentionProblem& p = x.problem;
  p.batch = s.batch;
  p.heads = s.heads;
  p.kv_heads = s.kv_heads;
  p.queries = s.queries;
  p.keys = s.keys;
  p.head_dim = s.head_dim;
  p.causal = s.causal;
  p.scale = x.options.scale;
  p.dropout = s.dropout;
  p.stream = x.options.stream;
  p.first_batch = s.first_batch;
  if (x.mask) {
    p.key_mask = x.mask.data<uint8_t>();
    p.mask_stride = s.keys;
    // Whatever lies under the mask must not matter.
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const int64_t per_key = s.kv_heads * s.head_dim;
    const auto poison = [&](const Tensor& tensor) {
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

// Sums of the magnitudes of the terms of every output.
struct Magnitudes {
  double score = 0;  // S of the opening comment
  std::vector<double> out, dq, dk, dv;
};

Magnitudes magnitudes(const Inputs& x) {
  const AttentionProblem& p = x.problem;
  const int64_t group = p.heads / p.kv_heads, dim = p.head_dim;
  Magnitudes m;
  m.out.assign(x.q.size(), 0);
  m.dq.assign(x.q.size(), 0);
  m.dk.assign(x.k.size(), 0);
  m.dv.assign(x.v.size(), 0);
  std::vector<double> row(static_cast<size_t>(p.keys)), drow(static_cast<size_t>(p.keys));
  const auto at = [](const std::vector<double>& values, int64_t i) {
    return std::abs(values[static_cast<size_t>(i)]);
  };
  for (int64_t flat = 0; flat < p.batch * p.queries * p.heads; ++flat) {
    const int64_t h = flat % p.heads, i = flat / p.heads % p.queries;
    const int64_t b = flat / p.heads / p.queries;
    const auto key = [&](int64_t j) { return ((b * p.keys + j) * p.kv_heads + h / group) * dim; };
    const auto seen = [&](int64_t j) {
      return (p.key_mask == nullptr || p.key_mask[b * p.keys + j] != 0) &&
             (!p.causal || j <= i + p.keys - p.queries);
    };
    double top = -1e300, sum = 0, weighted = 0;
    for (int64_t j = 0; j < p.keys; ++j) {
      if (!seen(j)) continue;
      double score = 0, size = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const double term = p.scale * x.q[static_cast<size_t>(flat * dim + d)] *
                            x.k[static_cast<size_t>(key(j) + d)];
        score += term;
        size += std::abs(term);
      }
      row[static_cast<size_t>(j)] = score;
      top = std::max(top, score);
      m.score = std::max(m.score, size);
    }
    for (int64_t j = 0; j < p.keys; ++j) {
      if (seen(j)) sum += row[static_cast<size_t>(j)] = std::exp(row[static_cast<size_t>(j)] - top);
    }
    for (int64_t j = 0; j < p.keys; ++j) {
      if (!seen(j)) continue;
      const size_t n = static_cast<size_t>(j);
      row[n] /= sum;
      drow[n] = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const double weight = row[n] / (1 - p.dropout);
        drow[n] += at(x.weights, flat * dim + d) * at(x.v, key(j) + d) / (1 - p.dropout);
        m.out[static_cast<size_t>(flat * dim + d)] += weight * at(x.v, key(j) + d);
        m.dv[static_cast<size_t>(key(j) + d)] += weight * at(x.weights, flat * dim + d);
      }
      weighted += row[n] * drow[n];
    }
    for (int64_t j = 0; j < p.keys; ++j) {
      if (!seen(j)) continue;
      const size_t n = static_cast<size_t>(j);
      const double size = p.scale * row[n] * (drow[n] + weighted);
      for (int64_t d = 0; d < dim; ++d) {
        m.dq[static_cast<size_t>(flat * dim + d)] += size * at(x.k, key(j) + d);
        m.dk[static_cast<size_t>(key(j) + d)] += size * at(x.q, flat * dim + d);
      }
    }
  }
  return m;
}

Tolerance tolerance_of(const Inputs& x, double score) {
  const double rows = static_cast<double>(std::max(x.spec.queries, x.spec.keys));
  const double fp32 =
      0x1p-24 * (8 + 3 * std::sqrt(static_cast<double>(x.spec.head_dim)) * std::max(1.0, score) +
                 std::sqrt(rows));
  // An absolute floor of one part in 2^60: sums whose terms all underflow in fp32.
  return {x.spec.dtype == DType::kBFloat16 ? fp32 + 2.5 * 0x1p-8 : fp32, 0x1p-60};
}

struct Results {
  Tensor out, lse;
  Qkv grads;
};

Results run_operator(const OpContext& ctx, const Inputs& x) {
  const Spec& s = x.spec;
  Results r{guarded_tensor(s.dtype, {s.batch, s.queries, s.heads, s.head_dim}),
            guarded_tensor(DType::kFloat32, {s.batch, s.heads, s.queries}), make_qkv(s)};
  ops::attention(ctx, x.in.q, x.in.k, x.in.v, x.mask, x.options, r.out, r.lse);
  ops::attention_backward(ctx, x.dout, x.in.q, x.in.k, x.in.v, x.mask, x.options, r.out, r.lse,
                          r.grads.q, r.grads.k, r.grads.v);
  return r;
}

CaseResult check(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  const Inputs x = make_inputs(spec, seed);
  const Results r = run_operator(ctx, x);
  std::vector<double> out(x.q.size()), lse(static_cast<size_t>(r.lse.elements()));
  std::vector<double> dq(x.q.size()), dk(x.k.size()), dv(x.v.size());
  kernels::attention_forward_ref(x.problem, x.q.data(), x.k.data(), x.v.data(), out.data(),
                                 lse.data());
  kernels::attention_backward_ref(x.problem, x.q.data(), x.k.data(), x.v.data(), x.weights.data(),
                                  dq.data(), dk.data(), dv.data());
  const Magnitudes m = magnitudes(x);
  const Tolerance tolerance = tolerance_of(x, m.score);
  CaseResult result;
  compare(result, "out", r.out, out, tolerance, m.out);
  const double lse_error =
      0x1p-24 * (8 + 3 * std::sqrt(static_cast<double>(spec.head_dim)) * std::max(1.0, m.score));
  compare(result, "lse", r.lse, lse, {0x1p-22, lse_error});
  compare(result, "dq", r.grads.q, dq, tolerance, m.dq);
  compare(result, "dk", r.grads.k, dk, tolerance, m.dk);
  compare(result, "dv", r.grads.v, dv, tolerance, m.dv);
  if (r.grads.whole && !guards_intact(r.grads.whole)) {
    result.merge(std::numeric_limits<double>::infinity(), "bytes outside packed gradients");
  }
  return result;
}

// Forward alone, without asking for lse: what generation does.
CaseResult check_forward(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  const Inputs x = make_inputs(spec, seed);
  Tensor out = guarded_tensor(spec.dtype, x.in.q.shape()), no_lse;
  ops::attention(ctx, x.in.q, x.in.k, x.in.v, x.mask, x.options, out, no_lse);
  std::vector<double> expected(x.q.size());
  kernels::attention_forward_ref(x.problem, x.q.data(), x.k.data(), x.v.data(), expected.data(),
                                 nullptr);
  const Magnitudes m = magnitudes(x);
  CaseResult result;
  compare(result, "out", out, expected, tolerance_of(x, m.score), m.out);
  return result;
}

// A NaN in one query reaches that row of the output and of dq, all of dk and dv that it sees, and
// nothing else.
CaseResult check_nan(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  Inputs x = make_inputs(spec, seed);
  const int64_t row = static_cast<int64_t>(seed % static_cast<uint64_t>(spec.queries));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const size_t poisoned = static_cast<size_t>(row * spec.heads * spec.head_dim);
  x.q[poisoned] = nan;
  set_doubles(x.in.q, x.q);
  const Results r = run_operator(ctx, x);
  const std::vector<double> out = doubles(r.out), dq = doubles(r.grads.q), dv = doubles(r.grads.v);
  const auto flag = [&](const std::vector<double>& values, const char* what, CaseResult& result) {
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t element = static_cast<int64_t>(i) / spec.head_dim;
      const bool expected = element == row * spec.heads;  // batch 0, head 0
      result.merge(std::isnan(values[i]) == expected ? 0 : 2,
                   str_cat(what, "[", i, "] is ", values[i], ", NaN was put in query ", row));
    }
  };
  CaseResult result;
  flag(out, "out", result);
  flag(dq, "dq", result);
  const bool reached = std::isnan(dv[0]);
  result.merge(reached ? 0 : 2, "dv[0] is not NaN");
  compare_value(result, "NaN reached dv", reached ? 1 : 0, 1, {0, 0.5});
  return result;
}

// Scratch must not grow with queries x keys.
CaseResult check_memory(const OpContext& ctx, uint64_t seed) {
  const Spec spec{"memory", DType::kFloat32, 1, 1, 1, 2048, 2048, 8};
  OpContext own = ctx;
  own.device = make_cpu_device();
  const Inputs x = make_inputs(spec, seed);
  const Results r = run_operator(own, x);
  const int64_t peak = own.device->account().peak(MemoryTag::kWorkspace);
  CaseResult result;
  compare(result, "row 0", r.out.slice(1, 0, 1), doubles(x.in.v.slice(1, 0, 1)), {0x1p-22});
  result.merge(peak > 0 && peak < spec.queries * spec.keys ? 0 : 2,
               str_cat("scratch took ", peak, " bytes for 2048 x 2048 scores"));
  return result;
}

// Arguments that do not fit are refused by name before anything is computed.
CaseResult check_refusals(const OpContext& ctx, uint64_t seed) {
  Random random(seed);
  const auto make = [&](DType dtype, const Shape& shape) {
    return random_tensor(random, dtype, shape);
  };
  constexpr DType kF = DType::kFloat32;
  const Tensor q = make(kF, {2, 5, 4, 8}), k = make(kF, {2, 6, 2, 8});
  CaseResult result;
  const auto refuse = [&](const std::string& what, const std::string& word, const Tensor& q_in,
                          const Tensor& k_in, const Tensor& v_in, const Tensor& mask, Tensor out,
                          Tensor lse, double dropout) {
    ops::AttentionOptions options;
    options.dropout = dropout;
    double bad = 2;
    std::string message = "no error";
    try {
      ops::attention(ctx, q_in, k_in, v_in, mask, options, out, lse);
    } catch (const Error& error) {
      message = error.message();
      if (error.code() == Code::kInvalidArgument && message.find(word) != std::string::npos)
        bad = 0;
    }
    result.merge(bad, str_cat(what, " gave: ", message));
  };
  const Tensor out = make(kF, q.shape()), lse = make(kF, {2, 4, 5}), none;
  const Tensor three = make(kF, {2, 6, 3, 8}), bf16 = make(DType::kBFloat16, k.shape());
  const Tensor wide = make(kF, {1, 2, 1, 257}), ints = make(DType::kInt32, q.shape());
  const Tensor sparse(q.storage(), 0, kF, Shape{1, 5, 4, 4}, std::array<int64_t, 4>{0, 32, 8, 2});
  const Tensor sparse_kv = make(kF, {1, 6, 2, 4});
  refuse("3 kv heads of 4", "kv heads", q, three, three, none, out, lse, 0);
  refuse("v of another shape", "v", q, k, three, none, out, lse, 0);
  refuse("k in bfloat16", "k", q, bf16, bf16, none, out, lse, 0);
  refuse("q of integers", "q", ints, k, k, none, out, lse, 0);
  refuse("no v", "v", q, k, none, none, out, lse, 0);
  refuse("head size 257", "head size", wide, wide, wide, none, wide, lse, 0);
  refuse("sparse last dimension", "dense", sparse, sparse_kv, sparse_kv, none, out, lse, 0);
  refuse("mask of another shape", "key_mask", q, k, k, make(DType::kUInt8, {2, 5}), out, lse, 0);
  refuse("mask of floats", "key_mask", q, k, k, make(kF, {2, 6}), out, lse, 0);
  refuse("short out", "out", q, k, k, none, make(kF, {2, 4, 4, 8}), lse, 0);
  refuse("short lse", "lse", q, k, k, none, out, make(kF, {2, 4, 4}), 0);
  refuse("dropout 1", "dropout", q, k, k, none, out, lse, 1);
  refuse("dropout NaN", "dropout", q, k, k, none, out, lse, std::nan(""));
  compare_value(result, "refusals", 1, 1, {0, 0.5});
  return result;
}

CaseResult gradient(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  const Inputs x = make_inputs(spec, seed);
  const Results r = run_operator(ctx, x);
  std::vector<double> out(x.q.size());
  const auto objective = [&](const std::vector<double>& q, const std::vector<double>& k,
                             const std::vector<double>& v) {
    kernels::attention_forward_ref(x.problem, q.data(), k.data(), v.data(), out.data(), nullptr);
    return weighted_sum(x.weights, out);
  };
  const Tolerance tolerance{spec.dtype == DType::kBFloat16 ? 0x1p-5 : 2e-5, 1e-9};
  CaseResult result;
  compare_gradient(
      result, "dq", r.grads.q, x.q, [&](const auto& q) { return objective(q, x.k, x.v); },
      tolerance);
  // Differences of masked keys and values, which hold NaN, are 0 as the reference skips them.
  compare_gradient(
      result, "dk", r.grads.k, x.k, [&](const auto& k) { return objective(x.q, k, x.v); },
      tolerance);
  compare_gradient(
      result, "dv", r.grads.v, x.v, [&](const auto& v) { return objective(x.q, x.k, v); },
      tolerance);
  return result;
}

OpCase row_of(const Spec& spec, bool small) {
  OpCase row;
  row.name = spec.name();
  row.check = [spec](const OpContext& ctx, uint64_t seed) { return check(spec, ctx, seed); };
  if (small) {
    row.gradient = [spec](const OpContext& ctx, uint64_t seed) {
      return gradient(spec, ctx, seed);
    };
  }
  return row;
}

// ---- benchmark ----

struct BenchInputs {
  Tensor qkv, q, k, v, out, lse, dqkv, dq, dk, dv;
  ops::AttentionOptions options;
};

std::shared_ptr<BenchInputs> bench_inputs(const Spec& s, const OpContext& ctx) {
  auto x = std::make_shared<BenchInputs>();
  const Shape packed{s.batch, s.keys, s.heads + 2 * s.kv_heads, s.head_dim};
  const int64_t h = s.heads, kv = s.kv_heads;
  x->qkv = bench_tensor(ctx, s.dtype, packed);
  x->q = x->qkv.slice(2, 0, h).slice(1, s.keys - s.queries, s.keys);
  x->k = x->qkv.slice(2, h, h + kv);
  x->v = x->qkv.slice(2, h + kv, h + 2 * kv);
  x->dqkv = bench_tensor(ctx, s.dtype, packed);
  x->dq = x->dqkv.slice(2, 0, h).slice(1, s.keys - s.queries, s.keys);
  x->dk = x->dqkv.slice(2, h, h + kv);
  x->dv = x->dqkv.slice(2, h + kv, h + 2 * kv);
  x->out = bench_tensor(ctx, s.dtype, {s.batch, s.queries, h, s.head_dim});
  x->lse = bench_tensor(ctx, DType::kFloat32, {s.batch, h, s.queries});
  x->options.causal = s.causal;
  x->options.dropout = s.dropout;
  x->options.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  return x;
}

double visible_pairs(const Spec& s) {
  double pairs = 0;
  for (int64_t i = 0; i < s.queries; ++i) {
    pairs += static_cast<double>(
        s.causal ? std::clamp<int64_t>(i + s.keys - s.queries + 1, 0, s.keys) : s.keys);
  }
  return pairs * static_cast<double>(s.batch * s.heads);
}

double elements(const Spec& s) {
  return static_cast<double>(s.batch * s.head_dim *
                             (s.heads * s.queries + s.kv_heads * s.keys * 2));
}

// Only products of visible pairs count: two products of 2 * head size FLOP each in forward, five in
// backward.
std::vector<OpCase> bench_rows(const Spec& spec) {
  const double element_bytes = static_cast<double>(dtype_size(spec.dtype));
  const double out = static_cast<double>(spec.batch * spec.queries * spec.heads * spec.head_dim);
  OpCase forward, backward;
  forward.name = spec.name() + "/forward";
  forward.flops = 4 * static_cast<double>(spec.head_dim) * visible_pairs(spec);
  forward.bytes = element_bytes * (elements(spec) + out);
  forward.prepare = [spec](const OpContext& ctx) -> std::function<void()> {
    const auto x = bench_inputs(spec, ctx);
    return [x, ctx] { ops::attention(ctx, x->q, x->k, x->v, {}, x->options, x->out, x->lse); };
  };
  backward.name = spec.name() + "/backward";
  backward.flops = 2.5 * forward.flops;
  backward.bytes = element_bytes * (2 * elements(spec) + 2 * out);
  backward.prepare = [spec](const OpContext& ctx) -> std::function<void()> {
    const auto x = bench_inputs(spec, ctx);
    ops::attention(ctx, x->q, x->k, x->v, {}, x->options, x->out, x->lse);
    return [x, ctx] {
      ops::attention_backward(ctx, x->out, x->q, x->k, x->v, {}, x->options, x->out, x->lse, x->dq,
                              x->dk, x->dv);
    };
  };
  if (spec.queries == 1) return {forward};
  return {forward, backward};
}

}  // namespace

std::vector<OpCase> attention_cases() {
  constexpr DType kF = DType::kFloat32, kB = DType::kBFloat16;
  // note, dtype, batch, heads, kv heads, queries, keys, head size, causal, mask, dropout, packed,
  // first batch, deviation
  const std::vector<Spec> small = {
      {"one", kF, 1, 1, 1, 1, 1, 1},
      {"causal", kF, 2, 2, 2, 5, 5, 3},
      {"full", kF, 1, 2, 1, 4, 7, 5, false},
      {"offset", kF, 1, 2, 2, 3, 9, 4},
      {"queries_before_keys", kF, 1, 2, 2, 9, 6, 4},
      {"gqa_dropout", kF, 2, 4, 2, 6, 6, 4, true, Mask::kNone, 0.3, false, 5},
      {"mask_dropout", kF, 3, 2, 1, 7, 7, 3, true, Mask::kSomeEmpty, 0.2, true},
      {"mask", kF, 2, 2, 2, 8, 8, 2, false, Mask::kRandom},
      {"decode_mask", kF, 2, 3, 1, 2, 9, 6, true, Mask::kRandom},
      {"causal", kB, 1, 2, 2, 6, 6, 4},
  };
  const std::vector<Spec> large = {
      {"packed", kF, 2, 3, 3, 97, 97, 64, true, Mask::kNone, 0, true},
      {"packed_gqa", kF, 1, 4, 2, 161, 161, 80, true, Mask::kNone, 0, true},
      {"long", kF, 1, 1, 1, 515, 515, 32},
      {"full", kF, 1, 2, 2, 100, 230, 96, false},
      {"offset", kF, 1, 2, 1, 70, 200, 128},
      {"queries_before_keys", kF, 1, 1, 1, 210, 100, 40},
      {"widest", kF, 1, 2, 1, 33, 65, 256},
      {"odd_size", kF, 1, 1, 1, 65, 130, 67},
      {"many_heads", kF, 5, 4, 4, 20, 20, 8, true, Mask::kNone, 0, true},
      {"blocks", kF, 2, 4, 4, 200, 200, 8},
      {"extreme", kF, 1, 2, 2, 150, 150, 16, true, Mask::kNone, 0, false, 0, 12},
      {"padding", kF, 3, 2, 2, 130, 130, 24, true, Mask::kPadding, 0, true},
      {"mask", kF, 4, 2, 1, 60, 150, 20, false, Mask::kRandom},
      {"empty_rows", kF, 2, 2, 2, 140, 140, 16, true, Mask::kSomeEmpty},
      {"dropout", kF, 2, 2, 2, 132, 132, 32, true, Mask::kNone, 0.1, true, 3},
      {"dropout_odd", kF, 1, 4, 2, 67, 141, 18, false, Mask::kPadding, 0.5},
      {"packed", kB, 2, 2, 2, 131, 131, 64, true, Mask::kNone, 0, true},
      {"gqa_dropout_mask", kB, 2, 4, 2, 75, 99, 33, true, Mask::kPadding, 0.2},
      {"full", kB, 1, 2, 2, 64, 64, 128, false},
  };
  const std::vector<Spec> decode = {
      {"decode", kF, 2, 3, 3, 1, 77, 64},
      {"decode_long", kF, 1, 4, 2, 1, 1300, 24},
      {"decode_gqa", kF, 2, 12, 2, 1, 530, 80},
      {"decode_several", kF, 1, 5, 1, 3, 600, 67, true, Mask::kRandom},
      {"decode_empty", kF, 2, 2, 2, 2, 40, 17, true, Mask::kSomeEmpty},
      {"decode", kB, 2, 8, 2, 1, 513, 128},
      {"decode_odd", kB, 1, 3, 3, 4, 45, 21},
  };
  std::vector<OpCase> rows;
  for (const Spec& spec : small) rows.push_back(row_of(spec, true));
  for (const Spec& spec : large) rows.push_back(row_of(spec, false));
  for (const Spec& spec : decode) {
    rows.push_back(row_of(spec, false));
    OpCase forward_only;
    forward_only.name = spec.name() + "/no_lse";
    forward_only.check = [spec](const OpContext& ctx, uint64_t seed) {
      return check_forward(spec, ctx, seed);
    };
    rows.push_back(forward_only);
  }
  for (const Spec& spec :
       {Spec{"nan", kF, 1, 2, 2, 100, 100, 16}, Spec{"nan", kF, 1, 2, 2, 3, 9, 16},
        Spec{"nan", kB, 1, 2, 2, 70, 70, 16}}) {
    OpCase row;
    row.name = spec.name();
    row.check = [spec](const OpContext& ctx, uint64_t seed) { return check_nan(spec, ctx, seed); };
    rows.push_back(row);
  }
  OpCase memory, refusals;
  memory.name = "attention/fp32/memory";
  memory.check = check_memory;
  refusals.name = "attention/refusals";
  refusals.check = check_refusals;
  rows.push_back(memory);
  rows.push_back(refusals);
  for (const DType dtype : {kF, kB}) {
    for (const Spec& spec :
         {Spec{"bench", dtype, 4, 12, 12, 256, 256, 64},
          Spec{"bench", dtype, 1, 12, 12, 1024, 1024, 64},
          Spec{"bench_gqa", dtype, 1, 8, 2, 1024, 1024, 128},
          Spec{"bench_dropout", dtype, 1, 12, 12, 1024, 1024, 64, true, Mask::kNone, 0.1},
          Spec{"bench_decode", dtype, 1, 12, 12, 1, 1024, 64},
          Spec{"bench_decode_gqa", dtype, 4, 32, 8, 1, 2048, 128}}) {
      for (OpCase& row : bench_rows(spec)) rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace ds::testing
