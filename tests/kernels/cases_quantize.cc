// Rows of quantised weights: codes against the rounding in double, products against the weights
// that the codes stand for.
#include "kernels/case_util.h"
#include "kernels/matmul/matmul.h"
#include "kernels/quantize/quantize.h"
#include "ops/gemv.h"
#include "ops/quantized_linear.h"
#include "tensor/transfer.h"

namespace ds::testing::quantize_rows {
namespace {

struct Sizes {
  int64_t m, n, k;
};

std::string row_name(DType dtype, const ops::QuantizeOptions& o, const Sizes& s) {
  static constexpr const char* kCodes[] = {"", "_codes", "_allcodes"};
  return str_cat("quantize/", type_name(dtype), "/int", o.bits, o.symmetric ? "" : "_minima",
                 kCodes[static_cast<size_t>(o.int8_activations)], "_group", o.group_size, "/", s.m,
                 "x", s.n, "x", s.k);
}

// What the operators allocated, where the host reads it.
Tensor on_host(const OpContext& ctx, const Tensor& tensor) {
  if (!tensor || ctx.device->kind() == DeviceKind::kCpu) return tensor;
  Tensor out = Tensor::empty(make_cpu_device(), tensor.dtype(), tensor.shape(), MemoryTag::kOther);
  copy_to_host(tensor, out.raw());
  return out;
}
ops::QuantizedWeight on_host(const OpContext& ctx, const ops::QuantizedWeight& w) {
  return {w.shape, w.options, on_host(ctx, w.codes), on_host(ctx, w.scales),
          on_host(ctx, w.minimum)};
}

kernels::QuantizedMatrix stored(const ops::QuantizedWeight& w) {
  kernels::QuantizedMatrix m;
  m.bits = w.options.bits;
  m.minima = !w.options.symmetric;
  m.n = w.shape[0];
  m.k = w.shape[1];
  m.group = w.options.group_size;
  m.codes = static_cast<const uint8_t*>(w.codes.raw());
  m.scales = static_cast<const bfloat16*>(w.scales.raw());
  m.minimum = static_cast<const bfloat16*>(w.minimum.raw());
  return m;
}

// Every element must lie within half a step of the weight; at the ends the step's rounding to bf16
// (2^-8 of the range of codes) can cut off more, and symmetric 4 bits miss code 8.
void check_distance(CaseResult& result, const std::vector<double>& w,
                    const std::vector<double>& got, const kernels::QuantizedMatrix& m) {
  for (int64_t i = 0; i < m.n * m.k; ++i) {
    const double step = std::abs(m.scale(i / m.k, i % m.k));
    const double extra = m.bits == 8 ? 0.5 : m.minima ? 0.1 : 0.55;
    const double far = std::abs(got[static_cast<size_t>(i)] - w[static_cast<size_t>(i)]);
    result.merge(far == 0 ? 0 : far / ((0.5 + extra) * step), str_cat("distance of element ", i));
  }
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}
// The largest sum of magnitudes of a row of k numbers.
double row_sum(const std::vector<double>& values, int64_t k) {
  double most = 0;
  for (size_t row = 0; row < values.size(); row += static_cast<size_t>(k)) {
    double sum = 0;
    for (size_t i = row; i < row + static_cast<size_t>(k); ++i) sum += std::abs(values[i]);
    most = std::max(most, sum);
  }
  return most;
}

CaseResult check(const OpContext& ctx, uint64_t seed, DType dtype, const ops::QuantizeOptions& o,
                 const Sizes& s) {
  Random random(seed);
  CaseResult result;
  const Tensor w = random_tensor(random, DType::kFloat32, {s.n, s.k}, 0.3, 0.05);
  const Tensor x = random_tensor(random, dtype, {s.m, s.k});
  const Tensor bias = random_tensor(random, dtype, {s.n});
  const std::vector<double> w64 = doubles(w), x64 = doubles(x), bias64 = doubles(bias);
  const ops::QuantizedWeight q = ops::quantize(ctx, w, o);
  const ops::QuantizedWeight readable = on_host(ctx, q);
  const kernels::QuantizedMatrix matrix = stored(readable);
  const Tensor back = on_host(ctx, ops::dequantize(ctx, q));
  const std::vector<double> codes64 = doubles(back);
  std::vector<double> expected(w64.size());
  kernels::quantize_ref(matrix, w64.data(), expected.data());
  // Where the quotient lies near a half, fp32 may round it to the other side: then the distance
  // check is what counts.
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / s.k, column = static_cast<int64_t>(i) % s.k;
    const double step = std::abs(matrix.scale(row, column));
    const double tie = std::abs(std::abs(expected[i] - w64[i]) - step / 2);
    if (tie < 1e-4 * step) expected[i] = codes64[i];
  }
  compare(result, "dequantised weight", back, expected, {0x1p-23, 1e-30});
  check_distance(result, w64, codes64, matrix);

