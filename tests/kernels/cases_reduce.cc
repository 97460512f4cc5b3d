// Rows for sums, norms, searches and column sums.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/case_util.h"
#include "kernels/reduce/reduce.h"
#include "ops/reduce.h"

namespace ds::testing::reduce_rows {
namespace {

namespace ref = kernels::reference;

// exact_squares with the order of reduce.h written out.
ExactSum exact_reference(std::vector<double> x) {
  const size_t block = kernels::kExactBlock;
  x.resize((x.size() + block - 1) / block * block);
  for (double& v : x) v *= v;
  ExactSum sum, total;
  for (size_t i = 0; i < x.size(); i += block) {
    double a[8];
    for (size_t j = 0; j < 8; ++j) {
      const double* s = &x[i + j];
      a[j] = (s[0] + s[8]) + (s[16] + s[24]);
    }
    for (size_t j = 0; j < 4; ++j) a[j] += a[4 + j];
    sum.add((a[0] + a[2]) + (a[1] + a[3]));
  }
  total.add(sum);
  return total;
}

void compare_exact_squares(CaseResult& result, const std::string& what, const ExactSum& exact,
                           const std::vector<double>& values) {
  const ExactSum same = exact_reference(values);
  compare_value(result, what + " in its order", exact.value(), same.value(), {});
  double other_words = 0;
  for (size_t i = 0; i < same.words().size(); ++i) {
    other_words += exact.words()[i] != same.words()[i] ? 1 : 0;
  }
  compare_value(result, "words that differ of " + what, other_words, 0, {});
}

// Blocks of ever more different magnitudes, a third of them of zeros.
OpCase spread(DType dtype, int64_t n) {
  OpCase row;
  row.name = str_cat("exact_squares/", type_name(dtype), "/", n);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    for (const int range : {2, 6, 15, 40, 60}) {
      if (dtype == DType::kFloat16 && range > 6) break;
      const Tensor x = random_tensor(random, dtype, {n});
      std::vector<double> values = doubles(x);
      // Of neighbours alike: the largest of a block hides the others.
      int exponent = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t block = i / kernels::kExactBlock;
        if (i % kernels::kExactBlock == 0) {
          exponent = static_cast<int>(random() % static_cast<uint64_t>(2 * range)) - range;
        }
        values[i] = block % 3 == 1 ? 0 : std::ldexp(values[i], exponent);
      }
      set_doubles(x, values);
      compare_exact_squares(result, str_cat("exact_squares over 2^", 2 * range),
                            ops::exact_squares(ctx, x), doubles(x));
    }
    return result;
  };
  return row;
}

OpCase flat(DType dtype, int64_t n) {
  OpCase row;
  row.name = str_cat("reduce/", type_name(dtype), "/", n);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const Tensor x = random_tensor(random, dtype, {n}, 2, 0.25);
    const std::vector<double> values = doubles(x);
    double magnitude = 0;
    for (const double v : values) magnitude += std::abs(v);
    // Double sums in another order: n roundings of 2^-53 at most.
    const Tolerance order{0x1p-53 * static_cast<double>(n + 1), 0};
    compare_value(result, "sum", ops::sum(ctx, x), ref::sum(values.data(), n), order, magnitude);
    compare_value(result, "sum_squares", ops::sum_squares(ctx, x),
                  ref::sum_squares(values.data(), n), order);
    const ExactSum exact = ops::exact_squares(ctx, x);
    compare_value(result, "exact_squares", exact.value(), ref::sum_squares(values.data(), n),
                  order);
    compare_exact_squares(result, "exact_squares", exact, values);
    // Cut anywhere at a multiple of the block, the parts add up to the same bits.
    const int64_t blocks = n / kernels::kExactBlock;
    const int64_t cut =
        static_cast<int64_t>(random() % static_cast<uint64_t>(blocks + 1)) * kernels::kExactBlock;
    ExactSum parts = ops::exact_squares(ctx, x.slice(0, 0, cut));
    parts.add(ops::exact_squares(ctx, x.slice(0, cut, n)));
    compare_value(result, "exact_squares of two parts", parts.value(), exact.value(), {});
    compare_value(result, "max_abs", ops::max_abs(ctx, x), ref::max_abs(values.data(), n), {});
    compare_value(result, "first_non_finite of finite numbers",
                  static_cast<double>(ops::first_non_finite(ctx, x)), -1, {});
    return result;
  };
  return row;
}

