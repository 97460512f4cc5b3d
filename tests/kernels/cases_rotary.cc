// Rows of the rotary embedding: halves and neighbours, whole and partial heads, strided views.
#include <algorithm>
#include <array>

#include "kernels/case_util.h"
#include "kernels/rotary/rotary.h"
#include "ops/rotary.h"

namespace ds::testing::rotary_rows {
namespace {

namespace ref = kernels::reference;

struct Spec {
  DType dtype;
  int64_t batch, tokens, heads, head_dim, turned, positions;
  bool interleaved;

  std::string name() const {
    return str_cat("rotary/", type_name(dtype), interleaved ? "/neighbours/" : "/halves/", batch,
                   "x", tokens, "x", heads, "x", head_dim, "/turned", turned);
  }
};

struct Inputs {
  Tensor x, ids, cos, sin;
  ops::RotaryOptions options;
};

// Tables are not of unit length: scaled ones are in use.
Inputs make_inputs(const Spec& s, uint64_t seed, bool inverse) {
  Random random(seed);
  return {random_tensor(random, s.dtype, {s.batch, s.tokens, s.heads, s.head_dim}),
          random_ints(random, {s.batch, s.tokens}, 0, static_cast<int32_t>(s.positions - 1)),
          random_tensor(random, DType::kFloat32, {s.positions, s.turned / 2}),
          random_tensor(random, DType::kFloat32, {s.positions, s.turned / 2}),
          {s.interleaved, inverse}};
}

std::vector<double> expected_of(const Spec& s, const Inputs& in, const std::vector<double>& x) {
  const std::vector<double> cos = doubles(in.cos), sin = doubles(in.sin);
  std::vector<double> y(x.size());
  for (int64_t head = 0; head < s.batch * s.tokens * s.heads; ++head) {
    const int64_t row = in.ids.data<int32_t>()[head / s.heads] * (s.turned / 2);
    ref::rotary({.head_dim = s.head_dim,
                 .rotary_dim = s.turned,
                 .interleaved = s.interleaved,
                 .inverse = in.options.inverse,
                 .x = x.data() + head * s.head_dim,
                 .cos = cos.data() + row,
                 .sin = sin.data() + row,
                 .y = y.data() + head * s.head_dim});
  }
  return y;
}

// Errors are relative to it: three fp32 roundings of two products and the one of the result; what
// is copied is exact.
std::vector<double> error_scale(const Spec& s, const Inputs& in, const std::vector<double>& x,
                                const std::vector<double>& y) {
  std::vector<double> scale(y.size());
  double cos_most = 0, sin_most = 0;
  for (const double v : doubles(in.cos)) cos_most = std::max(cos_most, std::abs(v));
  for (const double v : doubles(in.sin)) sin_most = std::max(sin_most, std::abs(v));
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t channel = static_cast<int64_t>(i) % s.head_dim;
    if (channel >= s.turned) continue;
    const int64_t other = s.interleaved ? (channel ^ 1) : (channel + s.turned / 2) % s.turned;
    const double partner = x[i + static_cast<size_t>(other) - static_cast<size_t>(channel)];
    scale[i] = 0x1p-23 * (std::abs(x[i]) * cos_most + std::abs(partner) * sin_most) +
               storage_roundoff(s.dtype) * std::abs(y[i]);
  }
  return scale;
}
constexpr Tolerance kByScale{1, 1e-38};

CaseResult check(const OpContext& ctx, uint64_t seed, const Spec& s) {
  CaseResult result;
  for (const bool inverse : {false, true}) {
    const Inputs in = make_inputs(s, seed, inverse);
    const std::vector<double> x = doubles(in.x), y = expected_of(s, in, x);
    const std::vector<double> scale = error_scale(s, in, x, y);
    Tensor out = guarded_tensor(s.dtype, in.x.shape());
    ops::rotary(ctx, in.x, in.ids, in.cos, in.sin, in.options, out);
    compare(result, inverse ? "inverse" : "y", out, y, kByScale, scale);
    Tensor in_place = copy_of(in.x);
    ops::rotary(ctx, in_place, in.ids, in.cos, in.sin, in.options, in_place);
    compare(result, "in place", in_place, doubles(out), {});

    // Heads in the middle of a packed tensor; what lies around them stays.
    const Tensor packed = filled_tensor(s.dtype, {s.batch, s.tokens, s.heads + 3, s.head_dim}, 7);
    Tensor view = packed.slice(2, 2, 2 + s.heads);
    set_doubles(view, x);
    ops::rotary(ctx, view, in.ids, in.cos, in.sin, in.options, view);
    compare(result, "view in place", view, doubles(out), {});
    const std::vector<double> sevens(static_cast<size_t>(s.batch * s.tokens * s.head_dim), 7.0);
    compare(result, "before the view", packed.slice(2, 1, 2), sevens, {});
    compare(result, "after the view", packed.slice(2, 2 + s.heads, 3 + s.heads), sevens, {});
    // And from one layout to another: heads before tokens.
    const Tensor turned = guarded_tensor(s.dtype, {s.batch, s.heads, s.tokens, s.head_dim});
    Tensor target(turned.storage(), guard_front(s.dtype), s.dtype, in.x.shape(),
                  std::vector<int64_t>{s.heads * s.tokens * s.head_dim, s.head_dim,
                                       s.tokens * s.head_dim, 1});
    ops::rotary(ctx, in.x, in.ids, in.cos, in.sin, in.options, target);
    compare(result, "into another layout", target, doubles(out), {});
  }
  return result;
}

// New tokens on their way to a cache.
struct AppendSpec {
  Spec turn;  // of the queries
  int64_t kv_heads, capacity, past;
  bool packed;  // q, k and v are views of one tensor, [heads, 3, head size] per token

