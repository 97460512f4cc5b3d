// Rows of latent attention: attention whose values have another size than its keys; keys of heads
// from a latent; and, on the CPU alone, values that are channels of long keys and products of each
// head with a matrix of its own.
#include "kernels/attention/latent.h"
#include "kernels/attention_case.h"
#include "kernels/matmul/matmul.h"
#include "ops/latent.h"

namespace ds::testing::latent_rows {
namespace {

// Another size of values in one of the other rows' specifications.
Spec with_values(Spec spec, int64_t value_dim) {
  spec.value_dim = value_dim;
  return spec;
}

// Values that are the last channels of keys, and keys of one head as those of several: the bits of
// tensors of their own.
CaseResult check_shared(const Spec& spec, const OpContext& ctx, uint64_t seed) {
  Random random(seed);
  const Shape whole{spec.batch, spec.keys, 1, spec.head_dim};
  const Tensor q =
      random_tensor(random, spec.dtype, {spec.batch, spec.queries, spec.heads, spec.head_dim});
  const Tensor keys = random_tensor(random, spec.dtype, whole);
  const Tensor values = guarded_tensor(spec.dtype, {spec.batch, spec.keys, 1, spec.value_dim});
  const Tensor part = keys.slice(3, spec.head_dim - spec.value_dim, spec.head_dim);
  set_doubles(values, doubles(part));
  const Shape results{spec.batch, spec.queries, spec.heads, spec.value_dim};
  Tensor expected = guarded_tensor(spec.dtype, results),
         actual = guarded_tensor(spec.dtype, results);
  ops::AttentionOptions options;
  options.scale = 0.3f;
  ops::attention(ctx, {.q = q, .k = keys, .v = values}, options, {.out = expected});
  ops::attention(ctx, {.q = q, .k = keys, .v = part}, options, {.out = actual});
  CaseResult result;
  compare(result, "values in keys", actual, doubles(expected), {});
  const auto repeated = [&](const Tensor& x) {
    const int64_t begin =
        static_cast<const std::byte*>(x.raw()) - static_cast<const std::byte*>(x.storage()->data());
    const std::array<int64_t, 4> strides{x.stride(0), x.stride(1), 0, 1};
    return Tensor(x.storage(), begin, x.dtype(),
                  Shape{x.size(0), x.size(1), spec.heads / 2, x.size(3)}, strides);
  };
  ops::attention(ctx, {.q = q, .k = repeated(keys), .v = repeated(part)}, options, {.out = actual});
  // Heads in other groups share a pass over keys; each has the same sums.
  compare(result, "repeated heads", actual, doubles(expected), {});
  return result;
}

struct KeySetting {
  DType dtype;
  int64_t batch, tokens, heads, plain, turning, values;
  kernels::LatentKeys shape() const {
    return {kernels::FloatType::kFloat32, batch * tokens, heads, plain, turning, values, turning};
  }
};

CaseResult check_keys(const KeySetting& s, const OpContext& ctx, uint64_t seed) {
  Random random(seed);
  const Tensor expanded =
      random_tensor(random, s.dtype, {s.batch, s.tokens, s.heads, s.plain + s.values});
  // Parts of longer rows.
  const Tensor packed = random_tensor(random, s.dtype, {s.batch, s.tokens, 5 + s.turning});
  const Tensor shared = packed.slice(2, 5, 5 + s.turning);
  const Shape key_shape{s.batch, s.tokens, s.heads, s.plain + s.turning};
  Tensor keys = guarded_tensor(s.dtype, key_shape);
  ops::latent_keys(ctx, expanded, shared, keys);
  std::vector<double> expected(static_cast<size_t>(keys.elements()));
  kernels::reference::latent_keys(s.shape(), doubles(expanded).data(), doubles(shared).data(),
                                  expected.data());
  CaseResult result;
  compare(result, "keys", keys, expected, {});
  // Backward: linear, so that its gradient is that of a weighted sum, element by element.
  const Tensor dkeys = random_tensor(random, s.dtype, key_shape);
  Tensor dexpanded = filled_tensor(s.dtype, expanded.shape(), 7);
  Tensor dshared = guarded_tensor(s.dtype, {s.batch, s.tokens, s.turning});
  ops::latent_keys_backward(ctx, dkeys, dexpanded, dshared);
  const std::vector<double> dk = doubles(dkeys);
  std::vector<double> de(static_cast<size_t>(expanded.elements()), 7.0);
  std::vector<double> ds(static_cast<size_t>(dshared.elements())), sizes(ds.size());
  const int64_t head = s.plain + s.turning;
  for (int64_t i = 0; i < dkeys.elements(); ++i) {
    const int64_t channel = i % head, row = i / head, token = row / s.heads;
    const double value = dk[static_cast<size_t>(i)];
    if (channel < s.plain) {
      de[static_cast<size_t>(row * (s.plain + s.values) + channel)] = value;
    } else {
      const auto at = static_cast<size_t>(token * s.turning + channel - s.plain);
      ds[at] += value;
      sizes[at] += std::abs(value);
    }
  }
  compare(result, "dexpanded", dexpanded, de, {});
  const double terms = static_cast<double>(s.heads);
  compare(result, "dshared", dshared, ds, {0x1p-24 * terms + storage_roundoff(s.dtype), 0}, sizes);
  return result;
}

CaseResult check_heads(DType dtype, const Shape& x_shape, int64_t columns, bool transposed,
                       const OpContext& ctx, uint64_t seed) {
  Random random(seed);
  const int64_t rows = x_shape[0], heads = x_shape[1], terms = x_shape[2];
  // Channels in the middle of longer heads.
  const Tensor x = random_tensor(random, dtype, {rows, heads, terms + 3}).slice(2, 2, terms + 2);
  const Shape w_shape =
      transposed ? Shape{heads, columns + 4, terms} : Shape{heads, terms + 4, columns};
  const Tensor w = random_tensor(random, dtype, w_shape).slice(1, 4, w_shape[1]);
  Tensor y = guarded_tensor(dtype, {rows, heads, columns});
  ops::head_linear(ctx, x, w, transposed, y);
  const std::vector<double> a = doubles(x), b = doubles(w);
  std::vector<double> expected(static_cast<size_t>(y.elements())), sizes(expected.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t n = 0; n < columns; ++n) {
        const auto at = static_cast<size_t>((r * heads + h) * columns + n);
        for (int64_t k = 0; k < terms; ++k) {
          const int64_t of =
              transposed ? (h * columns + n) * terms + k : (h * terms + k) * columns + n;
          const double term =
              a[static_cast<size_t>((r * heads + h) * terms + k)] * b[static_cast<size_t>(of)];
          expected[at] += term;
          sizes[at] += std::abs(term);
        }
      }
    }
  }
  CaseResult result;
  const double count = std::sqrt(static_cast<double>(terms)) + 2;
  compare(result, "y", y, expected, {0x1p-24 * count * 4 + storage_roundoff(dtype), 0}, sizes);
  return result;
}

