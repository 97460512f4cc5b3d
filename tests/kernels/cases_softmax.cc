// Rows of softmax: plain, scaled, masked and causal, over shapes that fused kernels elsewhere leave
// to a fallback (odd lengths, one key, more than 16384 keys, queries that are no multiple of a
// tile).
#include "kernels/case_util.h"
#include "kernels/softmax/softmax.h"
#include "ops/softmax.h"

namespace ds::testing::softmax_rows {
namespace {

namespace ref = kernels::reference;

enum class Mask { kNone, kWhole, kShared };  // of all queries, or one row for all of a sample

struct Setting {
  DType dtype;
  std::vector<int64_t> sizes;  // the last two are queries and keys
  float scale;
  Mask mask;
  bool causal;

  std::string name() const {
    const char* const masks[] = {"", "/masked", "/masked_rows"};
    return str_cat("softmax/", type_name(dtype), "/", shape().text(), "/scale",
                   format_number(static_cast<double>(scale)), masks[static_cast<int>(mask)],
                   causal ? "/causal" : "");
  }
  Shape shape() const { return Shape(sizes); }
  int64_t keys() const { return sizes.back(); }
  int64_t queries() const { return sizes.size() > 1 ? sizes[sizes.size() - 2] : 1; }
  int64_t rows() const { return keys() == 0 ? 0 : shape().elements() / keys(); }
  int64_t visible(int64_t row) const {
    return causal ? std::clamp<int64_t>(row % queries() + keys() - queries() + 1, 0, keys())
                  : keys();
  }
};

// Half of the keys are hidden; one row of the mask hides all.
Tensor make_mask(Random& random, const Setting& s) {
  if (s.mask == Mask::kNone) return {};
  std::vector<int64_t> sizes = s.sizes;
  if (s.mask == Mask::kShared) {
    for (size_t i = 1; i + 1 < sizes.size(); ++i) sizes[i] = 1;
  } else if (sizes.size() == 4) {
    sizes[1] = 1;  // heads share masks
  }
  Tensor mask = guarded_tensor(DType::kUInt8, Shape(sizes));
  for_each_element(mask, [&](int64_t i, void* at) {
    const bool hidden = i < s.keys() || random() % 2 == 0;
    set_element(DType::kUInt8, at, hidden ? 0 : static_cast<double>(1 + random() % 255));
  });
  return mask;
}

// The bytes of a row's mask, counted by the dimensions; the first query's are all 0 above.
const uint8_t* mask_row(const Tensor& mask, const Setting& s, int64_t row) {
  if (!mask) return nullptr;
  int64_t offset = 0, rest = row;
  for (size_t dim = s.sizes.size() - 1; dim-- > 0;) {
    const int64_t size = s.sizes[dim];
    const int at = static_cast<int>(dim);
    if (mask.size(at) != 1) offset += rest % size * mask.stride(at);
    rest /= size;
  }
  return mask.data<uint8_t>() + offset;
}

std::vector<double> expected_of(const Setting& s, const std::vector<double>& x,
                                const Tensor& mask) {
  std::vector<double> y(x.size());
  for (int64_t row = 0; row < s.rows(); ++row) {
    ref::softmax(x.data() + row * s.keys(), mask_row(mask, s, row), s.visible(row), s.keys(),
                 static_cast<double>(s.scale), y.data() + row * s.keys());
  }
  return y;
}

std::vector<double> expected_backward(const Setting& s, const std::vector<double>& y,
                                      const std::vector<double>& dy) {
  std::vector<double> dx(y.size());
  for (int64_t at = 0; at < s.rows() * s.keys(); at += s.keys()) {
    ref::softmax_backward(y.data() + at, dy.data() + at, s.keys(), static_cast<double>(s.scale),
                          dx.data() + at);
  }
  return dx;
}

// Scaled scores are rounded to fp32, which moves an exponent by half their spacing; sums of up to
// 20000 terms run in 16 partial ones or more.
double forward_tolerance(const Setting& s, const std::vector<double>& x) {
  double largest = 0;
  for (const double v : x) largest = std::max(largest, std::abs(v * static_cast<double>(s.scale)));
  const double terms = static_cast<double>(s.keys()) / 16;
  return 0x1p-24 * (16 + 4 * largest + terms) + storage_roundoff(s.dtype);
}

void check_backward(CaseResult& result, const OpContext& ctx, Random& random, const Setting& s,
                    const Tensor& y) {
  const Tensor dy = random_tensor(random, s.dtype, s.shape());
  const std::vector<double> yv = doubles(y), dyv = doubles(dy);
  const std::vector<double> dx = expected_backward(s, yv, dyv);
  // Errors of the sum count against the sum of its terms' magnitudes.
  std::vector<double> allowed(dx.size());
  const auto scale = std::abs(static_cast<double>(s.scale));
  const auto keys = static_cast<size_t>(s.keys());
  for (size_t at = 0; at < allowed.size(); at += keys) {
    double sum = 0;
    for (size_t j = at; j < at + keys; ++j) sum += std::abs(yv[j] * dyv[j]);
    for (size_t j = at; j < at + keys; ++j) {
      const double terms = 8 + static_cast<double>(keys) / 16;
      allowed[j] = 0x1p-24 * terms * scale * yv[j] * (std::abs(dyv[j]) + sum) +
                   storage_roundoff(s.dtype) * std::abs(dx[j]);
    }
  }
  Tensor out = guarded_tensor(s.dtype, s.shape());
  ops::softmax_backward(ctx, y, dy, s.scale, out);
  compare(result, "dx", out, dx, {1, 1e-37}, allowed);
  Tensor over_y = copy_of(y), over_dy = copy_of(dy);
  ops::softmax_backward(ctx, over_y, dy, s.scale, over_y);
  compare(result, "dx in y", over_y, doubles(out), {});
  ops::softmax_backward(ctx, y, over_dy, s.scale, over_dy);
  compare(result, "dx in dy", over_dy, doubles(out), {});
}

CaseResult check(const OpContext& ctx, uint64_t seed, const Setting& s) {
  Random random(seed);
  CaseResult result;
  const Tensor x = random_tensor(random, s.dtype, s.shape(), 4);
  const Tensor mask = make_mask(random, s);
  const std::vector<double> values = doubles(x), expected = expected_of(s, values, mask);
  Tensor y = guarded_tensor(s.dtype, s.shape());
  ops::softmax(ctx, x, mask, {s.scale, s.causal}, y);
  // 1e-37: exponentials below the smallest normal number are 0.
  compare(result, "y", y, expected, {forward_tolerance(s, values), 1e-37});
  Tensor in_place = copy_of(x);
  ops::softmax(ctx, in_place, mask, {s.scale, s.causal}, in_place);
  compare(result, "in place", in_place, doubles(y), {});
  check_backward(result, ctx, random, s, y);
  return result;
}

// Large and infinite scores, and NaN, which stays in its row.
CaseResult check_special(const OpContext& ctx, uint64_t seed, DType dtype) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Setting s{dtype, {6, 37}, 1, Mask::kNone, false};
  Random random(seed);
  std::vector<double> x = doubles(random_tensor(random, dtype, s.shape()));
  const auto row = [&](size_t i) { return x.data() + i * 37; };
  for (int64_t j = 0; j < 37; ++j) row(0)[j] = 60000;  // a sum of exponentials would overflow
  for (int64_t j = 0; j < 36; ++j) row(1)[j] = -kInf;
  std::fill(row(2), row(2) + 37, -kInf);
  row(3)[random() % 37] = std::nan("");
  row(4)[random() % 37] = kInf;
  CaseResult result;
  Tensor y = guarded_tensor(dtype, s.shape());
  ops::softmax(ctx, tensor_of(dtype, s.shape(), x), {}, {}, y);
  std::vector<double> expected(x.size());
  const Tensor rounded = tensor_of(dtype, s.shape(), x);
  expected = expected_of(s, doubles(rounded), {});
  compare(result, "y", y, expected, {1e-5 + storage_roundoff(dtype), 1e-37});
  for (size_t j = 0; j < 37; ++j) {
    if (expected[37 + j] != (j == 36 ? 1 : 0) || expected[2 * 37 + j] != 0 ||
        !std::isnan(expected[3 * 37 + j]) || !std::isnan(expected[4 * 37 + j])) {
      result.merge(std::numeric_limits<double>::infinity(), "the reference of special rows");
    }
  }
  return result;
}

CaseResult gradient(const OpContext& ctx, uint64_t seed, const Setting& s) {
  Random random(seed);
  const Tensor x = random_tensor(random, s.dtype, s.shape()), mask = make_mask(random, s);
  const Tensor dy = random_tensor(random, s.dtype, s.shape());
  const std::vector<double> weights = doubles(dy);
  Tensor y = guarded_tensor(s.dtype, s.shape()), dx = guarded_tensor(s.dtype, s.shape());
  ops::softmax(ctx, x, mask, {s.scale, s.causal}, y);
  ops::softmax_backward(ctx, y, dy, s.scale, dx);
  CaseResult result;
  // The stored y is rounded, and enters twice.
  const Tolerance tolerance{3e-6 + 4 * storage_roundoff(s.dtype), 1e-8};
  compare_gradient(
      result, "dx", dx, doubles(x),
      [&](const std::vector<double>& at) {
        return weighted_sum(weights, expected_of(s, at, mask));
      },
      tolerance);
  return result;
}

OpCase row_of(const Setting& s) {
  OpCase row;
  row.name = s.name();
  row.check = [s](const OpContext& ctx, uint64_t seed) { return check(ctx, seed, s); };
  if (s.shape().elements() > 0 && s.shape().elements() < 150) {
    row.gradient = [s](const OpContext& ctx, uint64_t seed) { return gradient(ctx, seed, s); };
  }
  return row;
}

// Scores of 12 heads over 1024 tokens.
OpCase timed(DType dtype, bool causal) {
  const Setting s{dtype, {1, 12, 1024, 1024}, 0.125f, Mask::kNone, causal};
  OpCase row;
  row.name = str_cat("softmax/forward/", type_name(dtype), causal ? "/causal" : "");
  row.bytes = static_cast<double>(2 * s.shape().elements() * dtype_size(dtype));
  row.prepare = [s](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, s.dtype, s.shape());
    const Tensor y = bench_tensor(ctx, s.dtype, s.shape());
    return [=] {
      Tensor out = y;
      ops::softmax(ctx, x, {}, {s.scale, s.causal}, out);
    };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    for (const Setting& s : {
             Setting{dtype, {1}, 1, Mask::kNone, false},
             Setting{dtype, {0, 5}, 1, Mask::kNone, false},
             Setting{dtype, {5, 0}, 1, Mask::kNone, true},
             Setting{dtype, {3, 17}, 1, Mask::kNone, false},
             Setting{dtype, {5, 15}, 0.25f, Mask::kWhole, false},
             Setting{dtype, {2, 5, 9}, 0.125f, Mask::kNone, true},
             Setting{dtype, {2, 9, 5}, 0.5f, Mask::kNone, true},  // more queries than keys
             Setting{dtype, {2, 2, 4, 8}, -0.5f, Mask::kWhole, true},
             Setting{dtype, {2, 3, 33, 65}, 0.125f, Mask::kWhole, false},
             Setting{dtype, {3, 2, 31, 31}, 0.125f, Mask::kShared, true},
             Setting{dtype, {2, 4, 129, 129}, 0.088f, Mask::kNone, true},
             Setting{dtype, {7, 2049}, 0.5f, Mask::kNone, false},
             Setting{dtype, {2, 20011}, 0.1f, Mask::kWhole, false},
         }) {
      rows.push_back(row_of(s));
    }
    OpCase special;
    special.name = str_cat("softmax/special/", type_name(dtype));
    special.check = [dtype](const OpContext& ctx, uint64_t seed) {
      return check_special(ctx, seed, dtype);
    };
    rows.push_back(std::move(special));
    for (const bool causal : {false, true}) rows.push_back(timed(dtype, causal));
  }
  return rows;
}

}  // namespace ds::testing::softmax_rows
