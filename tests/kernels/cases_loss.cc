// Rows of softmax cross entropy.
#include "kernels/case_util.h"
#include "kernels/loss/cross_entropy.h"
#include "ops/cross_entropy.h"

namespace ds::testing {
namespace {

struct Setting {
  DType dtype;
  int64_t rows;
  int64_t columns;
  int64_t valid;
  double deviation;  // of the logits

  std::string name(const char* what) const {
    return str_cat("cross_entropy/", what, "/", type_name(dtype), "/", rows, "x", columns, "/valid",
                   valid, "/scale", deviation);
  }
};

struct Data {
  Tensor logits, labels;
  std::vector<double> logits64, labels64;
};

Data make_data(uint64_t seed, const Setting& s) {
  Random random(seed);
  Data d;
  d.logits = random_tensor(random, s.dtype, {s.rows, s.columns}, s.deviation);
  // Padding columns hold what must never be read as a logit.
  std::vector<double> values = doubles(d.logits);
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t j = s.valid; j < s.columns; ++j) {
      values[static_cast<size_t>(row * s.columns + j)] = std::numeric_limits<double>::infinity();
    }
  }
  set_doubles(d.logits, values);
  d.labels = random_ints(random, {s.rows}, 0, static_cast<int32_t>(s.valid - 1));
  for (int64_t row = 2; row < s.rows; row += 5) d.labels.data<int32_t>()[row] = ops::kIgnoreLabel;
  d.logits64 = doubles(d.logits);
  d.labels64 = doubles(d.labels);
  return d;
}

CaseResult check(const OpContext& ctx, uint64_t seed, const Setting& s) {
  const Data d = make_data(seed, s);
  const float scale = 0.37f;
  const size_t rows = static_cast<size_t>(s.rows), columns = static_cast<size_t>(s.columns);
  std::vector<double> loss(rows), lse(rows), dlogits(rows * columns), allowed(rows * columns);
  // An exponential is off by its argument's rounding and 3 units of roundoff; the fp32 sums are of
  // at most 4096 terms in 64 lanes or more, the rest is double.
  const double unit = 0x1p-24;
  std::vector<double> lse_allowed(rows), loss_allowed(rows);
  for (size_t i = 0; i < rows; ++i) {
    const double* x = d.logits64.data() + i * columns;
    const int32_t label = static_cast<int32_t>(d.labels64[i]);
    const kernels::CrossEntropyRow row = kernels::cross_entropy_ref(x, label, s.valid);
    loss[i] = row.loss;
    lse[i] = row.lse;
    double largest = 0;
    for (size_t j = 0; j < static_cast<size_t>(s.valid); ++j) {
      largest = std::max(largest, std::abs(x[j]));
    }
    lse_allowed[i] = unit * (24 + std::abs(lse[i]) + 4 * std::min(largest, 20.0));
    loss_allowed[i] = unit * (24 + std::abs(loss[i]) + 4 * std::min(largest, 20.0));
    kernels::cross_entropy_backward_ref(x, label, s.columns, s.valid, scale,
                                        dlogits.data() + i * columns);
    for (size_t j = 0; j < columns; ++j) {
      const double p = std::abs(dlogits[i * columns + j]);
      // lse is rounded to fp32, which moves every exponent by half its spacing. The label's element
      // p - 1 has the error of p.
      const double probability = static_cast<int32_t>(j) == label ? scale : p;
      allowed[i * columns + j] = probability * unit * (24 + 4 * std::abs(lse[i]) + 4 * largest) +
                                 storage_roundoff(s.dtype) * p;
    }
  }
  CaseResult result;
  Tensor loss_out = guarded_tensor(DType::kFloat32, {s.rows});
  Tensor lse_out = guarded_tensor(DType::kFloat32, {s.rows});
  ops::cross_entropy(ctx, d.logits, d.labels, s.valid, loss_out, lse_out);
  compare(result, "loss", loss_out, loss, {1, 1e-38}, loss_allowed);
  compare(result, "lse", lse_out, lse, {1, 1e-38}, lse_allowed);
  Tensor dx = guarded_tensor(s.dtype, d.logits.shape());
  ops::cross_entropy_backward(ctx, d.logits, d.labels, s.valid, lse_out, scale, dx);
  // 1e-37: exponentials below the smallest normal number are 0.
  compare(result, "dlogits", dx, dlogits, {1, 1e-37}, allowed);
  Tensor in_place = copy_of(d.logits);
  ops::cross_entropy_backward(ctx, in_place, d.labels, s.valid, lse_out, scale, in_place);
  compare(result, "dlogits in place", in_place, doubles(dx), {});
  return result;
}

