// Rows of the activation functions, plain and gated.
#include <algorithm>

#include "kernels/activation/activation.h"
#include "kernels/case_util.h"
#include "ops/activation.h"

namespace ds::testing::gated_rows {
namespace {

namespace ref = kernels::reference;
using kernels::ActivationKind;
using ops::Activation;

struct Kind {
  Activation op;
  ActivationKind kernel;
  const char* name;
};
constexpr Kind kKinds[] = {{Activation::kRelu, ActivationKind::kRelu, "relu"},
                           {Activation::kSilu, ActivationKind::kSilu, "silu"},
                           {Activation::kGeluTanh, ActivationKind::kGeluTanh, "gelu_tanh"},
                           {Activation::kGeluErf, ActivationKind::kGeluErf, "gelu_erf"},
                           {Activation::kTanh, ActivationKind::kTanh, "tanh"}};

// Value: 8 units of roundoff of |v| (the rounding of the exponent, exp and the division; the erf
// form adds the absolute error of erf). Derivative: 16 units of 1.2, its largest value.
constexpr double kValue = 8 * 0x1p-24;
constexpr double kDerivative = 16 * 0x1p-24;

// For bf16 the functions are rough: this much of a value, and of what a derivative is made of; an
// 8th and a 16th of what rounding to bf16 does.
double rough_value(DType dtype) { return dtype == DType::kBFloat16 ? 0x1p-12 : 0; }
double rough(DType dtype) { return dtype == DType::kBFloat16 ? 0x1p-13 : 0; }

// Numbers that reach both tails, and a few far outside.
Tensor wide_inputs(Random& random, DType dtype, const Shape& shape) {
  Tensor x = random_tensor(random, dtype, shape, 2.5);
  if (x.elements() <= 8) return x;
  std::vector<double> values = doubles(x);
  const double far = dtype == DType::kFloat16 ? 6e4 : 3e30;
  const double special[] = {1e4, -1e4, 0, far, -far, -20, 20};
  std::copy(std::begin(special), std::end(special), values.begin());
  set_doubles(x, values);
  return x;
}

CaseResult check_plain(const OpContext& ctx, uint64_t seed, const Kind& kind, DType dtype,
                       int64_t n) {
  Random random(seed);
  CaseResult result;
  const Tensor x = wide_inputs(random, dtype, {n}), dy = random_tensor(random, dtype, {n});
  const std::vector<double> v = doubles(x), dyv = doubles(dy);
  std::vector<double> y(v), dx(v), y_scale(v), dx_scale(v);
  for (size_t i = 0; i < v.size(); ++i) {
    y[i] = ref::activation(v[i], kind.kernel);
    dx[i] = dyv[i] * ref::activation_derivative(v[i], kind.kernel);
    const double rounding = storage_roundoff(dtype);
    y_scale[i] = kValue * std::abs(v[i]) + (rounding + rough_value(dtype)) * std::abs(y[i]);
    dx_scale[i] = (kDerivative + rough(dtype)) * std::abs(dyv[i]) + rounding * std::abs(dx[i]);
  }
  Tensor out = guarded_tensor(dtype, {n});
  ops::activation(ctx, x, kind.op, out);
  compare(result, "y", out, y, {1, 1e-38}, y_scale);
  Tensor in_place = copy_of(x);
  ops::activation(ctx, in_place, kind.op, in_place);
  compare(result, "y over x", in_place, doubles(out), {});
  out = guarded_tensor(dtype, {n});
  ops::activation_backward(ctx, dy, x, kind.op, out);
  compare(result, "dx", out, dx, {1, 1e-38}, dx_scale);
  in_place = copy_of(dy);
  ops::activation_backward(ctx, in_place, x, kind.op, in_place);
  compare(result, "dx over dy", in_place, doubles(out), {});
  return result;
}

// A NaN stays one, in value and gradient.
CaseResult check_nan(const OpContext& ctx, const Kind& kind, DType dtype) {
  CaseResult result;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = filled_tensor(dtype, {21}, nan), dy = filled_tensor(dtype, {21}, 1);
  Tensor y = guarded_tensor(dtype, {21});
  ops::activation(ctx, x, kind.op, y);
  compare(result, "y of NaN", y, doubles(x), {});
  if (kind.op == Activation::kRelu) return result;  // has a gradient of 0 or 1
  ops::activation_backward(ctx, dy, x, kind.op, y);
  compare(result, "dx of NaN", y, doubles(x), {});
  return result;
}

// gate and up of [rows, cols]: two tensors, or the halves of one.
struct Pair {
  Tensor whole, gate, up;
  Pair(DType dtype, int64_t rows, int64_t cols, bool packed) {
    if (packed) {
      whole = guarded_tensor(dtype, {2, rows, 2 * cols});
      gate = whole.slice(2, 0, cols);
      up = whole.slice(2, cols, 2 * cols);
    } else {
      gate = guarded_tensor(dtype, {2, rows, cols});
      up = guarded_tensor(dtype, {2, rows, cols});
    }
  }
  void fill(const Pair& from) const {
    set_doubles(gate, doubles(from.gate));
    set_doubles(up, doubles(from.up));
  }
  bool guarded() const { return !whole || guards_intact(whole); }
};

CaseResult check_gated(const OpContext& ctx, uint64_t seed, const Kind& kind, DType dtype,
                       int64_t rows, int64_t cols, bool packed) {
  Random random(seed);
  CaseResult result;
  const Shape shape{2, rows, cols};
  const Pair in(dtype, rows, cols, packed), grads(dtype, rows, cols, packed);
  set_doubles(in.gate, doubles(wide_inputs(random, dtype, shape)));
  set_doubles(in.up, doubles(random_tensor(random, dtype, shape)));
  const Tensor dy = random_tensor(random, dtype, shape);
  const std::vector<double> g = doubles(in.gate), u = doubles(in.up), w = doubles(dy);
  std::vector<double> y(g), dgate(g), dup(g), y_scale(g), dgate_scale(g), dup_scale(g);
  const double rounding = storage_roundoff(dtype);
  for (size_t i = 0; i < g.size(); ++i) {
    const double f = ref::activation(g[i], kind.kernel);
    y[i] = f * u[i];
    dgate[i] = w[i] * u[i] * ref::activation_derivative(g[i], kind.kernel);
    dup[i] = w[i] * f;
    const double more = rounding + rough_value(dtype), slope = 2 * kDerivative + rough(dtype);
    y_scale[i] = 2 * kValue * std::abs(g[i] * u[i]) + more * std::abs(y[i]);
    dgate_scale[i] = slope * std::abs(w[i] * u[i]) + rounding * std::abs(dgate[i]);
    dup_scale[i] = 2 * kValue * std::abs(g[i] * w[i]) + more * std::abs(dup[i]);
  }
  // Beyond the largest number of a type the result is infinite.
  const auto limit = [&](std::vector<double>& values) {
    for (double& v : values) {
      if (dtype == DType::kFloat16 && std::abs(v) >= 65520) {
        v = std::copysign(std::numeric_limits<double>::infinity(), v);
      }
    }
  };
  limit(y);
  limit(dup);
  Tensor out = guarded_tensor(dtype, shape);
  ops::gated_activation(ctx, in.gate, in.up, kind.op, out);
  compare(result, "y", out, y, {1, 1e-38}, y_scale);
  Tensor a = grads.gate, b = grads.up;
  ops::gated_activation_backward(ctx, dy, in.gate, in.up, kind.op, a, b);
  compare(result, "dgate", a, dgate, {1, 1e-38}, dgate_scale);
  compare(result, "dup", b, dup, {1, 1e-38}, dup_scale);
  const Pair over(dtype, rows, cols, packed);
  over.fill(in);
  a = over.gate;
  b = over.up;
  ops::gated_activation_backward(ctx, dy, over.gate, over.up, kind.op, a, b);
  compare(result, "dgate over gate", a, doubles(grads.gate), {});
  compare(result, "dup over up", b, doubles(grads.up), {});
  const bool guarded = grads.guarded() && over.guarded();
  result.merge(guarded ? 0 : 2, "bytes outside packed gradients were written");
  return result;
}

CaseResult gradient(const OpContext& ctx, uint64_t seed, const Kind& kind) {
  constexpr DType kType = DType::kFloat32;
  Random random(seed);
  CaseResult result;
  const Shape shape{3, 5};
  const auto away_from_zero = [&](Tensor x) {  // where relu has no derivative
    std::vector<double> values = doubles(x);
    for (double& v : values) v += std::copysign(0.01, v);
    set_doubles(x, values);
    return x;
  };
  const Tensor gate = away_from_zero(random_tensor(random, kType, shape, 1.5));
  const Tensor up = random_tensor(random, kType, shape), dy = random_tensor(random, kType, shape);
  const std::vector<double> w = doubles(dy);
  const auto objective = [&](const std::vector<double>& g, const std::vector<double>& u) {
    std::vector<double> y(g.size());
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = ref::activation(g[i], kind.kernel) * (u.empty() ? 1 : u[i]);
    }
    return weighted_sum(w, y);
  };
  Tensor dx = guarded_tensor(kType, shape), dup = guarded_tensor(kType, shape);
  const Tolerance tolerance{3e-6, 1e-7};
  ops::activation_backward(ctx, dy, gate, kind.op, dx);
  compare_gradient(
      result, "dx", dx, doubles(gate), [&](const auto& v) { return objective(v, {}); }, tolerance);
  ops::gated_activation_backward(ctx, dy, gate, up, kind.op, dx, dup);
  compare_gradient(
      result, "dgate", dx, doubles(gate), [&](const auto& v) { return objective(v, doubles(up)); },
      tolerance);
  compare_gradient(
      result, "dup", dup, doubles(up), [&](const auto& v) { return objective(doubles(gate), v); },
      tolerance);
  return result;
}

OpCase timed(const Kind& kind, DType dtype, bool backward) {
  constexpr int64_t kRows = 1024, kCols = 5632;  // the MLP of a 1.1 B Llama
  OpCase row;
  row.name = str_cat(backward ? "gated_backward/" : "gated/", kind.name, "/", type_name(dtype), "/",
                     kRows, "x", kCols);
  row.bytes = static_cast<double>(kRows * kCols * dtype_size(dtype)) * (backward ? 5 : 3);
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Shape shape{kRows, kCols};
    const Tensor gate = bench_tensor(ctx, dtype, shape), up = bench_tensor(ctx, dtype, shape);
    Tensor y = bench_tensor(ctx, dtype, shape),
           dgate = backward ? bench_tensor(ctx, dtype, shape) : y;
    Tensor dup = backward ? bench_tensor(ctx, dtype, shape) : y;
    return [=]() mutable {
      if (backward) {
        ops::gated_activation_backward(ctx, y, gate, up, kind.op, dgate, dup);
      } else {
        ops::gated_activation(ctx, gate, up, kind.op, y);
      }
    };
  };
  return row;
}

