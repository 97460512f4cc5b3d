// Rows of the rotary embedding: halves and neighbours, whole and partial heads, strided views.
#include <algorithm>

#include "kernels/case_util.h"
#include "kernels/rotary/rotary.h"
#include "ops/rotary.h"

namespace ds::testing {
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
    ref::rotary(s.head_dim, s.turned, s.interleaved, in.options.inverse,
                x.data() + head * s.head_dim, cos.data() + row, sin.data() + row,
                y.data() + head * s.head_dim);
  }
  return y;
}

CaseResult check(const OpContext& ctx, uint64_t seed, const Spec& s) {
  CaseResult result;
  for (const bool inverse : {false, true}) {
    const Inputs in = make_inputs(s, seed, inverse);
    const std::vector<double> x = doubles(in.x), y = expected_of(s, in, x);
    // Three fp32 roundings of two products and the one of the result; what is copied is exact.
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
    const Tolerance by_scale{1, 1e-38};
    Tensor out = guarded_tensor(s.dtype, in.x.shape());
    ops::rotary(ctx, in.x, in.ids, in.cos, in.sin, in.options, out);
    compare(result, inverse ? "inverse" : "y", out, y, by_scale, scale);
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

std::vector<OpCase> rotary_cases() {
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
  return rows;
}

}  // namespace ds::testing
