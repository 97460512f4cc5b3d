// Keys and values as 8-bit codes: what a cache of codes holds of new tokens, and attention over it,
// against the definition in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/text.h"
#include "fresh_seed.h"
#include "kernels/attention/attention.h"
#include "ops/attention.h"
#include "ops/rotary.h"

namespace ds {
namespace {

struct CodeSizes {
  int64_t batch, queries, keys, heads, kv_heads, size;
};

float number(const Tensor& x, int64_t i) {
  switch (x.dtype()) {
    case DType::kBFloat16:
      return to_float(x.data<bfloat16>()[i]);
    case DType::kFloat16:
      return to_float(x.data<float16>()[i]);
    default:
      return x.data<float>()[i];
  }
}

// What fp32 or a shorter type loses of a number.
double unit(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-24 : dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

class TokenCodes : public ::testing::Test {
 protected:
  // Keys and values of some sequences; in one piece [B, Hkv, tokens, D] each, or in blocks.
  struct Cache {
    ops::CacheRows rows;  // with room for all tokens
    std::vector<Tensor> memory;
    int64_t tokens = 0;

    ops::AttentionInputs inputs(const Tensor& q) const {
      return {.q = q,
              .k = rows.keys,
              .v = rows.values,
              .k_scales = rows.key_scales,
              .v_scales = rows.value_scales};
    }
    const int8_t* code(int part, int64_t b, int64_t t, int64_t h) const {
      const Tensor& of = part == 0 ? rows.keys : rows.values;
      return place<int8_t>(of, part == 0 ? rows.blocks.keys : rows.blocks.values, b, t) +
             h * of.stride(2);
    }
    float scale(int part, int64_t b, int64_t t, int64_t h) const {
      const Tensor& of = part == 0 ? rows.key_scales : rows.value_scales;
      return place<float>(of, part == 0 ? rows.blocks.key_scales : rows.blocks.value_scales, b,
                          t)[h * of.stride(2)];
    }
    double number(int part, int64_t b, int64_t t, int64_t h, int64_t d) const {
      return static_cast<double>(code(part, b, t, h)[d]) * scale(part, b, t, h);
    }

   private:
    template <class T>
    static const T* place(const Tensor& of, const Tensor& table, int64_t b, int64_t t) {
      if (!table) return of.data<T>() + b * of.stride(0) + t * of.stride(1);
      const int64_t n = of.size(1);
      const auto* const block =
          reinterpret_cast<const T*>(table.data<int64_t>()[b * table.size(1) + t / n]);
      return block + t % n * of.stride(1);
    }
  };

  Tensor make(DType dtype, const Shape& shape) {
    return Tensor::zeros(device_, dtype, shape, MemoryTag::kOther);
  }
  Tensor normal(DType dtype, const Shape& shape) {
    const Tensor t = make(dtype, shape);
    std::normal_distribution<float> of(0, 1);
    for (int64_t i = 0; i < t.elements(); ++i) {
      const float x = of(random_);
      if (dtype == DType::kFloat32) t.data<float>()[i] = x;
      if (dtype == DType::kBFloat16) t.data<bfloat16>()[i] = to_bfloat16(x);
      if (dtype == DType::kFloat16) t.data<float16>()[i] = to_float16(x);
    }
    return t;
  }

  // x [n, heads, tokens, ...] as [n, tokens, heads, ...].
  static Tensor tokens_first(const Tensor& x) {
    const auto first =
        static_cast<const std::byte*>(x.raw()) - static_cast<const std::byte*>(x.storage()->data());
    std::vector<int64_t> strides{x.stride(0), x.stride(2), x.stride(1)};
    if (x.dims() == 3) {
      return {x.storage(), first, x.dtype(), Shape{x.size(0), x.size(2), x.size(1)}, strides};
    }
    strides.push_back(x.stride(3));
    return {x.storage(), first, x.dtype(), Shape{x.size(0), x.size(2), x.size(1), x.size(3)},
            strides};
  }

  // `block_tokens` 0: one piece. Scales are NaN where no token was written.
  Cache make_cache(const CodeSizes& s, int64_t block_tokens) {
    Cache cache;
    cache.tokens = s.keys;
    const int64_t columns = block_tokens == 0 ? 1 : (s.keys + block_tokens - 1) / block_tokens;
    const int64_t n = block_tokens == 0 ? s.batch : 1;
    const int64_t tokens = block_tokens == 0 ? s.keys : block_tokens;
    ops::TokenBlocks tables;
    std::array<Tensor*, 4> places{&tables.keys, &tables.values, &tables.key_scales,
                                  &tables.value_scales};
    std::array<Tensor*, 4> rows{&cache.rows.keys, &cache.rows.values, &cache.rows.key_scales,
                                &cache.rows.value_scales};
    for (size_t kind = 0; kind < 4; ++kind) {
      const bool codes = kind < 2;
      const Tensor table = make(DType::kInt64, {s.batch, columns});
      for (int64_t i = 0; i < (block_tokens == 0 ? 1 : s.batch * columns); ++i) {
        const Tensor memory = codes ? make(DType::kInt8, {n, s.kv_heads, tokens, s.size})
                                    : make(DType::kFloat32, {n, s.kv_heads, tokens});
        for (int64_t j = 0; !codes && j < memory.elements(); ++j) {
          memory.data<float>()[j] = std::numeric_limits<float>::quiet_NaN();
        }
        cache.memory.push_back(memory);
        *rows[kind] = tokens_first(memory);
        table.data<int64_t>()[i] = reinterpret_cast<int64_t>(memory.raw());
      }
      *places[kind] = table;
    }
    if (block_tokens > 0) {
      tables.room = s.keys;
      cache.rows.blocks = tables;
    }
    return cache;
  }

  void append(Cache& cache, const Tensor& q, const Tensor& k, const Tensor& v, int64_t past) {
    Tensor turned = q;
    cache.rows.past = past;
    ops::rotary_append(ctx_, turned, k, v, {}, {}, cache.rows);
  }

  // Each number is its code times the scale, off by half a scale.
  void check_codes(const Cache& cache, const Tensor& x, int part, int64_t past) {
    const int64_t heads = x.size(2), size = x.size(3);
    for (int64_t row = 0; row < x.size(0) * x.size(1) * heads; ++row) {
      const int64_t b = row / heads / x.size(1), t = row / heads % x.size(1), h = row % heads;
      float most = 0;
      for (int64_t d = 0; d < size; ++d) {
        most = std::max(most, std::abs(number(x, row * size + d)));
      }
      const float scale = cache.scale(part, b, past + t, h);
      ASSERT_EQ(scale, most / 127);
      int largest = 0;
      for (int64_t d = 0; d < size; ++d) {
        const int code = cache.code(part, b, past + t, h)[d];
        largest = std::max(largest, std::abs(code));
        // The quotient is rounded twice in fp32 before it is rounded to a code.
        ASSERT_NEAR(code * static_cast<double>(scale), number(x, row * size + d),
                    scale * (0.5 + 127 * 0x1p-22));
      }
      ASSERT_EQ(largest, most > 0 ? 127 : 0);
    }
  }

  // The definition over the numbers that `value` gives of (part, b, t, h, d).
  template <class Value>
  std::vector<double> reference(const CodeSizes& s, const Tensor& q, int64_t window,
                                const Value& value) {
    kernels::AttentionProblem p;
    p.batch = s.batch;
    p.heads = s.heads;
    p.kv_heads = s.kv_heads;
    p.queries = s.queries;
    p.keys = s.keys;
    p.head_dim = s.size;
    p.window = window;
    p.scale = scale_of(s);
    std::vector<double> query(static_cast<size_t>(q.elements())), out(query.size());
    for (size_t i = 0; i < query.size(); ++i) query[i] = number(q, static_cast<int64_t>(i));
    std::array<std::vector<double>, 2> parts;
    for (int part = 0; part < 2; ++part) {
      for (int64_t b = 0; b < s.batch; ++b) {
        for (int64_t t = 0; t < s.keys; ++t) {
          for (int64_t h = 0; h < s.kv_heads; ++h) {
            for (int64_t d = 0; d < s.size; ++d) {
              parts[static_cast<size_t>(part)].push_back(value(part, b, t, h, d));
            }
          }
        }
      }
    }
    std::vector<double> lse(static_cast<size_t>(s.batch * s.heads * s.queries));
    kernels::attention_forward_ref(p, query.data(), parts[0].data(), parts[1].data(), out.data(),
                                   lse.data());
    return out;
  }
  static float scale_of(const CodeSizes& s) {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(s.size)));
  }
  Tensor attend(const CodeSizes& s, const Cache& cache, const Tensor& q, int64_t window,
                const OpContext& ctx) {
    Tensor out = make(q.dtype(), {s.batch, s.queries, s.heads, s.size});
    Tensor lse = make(DType::kFloat32, {s.batch, s.heads, s.queries});
    ops::AttentionOptions how;
    how.scale = scale_of(s);
    how.window = window;
    how.blocks = cache.rows.blocks;
    ops::attention(ctx, cache.inputs(q), how, {.out = out, .lse = lse});
    return out;
  }
  static void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0) << what;
  }

  // Attention over a cache that the tokens came to in several passes.
  void check_attention(const CodeSizes& s, DType dtype, int64_t window) {
    SCOPED_TRACE(str_cat(seed_, ": ", dtype_name(dtype), " ", s.batch, " x ", s.queries, " x ",
                         s.keys, ", heads ", s.heads, "/", s.kv_heads, " of ", s.size, ", window ",
                         window));
    const Tensor q = normal(dtype, {s.batch, s.queries, s.heads, s.size});
    const Tensor k = normal(dtype, {s.batch, s.keys, s.kv_heads, s.size});
    const Tensor v = normal(dtype, k.shape());
    Tensor first;
    for (const int64_t block_tokens : {0, 1, 16, 64}) {
      Cache cache = make_cache(s, block_tokens);
      const int64_t cut = s.keys / 3;
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, cut}, {cut, s.keys}}) {
        const Tensor any = make(dtype, {s.batch, end - begin, s.heads, s.size});
        append(cache, any, k.slice(1, begin, end), v.slice(1, begin, end), begin);
      }
      check_codes(cache, k, 0, 0);
      check_codes(cache, v, 1, 0);
      const Tensor out = attend(s, cache, q, window, ctx_);
      expect_same_bits(attend(s, cache, q, window, alone_), out, "one thread");
      if (block_tokens > 0) {
        expect_same_bits(out, first, str_cat("blocks of ", block_tokens));
        continue;
      }
      first = out;
      compare(s, q, window, cache, k, v, out);
    }
  }

  void compare(const CodeSizes& s, const Tensor& q, int64_t window, const Cache& cache,
               const Tensor& k, const Tensor& v, const Tensor& out) {
    const bool few = s.queries <= 4;
    const auto given = [&](const Tensor& x, int64_t b, int64_t t, int64_t h, int64_t d) {
      return number(x, ((b * s.keys + t) * s.kv_heads + h) * s.size + d);
    };
    // More queries see numbers of the type.
    const auto coded = [&](int part, int64_t b, int64_t t, int64_t h, int64_t d) -> double {
      const double x = cache.number(part, b, t, h, d);
      if (few || q.dtype() == DType::kFloat32) return x;
      const auto y = static_cast<float>(x);
      return q.dtype() == DType::kBFloat16 ? to_float(to_bfloat16(y)) : to_float(to_float16(y));
    };
    const std::vector<double> expected = reference(s, q, window, coded);
    const std::vector<double> exact =
        reference(s, q, window, [&](int part, int64_t b, int64_t t, int64_t h, int64_t d) {
          return static_cast<double>(given(part == 0 ? k : v, b, t, h, d));
        });
    // Half a step of each key moves a score by `delta`, so that weights change by a factor of
    // exp(2 delta) at most, and values by half a step.
    double key_step = 0, value_step = 0, query = 0, most = 0;
    for (int64_t row = 0; row < s.batch * s.keys * s.kv_heads; ++row) {
      const int64_t b = row / s.kv_heads / s.keys, t = row / s.kv_heads % s.keys;
      key_step = std::max<double>(key_step, cache.scale(0, b, t, row % s.kv_heads));
      value_step = std::max<double>(value_step, cache.scale(1, b, t, row % s.kv_heads));
    }
    for (int64_t row = 0; row < q.elements() / s.size; ++row) {
      double sum = 0;
      for (int64_t d = 0; d < s.size; ++d) sum += std::abs(number(q, row * s.size + d));
      query = std::max(query, sum);
    }
    for (int64_t i = 0; i < v.elements(); ++i)
      most = std::max<double>(most, std::abs(number(v, i)));
    // A type rounds numbers, weights and results; fp32 sums of up to 1,300 terms stay within 2^-16.
    const double arithmetic =
        (q.dtype() == DType::kFloat32 ? 0x1p-16 : 4 * unit(q.dtype())) * (1 + most);
    const double delta = scale_of(s) * query * key_step * 0.51;
    const double bound = 0.51 * value_step + 2 * std::expm1(2 * delta) * most + arithmetic;
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double got = number(out, static_cast<int64_t>(i));
      ASSERT_NEAR(got, expected[i], arithmetic) << i;
      ASSERT_NEAR(got, exact[i], bound) << i;
      worst = std::max(worst, std::abs(expected[i] - exact[i]));
    }
    EXPECT_GT(worst, 0) << "nothing was rounded";
  }

  const uint64_t seed_ = ds::fresh_seed();
  std::mt19937_64 random_{seed_};
  const std::shared_ptr<Device> device_ = make_cpu_device();
  ThreadPool pool_{3}, one_{1};
  const OpContext ctx_{device_, &pool_}, alone_{device_, &one_};
};