  std::string name() const {
    return str_cat("rotary_append/", turn.name(), "/kv", kv_heads, "/behind", past,
                   packed ? "/packed" : "");
  }
};

// q, k and v of the tokens.
std::array<Tensor, 3> make_tokens(const AppendSpec& a, Random& random) {
  const Spec& s = a.turn;
  if (a.packed) {
    const Tensor all = random_tensor(random, s.dtype, {s.batch, s.tokens, s.heads, 3, s.head_dim});
    return {all.select(3, 0), all.select(3, 1), all.select(3, 2)};
  }
  const auto make = [&](int64_t heads) {
    return random_tensor(random, s.dtype, {s.batch, s.tokens, heads, s.head_dim});
  };
  return {make(s.heads), make(a.kv_heads), make(a.kv_heads)};
}

// The same bits as rotary() and copies, whether the host knows where the tokens go or the device
// reads it; and all that the cache holds besides stays.
CaseResult check_append(const OpContext& ctx, uint64_t seed, const AppendSpec& a) {
  CaseResult result;
  const Spec& s = a.turn;
  Inputs in = make_inputs(s, seed, false);
  Random random(seed + 1);
  const std::array<Tensor, 3> tokens = make_tokens(a, random);
  const auto turned = [&](const Tensor& x) {
    Tensor y = copy_of(x);
    if (s.turned > 0) ops::rotary(ctx, y, in.ids, in.cos, in.sin, in.options, y);
    return doubles(y);
  };
  const std::vector<double> before = doubles(tokens[0]), q = turned(tokens[0]);
  if (s.turned > 0) {
    const std::vector<double> reference = expected_of(s, in, before);
    compare(result, "q by the reference", tensor_of(s.dtype, tokens[0].shape(), q), reference,
            kByScale, error_scale(s, in, before, reference));
  }
  const Shape cache_shape{s.batch, a.capacity, 2, a.kv_heads, s.head_dim};
  const Tensor expected = filled_tensor(s.dtype, cache_shape, 7);
  set_doubles(expected.slice(1, a.past, a.past + s.tokens).select(2, 0), turned(tokens[1]));
  set_doubles(expected.slice(1, a.past, a.past + s.tokens).select(2, 1), doubles(tokens[2]));
  const ops::RotaryAngles angles =
      s.turned > 0 ? ops::RotaryAngles{in.ids, in.cos, in.sin} : ops::RotaryAngles{};
  for (const bool in_memory : {false, true}) {
    set_doubles(tokens[0], before);
    const Tensor cache = filled_tensor(s.dtype, cache_shape, 7);
    ops::CacheRows to{cache.select(2, 0), cache.select(2, 1), in_memory ? 12345 : a.past};
    if (in_memory) {
      to.past_memory = filled_tensor(DType::kInt32, {s.batch}, static_cast<double>(a.past));
    }
    Tensor queries = tokens[0];
    ops::rotary_append(ctx, queries, tokens[1], tokens[2], angles, in.options, to);
    compare(result, "q", queries, q, {});
    compare(result, "cache", cache, doubles(expected), {});
  }
  return result;
}

// Behind as many tokens as each sequence has, the bits of each alone.
CaseResult check_append_to_each(const OpContext& ctx, uint64_t seed, const AppendSpec& a) {
  CaseResult result;
  const Spec& s = a.turn;
  Inputs in = make_inputs(s, seed, false);
  Random random(seed + 1);
  const std::array<Tensor, 3> tokens = make_tokens(a, random);
  const std::vector<double> before = doubles(tokens[0]);
  const Shape cache_shape{s.batch, a.capacity, 2, a.kv_heads, s.head_dim};
  const Tensor expected = filled_tensor(s.dtype, cache_shape, 7);
  const Tensor cache = filled_tensor(s.dtype, cache_shape, 7);
  const Tensor past = guarded_tensor(DType::kInt32, {s.batch});
  for (int64_t b = 0; b < s.batch; ++b) {
    const auto of = [b](const Tensor& x) { return x.slice(0, b, b + 1); };
    const int64_t own = (a.past + 2 * b) % (a.capacity - s.tokens + 1);
    past.data<int32_t>()[b] = static_cast<int32_t>(own);
    Tensor queries = of(tokens[0]);
    ops::RotaryAngles angles;
    if (s.turned > 0) angles = {of(in.ids), in.cos, in.sin};
    ops::rotary_append(ctx, queries, of(tokens[1]), of(tokens[2]), angles, in.options,
                       {of(expected).select(2, 0), of(expected).select(2, 1), own});
  }
  const std::vector<double> q = doubles(tokens[0]);
  set_doubles(tokens[0], before);
  ops::RotaryAngles angles;
  if (s.turned > 0) angles = {in.ids, in.cos, in.sin};
  Tensor queries = tokens[0];
  ops::rotary_append(ctx, queries, tokens[1], tokens[2], angles, in.options,
                     {cache.select(2, 0), cache.select(2, 1), 12345, past});
  compare(result, "q", queries, q, {});
  compare(result, "cache", cache, doubles(expected), {});
  return result;
}

CaseResult check_append_refusals(const OpContext& ctx, uint64_t) {
  CaseResult result;
  constexpr DType kF = DType::kFloat32;
  const auto make = [&](const Shape& shape) { return filled_tensor(kF, shape, 0); };
  const auto refuse = [&](const std::string& part, Tensor q, const Tensor& k, const Tensor& v,
                          const Tensor& keys, int64_t past, const Tensor& memory) {
    std::string message = "no error";
    try {
      ops::rotary_append(ctx, q, k, v, {}, {}, {keys, keys, past, memory});
    } catch (const Error& error) {
      message = error.message();
    }
    const bool good = message.find(part) != std::string::npos;
    compare_value(result, "refused '" + part + "' (got: " + message + ")", good ? 1 : 0, 1, {});
  };
  const Tensor q = make({2, 3, 4, 8}), k = make({2, 3, 2, 8}), cache = make({2, 9, 2, 8}), none;
  refuse("rotary_append: v must be float32 of shape [2, 3, 2, 8]", q, k, q, cache, 0, none);
  refuse("rotary_append: keys must be float32 of shape", q, k, k, make({2, 9, 4, 8}), 0, none);
  refuse("3 tokens do not fit behind 7 in a cache of 9", q, k, k, cache, 7, none);
  refuse("3 tokens do not fit behind -1", q, k, k, cache, -1, none);
  refuse("past_memory must be int32", q, k, k, cache, 0, make({2}));
  if (ctx.device->kind() == DeviceKind::kCpu) {
    refuse("do not fit behind 8", q, k, k, cache, 0, filled_tensor(DType::kInt32, {2}, 8));
  } else {  // a GPU leaves out what does not fit
    Tensor queries = q;
    const Tensor ones = filled_tensor(kF, {2, 3, 2, 8}, 1);
    ops::rotary_append(ctx, queries, ones, ones, {}, {},
                       {cache, cache, 0, filled_tensor(DType::kInt32, {2}, 8)});
    std::vector<double> expected(2 * 9 * 16);
    for (const size_t b : {size_t{0}, size_t{1}}) {
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>((b * 9 + 8) * 16), 16, 1.0);
    }
    compare(result, "beyond the capacity", cache, expected, {});
  }
  return result;
}