CaseResult check_refusals(const OpContext& ctx, uint64_t seed) {
  Random random(seed);
  const Tensor expanded = random_tensor(random, DType::kFloat32, {2, 3, 4, 9});
  const Tensor shared = random_tensor(random, DType::kFloat32, {2, 3, 2});
  CaseResult result;
  const auto refuse = [&](const char* what, const auto& call) {
    std::string message = "no error";
    try {
      call();
    } catch (const Error& error) {
      message = error.code() == Code::kInvalidArgument ? "" : error.message();
    }
    result.merge(message.empty() ? 0 : 2, str_cat(what, " gave: ", message));
  };
  Tensor few = random_tensor(random, DType::kFloat32, {2, 3, 3, 7});
  Tensor long_keys = random_tensor(random, DType::kFloat32, {2, 3, 4, 13});
  Tensor other = random_tensor(random, DType::kBFloat16, {2, 3, 4, 7});
  refuse("keys of fewer heads", [&] { ops::latent_keys(ctx, expanded, shared, few); });
  refuse("longer keys", [&] { ops::latent_keys(ctx, expanded, shared, long_keys); });
  refuse("another type", [&] { ops::latent_keys(ctx, expanded, shared, other); });
  const Tensor x = random_tensor(random, DType::kFloat32, {2, 3, 4});
  const Tensor w = random_tensor(random, DType::kFloat32, {3, 5, 6});
  Tensor y = random_tensor(random, DType::kFloat32, {2, 3, 6});
  refuse("a matrix of other terms", [&] { ops::head_linear(ctx, x, w, false, y); });
  Tensor rows = random_tensor(random, DType::kFloat32, {4, 9});
  refuse("more tokens than there are",
         [&] { ops::read_tokens(ctx, expanded.slice(2, 0, 1), {}, 0, rows); });
  compare_value(result, "refusals", 1, 1, {0, 0.5});
  return result;
}

