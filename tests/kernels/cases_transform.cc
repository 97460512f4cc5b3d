// Rows of the permutation between packed projections and heads.
#include "kernels/case_util.h"
#include "kernels/transform/heads.h"
#include "ops/heads.h"
#include "ops/reduce.h"

namespace ds::testing::transform_rows {
namespace {

struct Setting {
  DType dtype;
  int64_t batch, tokens, parts, heads, size;

  int64_t columns() const { return parts * heads * size; }
  Shape packed() const { return {batch, tokens, columns()}; }
  Shape split() const { return {parts, batch, heads, tokens, size}; }
  std::string name() const {
    return str_cat("split_heads/", type_name(dtype), "/", batch, "x", tokens, "/parts", parts,
                   "/heads", heads, "x", size);
  }
};

std::vector<double> expected_of(const Setting& s, const std::vector<double>& x,
                                const std::vector<double>& bias) {
  const kernels::HeadShape shape{
      kernels::FloatType::kFloat32, s.batch, s.tokens, s.parts, s.heads, s.size};
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double added = bias.empty() ? 0 : bias[i % static_cast<size_t>(s.columns())];
    const int64_t at = kernels::reference::split_place(shape, static_cast<int64_t>(i));
    y[static_cast<size_t>(at)] = x[i] + added;
  }
  return y;
}

CaseResult check(const OpContext& ctx, uint64_t seed, const Setting& s) {
  Random random(seed);
  CaseResult result;
  const Tensor x = random_tensor(random, s.dtype, s.packed());
  const Tensor bias = random_tensor(random, s.dtype, {s.columns()});
  const std::vector<double> values = doubles(x);
  Tensor y = guarded_tensor(s.dtype, s.split()), back = guarded_tensor(s.dtype, s.packed());
  ops::split_heads(ctx, x, {}, y);
  compare(result, "split", y, expected_of(s, values, {}), {});
  ops::merge_heads(ctx, y, back);
  compare(result, "merged", back, values, {});
  // One fp32 sum, and one rounding to the type.
  ops::split_heads(ctx, x, bias, y);
  compare(result, "split with bias", y, expected_of(s, values, doubles(bias)),
          {0x1p-24 + storage_roundoff(s.dtype) * 1.01, 0});
  return result;
}

// The gradient of x is the merged one; that of bias its column sums.
CaseResult gradient(const OpContext& ctx, uint64_t seed, const Setting& s) {
  Random random(seed);
  const Tensor x = random_tensor(random, s.dtype, s.packed());
  const Tensor bias = random_tensor(random, s.dtype, {s.columns()});
  const Tensor dy = random_tensor(random, s.dtype, s.split());
  const std::vector<double> weights = doubles(dy), at = doubles(x), with = doubles(bias);
  Tensor dx = guarded_tensor(s.dtype, s.packed());
  ops::merge_heads(ctx, dy, dx);
  Tensor dbias = filled_tensor(DType::kFloat32, {s.columns()}, 0);
  ops::add_column_sums(ctx, dx, dbias);
  CaseResult result;
  const Tolerance tolerance{1e-6, 0};  // linear: differences are exact but for rounding
  compare_gradient(
      result, "dx", dx, at,
      [&](const std::vector<double>& v) { return weighted_sum(weights, expected_of(s, v, with)); },
      tolerance);
  compare_gradient(
      result, "dbias", dbias, with,
      [&](const std::vector<double>& v) { return weighted_sum(weights, expected_of(s, at, v)); },
      tolerance);
  return result;
}

OpCase timed(DType dtype) {
  const Setting s{dtype, 4, 1024, 3, 12, 64};
  OpCase row;
  row.name = str_cat("split_heads/gpt2/", type_name(dtype));
  row.bytes = static_cast<double>(2 * s.packed().elements() * dtype_size(dtype));
  row.prepare = [s](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, s.dtype, s.packed());
    const Tensor bias = bench_tensor(ctx, s.dtype, {s.columns()});
    const Tensor y = bench_tensor(ctx, s.dtype, s.split());
    return [=] {
      Tensor out = y;
      ops::split_heads(ctx, x, bias, out);
    };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    for (const Setting& s : {Setting{dtype, 1, 1, 1, 1, 1}, Setting{dtype, 0, 3, 3, 2, 4},
                             Setting{dtype, 2, 3, 3, 2, 5}, Setting{dtype, 3, 17, 1, 3, 7},
                             Setting{dtype, 2, 33, 3, 4, 64}, Setting{dtype, 2, 65, 2, 3, 33}}) {
      OpCase row;
      row.name = s.name();
      row.check = [s](const OpContext& ctx, uint64_t seed) { return check(ctx, seed, s); };
      if (s.batch > 0 && s.packed().elements() < 400) {
        row.gradient = [s](const OpContext& ctx, uint64_t seed) { return gradient(ctx, seed, s); };
      }
      rows.push_back(std::move(row));
    }
    rows.push_back(timed(dtype));
  }
  return rows;
}

}  // namespace ds::testing::transform_rows