TEST_F(TokenCodes, AttentionAgainstTheDefinition) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    check_attention({2, 1, 77, 3, 3, 64}, dtype, 0);
    check_attention({1, 1, 1300, 4, 2, 24}, dtype, 0);
    check_attention({2, 3, 90, 4, 1, 33}, dtype, 0);
    check_attention({1, 4, 600, 2, 2, 16}, dtype, 200);
    check_attention({2, 9, 70, 4, 2, 40}, dtype, 0);
    check_attention({1, 50, 130, 2, 1, 17}, dtype, 31);
  }
}

// Sequences of several lengths: the bits of each one alone.
TEST_F(TokenCodes, SeveralLengths) {
  for (const int64_t queries : {1, 3, 7}) {
    for (const int64_t block_tokens : {0, 16}) {
      SCOPED_TRACE(str_cat(seed_, ": ", queries, " queries, blocks of ", block_tokens));
      const CodeSizes s{3, queries, 80, 4, 2, 20};
      const std::array<int32_t, 3> lengths{61, 7, 30};
      Cache cache = make_cache(s, block_tokens);
      const Tensor k = normal(DType::kFloat32, {3, 80, 2, 20}),
                   v = normal(DType::kFloat32, k.shape());
      const Tensor any = make(DType::kFloat32, {3, 80 - queries, 4, 20});
      append(cache, any, k.slice(1, 0, 80 - queries), v.slice(1, 0, 80 - queries), 0);
      const Tensor past = make(DType::kInt32, {3});
      std::copy(lengths.begin(), lengths.end(), past.data<int32_t>());
      Tensor q = normal(DType::kFloat32, {3, queries, 4, 20});
      const Tensor more = normal(DType::kFloat32, {3, queries, 2, 20});
      cache.rows.past_memory = past;
      ops::rotary_append(ctx_, q, more, more, {}, {}, cache.rows);
      Tensor out = make(DType::kFloat32, q.shape());
      ops::AttentionOptions how;
      how.past = past;
      how.blocks = cache.rows.blocks;
      ops::attention(ctx_, cache.inputs(q), how, {.out = out});
      for (int64_t b = 0; b < 3; ++b) {
        const int64_t end = lengths[static_cast<size_t>(b)] + queries;
        Cache own = make_cache({1, queries, end, 4, 2, 20}, 0);
        const auto of = [b](const Tensor& x) { return x.slice(0, b, b + 1); };
        const int64_t before = end - queries;
        append(own, make(DType::kFloat32, {1, before, 4, 20}), of(k).slice(1, 0, before),
               of(v).slice(1, 0, before), 0);
        append(own, of(q), of(more), of(more), before);
        Tensor expected = make(DType::kFloat32, {1, queries, 4, 20});
        ops::attention(ctx_, own.inputs(of(q)), {}, {.out = expected});
        expect_same_bits(of(out), expected, str_cat("sequence ", b));
      }
    }
  }
}

