// Rows of the operator table for attention; attention_case.h has what they run and the tolerances.
#include <memory>

#include "device/cuda_device.h"
#include "kernels/attention_case.h"

namespace ds::testing::attention_rows {
namespace {

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

// Keys that a query does not see cannot reach it from another tile, whatever they hold: such tiles
// are not visited. The last 190 queries lie far enough from the first tile.
CaseResult check_skips(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  Inputs x = make_inputs(spec, seed);
  constexpr int64_t kPoisoned = 64;  // a tile
  if (x.segments) {
    for (int64_t j = 0; j < spec.keys; ++j) x.segments.data<int32_t>()[j] = j < kPoisoned ? 0 : 5;
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Tensor& tensor : {x.in.k.slice(1, 0, kPoisoned), x.in.v.slice(1, 0, kPoisoned)}) {
    for_each_element(tensor, [&](int64_t, void* at) { set_element(spec.dtype, at, nan); });
  }
  x.k = doubles(x.in.k);
  x.v = doubles(x.in.v);
  const Results r = run_operator(ctx, x);
  std::vector<double> out(x.q.size());
  kernels::attention_forward_ref(x.problem, x.q.data(), x.k.data(), x.v.data(), out.data(),
                                 nullptr);
  const int64_t first = spec.queries - 190;
  out.erase(out.begin(), out.begin() + first * spec.heads * spec.head_dim);
  CaseResult result;
  compare(result, "far queries", r.out.slice(1, first, spec.queries), out,
          {1e-5 + 4 * storage_roundoff(spec.dtype), 1e-5 + storage_roundoff(spec.dtype)});
  int64_t broken = 0;
  for (const double v : doubles(r.grads.q.slice(1, first, spec.queries))) broken += std::isnan(v);
  compare_value(result, "NaN in dq of far queries", static_cast<double>(broken), 0, {});
  return result;
}

// Who holds some heads of a layer draws for them the dropout of the whole. Sums over queries may be
// cut elsewhere where there are fewer heads; another mask would be off by whole terms.
CaseResult check_some_heads(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  const Inputs x = make_inputs(spec, seed);
  const Results whole = run_operator(ctx, x);
  const Tolerance tolerance{1e-5 + 4 * storage_roundoff(spec.dtype),
                            1e-5 + storage_roundoff(spec.dtype)};
  const int64_t group = spec.heads / spec.kv_heads;
  CaseResult result;
  for (int64_t kv = 0; kv < spec.kv_heads; ++kv) {
    Inputs part = x;
    const auto queries = [&](const Tensor& t) { return t.slice(2, kv * group, (kv + 1) * group); };
    const auto keys = [&](const Tensor& t) { return t.slice(2, kv, kv + 1); };
    part.spec.heads = group;
    part.spec.kv_heads = 1;
    part.in = {{}, queries(x.in.q), keys(x.in.k), keys(x.in.v)};
    part.dout = queries(x.dout);
    part.options.first_head = spec.first_head + kv * group;
    const Results own = run_operator(ctx, part);
    const auto same = [&](const char* what, const Tensor& some, const Tensor& all) {
      compare(result, str_cat(what, " of kv head ", kv), some, doubles(all), tolerance);
    };
    same("out", own.out, queries(whole.out));
    same("dq", own.grads.q, queries(whole.grads.q));
    same("dk", own.grads.k, keys(whole.grads.k));
    same("dv", own.grads.v, keys(whole.grads.v));
  }
  return result;
}

// Scratch must not grow with queries x keys.
CaseResult check_memory(const OpContext& ctx, uint64_t seed) {
  const Spec spec{"memory", DType::kFloat32, 1, 1, 1, 2048, 2048, 8};
  OpContext own = ctx;
  own.device = ctx.device->kind() == DeviceKind::kCpu ? make_cpu_device() : make_cuda_device(0);
  const Inputs x = make_inputs(spec, seed);
  const Results r = run_operator(own, x);
  own.device->default_stream().synchronize();
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
                          Tensor lse, double dropout, int64_t window = 0,
                          const Tensor& segments = {}) {
    ops::AttentionOptions options;
    options.dropout = dropout;
    options.window = window;
    options.segments = segments;
    double bad = 2;
    std::string message = "no error";
    try {
      ops::attention(ctx, {.q = q_in, .k = k_in, .v = v_in, .key_mask = mask}, options,
                     {.out = out, .lse = lse});
    } catch (const Error& error) {
      message = error.message();
      if (error.code() == Code::kInvalidArgument && message.find(word) != std::string::npos)
        bad = 0;
    }
    result.merge(bad, str_cat(what, " gave: ", message));
  };
  const Tensor out = make(kF, q.shape()), lse = make(kF, {2, 4, 5}), none;
  const Tensor three = make(kF, {2, 6, 3, 8}), bf16 = make(DType::kBFloat16, k.shape());
  const Tensor wide = make(kF, {1, 6, 1, 257}), widest = make(kF, {1, 2, 1, 2049});
  const Tensor ints = make(DType::kInt32, q.shape());
  const Tensor sparse(q.storage(), 0, kF, Shape{1, 5, 4, 4}, std::array<int64_t, 4>{0, 32, 8, 2});
  const Tensor sparse_kv = make(kF, {1, 6, 2, 4});
  refuse("3 kv heads of 4", "kv heads", q, three, three, none, out, lse, 0);
  refuse("v of another shape", "v", q, k, three, none, out, lse, 0);
  refuse("k in bfloat16", "k", q, bf16, bf16, none, out, lse, 0);
  refuse("q of integers", "q", ints, k, k, none, out, lse, 0);
  refuse("no v", "v", q, k, none, none, out, lse, 0);
  refuse("head size 257", "head size", wide, wide, wide, none, wide, lse, 0);
  refuse("head size 2049", "head size", widest, widest, widest, none, widest, lse, 0);
  refuse("sparse last dimension", "dense", sparse, sparse_kv, sparse_kv, none, out, lse, 0);
  refuse("mask of another shape", "key_mask", q, k, k, make(DType::kUInt8, {2, 5}), out, lse, 0);
  refuse("mask of floats", "key_mask", q, k, k, make(kF, {2, 6}), out, lse, 0);
  refuse("short out", "out", q, k, k, none, make(kF, {2, 4, 4, 8}), lse, 0);
  refuse("short lse", "lse", q, k, k, none, out, make(kF, {2, 4, 4}), 0);
  refuse("dropout 1", "dropout", q, k, k, none, out, lse, 1);
  refuse("dropout NaN", "dropout", q, k, k, none, out, lse, std::nan(""));
  refuse("window -1", "window", q, k, k, none, out, lse, 0, -1);
  const Tensor ids = make(DType::kInt32, {2, 6});
  refuse("segments with fewer queries", "as many queries", q, k, k, none, out, lse, 0, 0, ids);
  const Tensor same = make(kF, {2, 5, 2, 8});
  refuse("segments of another shape", "segments", q, same, same, none, out, lse, 0, 0, ids);
  refuse("segments of floats", "segments", q, same, same, none, out, lse, 0, 0, make(kF, {2, 5}));
  compare_value(result, "refusals", 1, 1, {0, 0.5});
  return result;
}

// A length that the device reads gives the bits of keys that were cut to it: whatever lies behind
// them in the cache, and however many splits there is room for.
CaseResult check_past(const Spec& s, const OpContext& ctx, uint64_t seed) {
  CaseResult result;
  Random random(seed);
  const Shape q_shape{s.batch, s.queries, s.heads, s.head_dim};
  const Shape kv_shape{s.batch, s.keys, s.kv_heads, s.head_dim};
  const Tensor q = random_tensor(random, s.dtype, q_shape);
  const Tensor k = random_tensor(random, s.dtype, kv_shape);
  const Tensor v = random_tensor(random, s.dtype, kv_shape), none;
  for (const int64_t past : {int64_t{0}, int64_t{3}, int64_t{255}, int64_t{256}, int64_t{400},
                             s.keys - s.queries - 1, s.keys - s.queries}) {
    const int64_t keys = past + s.queries;
    if (past < 0 || keys > s.keys) continue;
    ops::AttentionOptions options;
    options.causal = s.causal;
    options.window = s.window;
    Tensor expected = guarded_tensor(s.dtype, q_shape), actual = guarded_tensor(s.dtype, q_shape);
    Tensor lse = guarded_tensor(DType::kFloat32, {s.batch, s.heads, s.queries});
    Tensor lse_too = guarded_tensor(DType::kFloat32, lse.shape());
    ops::attention(ctx,
                   {.q = q, .k = k.slice(1, 0, keys), .v = v.slice(1, 0, keys), .key_mask = none},
                   options, {.out = expected, .lse = lse});
    options.past = filled_tensor(DType::kInt32, {s.batch}, static_cast<double>(past));
    ops::attention(ctx, {.q = q, .k = k, .v = v, .key_mask = none}, options,
                   {.out = actual, .lse = lse_too});
    compare(result, str_cat("out behind ", past), actual, doubles(expected), {});
    compare(result, str_cat("lse behind ", past), lse_too, doubles(lse), {});
  }
  return result;
}

// Sequences of unequal lengths in one batch have the bits of each alone: its causal band ends with
// its own keys, whatever the cache holds behind them.
CaseResult check_unequal_pasts(const Spec& s, const OpContext& ctx, uint64_t seed) {
  CaseResult result;
  Random random(seed);
  const Shape q_shape{s.batch, s.queries, s.heads, s.head_dim};
  const Shape kv_shape{s.batch, s.keys, s.kv_heads, s.head_dim};
  const Tensor q = random_tensor(random, s.dtype, q_shape);
  const Tensor k = random_tensor(random, s.dtype, kv_shape);
  const Tensor v = random_tensor(random, s.dtype, kv_shape), none;
  const int64_t most = s.keys - s.queries;
  for (const std::vector<int64_t>& pasts :
       {std::vector<int64_t>{0, most}, {most, 3}, {most / 2, most / 2 + 1}, {most / 3, most / 3}}) {
    ops::AttentionOptions options;
    options.causal = s.causal;
    options.window = s.window;
    Tensor expected = guarded_tensor(s.dtype, q_shape), actual = guarded_tensor(s.dtype, q_shape);
    Tensor lse = guarded_tensor(DType::kFloat32, {s.batch, s.heads, s.queries});
    Tensor lse_too = guarded_tensor(DType::kFloat32, lse.shape());
    const Tensor past = guarded_tensor(DType::kInt32, {s.batch});
    std::string where;
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t own = pasts[static_cast<size_t>(b) % pasts.size()];
      past.data<int32_t>()[b] = static_cast<int32_t>(own);
      where += str_cat(" ", own);
      const auto of = [b](const Tensor& x) { return x.slice(0, b, b + 1); };
      const auto seen = [&](const Tensor& x) { return of(x).slice(1, 0, own + s.queries); };
      Tensor out = of(expected), sums = of(lse);
      ops::attention(ctx, {.q = of(q), .k = seen(k), .v = seen(v), .key_mask = none}, options,
                     {.out = out, .lse = sums});
    }
    options.past = past;
    ops::attention(ctx, {.q = q, .k = k, .v = v, .key_mask = none}, options,
                   {.out = actual, .lse = lse_too});
    compare(result, "out behind" + where, actual, doubles(expected), {});
    compare(result, "lse behind" + where, lse_too, doubles(lse), {});
  }
  return result;
}