void add_append_rows(std::vector<OpCase>& rows) {
  for (const DType dtype : kFloatTypes) {
    for (const bool interleaved : {false, true}) {
      for (const AppendSpec& a :
           {AppendSpec{{dtype, 1, 1, 8, 64, 64, 50, interleaved}, 2, 33, 7, false},
            AppendSpec{{dtype, 1, 1, 4, 64, 16, 50, interleaved}, 4, 20, 0, true},
            AppendSpec{{dtype, 2, 5, 6, 80, 20, 300, interleaved}, 3, 40, 35, false},
            AppendSpec{{dtype, 2, 9, 3, 38, 34, 20, interleaved}, 3, 9, 0, true},
            AppendSpec{{dtype, 1, 1, 32, 128, 128, 400, interleaved}, 8, 4, 1, false},
            AppendSpec{{dtype, 0, 2, 2, 8, 8, 4, interleaved}, 2, 5, 1, false}}) {
        OpCase row;
        row.name = a.name();
        row.check = [a](const OpContext& ctx, uint64_t seed) { return check_append(ctx, seed, a); };
        rows.push_back(std::move(row));
      }
    }
    for (const AppendSpec& a : {AppendSpec{{dtype, 1, 1, 12, 64, 0, 1, false}, 12, 30, 11, true},
                                AppendSpec{{dtype, 2, 7, 4, 20, 0, 1, false}, 2, 50, 3, false}}) {
      OpCase row;
      row.name = a.name();
      row.check = [a](const OpContext& ctx, uint64_t seed) { return check_append(ctx, seed, a); };
      rows.push_back(std::move(row));
    }
  }
  for (const DType dtype : kFloatTypes) {
    for (const AppendSpec& a : {AppendSpec{{dtype, 3, 1, 8, 64, 64, 50, false}, 2, 33, 7, false},
                                AppendSpec{{dtype, 3, 4, 3, 38, 34, 20, true}, 3, 9, 1, true},
                                AppendSpec{{dtype, 2, 2, 4, 20, 0, 1, false}, 2, 50, 3, false}}) {
      OpCase row;
      row.name = "each_" + a.name();
      row.check = [a](const OpContext& ctx, uint64_t seed) {
        return check_append_to_each(ctx, seed, a);
      };
      rows.push_back(std::move(row));
    }
  }
  OpCase refusals;
  refusals.name = "rotary_append/refusals";
  refusals.check = check_append_refusals;
  rows.push_back(refusals);
}

