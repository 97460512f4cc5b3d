// Rows for addition, scaling, filling, conversion, accumulation and the halves of masters.
#include "kernels/case_util.h"
#include "kernels/elementwise/elementwise.h"
#include "ops/elementwise.h"
#include "ops/split_master.h"

namespace ds::testing::elementwise_rows {
namespace {

namespace ref = kernels::reference;

OpCase arithmetic(DType dtype, int64_t n) {
  OpCase row;
  row.name = str_cat("elementwise/", type_name(dtype), "/", n);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const Tensor a = random_tensor(random, dtype, {n}), b = random_tensor(random, dtype, {n});
    const std::vector<double> av = doubles(a), bv = doubles(b);
    // One fp32 operation and one rounding to the type.
    const Tolerance rounding{dtype == DType::kFloat32 ? 0x1p-24 : unit_roundoff(dtype) + 0x1p-23,
                             0};
    std::vector<double> expected(av.size());

    ref::add(av.data(), bv.data(), n, expected.data());
    Tensor y = guarded_tensor(dtype, {n});
    ops::add(ctx, a, b, y);
    compare(result, "add", y, expected, rounding);
    y = copy_of(a);
    ops::add(ctx, y, b, y);
    compare(result, "add into a", y, expected, rounding);
    y = copy_of(b);
    ops::add(ctx, a, y, y);
    compare(result, "add into b", y, expected, rounding);

    const float factor = std::normal_distribution<float>()(random);
    ref::scale(av.data(), factor, n, expected.data());
    y = guarded_tensor(dtype, {n});
    ops::scale(ctx, a, factor, y);
    compare(result, "scale", y, expected, rounding);
    y = copy_of(a);
    ops::scale(ctx, y, factor, y);
    compare(result, "scale in place", y, expected, rounding);

    y = guarded_tensor(dtype, {n});
    ops::fill(ctx, 0.375f, y);
    compare(result, "fill", y, std::vector<double>(av.size(), 0.375), {});

    for (const DType sum_type : kFloatTypes) {
      for (const float by : {1.0f, factor}) {
        Tensor total = random_tensor(random, sum_type, {n});
        expected = doubles(total);
        std::vector<double> scale = expected;
        ref::accumulate(av.data(), by, n, expected.data());
        // One or (where the CPU does not fuse) two fp32 roundings of the terms, one of the sum.
        for (size_t i = 0; i < scale.size(); ++i) {
          scale[i] = 0x1p-24 * (std::abs(scale[i]) + 2 * std::abs(by * av[i])) +
                     storage_roundoff(sum_type) * std::abs(expected[i]);
        }
        ops::accumulate(ctx, a, by, total);
        compare(result, str_cat("accumulate into ", type_name(sum_type)), total, expected, {1, 0},
                scale);
      }
    }
    y = copy_of(a);
    ops::accumulate(ctx, y, 1.0f, y);
    for (size_t i = 0; i < av.size(); ++i) expected[i] = 2 * av[i];
    compare(result, "accumulate into itself", y, expected, {});
    return result;
  };
  return row;
}

// What a cast must give: the very bits of the scalar conversion.
std::vector<double> converted(const Tensor& x, DType to) {
  std::vector<double> values = doubles(x);
  for (double& v : values) {
    const float f = static_cast<float>(v);
    if (to == DType::kBFloat16) v = to_float(to_bfloat16(f));
    if (to == DType::kFloat16) v = to_float(to_float16(f));
  }
  return values;
}

// A view with the dimensions of `whole` permuted, every second index of the (new) last one and all
// but the first index of the first.
Tensor odd_view(const Tensor& whole, const std::vector<int>& order) {
  std::vector<int64_t> sizes, strides;
  int64_t offset =
      static_cast<std::byte*>(whole.raw()) - static_cast<std::byte*>(whole.storage()->data());
  for (const int dim : order) {
    sizes.push_back(whole.size(dim));
    strides.push_back(whole.stride(dim));
  }
  offset += strides.front() * dtype_size(whole.dtype());
  sizes.front() -= 1;
  sizes.back() = (sizes.back() + 1) / 2;
  strides.back() *= 2;
  return {whole.storage(), offset, whole.dtype(), Shape(sizes), strides};
}

OpCase conversion(DType from, DType to) {
  OpCase row;
  row.name = str_cat("cast/", type_name(from), "-", type_name(to));
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const auto check_one = [&](const std::string& what, const Tensor& x) {
      Tensor y = guarded_tensor(to, x.shape());
      ops::cast(ctx, x, y);
      compare(result, what, y, converted(x, to), {});
    };
    for (const int64_t n : {0, 1, 15, 16, 17, 31, 1000, 100003}) {
      check_one("dense", random_tensor(random, from, {n}));
    }
    for (const auto& order : {std::vector<int>{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {2, 1, 0}}) {
      check_one("small view", odd_view(random_tensor(random, from, {4, 5, 6}), order));
      check_one("large view", odd_view(random_tensor(random, from, {7, 119, 130}), order));
    }
    const Tensor base = random_tensor(random, from, {40, 1, 900});
    check_one("columns", base.slice(2, 3, 890));
    check_one("rows", base.slice(0, 5, 39));
    check_one("one column", base.select(2, 7));
    const int64_t front = guard_front(from), size = dtype_size(from);
    check_one("broadcast",
              Tensor(base.storage(), front, from, {3, 900, 5}, std::vector<int64_t>{0, 1, 0}));
    check_one("backwards", Tensor(base.storage(), front + 99 * size, from, {2, 100},
                                  std::vector<int64_t>{900, -1}));
    return result;
  };
  return row;
}

// Every pattern of 16 bits widened, and fp32 numbers around every rounding edge narrowed, NaNs
// included: the bits of the scalar conversions of base/.
template <class T>
void check_every_pattern(CaseResult& result, const OpContext& ctx, DType dtype) {
  constexpr int64_t kPatterns = 1 << 16;
  const Tensor x = guarded_tensor(dtype, {kPatterns});
  for (int64_t i = 0; i < kPatterns; ++i) x.data<T>()[i].bits = static_cast<uint16_t>(i);
  Tensor wide = guarded_tensor(DType::kFloat32, {kPatterns});
  ops::cast(ctx, x, wide);
  case_memory().synchronize();
  int64_t wrong = 0;
  for (int64_t i = 0; i < kPatterns; ++i) {
    wrong += std::bit_cast<uint32_t>(wide.data<float>()[i]) !=
             std::bit_cast<uint32_t>(to_float(x.data<T>()[i]));
  }
  compare_value(result, "patterns widened wrongly", static_cast<double>(wrong), 0, {});
  wrong = 0;
  Tensor narrow = guarded_tensor(dtype, {kPatterns});
  // Halfway between neighbours lies at different bits for normal and subnormal results.
  for (const uint32_t low :
       {0u, 1u, 0xFFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
    for (int64_t i = 0; i < kPatterns; ++i) {
      wide.data<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(i) << 16 | low);
    }
    ops::cast(ctx, wide, narrow);
    case_memory().synchronize();
    for (int64_t i = 0; i < kPatterns; ++i) {
      wrong += narrow.data<T>()[i].bits != from_float<T>(wide.data<float>()[i]).bits;
    }
  }
  compare_value(result, "patterns narrowed wrongly", static_cast<double>(wrong), 0, {});
}

OpCase every_pattern(DType dtype) {
  OpCase row;
  row.name = str_cat("cast_patterns/", type_name(dtype));
  row.check = [=](const OpContext& ctx, uint64_t) {
    CaseResult result;
    if (dtype == DType::kFloat16) {
      check_every_pattern<float16>(result, ctx, dtype);
    } else {
      check_every_pattern<bfloat16>(result, ctx, dtype);
    }
    return result;
  };
  return row;
}

// Tensors of all types, more than a GPU adds in one launch, into one flat tensor with gaps.
OpCase many(DType flat_type) {
  OpCase row;
  row.name = str_cat("accumulate_into/", type_name(flat_type));
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const float factor = std::normal_distribution<float>()(random);
    std::vector<Tensor> xs;
    std::vector<int64_t> offsets;
    int64_t total = 0;
    for (int i = 0; i < 230; ++i) {
      const int64_t sizes[] = {8, 0, 5, 64, 1, 700, 3000};
      const int64_t n = i % 7 == 6 && i > 20 ? 31 : sizes[i % 7];
      xs.push_back(random_tensor(random, kFloatTypes[i / 2 % 3], {n}));
      total += i % 5;
      offsets.push_back(total);
      total += n;
    }
    Tensor flat = random_tensor(random, flat_type, {total});
    std::vector<double> expected = doubles(flat), scale(expected.size(), 0);
    for (size_t i = 0; i < xs.size(); ++i) {
      const std::vector<double> x = doubles(xs[i]);
      for (size_t j = 0; j < x.size(); ++j) {
        const size_t at = static_cast<size_t>(offsets[i]) + j;
        const double before = expected[at];
        expected[at] += static_cast<double>(factor) * x[j];
        scale[at] = 0x1p-24 * (std::abs(before) + 2 * std::abs(factor * x[j])) +
                    storage_roundoff(flat_type) * std::abs(expected[at]);
      }
    }
    std::vector<const Tensor*> pointers;
    for (const Tensor& x : xs) pointers.push_back(&x);
    ops::accumulate_into(ctx, pointers, offsets, factor, flat);
    compare(result, "flat", flat, expected, {1, 0}, scale);
    return result;
  };
  return row;
}