void add_unequal_past_rows(std::vector<OpCase>& rows) {
  for (const DType dtype : kFloatTypes) {
    for (const Spec& spec :
         {Spec{"pasts", dtype, 3, 4, 2, 1, 200, 64},
          Spec{"pasts_long", dtype, 2, 4, 1, 1, 1400, 24},
          Spec{"pasts_several", dtype, 3, 6, 3, 3, 700, 80},
          Spec{"pasts_window", dtype, 2, 4, 2, 2, 900, 20, true, Mask::kNone, 0, false, 0, 1, 130},
          Spec{"pasts_more_queries", dtype, 2, 4, 2, 9, 300, 32},
          Spec{"pasts_full", dtype, 2, 2, 2, 2, 530, 16, false}}) {
      OpCase row;
      row.name = spec.name();
      row.check = [spec](const OpContext& ctx, uint64_t seed) {
        return check_unequal_pasts(spec, ctx, seed);
      };
      rows.push_back(row);
    }
  }
}

void add_past_rows(std::vector<OpCase>& rows) {
  for (const DType dtype : kFloatTypes) {
    for (const Spec& spec :
         {Spec{"past", dtype, 1, 4, 2, 1, 200, 64}, Spec{"past_long", dtype, 1, 4, 1, 1, 1400, 24},
          Spec{"past_several", dtype, 2, 6, 3, 3, 700, 80},
          Spec{"past_window", dtype, 1, 4, 2, 1, 900, 20, true, Mask::kNone, 0, false, 0, 1, 130},
          Spec{"past_window_several", dtype, 1, 3, 3, 4, 700, 128, true, Mask::kNone, 0, false, 0,
               1, 300},
          Spec{"past_full", dtype, 1, 2, 2, 2, 530, 16, false}}) {
      OpCase row;
      row.name = spec.name();
      row.check = [spec](const OpContext& ctx, uint64_t seed) {
        return check_past(spec, ctx, seed);
      };
      rows.push_back(row);
    }
  }
}