// The inverse is the transposed map, which is the gradient.
CaseResult gradient(const OpContext& ctx, uint64_t seed, const Spec& s) {
  Inputs in = make_inputs(s, seed, false);
  Random random(seed + 1);
  const Tensor dy = random_tensor(random, s.dtype, in.x.shape());
  const std::vector<double> weights = doubles(dy);
  Tensor dx = guarded_tensor(s.dtype, in.x.shape());
  ops::RotaryOptions back = in.options;
  back.inverse = true;
  ops::rotary(ctx, dy, in.ids, in.cos, in.sin, back, dx);
  CaseResult result;
  compare_gradient(
      result, "dx", dx, doubles(in.x),
      [&](const std::vector<double>& x) { return weighted_sum(weights, expected_of(s, in, x)); },
      {3e-6, 0});
  return result;
}

OpCase timed(DType dtype, bool interleaved) {
  const Spec s{dtype, 1, 1024, 32, 64, 64, 1024, interleaved};
  OpCase row;
  row.name = s.name();
  row.bytes = static_cast<double>(2 * s.tokens * s.heads * s.head_dim * dtype_size(dtype));
  row.prepare = [s](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, s.dtype, {s.batch, s.tokens, s.heads, s.head_dim});
    const Tensor cos = bench_tensor(ctx, DType::kFloat32, {s.positions, s.turned / 2});
    const Tensor ids = bench_tensor(ctx, DType::kInt32, {s.batch, s.tokens});
    for (int64_t i = 0; i < s.tokens; ++i) ids.data<int32_t>()[i] = static_cast<int32_t>(i);
    Tensor y = bench_tensor(ctx, s.dtype, x.shape());
    return [=]() mutable { ops::rotary(ctx, x, ids, cos, cos, {s.interleaved, false}, y); };
  };
  return row;
}

