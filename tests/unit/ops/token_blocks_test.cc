// Keys and values in blocks: attention reads, and decoding writes, the bits of a cache in one
// piece.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/text.h"
#include "fresh_seed.h"
#include "ops/attention.h"
#include "ops/rotary.h"

namespace ds {
namespace {

struct Sizes {
  int64_t batch, queries, keys, heads, kv_heads, head_size, block_tokens;
};

class Blocks : public ::testing::Test {
 protected:
  Tensor make(DType dtype, const Shape& shape) {
    return Tensor::zeros(device_, dtype, shape, MemoryTag::kOther);
  }
  Tensor normal(DType dtype, const Shape& shape) {
    const Tensor t = make(dtype, shape);
    std::normal_distribution<float> of(0, 1);
    for (int64_t i = 0; i < t.elements(); ++i) set(t, i, of(random_));
    return t;
  }
  static void set(const Tensor& t, int64_t i, float value) {
    switch (t.dtype()) {
      case DType::kBFloat16:
        t.data<bfloat16>()[i] = to_bfloat16(value);
        break;
      case DType::kFloat16:
        t.data<float16>()[i] = to_float16(value);
        break;
      default:
        t.data<float>()[i] = value;
    }
  }
  static void fill_with_nan(const Tensor& t) {
    for (int64_t i = 0; i < t.elements(); ++i) set(t, i, std::numeric_limits<float>::quiet_NaN());
  }
  static void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
    ASSERT_EQ(a.bytes(), b.bytes());
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0) << what;
  }

  // A cache in blocks with the keys and values [B, keys, 2, Hkv, D] of one in one piece. Blocks lie
  // in memory in any order, as [tokens, 2, Hkv, D], and hold NaN behind the last key.
  struct Cache {
    std::vector<Tensor> blocks;
    ops::TokenBlocks table;
    Tensor keys, values;  // of any block

    // The address of token t of a sequence; part 0 is keys, 1 is values.
    std::byte* token(int64_t b, int64_t t, int part) const {
      const Tensor& of = part == 0 ? table.keys : table.values;
      const int64_t n = keys.size(1);
      return reinterpret_cast<std::byte*>(of.data<int64_t>()[b * of.size(1) + t / n]) +
             t % n * keys.stride(1) * dtype_size(keys.dtype());
    }
  };
  Cache in_blocks(const Tensor& whole, int64_t room, int64_t block_tokens) {
    Cache cache;
    const int64_t batch = whole.size(0), columns = (room + block_tokens - 1) / block_tokens;
    std::vector<int64_t> order(static_cast<size_t>(batch * columns));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::shuffle(order.begin(), order.end(), random_);
    const Tensor memory =
        make(whole.dtype(), {batch * columns, block_tokens, 2, whole.size(3), whole.size(4)});
    fill_with_nan(memory);
    cache.table = {make(DType::kInt64, {batch, columns}), make(DType::kInt64, {batch, columns}),
                   room};
    for (int64_t i = 0; i < batch * columns; ++i) {
      const Tensor block =
          memory.slice(0, order[static_cast<size_t>(i)], order[static_cast<size_t>(i)] + 1);
      cache.keys = block.select(2, 0);
      cache.values = block.select(2, 1);
      cache.table.keys.data<int64_t>()[i] = reinterpret_cast<int64_t>(cache.keys.raw());
      cache.table.values.data<int64_t>()[i] = reinterpret_cast<int64_t>(cache.values.raw());
    }
    const auto row = static_cast<size_t>(whole.size(3) * whole.size(4) * dtype_size(whole.dtype()));
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < std::min(room, whole.size(1)); ++t) {
        for (const int part : {0, 1}) {
          const Tensor from = whole.select(0, b).select(0, t).select(0, part);
          std::memcpy(cache.token(b, t, part), from.raw(), row);
        }
      }
    }
    return cache;
  }

  void compare(const Sizes& s, DType dtype, const ops::AttentionOptions& how, const Tensor& mask) {
    SCOPED_TRACE(str_cat(seed_, ": ", dtype_name(dtype), " ", s.batch, " x ", s.queries, " x ",
                         s.keys, ", heads ", s.heads, "/", s.kv_heads, " of ", s.head_size,
                         ", blocks of ", s.block_tokens, how.past ? ", several lengths" : "",
                         mask ? ", masked" : "", ", window ", how.window));
    const Shape out_shape{s.batch, s.queries, s.heads, s.head_size};
    const Shape lse_shape{s.batch, s.heads, s.queries};
    const Tensor q = normal(dtype, out_shape);
    const Tensor whole = normal(dtype, {s.batch, s.keys, 2, s.kv_heads, s.head_size});
    Tensor out = make(dtype, out_shape), lse = make(DType::kFloat32, lse_shape);
    ops::attention(ctx_,
                   {.q = q, .k = whole.select(2, 0), .v = whole.select(2, 1), .key_mask = mask},
                   how, {.out = out, .lse = lse});
    const Cache cache = in_blocks(whole, s.keys, s.block_tokens);
    ops::AttentionOptions by_block = how;
    by_block.blocks = cache.table;
    Tensor other = make(dtype, out_shape), other_lse = make(DType::kFloat32, lse_shape);
    ops::attention(ctx_, {.q = q, .k = cache.keys, .v = cache.values, .key_mask = mask}, by_block,
                   {.out = other, .lse = other_lse});
    expect_same_bits(other, out, "out");
    expect_same_bits(other_lse, lse, "lse");
    float largest = 0;
    for (int64_t i = 0; i < lse.elements(); ++i) {
      largest = std::max(largest, std::abs(lse.data<float>()[i]));
    }
    EXPECT_GT(largest, 0);  // there is something to compare
    EXPECT_TRUE(std::isfinite(largest) || mask || how.window > 0);
  }

  static std::string message_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  const uint64_t seed_ = ds::fresh_seed();
  std::mt19937_64 random_{seed_};
  std::shared_ptr<Device> device_ = make_cpu_device();
  ThreadPool pool_{2};
  OpContext ctx_{device_, &pool_};
};