OpCase row_of(const Spec& spec, bool small) {
  OpCase row;
  row.name = spec.name();
  row.check = [spec](const OpContext& ctx, uint64_t seed) { return check(spec, ctx, seed); };
  if (small) {
    row.gradient = [spec](const OpContext& ctx, uint64_t seed) {
      return check_differences(spec, ctx, seed);
    };
  }
  return row;
}

void add_head_rows(std::vector<OpCase>& rows) {
  for (const DType dtype : kFloatTypes) {
    Spec spec{"some_heads", dtype, 2, 6, 3, 70, 70, 20, true, Mask::kNone, 0.4, false, 3};
    OpCase row;
    row.name = spec.name();
    row.check = [spec](const OpContext& ctx, uint64_t seed) {
      return check_some_heads(spec, ctx, seed);
    };
    rows.push_back(row);
    spec.note = "later_heads";
    spec.first_head = 12;
    rows.push_back(row_of(spec, false));
  }
}

// ---- benchmark ----

struct BenchInputs {
  Tensor qkv, q, k, v, out, lse, dqkv, dq, dk, dv;
  ops::AttentionOptions options;
};

std::shared_ptr<BenchInputs> bench_inputs(const Spec& s, const OpContext& ctx) {
  auto x = std::make_shared<BenchInputs>();
  // Generation reads a cache of keys and values; other problems are views of packed projections.
  const bool cached = s.queries == 1;
  const int64_t h = cached ? 0 : s.heads, kv = s.kv_heads;
  const Shape packed{s.batch, s.keys, h + 2 * kv, s.head_dim};
  x->qkv = bench_tensor(ctx, s.dtype, packed);
  x->q = cached ? bench_tensor(ctx, s.dtype, {s.batch, 1, s.heads, s.head_dim})
                : x->qkv.slice(2, 0, h).slice(1, s.keys - s.queries, s.keys);
  x->k = x->qkv.slice(2, h, h + kv);
  x->v = x->qkv.slice(2, h + kv, h + 2 * kv);
  x->dqkv = bench_tensor(ctx, s.dtype, packed);
  if (!cached) x->dq = x->dqkv.slice(2, 0, h).slice(1, s.keys - s.queries, s.keys);
  x->dk = x->dqkv.slice(2, h, h + kv);
  x->dv = x->dqkv.slice(2, h + kv, h + 2 * kv);
  x->out = bench_tensor(ctx, s.dtype, {s.batch, s.queries, s.heads, s.head_dim});
  x->lse = bench_tensor(ctx, DType::kFloat32, {s.batch, s.heads, s.queries});
  x->options.causal = s.causal;
  x->options.dropout = s.dropout;
  x->options.window = s.window;
  x->options.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  return x;
}