CaseResult gradient(const OpContext& ctx, uint64_t seed, const Setting& s) {
  Data d = make_data(seed, s);
  const float scale = 0.5f;
  const auto objective = [&](const std::vector<double>& x) {
    double total = 0;
    for (int64_t i = 0; i < s.rows; ++i) {
      total += kernels::cross_entropy_ref(x.data() + i * s.columns,
                                          static_cast<int32_t>(d.labels64[static_cast<size_t>(i)]),
                                          s.valid)
                   .loss;
    }
    return total * scale;
  };
  Tensor loss = guarded_tensor(DType::kFloat32, {s.rows});
  Tensor lse = guarded_tensor(DType::kFloat32, {s.rows});
  Tensor dx = guarded_tensor(s.dtype, d.logits.shape());
  ops::cross_entropy(ctx, d.logits, d.labels, s.valid, loss, lse);
  ops::cross_entropy_backward(ctx, d.logits, d.labels, s.valid, lse, scale, dx);
  // The reference ignores padding columns, so their differences are 0 whatever they hold.
  std::vector<double> x = d.logits64;
  for (double& value : x) value = std::isinf(value) ? 1 : value;
  CaseResult result;
  const double rounding = storage_roundoff(s.dtype);
  compare_gradient(result, "dlogits", dx, x, objective, {3e-6 + rounding, 1e-8});
  return result;
}

OpCase timed(const Setting& s, bool backward) {
  OpCase row;
  row.name = s.name(backward ? "backward" : "forward");
  row.bytes = static_cast<double>(s.rows * s.columns * dtype_size(s.dtype)) * (backward ? 2 : 1);
  row.prepare = [s, backward](const OpContext& ctx) -> std::function<void()> {
    const Tensor logits = bench_tensor(ctx, s.dtype, {s.rows, s.columns});
    const Tensor labels = bench_tensor(ctx, DType::kInt32, {s.rows});
    const Tensor loss = bench_tensor(ctx, DType::kFloat32, {s.rows});
    const Tensor lse = bench_tensor(ctx, DType::kFloat32, {s.rows});
    Tensor loss_out = loss, lse_out = lse;
    ops::cross_entropy(ctx, logits, labels, s.valid, loss_out, lse_out);
    return [ctx, s, backward, logits, labels, loss, lse]() {
      Tensor a = loss, b = lse, in_place = logits;
      if (backward) {
        ops::cross_entropy_backward(ctx, logits, labels, s.valid, lse, 1e-3f, in_place);
      } else {
        ops::cross_entropy(ctx, logits, labels, s.valid, a, b);
      }
    };
  };
  return row;
}

}  // namespace

std::vector<OpCase> loss_cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    for (const Setting& s :
         {Setting{dtype, 1, 1, 1, 1}, Setting{dtype, 4, 5, 5, 1}, Setting{dtype, 3, 9, 6, 2},
          Setting{dtype, 0, 4, 4, 1}, Setting{dtype, 33, 257, 257, 3},
          Setting{dtype, 40, 1000, 999, 0.01}, Setting{dtype, 20, 300, 290, 100},
          Setting{dtype, 5, 50304, 50257, 4}, Setting{dtype, 2, 4097, 4097, 10}}) {
      OpCase row;
      row.name = s.name("check");
      row.check = [s](const OpContext& ctx, uint64_t seed) { return check(ctx, seed, s); };
      if (s.rows > 0 && s.rows * s.columns < 100) {
        row.gradient = [s](const OpContext& ctx, uint64_t seed) { return gradient(ctx, seed, s); };
      }
      rows.push_back(std::move(row));
    }
    // The head of GPT-2 124M, 4 sequences of 256 tokens, vocabulary padded to a multiple of 64.
    const Setting gpt2{dtype, 1024, 50304, 50257, 1};
    rows.push_back(timed(gpt2, false));
    rows.push_back(timed(gpt2, true));
  }
  return rows;
}

}  // namespace ds::testing
