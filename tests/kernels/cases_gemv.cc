// Rows of gemv: few rows of x against a weight.
#include "kernels/case_util.h"
#include "kernels/gemv/gemv.h"
#include "ops/gemv.h"

namespace ds::testing::gemv_rows {
namespace {

struct Sizes {
  int64_t m, n, k;
};

std::string row_name(DType dtype, const Sizes& s) {
  return str_cat("gemv/", type_name(dtype), "/", s.m, "x", s.n, "x", s.k);
}

// The bound of tests/kernels/cases_linear.cc: sums of d products stay below 4 sqrt(d + 2) units of
// roundoff of the sum of magnitudes.
Tolerance sum_tolerance(int64_t depth, DType out) {
  return {4 * std::sqrt(static_cast<double>(depth) + 2) * 0x1p-24 + storage_roundoff(out), 1e-30};
}

CaseResult check(const OpContext& ctx, uint64_t seed, DType dtype, const Sizes& s) {
  Random random(seed);
  const Tensor x = random_tensor(random, dtype, {s.m, s.k});
  const Tensor w = random_tensor(random, dtype, {s.n, s.k});
  const Tensor bias = random_tensor(random, dtype, {s.n});
  const std::vector<double> x64 = doubles(x), w64 = doubles(w), bias64 = doubles(bias);
  std::vector<double> magnitude(static_cast<size_t>(s.m * s.n)), expected(magnitude.size());
  const auto absolute = [](std::vector<double> v) {
    for (double& e : v) e = std::abs(e);
    return v;
  };
  kernels::gemv_ref(s.m, s.n, s.k, absolute(x64).data(), absolute(w64).data(),
                    absolute(bias64).data(), magnitude.data());
  CaseResult result;
  for (const DType out : {dtype, DType::kFloat32}) {
    for (const bool biased : {true, false}) {
      Tensor y = guarded_tensor(out, {s.m, s.n});
      ops::gemv(ctx, x, w, biased ? bias : Tensor(), y);
      kernels::gemv_ref(s.m, s.n, s.k, x64.data(), w64.data(), biased ? bias64.data() : nullptr,
                        expected.data());
      compare(result, biased ? "y" : "y without bias", y, expected, sum_tolerance(s.k, out),
              magnitude);
      // A row alone gives the same bits.
      const int64_t last = s.m - 1;
      Tensor alone = guarded_tensor(out, {1, s.n});
      ops::gemv(ctx, x.slice(0, last, s.m), w, biased ? bias : Tensor(), alone);
      compare(result, "a row alone", alone, doubles(y.slice(0, last, s.m)), {});
    }
  }
  return result;
}

OpCase timed(DType dtype, const Sizes& s) {
  OpCase row;
  row.name = row_name(dtype, s);
  const auto m = static_cast<double>(s.m), n = static_cast<double>(s.n),
             k = static_cast<double>(s.k);
  row.flops = 2 * m * n * k;
  row.bytes = static_cast<double>(dtype_size(dtype)) * (m * n + m * k + n * k);
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, dtype, {s.m, s.k}), w = bench_tensor(ctx, dtype, {s.n, s.k});
    Tensor y = bench_tensor(ctx, dtype, {s.m, s.n});
    return [=]() mutable { ops::gemv(ctx, x, w, Tensor(), y); };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s :
         {Sizes{1, 1, 1}, Sizes{1, 3, 16}, Sizes{2, 5, 31}, Sizes{3, 4, 32}, Sizes{4, 17, 33},
          Sizes{5, 8, 65}, Sizes{6, 9, 7}, Sizes{7, 70, 129}, Sizes{8, 33, 1000},
          Sizes{13, 70, 129}, Sizes{16, 33, 1000}, Sizes{1, 700, 768}, Sizes{3, 2, 0}}) {
      OpCase row;
      row.name = row_name(dtype, s);
      row.check = [=](const OpContext& ctx, uint64_t seed) { return check(ctx, seed, dtype, s); };
      rows.push_back(row);
    }
    for (const Sizes& s : {Sizes{1, 50257, 768}, Sizes{1, 8192, 4096}, Sizes{4, 8192, 4096},
                           Sizes{16, 8192, 4096}}) {
      rows.push_back(timed(dtype, s));
    }
  }
  return rows;
}

}  // namespace ds::testing::gemv_rows
