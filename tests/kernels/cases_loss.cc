// Rows of softmax cross entropy.
#include "kernels/case_util.h"
#include "kernels/loss/cross_entropy.h"
#include "ops/cross_entropy.h"

namespace ds::testing::loss_rows {
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
  const double rough = s.dtype == DType::kBFloat16 ? 4e-6 : 0;  // a shorter polynomial's error
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
                                 (storage_roundoff(s.dtype) + rough) * p;
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

  Tensor whole = copy_of(d.logits);
  ops::cross_entropy_fused(ctx, whole, d.labels, s.valid, scale, loss_out);
  compare(result, "fused loss", loss_out, loss, {1, 1e-38}, loss_allowed);
  compare(result, "fused dlogits", whole, dlogits, {1, 1e-37}, allowed);
  Tensor parts = copy_of(d.logits), part_loss = guarded_tensor(DType::kFloat32, {s.rows});
  for (int64_t begin = 0; begin < s.rows; begin += 3) {
    const int64_t end = std::min(begin + 3, s.rows);
    Tensor rows_of = parts.slice(0, begin, end), losses_of = part_loss.slice(0, begin, end);
    ops::cross_entropy_fused(ctx, rows_of, d.labels.slice(0, begin, end), s.valid, scale,
                             losses_of);
  }
  compare(result, "fused dlogits by slices", parts, doubles(whole), {});
  compare(result, "fused loss by slices", part_loss, doubles(loss_out), {});
  return result;
}

// Logits of -inf, whole chunks of them and before all others, count as nothing; a row with a NaN or
// with +inf gives NaN for loss and gradient, and only that row.
CaseResult check_special(const OpContext& ctx, uint64_t seed, DType dtype) {
  constexpr int64_t kRows = 5, kColumns = 9000;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Setting s{dtype, kRows, kColumns, kColumns, 2};
  Data d = make_data(seed, s);
  Random random(seed + 1);
  const auto row = [&](size_t i) { return d.logits64.data() + i * kColumns; };
  std::fill(row(0), row(0) + 5000, -kInf);
  std::fill(row(1) + 4097, row(1) + 8999, -kInf);
  row(2)[random() % kColumns] = std::nan("");
  row(3)[random() % kColumns] = kInf;
  for (int64_t i = 0; i < kRows; ++i) d.labels.data<int32_t>()[i] = 8999;
  set_doubles(d.logits, d.logits64);
  std::vector<double> loss(kRows), dlogits(kRows * kColumns, std::nan(""));
  for (size_t i = 0; i < kRows; ++i) {
    loss[i] = std::nan("");
    if (i == 2 || i == 3) continue;
    loss[i] = kernels::cross_entropy_ref(row(i), 8999, kColumns).loss;
    kernels::cross_entropy_backward_ref(row(i), 8999, kColumns, kColumns, 1,
                                        dlogits.data() + i * kColumns);
  }
  CaseResult result;
  const Tolerance loose{1e-5 + storage_roundoff(dtype), 1e-30};
  Tensor lse = guarded_tensor(DType::kFloat32, {kRows}), out = guarded_tensor(lse.dtype(), {kRows});
  Tensor dx = guarded_tensor(dtype, {kRows, kColumns});
  ops::cross_entropy(ctx, d.logits, d.labels, kColumns, out, lse);
  compare(result, "loss", out, loss, {1e-6, 0});
  ops::cross_entropy_backward(ctx, d.logits, d.labels, kColumns, lse, 1, dx);
  compare(result, "dlogits", dx, dlogits, loose);
  Tensor fused = copy_of(d.logits);
  ops::cross_entropy_fused(ctx, fused, d.labels, kColumns, 1, out);
  compare(result, "fused loss", out, loss, {1e-6, 0});
  compare(result, "fused dlogits", fused, dlogits, loose);
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

enum class Pass { kForward, kBackward, kFused };

// Least traffic: the logits read, and but for the loss alone written.
OpCase timed(const Setting& s, Pass pass) {
  OpCase row;
  const char* const names[] = {"forward", "backward", "fused"};
  row.name = s.name(names[static_cast<int>(pass)]);
  row.bytes = static_cast<double>(s.rows * s.columns * dtype_size(s.dtype)) *
              (pass == Pass::kForward ? 1 : 2);
  row.prepare = [s, pass](const OpContext& ctx) -> std::function<void()> {
    const Tensor logits = bench_tensor(ctx, s.dtype, {s.rows, s.columns});
    const Tensor labels = bench_tensor(ctx, DType::kInt32, {s.rows});
    const Tensor loss = bench_tensor(ctx, DType::kFloat32, {s.rows});
    const Tensor lse = bench_tensor(ctx, DType::kFloat32, {s.rows});
    Tensor loss_out = loss, lse_out = lse;
    ops::cross_entropy(ctx, logits, labels, s.valid, loss_out, lse_out);
    return [ctx, s, pass, logits, labels, loss, lse]() {
      Tensor a = loss, b = lse, in_place = logits;
      if (pass == Pass::kBackward) {
        ops::cross_entropy_backward(ctx, logits, labels, s.valid, lse, 1e-3f, in_place);
      } else if (pass == Pass::kFused) {
        ops::cross_entropy_fused(ctx, in_place, labels, s.valid, 1e-3f, a);
      } else {
        ops::cross_entropy(ctx, logits, labels, s.valid, a, b);
      }
    };
  };
  return row;
}
}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    // Where the row that a GPU keeps fills the shared memory which blocks have without asking, but
    // for what the kernel needs besides. Before wider rows: what these ask for stays allowed.
    const int64_t edge = (int64_t{48} << 10) / dtype_size(dtype), pack = 16 / dtype_size(dtype);
    for (const int64_t n : {edge - 23 * pack - 1, edge - 23 * pack, edge + pack - 1, edge + pack}) {
      const Setting s{dtype, 2, n, n, 3};
      OpCase row;
      row.name = s.name("check");
      row.check = [s](const OpContext& ctx, uint64_t seed) { return check(ctx, seed, s); };
      rows.push_back(std::move(row));
    }
    for (const Setting& s :
         {Setting{dtype, 1, 1, 1, 1}, Setting{dtype, 4, 5, 5, 1}, Setting{dtype, 3, 9, 6, 2},
          Setting{dtype, 0, 4, 4, 1}, Setting{dtype, 33, 257, 257, 3},
          Setting{dtype, 40, 1000, 999, 0.01}, Setting{dtype, 20, 300, 290, 100},
          Setting{dtype, 5, 50304, 50257, 4}, Setting{dtype, 2, 4097, 4097, 10},
          Setting{dtype, 1, 120001, 120000, 4}}) {
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
    for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kFused}) {
      rows.push_back(timed(gpt2, pass));
    }
    OpCase special;
    special.name = str_cat("cross_entropy/special/", type_name(dtype));
    special.check = [dtype](const OpContext& ctx, uint64_t seed) {
      return check_special(ctx, seed, dtype);
    };
    rows.push_back(std::move(special));
  }
  return rows;
}

}  // namespace ds::testing::loss_rows