// Arguments that do not fit are refused by name.
CaseResult check_refusals(const OpContext& ctx, uint64_t) {
  CaseResult result;
  const auto refuse = [&](const std::string& part, const std::function<void()>& call) {
    std::string message = "no error";
    Code code = Code::kInternal;
    try {
      call();
    } catch (const Error& error) {
      message = error.message();
      code = error.code();
    }
    const bool good = code == Code::kInvalidArgument && message.find(part) != std::string::npos;
    compare_value(result, "refused '" + part + "' (got: " + message + ")", good ? 1 : 0, 1, {});
  };
  constexpr DType kF = DType::kFloat32;
  Tensor x = filled_tensor(kF, {2, 3, 4}, 1), y = x,
         half = filled_tensor(DType::kFloat16, {2, 3, 4}, 1);
  const Tensor narrow = filled_tensor(kF, {2, 3, 3}, 1);
  const Tensor wide = filled_tensor(kF, {2, 4, 8}, 1);
  const Tensor holes = wide.slice(2, 0, 4).slice(1, 0, 3);  // batches are not 3 rows apart
  const Tensor sparse(wide.storage(), guard_front(kF), kF, {2, 3, 4},
                      std::vector<int64_t>{24, 8, 2});
  constexpr Activation kSilu = Activation::kSilu;
  refuse("x is missing", [&] { ops::activation(ctx, {}, kSilu, y); });
  refuse("y must be float32", [&] { ops::activation(ctx, x, kSilu, half); });
  refuse("no activation has number 9",
         [&] { ops::activation(ctx, x, static_cast<Activation>(9), y); });
  refuse("up must be float32 of shape [2, 3, 4]",
         [&] { ops::gated_activation(ctx, x, narrow, kSilu, y); });
  refuse("up must be float32", [&] { ops::gated_activation(ctx, x, half, kSilu, y); });
  refuse("rows of gate of shape [2, 3, 4] must be one stride apart",
         [&] { ops::gated_activation(ctx, holes, x, kSilu, y); });
  refuse("rows of gate must be dense", [&] { ops::gated_activation(ctx, sparse, x, kSilu, y); });
  refuse("dgate must be float32",
         [&] { ops::gated_activation_backward(ctx, x, x, x, kSilu, half, y); });
  return result;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const Kind& kind : kKinds) {
    for (const DType dtype : kFloatTypes) {
      const std::string name = str_cat(kind.name, "/", type_name(dtype), "/");
      for (const int64_t n : {0, 1, 15, 33, 500, 17001}) {
        OpCase row;
        row.name = str_cat("activation/", name, n);
        row.check = [=](const OpContext& ctx, uint64_t seed) {
          return check_plain(ctx, seed, kind, dtype, n);
        };
        rows.push_back(std::move(row));
      }
      OpCase nan;
      nan.name = str_cat("activation/", name, "nan");
      nan.check = [=](const OpContext& ctx, uint64_t) { return check_nan(ctx, kind, dtype); };
      rows.push_back(std::move(nan));
      for (const auto& [r, c] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 1}, {0, 5}, {3, 7}, {5, 129}, {2, 5001}, {100, 101}}) {
        for (const bool packed : {false, true}) {
          OpCase row;
          row.name = str_cat("gated/", name, r, "x", c, packed ? "/packed" : "");
          row.check = [=, m = r, n = c](const OpContext& ctx, uint64_t seed) {
            return check_gated(ctx, seed, kind, dtype, m, n, packed);
          };
          if (dtype == DType::kFloat32 && r == 3 && !packed) {
            row.gradient = [=](const OpContext& ctx, uint64_t seed) {
              return gradient(ctx, seed, kind);
            };
          }
          rows.push_back(std::move(row));
        }
      }
      if (kind.op == Activation::kSilu || kind.op == Activation::kGeluTanh) {
        rows.push_back(timed(kind, dtype, false));
        rows.push_back(timed(kind, dtype, true));
      }
    }
  }
  OpCase refusals;
  refusals.name = "activation/refusals";
  refusals.check = check_refusals;
  rows.push_back(refusals);
  return rows;
}

}  // namespace ds::testing::gated_rows