// Few queries (decoding), some, and many; keys in one split and several; partial last blocks.
TEST_F(Blocks, AttentionHasTheBitsOfOnePiece) {
  ops::AttentionOptions how;
  how.scale = 0.3f;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t block_tokens : {1, 7, 16, 64, 2000}) {
      for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                                                  {1, 100},
                                                                                  {1, 1300},
                                                                                  {3, 515},
                                                                                  {4, 64},
                                                                                  {5, 77},
                                                                                  {40, 40},
                                                                                  {40, 333},
                                                                                  {200, 200},
                                                                                  {520, 700}}) {
        compare({2, queries, keys, 4, 2, 40, block_tokens}, dtype, how, {});
      }
      compare({1, 2, 90, 6, 1, 128, block_tokens}, dtype, how, {});
      compare({1, 30, 90, 3, 3, 17, block_tokens}, dtype, how, {});
    }
  }
}

TEST_F(Blocks, MasksAndWindowsHideTheSameKeys) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t block_tokens : {1, 16, 64}) {
      for (const int64_t queries : {1, 3, 50}) {
        ops::AttentionOptions how;
        how.scale = 0.3f;
        how.window = 23;
        compare({2, queries, 300, 4, 2, 32, block_tokens}, dtype, how, {});
        how.window = 0;
        const Tensor mask = make(DType::kUInt8, {2, 300});
        for (int64_t i = 0; i < mask.elements(); ++i) {
          mask.data<uint8_t>()[i] = random_() % 3 > 0 ? 1 : 0;
        }
        compare({2, queries, 300, 4, 2, 32, block_tokens}, dtype, how, mask);
      }
    }
  }
}

// Behind sequences of several lengths: what lies behind a sequence's end is not even there.
TEST_F(Blocks, SequencesOfSeveralLengths) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t block_tokens : {1, 16, 64}) {
      for (const int64_t queries : {1, 4, 11}) {
        ops::AttentionOptions how;
        how.scale = 0.3f;
        how.past = make(DType::kInt32, {3});
        how.past.data<int32_t>()[0] = 5;
        how.past.data<int32_t>()[1] = 600;
        how.past.data<int32_t>()[2] = 63;
        compare({3, queries, 600 + queries, 4, 2, 32, block_tokens}, dtype, how, {});
      }
    }
  }
}