// NaN and infinities at random places.
OpCase broken(DType dtype, int64_t n) {
  OpCase row;
  row.name = str_cat("reduce_non_finite/", type_name(dtype), "/", n);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const Tensor x = random_tensor(random, dtype, {n});
    std::vector<double> values = doubles(x);
    const double inf = std::numeric_limits<double>::infinity();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const double bad : {inf, -inf, nan, -nan}) {
      // Places move towards the front, so that each becomes the first.
      const int64_t first = ref::first_non_finite(values.data(), n);
      const int64_t limit = first < 0 ? n : first;
      if (limit == 0) break;
      values[random() % static_cast<uint64_t>(limit)] = bad;
      set_doubles(x, values);
      compare_value(result, "first_non_finite", static_cast<double>(ops::first_non_finite(ctx, x)),
                    static_cast<double>(ref::first_non_finite(values.data(), n)), {});
      compare_value(result, "max_abs", ops::max_abs(ctx, x), ref::max_abs(values.data(), n), {});
      compare_value(result, "exact_squares that are finite",
                    std::isfinite(ops::exact_squares(ctx, x).value()) ? 1 : 0, 0, {});
    }
    return result;
  };
  return row;
}

// The first columns of rows that are `padding` longer.
OpCase columns(DType dtype, int64_t rows, int64_t cols, int64_t padding = 0) {
  OpCase row;
  row.name = str_cat("add_column_sums/", type_name(dtype), "/", rows, "x", cols);
  if (padding > 0) row.name += str_cat("/of", cols + padding);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const Tensor x = random_tensor(random, dtype, {rows, cols + padding}, 1, 0.1).slice(1, 0, cols);
    Tensor y = random_tensor(random, DType::kFloat32, {cols});
    const std::vector<double> values = doubles(x);
    std::vector<double> expected = doubles(y), scale = expected;
    for (double& s : scale) s = std::abs(s);
    for (size_t i = 0; i < values.size(); ++i) {
      scale[i % static_cast<size_t>(cols)] += std::abs(values[i]);
    }
    ref::add_column_sums(values.data(), rows, cols, expected.data());
    ops::add_column_sums(ctx, x, y);
    // The longest chain of fp32 additions: eight rows at once, then chunks, then y.
    const auto depth =
        static_cast<double>(kernels::row_chunk_size(rows) / 8 + 12 + kernels::row_chunks(rows));
    compare(result, "y", y, expected, {0x1p-24 * std::min(depth, static_cast<double>(rows + 1)), 0},
            scale);
    return result;
  };
  return row;
}

OpCase bench(const std::string& name, DType dtype, const Shape& shape,
             const std::function<void(const OpContext&, const Tensor&)>& body) {
  OpCase row;
  row.name = str_cat(name, "/", type_name(dtype), "/", shape[0], "x", shape[1]);
  row.bytes = static_cast<double>(shape.elements() * dtype_size(dtype));
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, dtype, shape);
    return [=] { body(ctx, x); };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  const int64_t grain = kernels::kReduceGrain;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{16}, int64_t{33},
                            int64_t{1000}, grain, 3 * grain + 5}) {
      rows.push_back(flat(dtype, n));
      if (n > 0) rows.push_back(broken(dtype, n));
      rows.push_back(spread(dtype, n));
    }
    for (const auto& [r, c] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {7, 3}, {8, 16}, {33, 129}, {200, 2085}, {9001, 17}}) {
      rows.push_back(columns(dtype, r, c));
    }
    rows.push_back(columns(dtype, 9, 61, 3));
    rows.push_back(columns(dtype, 130, 768, 64));
    rows.push_back(columns(dtype, 5, 64, 7));
    for (const Shape& shape : {Shape{1024, 768}, Shape{4096, 768}}) {
      rows.push_back(bench("sum_squares", dtype, shape, [](const OpContext& ctx, const Tensor& x) {
        ops::sum_squares(ctx, x);
      }));
      rows.push_back(bench("max_abs", dtype, shape,
                           [](const OpContext& ctx, const Tensor& x) { ops::max_abs(ctx, x); }));
      rows.push_back(
          bench("first_non_finite", dtype, shape,
                [](const OpContext& ctx, const Tensor& x) { ops::first_non_finite(ctx, x); }));
      OpCase row = bench("add_column_sums", dtype, shape, {});
      row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
        const Tensor x = bench_tensor(ctx, dtype, shape);
        Tensor y = bench_tensor(ctx, DType::kFloat32, {shape[1]});
        return [=]() mutable { ops::add_column_sums(ctx, x, y); };
      };
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace ds::testing::reduce_rows