// Any fp32 bits come back from the halves; the weight is the master rounded half up in magnitude.
OpCase split(int64_t n) {
  OpCase row;
  row.name = str_cat("split_masters/", n);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    Tensor masters = guarded_tensor(DType::kFloat32, {n}),
           joined = guarded_tensor(DType::kFloat32, {n}),
           weights = guarded_tensor(DType::kBFloat16, {n}),
           low = guarded_tensor(DType::kUInt16, {n});
    for (int64_t i = 0; i < n; ++i) {
      masters.data<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(random()));
    }
    ops::split_masters(ctx, masters, weights, low);
    ops::join_masters(ctx, weights, low, joined);
    case_memory().synchronize();
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(masters.data<float>()[i]);
      const uint32_t nearest = (bits >> 16) + (bits >> 15 & 1u);
      wrong += weights.data<bfloat16>()[i].bits != static_cast<uint16_t>(nearest);
      wrong += std::bit_cast<uint32_t>(joined.data<float>()[i]) != bits;
    }
    compare_value(result, "elements split or joined wrongly", static_cast<double>(wrong), 0, {});
    if (!guards_intact(weights) || !guards_intact(low) || !guards_intact(joined)) {
      result.merge(std::numeric_limits<double>::infinity(), "bytes outside were written");
    }
    return result;
  };
  return row;
}