  std::vector<double> y64(static_cast<size_t>(s.m * s.n)), magnitude(y64.size());
  for (const DType out : {dtype, DType::kFloat32}) {
    for (const bool biased : {true, false}) {
      Tensor y = guarded_tensor(out, {s.m, s.n});
      ops::quantized_linear(ctx, x, q, biased ? bias : Tensor(), y);
      kernels::matmul_ref({.m = s.m,
                           .n = s.n,
                           .k = s.k,
                           .a = x64.data(),
                           .b = codes64.data(),
                           .b_transposed = true,
                           .bias = biased ? bias64.data() : nullptr,
                           .c = y64.data(),
                           .magnitude = magnitude.data()});
      // The bound of tests/kernels/cases_linear.cc. Sums over codes reach 15 steps where elements
      // reach 8; for many rows the weights are rounded to the type of x first.
      const bool many = !ops::few_rows(x);
      const double sum = 8 * std::sqrt(static_cast<double>(s.k) + 2) * 0x1p-24;
      Tolerance tolerance{sum + storage_roundoff(out) + (many ? storage_roundoff(dtype) : 0), sum};
      // Rows as codes are off by half a step of the largest number at most, where a CPU has that.
      if (o.int8_activations == ops::Int8Activations::kAllRows ||
          (many && o.int8_activations == ops::Int8Activations::kManyRows)) {
        tolerance.absolute += 0.5 / 127 * largest(x64) * row_sum(codes64, s.k);
      }
      compare(result, biased ? "y" : "y without bias", y, y64, tolerance, magnitude);
      if (many) continue;
      Tensor alone = guarded_tensor(out, {1, s.n});
      ops::quantized_linear(ctx, x.slice(0, s.m - 1, s.m), q, biased ? bias : Tensor(), alone);
      compare(result, "a row alone", alone, doubles(y.slice(0, s.m - 1, s.m)), {});
    }
  }
  return result;
}

OpCase timed(DType dtype, const ops::QuantizeOptions& o, const Sizes& s) {
  OpCase row;
  row.name = row_name(dtype, o, s);
  const auto m = static_cast<double>(s.m), n = static_cast<double>(s.n),
             k = static_cast<double>(s.k);
  row.flops = 2 * m * n * k;
  const double group = o.group_size > 0 ? static_cast<double>(o.group_size) : k;
  row.bytes = n * k * (o.bits / 8.0 + (o.symmetric ? 2 : 4) / group) +
              static_cast<double>(dtype_size(dtype)) * m * (n + k);
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, dtype, {s.m, s.k});
    const ops::QuantizedWeight w =
        ops::quantize(ctx, bench_tensor(ctx, DType::kFloat32, {s.n, s.k}), o);
    Tensor y = bench_tensor(ctx, dtype, {s.m, s.n});
    return [=]() mutable { ops::quantized_linear(ctx, x, w, Tensor(), y); };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  constexpr auto kMany = ops::Int8Activations::kManyRows, kAll = ops::Int8Activations::kAllRows;
  const std::vector<ops::QuantizeOptions> forms{
      {8, 0, true},        {8, 32, true},        {8, 40, true},         {4, 0, true},
      {4, 64, true},       {4, 24, true},        {4, 32, false},        {4, 0, false},
      {8, 0, true, kMany}, {4, 24, true, kMany}, {4, 64, false, kMany}, {8, 64, true, kAll},
      {4, 32, true, kAll}, {4, 0, false, kAll}};
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    for (const ops::QuantizeOptions& form : forms) {
      for (const Sizes& s :
           {Sizes{1, 1, 1}, Sizes{2, 17, 31}, Sizes{3, 32, 64}, Sizes{4, 5, 72}, Sizes{7, 49, 136},
            Sizes{8, 33, 200}, Sizes{5, 18, 1300}, Sizes{14, 40, 70}, Sizes{21, 70, 130}}) {
        OpCase row;
        row.name = row_name(dtype, form, s);
        row.check = [=](const OpContext& ctx, uint64_t seed) {
          return check(ctx, seed, dtype, form, s);
        };
        rows.push_back(row);
      }
    }
  }
  for (const ops::QuantizeOptions& form :
       {ops::QuantizeOptions{8, 64, true}, {8, 0, true}, {4, 64, true}, {4, 64, false}}) {
    for (const Sizes& s :
         {Sizes{1, 50257, 768}, Sizes{1, 8192, 4096}, Sizes{4, 8192, 4096}, Sizes{16, 8192, 4096},
          Sizes{32, 3072, 768}, Sizes{64, 3072, 768}, Sizes{512, 3072, 768}}) {
      rows.push_back(timed(DType::kBFloat16, form, s));
    }
  }
  for (const ops::QuantizeOptions& form : {ops::QuantizeOptions{8, 64, true, kAll},
                                           {8, 32, true, kAll},
                                           {4, 64, true, kAll},
                                           {4, 64, false, kAll}}) {
    for (const Sizes& s :
         {Sizes{1, 8192, 4096}, Sizes{4, 8192, 4096}, Sizes{16, 8192, 4096}, Sizes{32, 3072, 768},
          Sizes{64, 3072, 768}, Sizes{512, 3072, 768}, Sizes{512, 768, 3072}}) {
      rows.push_back(timed(DType::kBFloat16, form, s));
    }
  }
  return rows;
}

}  // namespace ds::testing::quantize_rows