double visible_pairs(const Spec& s) {
  double pairs = 0;
  for (int64_t i = 0; i < s.queries; ++i) {
    int64_t seen = s.causal ? std::clamp<int64_t>(i + s.keys - s.queries + 1, 0, s.keys) : s.keys;
    if (s.window > 0) seen = std::min(seen, s.window);  // the rows have causal windows only
    pairs += static_cast<double>(seen);
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
    return [x, ctx] {
      ops::attention(ctx, {.q = x->q, .k = x->k, .v = x->v}, x->options,
                     {.out = x->out, .lse = x->lse});
    };
  };
  backward.name = spec.name() + "/backward";
  backward.flops = 2.5 * forward.flops;
  backward.bytes = element_bytes * (2 * elements(spec) + 2 * out);
  backward.prepare = [spec](const OpContext& ctx) -> std::function<void()> {
    const auto x = bench_inputs(spec, ctx);
    ops::attention(ctx, {.q = x->q, .k = x->k, .v = x->v}, x->options,
                   {.out = x->out, .lse = x->lse});
    return [x, ctx] {
      ops::attention_backward(ctx, {.q = x->q, .k = x->k, .v = x->v}, x->options,
                              {.out = x->out, .lse = x->lse}, x->out,
                              {.dq = x->dq, .dk = x->dk, .dv = x->dv});
    };
  };
  if (spec.queries == 1) return {forward};
  return {forward, backward};
}

}  // namespace