// Keys turn before they are rounded.
TEST_F(TokenCodes, RotatedKeys) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const CodeSizes s{2, 5, 12, 4, 2, 24};
    Cache cache = make_cache(s, 5);
    const Tensor cos = normal(DType::kFloat32, {20, 8}), sin = normal(DType::kFloat32, {20, 8});
    const Tensor places = make(DType::kInt32, {2, 5});
    for (int i = 0; i < 10; ++i) places.data<int32_t>()[i] = static_cast<int32_t>(random_() % 20);
    const Tensor k = normal(dtype, {2, 5, 2, 24}), v = normal(dtype, k.shape());
    Tensor q = normal(dtype, {2, 5, 4, 24});
    Tensor turned = make(dtype, k.shape()), expected = make(dtype, q.shape());
    ops::rotary(ctx_, k, places, cos, sin, {}, turned);
    ops::rotary(ctx_, q, places, cos, sin, {}, expected);
    cache.rows.past = 6;
    ops::rotary_append(ctx_, q, k, v, {places, cos, sin}, {}, cache.rows);
    expect_same_bits(q, expected, "q");
    check_codes(cache, turned, 0, 6);
    check_codes(cache, v, 1, 6);
  }
}

// What is not finite stays visible, and zeros are zeros.
TEST_F(TokenCodes, NumbersWithoutACode) {
  const CodeSizes s{1, 1, 4, 1, 1, 20};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t at : {0, 19}) {
      Cache cache = make_cache(s, 0);
      const Tensor k = normal(DType::kFloat32, {1, 4, 1, 20}),
                   v = normal(DType::kFloat32, k.shape());
      v.data<float>()[20 + at] = bad;
      append(cache, make(DType::kFloat32, {1, 4, 1, 20}), k, v, 0);
      const Tensor out = attend(s, cache, normal(DType::kFloat32, {1, 1, 1, 20}), 0, ctx_);
      for (int64_t d = 0; d < 20; ++d) EXPECT_TRUE(std::isnan(number(out, d))) << d;
    }
  }
  Cache cache = make_cache(s, 0);
  const Tensor zeros = make(DType::kFloat32, {1, 4, 1, 20});
  append(cache, zeros, zeros, zeros, 0);
  check_codes(cache, zeros, 0, 0);
  const Tensor out = attend(s, cache, normal(DType::kFloat32, {1, 1, 1, 20}), 0, ctx_);
  for (int64_t d = 0; d < 20; ++d) EXPECT_EQ(number(out, d), 0);
}

