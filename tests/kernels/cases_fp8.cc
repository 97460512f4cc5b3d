// Rows of 8-bit codes: casts with all their bits, delayed scaling, and the products of linear
// layers.
#include <map>

#include "kernels/case_util.h"
#include "ops/fp8.h"

namespace ds::testing::fp8_rows {
namespace {

using ops::Fp8Format;
using ops::Fp8Scaling;
using ops::Fp8Tensor;
namespace ref = kernels::reference;

constexpr Fp8Format kFormats[] = {Fp8Format::kE4M3, Fp8Format::kE5M2};
constexpr Tolerance kExact{0, 0};

const char* name_of(Fp8Format format) { return format == Fp8Format::kE4M3 ? "e4m3" : "e5m2"; }

struct Sizes {
  int64_t rows, columns;
  int64_t more = 0;  // by which rows lie farther apart
};

// The nearest codes of bf16 numbers, found once for each.
uint8_t expected_code(Fp8Format format, double value) {
  static thread_local std::map<std::pair<int, uint64_t>, uint8_t> known;
  const auto [at, fresh] =
      known.try_emplace({static_cast<int>(format), std::bit_cast<uint64_t>(value)}, 0);
  if (fresh) at->second = ref::fp8_code(format, value);
  return at->second;
}

Tensor one(double value) { return filled_tensor(DType::kFloat32, {1}, value); }

// Some columns of a matrix.
Tensor columns_of(const Tensor& wide, const Sizes& s) { return wide.slice(1, 0, s.columns); }

Fp8Tensor room_for(Fp8Format format, const Sizes& s) {
  Fp8Tensor out;
  out.format = format;
  out.codes = guarded_tensor(DType::kUInt8, {s.rows, s.columns});
  out.transposed = guarded_tensor(DType::kUInt8, {s.columns, s.rows});
  return out;
}

// Numbers of all sizes, some of them not finite.
Tensor wild_tensor(Random& random, const Sizes& s) {
  Tensor x = random_tensor(random, DType::kBFloat16, {s.rows, s.columns + s.more});
  std::uniform_int_distribution<int> power(-24, 12), one_in(0, 99);
  for_each_element(x, [&](int64_t, void* at) {
    double value = std::ldexp(element_as_double(DType::kBFloat16, at), power(random));
    const int special = one_in(random);
    if (special == 0) value = HUGE_VAL;
    if (special == 1) value = -HUGE_VAL;
    if (special == 2) value = std::nan("");
    if (special == 3) value = -0.0;
    set_element(DType::kBFloat16, at, value);
  });
  return x;
}

// Which may be NaN.
void compare_bits(CaseResult& result, const std::string& what, const Tensor& actual,
                  const Tensor& expected) {
  const std::vector<double> a = doubles(actual), b = doubles(expected);
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint64_t>(a[i]) == std::bit_cast<uint64_t>(b[i])) continue;
    result.worst = HUGE_VAL;
    result.where = str_cat(what, " at ", i, ": ", a[i], " and ", b[i]);
  }
}

// Column sums that began with 2.
void compare_sums(CaseResult& result, const Tensor& sums, const std::vector<double>& numbers,
                  const Sizes& s) {
  std::vector<double> expected(static_cast<size_t>(s.columns), 2), size = expected;
  for (size_t i = 0; i < numbers.size(); ++i) {
    expected[i % expected.size()] += numbers[i];
    size[i % expected.size()] += std::abs(numbers[i]);
  }
  const double sum = 4 * std::sqrt(static_cast<double>(s.rows) + 2) * 0x1p-24;
  compare(result, "column sums", sums, expected, {sum, 1e-30}, size);
}

void check_cast(CaseResult& result, const OpContext& ctx, const Tensor& wide, const Sizes& s,
                Fp8Format format, double scale) {
  const Tensor x = columns_of(wide, s);
  Fp8Tensor to = room_for(format, s);
  const Fp8Scaling scaling{one(scale), one(1 / scale), one(0.25)};
  Tensor no_sums;
  ops::fp8_cast(ctx, x, scaling, to, no_sums);
  const std::vector<double> numbers = doubles(x);
  std::vector<double> codes(numbers.size()), transposed(numbers.size());
  double amax = 0.25;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (std::isfinite(numbers[i])) amax = std::max(amax, std::abs(numbers[i]));
    codes[i] = expected_code(format, numbers[i] * scale);
    const auto row = static_cast<int64_t>(i) / s.columns,
               column = static_cast<int64_t>(i) % s.columns;
    transposed[static_cast<size_t>(column * s.rows + row)] = codes[i];
  }
  compare(result, "codes", to.codes, codes, kExact);
  compare(result, "transposed codes", to.transposed, transposed, kExact);
  compare(result, "amax", scaling.amax, std::vector{amax}, kExact);
  // Codes alone, and transposed ones alone.
  for (const bool first : {true, false}) {
    Fp8Tensor half = room_for(format, s);
    (first ? half.transposed : half.codes) = Tensor();
    Tensor sums = filled_tensor(DType::kFloat32, {s.columns}, 2);
    ops::fp8_cast(ctx, x, scaling, half, sums);
    if (amax < 1e30) compare_sums(result, sums, numbers, s);  // else sums may overflow
    compare(result, "one side", first ? half.codes : half.transposed, first ? codes : transposed,
            kExact);
  }
}