// Arguments that do not fit are refused by name.
CaseResult check_refusals(const OpContext& ctx, uint64_t) {
  CaseResult result;
  constexpr DType kF = DType::kFloat32;
  const auto make = [&](const Shape& shape) { return filled_tensor(kF, shape, 0); };
  const auto refuse = [&](const std::string& part, const Tensor& x, const Tensor& ids,
                          const Tensor& cos, const Tensor& sin, Tensor y) {
    std::string message = "no error";
    Code code = Code::kInternal;
    try {
      ops::rotary(ctx, x, ids, cos, sin, {}, y);
    } catch (const Error& error) {
      message = error.message();
      code = error.code();
    }
    const bool good = code == Code::kInvalidArgument && message.find(part) != std::string::npos;
    compare_value(result, "refused '" + part + "' (got: " + message + ")", good ? 1 : 0, 1, {});
  };
  const Tensor x = make({2, 3, 4, 8}), cos = make({5, 4}), none;
  const Tensor ids = filled_tensor(DType::kInt32, {2, 3}, 4),
               late = filled_tensor(DType::kInt32, {2, 3}, 5);
  const Tensor early = filled_tensor(DType::kInt32, {2, 3}, -1);
  refuse("x is missing", none, ids, cos, cos, x);
  refuse("x of shape [2, 3, 32]", x.view({2, 3, 32}), ids, cos, cos, x);
  refuse("y must be float32 of shape", x, ids, cos, cos, make({2, 3, 4, 6}));
  refuse("cos of shape [5, 5]", x, ids, make({5, 5}), make({5, 5}), x);
  refuse("sin must have shape [5, 4]", x, ids, cos, make({5, 3}), x);
  refuse("position_ids must have shape [2, 3]", x, filled_tensor(DType::kInt32, {6}, 0), cos, cos,
         x);
  if (ctx.device->kind() == DeviceKind::kCpu) {  // what lies on a GPU is not read before
    refuse("position_ids[0, 0] is 5", x, late, cos, cos, x);
    refuse("position_ids[0, 0] is -1", x, early, cos, cos, x);
  }
  refuse("other strides", x, ids, cos, cos,
         Tensor(x.storage(), guard_front(kF), kF, x.shape(), std::vector<int64_t>{96, 8, 24, 1}));
  return result;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    for (const bool interleaved : {false, true}) {
      for (const Spec& s :
           {Spec{dtype, 1, 1, 1, 2, 2, 1, interleaved}, Spec{dtype, 2, 3, 1, 5, 4, 9, interleaved},
            Spec{dtype, 1, 4, 2, 10, 10, 3, interleaved},
            Spec{dtype, 0, 3, 2, 8, 8, 4, interleaved},
            Spec{dtype, 2, 33, 3, 64, 64, 50, interleaved},
            Spec{dtype, 1, 300, 5, 80, 20, 300, interleaved},
            Spec{dtype, 2, 9, 2, 38, 34, 20, interleaved},
            Spec{dtype, 1, 7, 2, 1100, 1040, 8, interleaved},
            Spec{dtype, 1, 5, 2, 12, 0, 8, interleaved}}) {
        OpCase row;
        row.name = s.name();
        row.check = [s](const OpContext& ctx, uint64_t seed) { return check(ctx, seed, s); };
        if (dtype == DType::kFloat32 && s.batch * s.tokens * s.heads * s.head_dim > 0 &&
            s.tokens < 5) {
          row.gradient = [s](const OpContext& ctx, uint64_t seed) {
            return gradient(ctx, seed, s);
          };
        }
        rows.push_back(std::move(row));
      }
      rows.push_back(timed(dtype, interleaved));
    }
  }
  OpCase refusals;
  refusals.name = "rotary/refusals";
  refusals.check = check_refusals;
  rows.push_back(refusals);
  add_append_rows(rows);
  return rows;
}

}  // namespace ds::testing::rotary_rows
