// The KV cache in 8-bit codes: models of every family compute what they do with keys and values
// that are rounded by the definition, in one piece and in blocks, for one and for several texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/text.h"
#include "fresh_seed.h"
#include "infer/generate.h"
#include "unit/infer/texts.h"

namespace ds::infer::states {
namespace {

using ::testing::HasSubstr;

using models::Model;
using models::WeightForm;

// A cache of fp32 numbers that are rounded as soon as they are there. The caches compute in another
// order, so that a number at the middle between two codes may take the other one, and where
// attention sees one key alone that is most of what rounding changes. So the numbers are rounded as
// those of `coded` are, which holds the same tokens already, if that is right for them: at most
// half a step away, and what sums differ by.
class RoundedCache final : public nn::AttentionState {
 public:
  RoundedCache(KvCache& cache, const KvCache& coded) : cache_(cache), coded_(coded) {}
  ops::CacheRows append(int layer, int64_t tokens) override { return cache_.append(layer, tokens); }
  nn::SeenTokens view(int layer, int64_t tokens) const override {
    const nn::SeenTokens seen = cache_.view(layer, tokens), codes = coded_.view(layer, 0);
    round_last(seen.keys, codes.keys, codes.key_scales, tokens);
    round_last(seen.values, codes.values, codes.value_scales, tokens);
    return seen;
  }
  const std::vector<int64_t>& lengths() const override { return cache_.lengths(); }
  void advance(int64_t tokens) override { cache_.advance(tokens); }

 private:
  static void round_last(const Tensor& rows, const Tensor& codes, const Tensor& scales,
                         int64_t tokens) {
    ASSERT_EQ(codes.size(1), rows.size(1));
    for (int64_t b = 0; b < rows.size(0); ++b) {
      for (int64_t t = rows.size(1) - tokens; t < rows.size(1); ++t) {
        for (int64_t h = 0; h < rows.size(2); ++h) {
          const auto at = [&](const Tensor& of) {
            return b * of.stride(0) + t * of.stride(1) + h * of.stride(2);
          };
          float* const x = rows.data<float>() + at(rows);
          const int8_t* const code = codes.data<int8_t>() + at(codes);
          const float used = scales.data<float>()[at(scales)];
          float most = 0;
          for (int64_t d = 0; d < rows.size(3); ++d) most = std::max(most, std::abs(x[d]));
          const float scale = most / 127;
          EXPECT_NEAR(used, scale, 1e-4f * scale);
          for (int64_t d = 0; d < rows.size(3); ++d) {
            EXPECT_NEAR(x[d] / scale, code[d], 0.52f);
            x[d] = used * static_cast<float>(code[d]);
          }
        }
      }
    }
  }