OpCase cast_case(Fp8Format format, const Sizes& s) {
  OpCase row;
  row.name = str_cat("fp8/cast/", name_of(format), "/", s.rows, "x", s.columns, "+", s.more);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const int power = std::uniform_int_distribution<int>(-6, 12)(random);
    check_cast(result, ctx, wild_tensor(random, s), s, format, std::ldexp(1.0, power));
    return result;
  };
  return row;
}

// What an activation makes, cast in one pass and in two: the same bits. (The rows of activations
// and of casts compare each with its reference.)
OpCase made_case(Fp8Format format, ops::Activation f, const char* name, const Sizes& s) {
  OpCase row;
  row.name = str_cat("fp8/made/", name_of(format), "/", name, "/", s.rows, "x", s.columns);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const Tensor x = random_tensor(random, DType::kBFloat16, {s.rows, s.columns});
    const Tensor y = wild_tensor(random, s), z = wild_tensor(random, s);
    const double scale = std::ldexp(1.0, std::uniform_int_distribution<int>(-6, 12)(random));
    const auto check = [&](const std::string& what, const ops::Fp8Source& source, bool with_sums) {
      Fp8Tensor one_pass = room_for(format, s), two = room_for(format, s);
      const Fp8Scaling first{one(scale), one(1 / scale), one(0)},
          second{one(scale), one(1 / scale), one(0)};
      Tensor sums, sums_of_two;
      if (with_sums) {
        sums = filled_tensor(DType::kFloat32, {s.columns}, 2);
        sums_of_two = filled_tensor(DType::kFloat32, {s.columns}, 2);
      }
      ops::fp8_cast(ctx, source, first, one_pass, sums);
      ops::fp8_cast(ctx, ops::fp8_made(ctx, source), second, two, sums_of_two);
      compare(result, what + " codes", one_pass.codes, doubles(two.codes), kExact);
      compare(result, what + " transposed", one_pass.transposed, doubles(two.transposed), kExact);
      compare(result, what + " amax", first.amax, doubles(second.amax), kExact);
      if (with_sums) compare_bits(result, what + " sums", sums, sums_of_two);
      one_pass.transposed = Tensor();  // one side alone
      ops::fp8_cast(ctx, source, first, one_pass, sums);
      compare(result, what + " codes alone", one_pass.codes, doubles(two.codes), kExact);
    };
    check("f(x)", ops::Fp8Source::value(y, f), false);
    check("f(gate) * up", ops::Fp8Source::gated(x, y, f), false);
    check("dy * f'(x)", ops::Fp8Source::slope(y, x, f), true);
    check("dy * f'(x), wild", ops::Fp8Source::slope(z, y, f), false);
    return result;
  };
  return row;
}

// Every bf16 number there is, at scales where some of them are subnormal, and at the last ones.
OpCase all_numbers_case(Fp8Format format) {
  OpCase row;
  row.name = str_cat("fp8/all_numbers/", name_of(format));
  row.check = [=](const OpContext& ctx, uint64_t) {
    CaseResult result;
    const Sizes s{256, 256};
    const Tensor x = guarded_tensor(DType::kBFloat16, {256, 256});
    for_each_element(
        x, [&](int64_t i, void* at) { *static_cast<bfloat16*>(at) = {static_cast<uint16_t>(i)}; });
    for (const int power : {0, 3, -7, 100, -126}) {
      check_cast(result, ctx, x, s, format, std::ldexp(1.0, power));
    }
    return result;
  };
  return row;
}