// New tokens on their way to a cache: queries turn, keys turn and go to their blocks, values go
// there as they are, and nothing else changes.
TEST_F(Blocks, NewTokensGoToTheirBlocks) {
  constexpr int64_t kBatch = 3, kHeads = 4, kKvHeads = 2, kSize = 16, kRoom = 70;
  const Tensor cos = normal(DType::kFloat32, {100, kSize / 4});
  const Tensor sin = normal(DType::kFloat32, {100, kSize / 4});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t block_tokens : {1, 7, 16, 64}) {
      for (const int64_t tokens : {1, 33}) {
        for (const bool turns : {false, true}) {
          for (const bool several : {false, true}) {
            SCOPED_TRACE(str_cat(seed_, ": blocks of ", block_tokens, ", ", tokens, " tokens"));
            const Tensor whole = normal(dtype, {kBatch, kRoom, 2, kKvHeads, kSize});
            const Cache cache = in_blocks(whole, kRoom, block_tokens);
            const Tensor k = normal(dtype, {kBatch, tokens, kKvHeads, kSize});
            const Tensor v = normal(dtype, {kBatch, tokens, kKvHeads, kSize});
            Tensor q = normal(dtype, {kBatch, tokens, kHeads, kSize});
            Tensor other_q = make(dtype, q.shape());
            std::memcpy(other_q.raw(), q.raw(), static_cast<size_t>(q.bytes()));
            const Tensor ids = make(DType::kInt32, {kBatch, tokens});
            for (int64_t i = 0; i < ids.elements(); ++i) {
              ids.data<int32_t>()[i] = static_cast<int32_t>(random_() % 100);
            }
            const ops::RotaryAngles angles =
                turns ? ops::RotaryAngles{ids, cos, sin} : ops::RotaryAngles{};
            ops::CacheRows to{whole.select(2, 0), whole.select(2, 1), 30};
            if (several) {
              to.past_memory = make(DType::kInt32, {kBatch});
              const int32_t pasts[] = {0, 37, 19};
              std::memcpy(to.past_memory.raw(), pasts, sizeof(pasts));
            }
            ops::rotary_append(ctx_, q, k, v, angles, {}, to);
            to.keys = cache.keys;
            to.values = cache.values;
            to.blocks = cache.table;
            ops::rotary_append(ctx_, other_q, k, v, angles, {}, to);
            expect_same_bits(other_q, q, "q");
            const auto row = static_cast<size_t>(kKvHeads * kSize * dtype_size(dtype));
            for (int64_t b = 0; b < kBatch; ++b) {
              for (int64_t t = 0; t < kRoom; ++t) {
                for (const int part : {0, 1}) {
                  const Tensor expected = whole.select(0, b).select(0, t).select(0, part);
                  EXPECT_EQ(std::memcmp(cache.token(b, t, part), expected.raw(), row), 0)
                      << "part " << part << " of token " << t << " of sequence " << b;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_F(Blocks, BadTablesAreRefused) {
  const Tensor whole = normal(DType::kFloat32, {2, 40, 2, 2, 8});
  const Tensor q = normal(DType::kFloat32, {2, 1, 2, 8});
  Tensor out = make(DType::kFloat32, q.shape());
  const auto attend = [&](const Cache& cache, const ops::TokenBlocks& blocks) {
    return message_of([&] {
      ops::AttentionOptions how;
      how.blocks = blocks;
      Tensor lse;
      ops::attention(ctx_, {.q = q, .k = cache.keys, .v = cache.values}, how,
                     {.out = out, .lse = lse});
    });
  };
  const Cache cache = in_blocks(whole, 40, 16);
  EXPECT_EQ(attend(cache, cache.table), "no error");
  ops::TokenBlocks bad = cache.table;
  bad.room = 49;
  EXPECT_NE(attend(cache, bad).find("3 blocks of 16 tokens have no room for 49"), std::string::npos)
      << attend(cache, bad);
  bad = cache.table;
  bad.values = make(DType::kInt64, {2, 2});
  EXPECT_NE(attend(cache, bad).find("blocks of values"), std::string::npos);
  bad = cache.table;
  bad.keys = make(DType::kInt32, {2, 3});
  EXPECT_NE(attend(cache, bad).find("blocks of keys must be int64"), std::string::npos)
      << attend(cache, bad);
  cache.table.values.data<int64_t>()[4] = 0;
  EXPECT_NE(attend(cache, cache.table).find("sequence 1 has no block 1 for 40 tokens"),
            std::string::npos)
      << attend(cache, cache.table);
  const auto append = [&](int64_t past) {
    return message_of([&] {
      Tensor turned = normal(DType::kFloat32, {2, 1, 2, 8});
      const Tensor k = normal(DType::kFloat32, {2, 1, 2, 8});
      ops::rotary_append(ctx_, turned, k, k, {}, {},
                         {cache.keys, cache.values, past, {}, cache.table});
    });
  };
  EXPECT_EQ(append(15), "no error");
  EXPECT_NE(append(16).find("sequence 1 has no block 1"), std::string::npos) << append(16);
  EXPECT_NE(append(40).find("1 tokens do not fit behind 40 in a cache of 40"), std::string::npos)
      << append(40);
}

}  // namespace
}  // namespace ds