std::vector<OpCase> cases() {
  constexpr DType kF = DType::kFloat32, kB = DType::kBFloat16, kH = DType::kFloat16;
  // note, dtype, batch, heads, kv heads, queries, keys, head size, causal, mask, dropout, packed,
  // first batch, deviation, window, segments
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
      {"causal", kH, 1, 2, 2, 6, 6, 4},
      {"window", kF, 1, 2, 1, 9, 9, 4, true, Mask::kNone, 0, false, 0, 1, 3},
      {"window_one", kF, 1, 2, 2, 5, 8, 3, true, Mask::kNone, 0, false, 0, 1, 1},
      {"window_full", kF, 1, 2, 2, 7, 10, 3, false, Mask::kNone, 0, false, 0, 1, 2},
      {"segments", kF, 2, 2, 1, 9, 9, 4, true, Mask::kNone, 0, false, 0, 1, 0, Segments::kMixed},
      {"segments_window_dropout", kF, 1, 2, 1, 9, 9, 4, false, Mask::kRandom, 0.2, false, 0, 1, 4,
       Segments::kMixed},
  };
  const std::vector<Spec> large = {
      {"packed", kF, 2, 3, 3, 97, 97, 64, true, Mask::kNone, 0, true},
      {"packed_gqa", kF, 1, 4, 2, 161, 161, 80, true, Mask::kNone, 0, true},
      {"long", kF, 1, 1, 1, 515, 515, 32},
      {"long_full", kF, 1, 2, 1, 512, 601, 67, false, Mask::kRandom},
      {"long_dropout", kF, 1, 2, 1, 530, 530, 33, true, Mask::kPadding, 0.2, true, 3},
      {"long_window", kF, 1, 1, 1, 520, 777, 24, true, Mask::kNone, 0, false, 0, 1, 130},
      {"long_segments", kF, 1, 2, 2, 577, 577, 20, true, Mask::kRandom, 0.1, false, 0, 1, 90,
       Segments::kPacked},
      {"long_extreme", kF, 1, 1, 1, 512, 512, 16, true, Mask::kNone, 0, false, 0, 12},
      {"long", kB, 1, 2, 1, 1100, 1100, 64},
      {"extreme", kB, 1, 2, 2, 150, 150, 16, true, Mask::kNone, 0, false, 0, 12},
      {"empty_rows", kB, 2, 2, 2, 140, 140, 16, true, Mask::kSomeEmpty},
      {"widest", kB, 1, 2, 1, 90, 300, 256, false},
      // Keys are packed 256 at a time: blocks of queries end in one stretch or go on in the next.
      {"stretches_window", kB, 1, 2, 1, 610, 610, 256, true, Mask::kNone, 0, false, 0, 1, 90},
      {"stretches_segments", kB, 2, 1, 1, 540, 540, 200, true, Mask::kRandom, 0.1, false, 0, 1, 0,
       Segments::kMixed},
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
      {"packed", kH, 2, 2, 2, 131, 131, 64, true, Mask::kNone, 0, true},
      {"gqa_dropout_mask", kH, 2, 4, 2, 75, 99, 33, true, Mask::kPadding, 0.2},
      {"full", kH, 1, 2, 2, 64, 64, 128, false},
  };
  std::vector<Spec> limited;  // windows and segments
  for (const DType dtype : kFloatTypes) {
    constexpr Segments kPacked = Segments::kPacked, kMixed = Segments::kMixed;
    for (const Spec& spec : std::vector<Spec>{
             {"window", dtype, 1, 2, 2, 400, 400, 24, true, Mask::kNone, 0, true, 0, 1, 70},
             {"window_gqa", dtype, 2, 4, 2, 131, 131, 33, true, Mask::kNone, 0, false, 0, 1, 17},
             {"window_gqa_dropout_mask", dtype, 1, 6, 2, 223, 223, 21, true, Mask::kPadding, 0.2,
              false, 2, 1, 65},
             {"window_offset", dtype, 1, 2, 1, 77, 305, 18, true, Mask::kNone, 0, false, 0, 1, 100},
             {"window_queries_before_keys", dtype, 1, 1, 1, 210, 100, 40, true, Mask::kNone, 0,
              false, 0, 1, 33},
             {"window_one", dtype, 1, 1, 1, 70, 70, 8, true, Mask::kNone, 0, false, 0, 1, 1},
             {"window_wide", dtype, 1, 1, 1, 70, 70, 8, true, Mask::kNone, 0, false, 0, 1,
              int64_t{1} << 62},
             {"window_both_sides", dtype, 2, 2, 1, 250, 250, 19, false, Mask::kRandom, 0.1, false,
              0, 1, 40},
             {"window_both_sides_offset", dtype, 1, 2, 2, 90, 301, 16, false, Mask::kNone, 0, false,
              0, 1, 57},
             {"segments", dtype, 2, 2, 2, 300, 300, 24, true, Mask::kNone, 0, true, 0, 1, 0,
              kPacked},
             {"segments_full", dtype, 1, 4, 2, 270, 270, 17, false, Mask::kNone, 0, false, 0, 1, 0,
              kPacked},
             {"segments_mixed", dtype, 2, 2, 1, 150, 150, 20, true, Mask::kRandom, 0.2, false, 0, 1,
              0, kMixed},
             {"segments_window", dtype, 1, 4, 1, 263, 263, 33, true, Mask::kPadding, 0.1, false, 0,
              1, 30, kPacked},
             {"segments_few", dtype, 2, 2, 2, 3, 3, 9, true, Mask::kNone, 0, false, 0, 1, 0,
              kMixed}}) {
      limited.push_back(spec);
    }
  }
  const std::vector<Spec> decode = {
      {"decode", kF, 2, 3, 3, 1, 77, 64},
      {"decode_long", kF, 1, 4, 2, 1, 1300, 24},
      {"decode_gqa", kF, 2, 12, 2, 1, 530, 80},
      {"decode_several", kF, 1, 5, 1, 3, 600, 67, true, Mask::kRandom},
      {"decode_empty", kF, 2, 2, 2, 2, 40, 17, true, Mask::kSomeEmpty},
      {"decode", kB, 2, 8, 2, 1, 513, 128},
      {"decode_odd", kB, 1, 3, 3, 4, 45, 21},
      {"decode", kH, 2, 8, 2, 1, 513, 128},
      {"decode_odd", kH, 1, 3, 3, 4, 45, 21},
      {"decode_window", kF, 1, 4, 2, 1, 1300, 24, true, Mask::kNone, 0, false, 0, 1, 700},
      {"decode_window", kB, 2, 6, 2, 3, 900, 33, true, Mask::kRandom, 0, false, 0, 1, 64},
      {"decode_window", kH, 1, 3, 1, 4, 77, 20, true, Mask::kNone, 0, false, 0, 1, 2},
      {"decode_window_full", kF, 1, 3, 1, 4, 700, 20, false, Mask::kNone, 0, false, 0, 1, 300},
      {"decode_window_few_keys", kF, 1, 3, 1, 4, 2, 20, true, Mask::kNone, 0, false, 0, 1, 1},
  };
  std::vector<OpCase> rows;
  for (const Spec& spec : small) rows.push_back(row_of(spec, true));
  for (const Spec& spec : large) rows.push_back(row_of(spec, false));
  for (const Spec& spec : limited) rows.push_back(row_of(spec, false));
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
        Spec{"nan", kB, 1, 2, 2, 70, 70, 16}, Spec{"nan", kH, 1, 2, 2, 70, 70, 16}}) {
    OpCase row;
    row.name = spec.name();
    row.check = [spec](const OpContext& ctx, uint64_t seed) { return check_nan(spec, ctx, seed); };
    rows.push_back(row);
  }
  for (const Spec& spec :
       {Spec{"skips_window", kF, 1, 1, 1, 600, 600, 16, true, Mask::kNone, 0, false, 0, 1, 100},
        Spec{"skips_window", kB, 1, 2, 1, 600, 600, 16, true, Mask::kNone, 0, false, 0, 1, 100},
        Spec{"skips_segments", kF, 1, 1, 1, 600, 600, 16, false, Mask::kNone, 0, false, 0, 1, 0,
             Segments::kPacked}}) {
    OpCase row;
    row.name = spec.name();
    row.check = [spec](const OpContext& ctx, uint64_t seed) {
      return check_skips(spec, ctx, seed);
    };
    rows.push_back(row);
  }
  add_past_rows(rows);
  add_unequal_past_rows(rows);
  add_head_rows(rows);
  OpCase memory, refusals;
  memory.name = "attention/fp32/memory";
  memory.check = check_memory;
  refusals.name = "attention/refusals";
  refusals.check = check_refusals;
  rows.push_back(memory);
  rows.push_back(refusals);
  for (const DType dtype : kFloatTypes) {
    for (const Spec& spec :
         {Spec{"bench", dtype, 4, 12, 12, 256, 256, 64},
          Spec{"bench", dtype, 1, 12, 12, 1024, 1024, 64},
          Spec{"bench", dtype, 1, 12, 12, 4096, 4096, 64},
          Spec{"bench_gqa", dtype, 1, 32, 8, 1024, 1024, 128},
          Spec{"bench_dropout", dtype, 1, 12, 12, 1024, 1024, 64, true, Mask::kNone, 0.1},
          Spec{"bench_window", dtype, 1, 12, 12, 4096, 4096, 64, true, Mask::kNone, 0, false, 0, 1,
               512},
          Spec{"bench_decode", dtype, 1, 12, 12, 1, 1024, 64},
          Spec{"bench_decode_gqa", dtype, 4, 32, 8, 1, 2048, 128},
          Spec{"bench_decode_long", dtype, 1, 32, 8, 1, 32768, 128}}) {
      for (OpCase& row : bench_rows(spec)) rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace ds::testing::attention_rows