// Scales from the tensor itself: its largest number fits, and twice the scale would not do.
OpCase first_scale_case(Fp8Format format, const Sizes& s) {
  OpCase row;
  row.name = str_cat("fp8/first_scale/", name_of(format), "/", s.rows, "x", s.columns, "+", s.more);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    for (const int margin : {0, 2}) {
      const Tensor x = columns_of(wild_tensor(random, s), s);
      Fp8Scaling scaling{one(0), one(0), one(0)};
      ops::fp8_first_scale(ctx, x, format, margin, scaling);
      double amax = 0;
      for (const double v : doubles(x))
        amax = std::isfinite(v) ? std::max(amax, std::abs(v)) : amax;
      const double scale = amax > 0 ? ref::fp8_scale(format, amax, margin) : 1;
      compare(result, "amax", scaling.amax, std::vector{amax}, kExact);
      compare(result, "scale", scaling.scale, std::vector{scale}, kExact);
      compare(result, "inverse", scaling.inverse, std::vector{1 / scale}, kExact);
      // It stays, whatever comes.
      ops::fp8_first_scale(ctx, columns_of(wild_tensor(random, s), s), format, margin + 3, scaling);
      compare(result, "the same scale", scaling.scale, std::vector{scale}, kExact);
      compare(result, "the same inverse", scaling.inverse, std::vector{1 / scale}, kExact);
    }
    return result;
  };
  return row;
}

// Several steps of delayed scaling, beside the same in double precision.
OpCase update_case(int64_t tensors, int64_t length, bool most_recent, int margin) {
  OpCase row;
  row.name =
      str_cat("fp8/update/", tensors, "x", length, most_recent ? "/recent/" : "/max/", margin);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const Fp8Format formats[] = {Fp8Format::kE4M3, Fp8Format::kE4M3, Fp8Format::kE5M2};
    const int64_t apart = most_recent ? kernels::kFp8InverseStep : 1;
    ops::Fp8Histories all{formats,
                          most_recent,
                          margin,
                          filled_tensor(DType::kFloat32, {tensors}, 0),
                          filled_tensor(DType::kFloat32, {tensors, length}, 0),
                          filled_tensor(DType::kFloat32, {tensors}, 4),
                          filled_tensor(DType::kFloat32, {tensors, apart}, 0.25)};
    std::vector<std::vector<double>> seen(static_cast<size_t>(tensors));
    std::vector<double> scale(static_cast<size_t>(tensors), 4);
    std::uniform_int_distribution<int> power(-140, 120), kind(0, 3);
    for (int step = 0; step < 5; ++step) {
      std::vector<double> amax, inverse, history;
      for (int64_t t = 0; t < tensors; ++t) {
        // Of the format's largest numbers, and the next ones, too.
        const double sizes[] = {0, 1.75, 1.75 + 0x1p-7,
                                std::uniform_real_distribution(1.0, 2.0)(random)};
        amax.push_back(std::ldexp(sizes[kind(random)], power(random)));
        amax.back() = static_cast<float>(amax.back());
      }
      set_doubles(all.amax, amax);
      ops::fp8_update(ctx, all);
      for (size_t t = 0; t < seen.size(); ++t) {
        seen[t].insert(seen[t].begin(), amax[t]);
        seen[t].resize(static_cast<size_t>(length), 0);
        const double most =
            most_recent ? amax[t] : *std::max_element(seen[t].begin(), seen[t].end());
        if (most > 0) {
          scale[t] = std::max(ref::fp8_scale(formats[t % 3], most, margin), std::ldexp(1.0, -126));
        }
        inverse.push_back(1 / scale[t]);
        history.insert(history.end(), seen[t].begin(), seen[t].end());
      }
      compare(result, "scale", all.scale, scale, kExact);
      compare(result, "inverse", all.inverse.slice(1, 0, 1), inverse, kExact);
      const std::vector<double> others(static_cast<size_t>((apart - 1) * tensors), 0.25);
      compare(result, "between inverses", all.inverse.slice(1, 1, apart), others, kExact);
      compare(result, "history", all.history, history, kExact);
      compare(result, "amax", all.amax, std::vector<double>(seen.size()), kExact);
    }
    return result;
  };
  return row;
}

// ---- products ----

struct Operand {
  Tensor x;
  Fp8Tensor codes;
  // What the codes stand for, and how far that may be from x: half a step of the mantissa, or of
  // the subnormals.
  std::vector<double> numbers, error;
};