using Body = std::function<void(const OpContext&, const Tensor&, Tensor&)>;

OpCase bench(const std::string& name, DType x_type, DType y_type, int64_t streams,
             const Body& body) {
  const Shape shape{4096, 768};
  OpCase row;
  row.name = str_cat(name, "/4096x768");
  row.bytes =
      static_cast<double>(shape.elements() * (streams * dtype_size(x_type) + dtype_size(y_type)));
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, x_type, shape);
    Tensor y = bench_tensor(ctx, y_type, shape);
    return [=]() mutable { body(ctx, x, y); };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  constexpr DType kFp32 = DType::kFloat32, kBf16 = DType::kBFloat16, kFp16 = DType::kFloat16;
  rows.push_back(every_pattern(kBf16));
  rows.push_back(every_pattern(kFp16));
  for (const int64_t n : {0, 1, 7, 1000, 100003}) rows.push_back(split(n));
  for (const DType dtype : kFloatTypes) {
    rows.push_back(many(dtype));
    for (const int64_t n : {0, 1, 5, 16, 47, 1000, 32768, 100001}) {
      rows.push_back(arithmetic(dtype, n));
    }
    for (const DType to : kFloatTypes) rows.push_back(conversion(dtype, to));
    const std::string type = type_name(dtype);
    rows.push_back(
        bench("add/" + type, dtype, dtype, 2,
              [](const OpContext& ctx, const Tensor& x, Tensor& y) { ops::add(ctx, x, y, y); }));
    rows.push_back(bench(
        "scale/" + type, dtype, dtype, 1,
        [](const OpContext& ctx, const Tensor& x, Tensor& y) { ops::scale(ctx, x, 0.5f, y); }));
    rows.push_back(
        bench("fill/" + type, dtype, dtype, 0,
              [](const OpContext& ctx, const Tensor&, Tensor& y) { ops::fill(ctx, 0.5f, y); }));
    // y is read and written.
    OpCase accumulate =
        bench("accumulate/" + type, dtype, kFp32, 1,
              [](const OpContext& ctx, const Tensor& x, Tensor& y) { ops::accumulate(ctx, x, y); });
    accumulate.bytes += 4096.0 * 768 * 4;
    rows.push_back(accumulate);
  }
  const Body cast = [](const OpContext& ctx, const Tensor& x, Tensor& y) { ops::cast(ctx, x, y); };
  rows.push_back(bench("cast/fp32-bf16", kFp32, kBf16, 1, cast));
  rows.push_back(bench("cast/bf16-fp32", kBf16, kFp32, 1, cast));
  rows.push_back(bench("cast/fp32-fp16", kFp32, kFp16, 1, cast));
  rows.push_back(bench("cast/fp16-fp32", kFp16, kFp32, 1, cast));
  return rows;
}

}  // namespace ds::testing::elementwise_rows