  KvCache& cache_;
  const KvCache& coded_;
};

double rms_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * static_cast<double>(a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

class CodedCache : public ::testing::TestWithParam<Family> {
 protected:
  std::shared_ptr<Model> make(WeightForm form = WeightForm::kFloat32) const {
    return make_model(GetParam(), seed_)->prepared_copy({form, 16, true, 2});
  }
  std::vector<int32_t> ids(size_t count) { return random_ids(random_, count); }
  std::shared_ptr<KvBlockPool> make_pool(Model& model, int64_t tokens) {
    return std::make_shared<KvBlockPool>(model.device(), model.architecture().info(), DType::kInt8,
                                         KvBlockOptions{tokens, 0});
  }

  const uint64_t seed_ = ds::fresh_seed();
  std::mt19937_64 random_{seed_};
};

// What codes change of the logits is what rounding by the definition changes, but for the order of
// sums.
TEST_P(CodedCache, ComputesWithRoundedNumbers) {
  SCOPED_TRACE(seed_);
  const auto model = make();
  Texts coded(*model, 1, DType::kInt8), fp32(*model, 1), rounded(*model, 1);
  RoundedCache reference(rounded.cache(), coded.cache());
  double moved = 0, apart = 0, size = 0;
  for (const size_t count : {20, 1, 1, 3, 1, 9, 1, 1}) {
    const std::vector<std::vector<int32_t>> text{ids(count)};
    const std::vector<float> got = coded.feed(text).front();
    const std::vector<float> expected = rounded.feed(text, reference).front();
    const std::vector<float> whole = fp32.feed(text).front();
    moved = std::max(moved, rms_difference(expected, whole));
    apart = std::max(apart, rms_difference(got, expected));
    size = std::max(size, rms_difference(whole, std::vector<float>(whole.size())));
  }
  EXPECT_GT(moved, 0);
  EXPECT_LT(apart, 0.01 * moved);
  // Scores of these models are large: 5 % is the most that hundreds of them moved by.
  EXPECT_LT(moved, 0.1 * size) << "logits of " << size;
}

TEST_P(CodedCache, BlocksHaveTheBitsOfOnePiece) {
  SCOPED_TRACE(seed_);
  for (const WeightForm form : {WeightForm::kFloat32, WeightForm::kBFloat16, WeightForm::kInt4}) {
    const auto model = make(form);
    for (const int64_t block_tokens : {1, 16}) {
      Texts piece(*model, 2, DType::kInt8), blocks(*model, 2, make_pool(*model, block_tokens));
      for (const size_t count : {21, 1, 1, 7, 3, 1}) {
        const std::vector<std::vector<int32_t>> texts{ids(count), ids(count)};
        EXPECT_EQ(blocks.feed(texts), piece.feed(texts)) << count << " tokens";
        for (Texts* const t : {&piece, &blocks}) {
          t->cache().shorten(1, t->cache().length(1) - (count > 3 ? 2 : 0));
        }
      }
    }
  }
}

// A text gives what it gives alone, where products of both texts sum as those of one do: up to 16
// rows, or more than 16 of each. Otherwise a number between two codes could take the other one.
TEST_P(CodedCache, SequencesOfSeveralLengths) {
  SCOPED_TRACE(seed_);
  const auto model = make();
  Texts both(*model, 2, DType::kInt8), first(*model, 1, DType::kInt8),
      second(*model, 1, DType::kInt8);
  const std::vector<int32_t> a = ids(8), b = ids(8);
  both.feed({a, b});
  first.feed({a});
  second.feed({b});
  both.cache().shorten(0, 5);
  first.cache().shorten(0, 5);
  for (const size_t count : {1, 3, 20, 1}) {
    const std::vector<int32_t> x = ids(count), y = ids(count);
    const auto got = both.feed({x, y});
    EXPECT_EQ(got[0], first.feed({x}).front()) << count << " tokens";
    EXPECT_EQ(got[1], second.feed({y}).front()) << count << " tokens";
  }
}

TEST_P(CodedCache, TakesOneByteForANumber) {
  const auto model = make();
  const models::ArchitectureInfo& info = model->architecture().info();
  const auto bytes = [&](DType dtype) {
    const int64_t before = model->device()->account().now(MemoryTag::kKvCache);
    const KvCache cache(model->device(), info, 1, kCapacity, dtype);
    return model->device()->account().now(MemoryTag::kKvCache) - before;
  };
  const int64_t rows = info.layers * 2 * info.kv_heads * kCapacity;
  EXPECT_GE(bytes(DType::kInt8), rows * (info.head_size + 4));
  EXPECT_LE(bytes(DType::kInt8), rows * (info.head_size + 4) + info.layers * 2 * 4096);
  EXPECT_GE(bytes(DType::kBFloat16), rows * info.head_size * 2);
}

std::vector<Family> coded_families() {
  std::vector<Family> out;
  for (const Family& family : kFamilies) {
    if (std::string(family.name) != "deepseek_v2") out.push_back(family);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Families, CodedCache, ::testing::ValuesIn(coded_families()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(CodedCacheOfLatents, IsRefused) {
  for (const Family& family : kFamilies) {
    if (std::string(family.name) != "deepseek_v2") continue;
    const auto model = make_model(family, 1);
    try {
      check_kv({{}, true}, model->architecture().info(), *model->device());
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnsupported);
      EXPECT_THAT(error.what(), HasSubstr("kv_cache int8 of a model with latent attention"));
    }
  }
}

}  // namespace
}  // namespace ds::infer::states