Operand operand(const OpContext& ctx, Random& random, Fp8Format format, const Sizes& s) {
  Operand out;
  out.x = random_tensor(random, DType::kBFloat16, {s.rows, s.columns});
  out.codes = room_for(format, s);
  Fp8Scaling scaling{one(0), one(0), one(0)};
  ops::fp8_first_scale(ctx, out.x, format, 0, scaling);
  Tensor no_sums;
  ops::fp8_cast(ctx, out.x, scaling, out.codes, no_sums);
  const double scale = doubles(scaling.scale)[0];
  const bool e4m3 = format == Fp8Format::kE4M3;
  for (const double code : doubles(out.codes.codes)) {
    out.numbers.push_back(ref::fp8_value(format, static_cast<uint8_t>(code)) / scale);
  }
  for (const double v : doubles(out.x)) {
    out.error.push_back(
        std::max(std::abs(v) * (e4m3 ? 0x1p-4 : 0x1p-3), (e4m3 ? 0x1p-10 : 0x1p-17) / scale));
  }
  return out;
}

std::vector<double> sizes_of(const std::vector<double>& values) {
  std::vector<double> out;
  for (const double v : values) out.push_back(std::abs(v));
  return out;
}

// A product against that of the numbers that the codes stand for, to the roundings of sums and of
// the result; and against that of the numbers that were cast, to what casts may change.
void check_product(CaseResult& result, const std::string& what, const Tensor& actual, int64_t m,
                   int64_t n, int64_t k, const Operand& a, bool ta, const Operand& b, bool tb,
                   const double* bias, const std::vector<double>& before) {
  const auto product = [&](const std::vector<double>& x, const std::vector<double>& y,
                           const double* added, const std::vector<double>& start) {
    std::vector<double> out(static_cast<size_t>(m * n));
    if (!start.empty()) out = start;
    kernels::matmul_ref({.m = m,
                         .n = n,
                         .k = k,
                         .a = x.data(),
                         .a_transposed = ta,
                         .b = y.data(),
                         .b_transposed = tb,
                         .bias = added,
                         .accumulate = !start.empty(),
                         .c = out.data()});
    return out;
  };
  const std::vector<double> expected = product(a.numbers, b.numbers, bias, before);
  std::vector<double> size = product(sizes_of(a.numbers), sizes_of(b.numbers), nullptr, {});
  for (size_t i = 0; i < size.size(); ++i) {
    if (bias != nullptr) size[i] += std::abs(bias[i % static_cast<size_t>(n)]);
    if (!before.empty()) size[i] += std::abs(before[i]);
  }
  // Where a GPU multiplies codes, its tensor cores cut each term to about 14 bits of the largest of
  // the 32 that they add at once, with and without fast accumulation.
  const bool of_codes =
      case_memory().kind == DeviceKind::kCuda && m % 16 == 0 && n % 16 == 0 && k % 16 == 0;
  const double sum = 4 * std::sqrt(static_cast<double>(k) + 4) * 0x1p-24 + (of_codes ? 0x1p-10 : 0);
  const double rounding =
      sum + (bias != nullptr ? biased_roundoff(actual.dtype()) : storage_roundoff(actual.dtype()));
  compare(result, what, actual, expected, {rounding, 1e-30}, size);

  const std::vector<double> ax = doubles(a.x), bx = doubles(b.x);
  const std::vector<double> exact = product(ax, bx, bias, before);
  const std::vector<double> one_way = product(a.error, sizes_of(bx), nullptr, {});
  const std::vector<double> other_way = product(sizes_of(ax), b.error, nullptr, {});
  const std::vector<double> both = product(a.error, b.error, nullptr, {});
  std::vector<double> allowed(exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    allowed[i] = one_way[i] + other_way[i] + both[i] + rounding * size[i];
  }
  compare(result, what + " of what was cast", actual, exact, {1, 1e-30}, allowed);
}