TEST_F(TokenCodes, Refusals) {
  const CodeSizes s{1, 1, 4, 2, 2, 20};
  Cache cache = make_cache(s, 0);
  Tensor q = make(DType::kFloat32, {1, 1, 2, 20});
  Tensor out = make(DType::kFloat32, q.shape());
  ops::AttentionInputs in = cache.inputs(q);
  in.v_scales = make(DType::kFloat32, {1, 4, 1});
  EXPECT_THROW(ops::attention(ctx_, in, {}, {.out = out}), Error);
  in = cache.inputs(q);
  in.k = make(DType::kFloat32, {1, 4, 2, 20});
  EXPECT_THROW(ops::attention(ctx_, in, {}, {.out = out}), Error);
  in = cache.inputs(q);
  in.k_scales = in.v_scales = Tensor();
  EXPECT_THROW(ops::attention(ctx_, in, {}, {.out = out}), Error);
  ops::AttentionOptions how;
  how.dropout = 0.5;
  EXPECT_THROW(ops::attention(ctx_, cache.inputs(q), how, {.out = out}), Error);
  ops::CacheRows rows = cache.rows;
  rows.past = 4;
  const Tensor x = make(DType::kFloat32, {1, 1, 2, 20});
  EXPECT_THROW(ops::rotary_append(ctx_, q, x, x, {}, {}, rows), Error);
  rows = cache.rows;
  rows.key_scales = make(DType::kFloat32, {1, 4, 3});
  EXPECT_THROW(ops::rotary_append(ctx_, q, x, x, {}, {}, rows), Error);
  EXPECT_THROW(ops::rotary_append(ctx_, q, x, Tensor(), {}, {}, cache.rows), Error);
}

}  // namespace
}  // namespace ds