OpCase row_of(const std::string& name,
              std::function<CaseResult(const OpContext&, uint64_t)> check) {
  OpCase row;
  row.name = name;
  row.check = std::move(check);
  return row;
}
OpCase cpu_row_of(const std::string& name,
                  std::function<CaseResult(const OpContext&, uint64_t)> check) {
  OpCase row = row_of(name, std::move(check));
  row.on_gpus = false;
  return row;
}

void add_attention_rows(std::vector<OpCase>& rows) {
  for (const DType dtype : kFloatTypes) {
    const std::vector<Spec> specs = {
        with_values({"values", dtype, 2, 2, 2, 5, 5, 4}, 3),
        with_values({"values_dropout", dtype, 1, 4, 2, 6, 6, 3, true, Mask::kNone, 0.3}, 5),
        with_values({"values", dtype, 2, 3, 3, 97, 97, 24}, 16),
        with_values({"values_mask", dtype, 2, 4, 2, 131, 131, 40, true, Mask::kPadding, 0.2}, 17),
        with_values({"values_longer", dtype, 1, 2, 1, 70, 200, 20}, 67),
        with_values({"values_long", dtype, 1, 2, 2, 530, 530, 48}, 32),
        with_values({"values_segments", dtype, 1, 2, 2, 150, 150, 24, true, Mask::kNone, 0, false,
                     0, 1, 0, Segments::kPacked},
                    9),
        with_values({"values_decode", dtype, 2, 6, 2, 1, 700, 24}, 16),
        with_values({"values_decode", dtype, 1, 5, 1, 3, 600, 67, true, Mask::kRandom}, 80)};
    for (const Spec& spec : specs) {
      OpCase row = row_of("latent_" + spec.name(), [spec](const OpContext& ctx, uint64_t seed) {
        return check(spec, ctx, seed);
      });
      if (spec.queries < 10 && spec.keys < 10) {
        row.gradient = [spec](const OpContext& ctx, uint64_t seed) {
          return check_differences(spec, ctx, seed);
        };
      }
      rows.push_back(std::move(row));
    }
    // Longer than heads of training may be.
    const Spec wide = with_values({"wide_decode", dtype, 1, 8, 1, 2, 600, 576}, 512);
    rows.push_back(cpu_row_of("latent_" + wide.name(), [wide](const OpContext& ctx, uint64_t seed) {
      return check_forward(wide, ctx, seed);
    }));
    for (const Spec& spec : {with_values({"shared", dtype, 2, 8, 1, 1, 700, 72}, 64),
                             with_values({"shared", dtype, 1, 6, 1, 4, 45, 576}, 512)}) {
      rows.push_back(cpu_row_of(
          "latent_" + spec.name(),
          [spec](const OpContext& ctx, uint64_t seed) { return check_shared(spec, ctx, seed); }));
    }
  }
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  add_attention_rows(rows);
  for (const DType dtype : kFloatTypes) {
    for (const KeySetting& s :
         {KeySetting{dtype, 1, 1, 1, 1, 1, 1}, KeySetting{dtype, 2, 3, 4, 5, 2, 3},
          KeySetting{dtype, 2, 70, 6, 16, 70, 12}, KeySetting{dtype, 0, 3, 2, 4, 2, 4}}) {
      rows.push_back(
          row_of(str_cat("latent_keys/", type_name(dtype), "/", s.batch, "x", s.tokens, "x",
                         s.heads, "x", s.plain, "+", s.turning),
                 [s](const OpContext& ctx, uint64_t seed) { return check_keys(s, ctx, seed); }));
    }
    for (const bool transposed : {false, true}) {
      for (const Shape& x : {Shape{1, 1, 1}, Shape{1, 5, 20}, Shape{4, 3, 33}, Shape{9, 4, 128}}) {
        rows.push_back(cpu_row_of(str_cat("head_linear/", type_name(dtype),
                                          transposed ? "/t/" : "/", x[0], "x", x[1], "x", x[2]),
                                  [=](const OpContext& ctx, uint64_t seed) {
                                    return check_heads(dtype, x, 37, transposed, ctx, seed);
                                  }));
      }
    }
  }
  rows.push_back(cpu_row_of("latent/refusals", check_refusals));
  return rows;
}

}  // namespace ds::testing::latent_rows