OpCase linear_case(Fp8Format gradients, int64_t m, int64_t n, int64_t k) {
  OpCase row;
  row.name = str_cat("fp8/linear/", name_of(gradients), "/", m, "x", n, "x", k);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const Operand x = operand(ctx, random, Fp8Format::kE4M3, {m, k});
    const Operand w = operand(ctx, random, Fp8Format::kE4M3, {n, k});
    const Operand dy = operand(ctx, random, gradients, {m, n});
    const Tensor bias = random_tensor(random, DType::kBFloat16, {n});
    const std::vector<double> bias64 = doubles(bias);
    Tensor y = guarded_tensor(DType::kBFloat16, {m, n});
    ops::fp8_linear(ctx, x.codes, w.codes, bias, y);
    check_product(result, "y", y, m, n, k, x, false, w, true, bias64.data(), {});
    ops::fp8_linear(ctx, x.codes, w.codes, Tensor(), y);
    check_product(result, "y without bias", y, m, n, k, x, false, w, true, nullptr, {});
    Tensor dx = guarded_tensor(DType::kBFloat16, {m, k});
    ops::fp8_linear_grad_input(ctx, dy.codes, w.codes, dx);
    check_product(result, "dx", dx, m, k, n, dy, false, w, false, nullptr, {});
    Tensor dw = random_tensor(random, DType::kFloat32, {n, k});
    const std::vector<double> before = doubles(dw);
    ops::fp8_linear_grad_weight(ctx, dy.codes, x.codes, dw, true);
    check_product(result, "dw", dw, n, k, m, dy, true, x, false, nullptr, before);
    dw = guarded_tensor(DType::kFloat32, {n, k});
    ops::fp8_linear_grad_weight(ctx, dy.codes, x.codes, dw, false);
    check_product(result, "dw overwritten", dw, n, k, m, dy, true, x, false, nullptr, {});

    // With one copy of the codes each, whatever the product would like.
    Fp8Tensor x_half = x.codes, w_half = w.codes, dy_half = dy.codes;
    x_half.codes = w_half.transposed = dy_half.transposed = Tensor();
    ops::fp8_linear(ctx, x_half, w_half, bias, y);
    check_product(result, "y of other copies", y, m, n, k, x, false, w, true, bias64.data(), {});
    ops::fp8_linear_grad_input(ctx, dy_half, w_half, dx);
    check_product(result, "dx of other copies", dx, m, k, n, dy, false, w, false, nullptr, {});
    ops::fp8_linear_grad_weight(ctx, dy_half, x_half, dw, false);
    check_product(result, "dw of other copies", dw, n, k, m, dy, true, x, false, nullptr, {});
    return result;
  };
  return row;
}

OpCase timed_cast(int64_t rows, int64_t columns) {
  OpCase row;
  row.name = str_cat("fp8/cast/", rows, "x", columns);
  row.bytes = static_cast<double>(rows * columns) * 4;
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, DType::kBFloat16, {rows, columns});
    const auto number = [&](float value) {
      Tensor out = bench_tensor(ctx, DType::kFloat32, {1});
      *out.data<float>() = value;
      return out;
    };
    const Fp8Scaling scaling{number(1), number(1), number(0)};
    Fp8Tensor to;
    to.codes = bench_tensor(ctx, DType::kUInt8, {rows, columns});
    to.transposed = bench_tensor(ctx, DType::kUInt8, {columns, rows});
    return [ctx, x, scaling, to, no_sums = Tensor()]() mutable {
      ops::fp8_cast(ctx, x, scaling, to, no_sums);
    };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const Fp8Format format : kFormats) {
    for (const Sizes& s : {Sizes{1, 1}, Sizes{0, 7}, Sizes{3, 5}, Sizes{16, 64}, Sizes{64, 16, 32},
                           Sizes{65, 72, 8}, Sizes{70, 130, 3}, Sizes{129, 48}}) {
      rows.push_back(cast_case(format, s));
    }
    rows.push_back(all_numbers_case(format));
    rows.push_back(first_scale_case(format, {33, 70, 2}));
    rows.push_back(first_scale_case(format, {0, 4}));
    for (const auto& [m, n, k] : {std::tuple<int, int, int>{16, 16, 16},
                                  {48, 32, 64},
                                  {5, 16, 32},
                                  {33, 7, 9},
                                  {80, 144, 96}}) {
      rows.push_back(linear_case(format, m, n, k));
    }
  }
  rows.push_back(update_case(6, 4, false, 0));
  rows.push_back(update_case(3, 1, false, 1));
  rows.push_back(update_case(300, 3, true, 3));
  for (const auto& [f, name] : {std::pair(ops::Activation::kGeluTanh, "gelu_tanh"),
                                {ops::Activation::kGeluErf, "gelu_erf"},
                                {ops::Activation::kSilu, "silu"},
                                {ops::Activation::kRelu, "relu"},
                                {ops::Activation::kTanh, "tanh"}}) {
    rows.push_back(made_case(Fp8Format::kE4M3, f, name, {65, 72}));
    rows.push_back(made_case(Fp8Format::kE5M2, f, name, {70, 131}));
    rows.push_back(made_case(Fp8Format::kE5M2, f, name, {64, 128}));
  }
  rows.push_back(timed_cast(8192, 1600));
  return rows;
}

}  // namespace ds::testing::fp8_rows
