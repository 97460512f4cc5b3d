// The KV cache in blocks: the bits of one in one piece, memory that follows the texts, and a pool
// that several caches share and that may be full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "fresh_seed.h"
#include "infer/generate.h"
#include "unit/infer/texts.h"

namespace ds::infer::states {
namespace {

using ::testing::HasSubstr;

using models::Model;
using models::WeightForm;

std::shared_ptr<KvBlockPool> make_pool(Model& model, const KvBlockOptions& options) {
  return std::make_shared<KvBlockPool>(model.device(), model.architecture().info(),
                                       model.reader().compute_type(), options);
}

std::string message_of(const std::function<void()>& call, Code* code = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return "no error";
}

class BlockCache : public ::testing::TestWithParam<Family> {
 protected:
  std::shared_ptr<Model> make(WeightForm form = WeightForm::kFloat32) const {
    return make_model(GetParam(), seed_)->prepared_copy({form, 16, true, 2});
  }
  std::vector<int32_t> ids(size_t count) { return random_ids(random_, count); }

  const uint64_t seed_ = ds::fresh_seed();
  std::mt19937_64 random_{seed_};
};

// A prompt, tokens one by one, more text at once, and a text that begins again.
TEST_P(BlockCache, HasTheBitsOfOnePiece) {
  SCOPED_TRACE(seed_);
  for (const WeightForm form : {WeightForm::kFloat32, WeightForm::kBFloat16, WeightForm::kInt8}) {
    const auto model = make(form);
    const std::vector<int32_t> text = ids(60);
    for (const int64_t block_tokens : {1, 16, 64}) {
      SCOPED_TRACE(str_cat(weight_form_name(form), ", blocks of ", block_tokens));
      const auto pool = make_pool(*model, {block_tokens, 0});
      Texts piece(*model, 1), blocks(*model, 1, pool);
      size_t at = 0;
      for (const size_t count : {23, 1, 1, 3, 9, 1, 20, 1}) {
        EXPECT_EQ(blocks.feed({part(text, at, count)}), piece.feed({part(text, at, count)}))
            << count << " tokens behind " << at;
        at += count;
        EXPECT_EQ(pool->taken(), (static_cast<int64_t>(at) + block_tokens - 1) / block_tokens);
      }
      for (Texts* const texts : {&piece, &blocks}) texts->cache().shorten(0, 0);
      EXPECT_EQ(pool->taken(), 0);
      EXPECT_EQ(blocks.feed({part(text, 0, 40)}), piece.feed({part(text, 0, 40)})) << "again";
    }
  }
}

// Sequences of unequal lengths in one batch, which forget what they read behind their end.
TEST_P(BlockCache, SequencesOfSeveralLengths) {
  SCOPED_TRACE(seed_);
  for (const WeightForm form : {WeightForm::kFloat32, WeightForm::kBFloat16}) {
    const auto model = make(form);
    for (const int64_t block_tokens : {1, 16, 64}) {
      SCOPED_TRACE(str_cat(weight_form_name(form), ", blocks of ", block_tokens));
      const auto pool = make_pool(*model, {block_tokens, 0});
      Texts piece(*model, 3), blocks(*model, 3, pool);
      const auto feed = [&](size_t count, std::vector<int64_t> own) {
        const std::vector<std::vector<int32_t>> texts{ids(count), ids(count), ids(count)};
        EXPECT_EQ(blocks.feed(texts), piece.feed(texts));
        int64_t taken = 0;
        for (size_t b = 0; b < own.size(); ++b) {
          const auto sequence = static_cast<int64_t>(b);
          const int64_t length =
              piece.cache().length(sequence) - static_cast<int64_t>(count) + own[b];
          for (Texts* const t : {&piece, &blocks}) t->cache().shorten(sequence, length);
          taken += (length + block_tokens - 1) / block_tokens;
        }
        EXPECT_EQ(pool->taken(), taken);
      };
      feed(20, {20, 4, 17});
      for (int i = 0; i < 4; ++i) feed(1, {1, 1, 1});
      feed(3, {1, 3, 0});
      feed(7, {7, 2, 5});
      feed(18, {18, 18, 1});
      feed(1, {1, 1, 1});
    }
  }
}

TEST_P(BlockCache, CachesShareAPool) {
  SCOPED_TRACE(seed_);
  const auto model = make();
  const auto pool = make_pool(*model, {16, 5 * 16});
  const std::vector<int32_t> text = ids(60);
  Texts one(*model, 1, pool);
  {
    Texts other(*model, 1, pool), piece(*model, 1);
    one.feed({part(text, 0, 30)});
    EXPECT_EQ(other.feed({part(text, 0, 45)}), piece.feed({part(text, 0, 45)}));
    EXPECT_EQ(pool->taken(), 5);
    EXPECT_EQ(other.feed({part(text, 45, 3)}), piece.feed({part(text, 45, 3)}));
    Code code = Code::kInternal;
    const std::string message = message_of([&] { other.feed({{1}}); }, &code);
    EXPECT_EQ(code, Code::kOutOfMemory);
    EXPECT_THAT(message, HasSubstr("pool of 5 blocks of 16 tokens has 0 left, and 1 are needed for "
                                   "1 tokens behind 48"));
    EXPECT_THAT(message, HasSubstr("kv_pool_tokens"));
    // Nothing has changed, and there is room again when another text has ended.
    EXPECT_EQ(other.cache().length(0), 48);
    EXPECT_EQ(pool->taken(), 5);
    one.cache().shorten(0, 16);
    EXPECT_EQ(other.feed({{1}}), piece.feed({{1}}));
  }
  EXPECT_EQ(pool->taken(), 1);  // the other cache has given back what it had
  Texts piece(*model, 1);
  piece.feed({part(text, 0, 30)});
  piece.cache().shorten(0, 16);
  EXPECT_EQ(one.feed({part(text, 16, 40)}), piece.feed({part(text, 16, 40)}));
}

// Of several sequences none takes a block where not all that are needed are there.
TEST_P(BlockCache, AFullPoolChangesNothing) {
  const auto model = make();
  const auto pool = make_pool(*model, {4, 20});
  Texts texts(*model, 2, pool);
  texts.feed({ids(8), ids(8)});
  EXPECT_EQ(pool->taken(), 4);
  EXPECT_THAT(message_of([&] {
                texts.feed({ids(1), ids(1)});
              }),
              HasSubstr("has 1 left, and 2 are needed for 1 tokens behind 8"));
  EXPECT_EQ(pool->taken(), 4);
  EXPECT_EQ(texts.cache().lengths(), (std::vector<int64_t>{8, 8}));
  EXPECT_THAT(message_of([&] {
                texts.feed({ids(60), ids(60)});
              }),
              HasSubstr("no room for 60 behind 8"));
}

// Whole texts, whose peak of memory is what they use.
TEST_P(BlockCache, TextsAreTheSameAndTakeLess) {
  SCOPED_TRACE(seed_);
  constexpr int64_t kRounding = 64;  // of an allocation
  for (const WeightForm form : {WeightForm::kFloat32, WeightForm::kBFloat16}) {
    const auto model = make(form);
    const std::vector<int32_t> prompt = ids(5);
    const auto text = [&](const KvBlockOptions& kv, int64_t tokens, int64_t* peak) {
      GenerateOptions options;
      options.max_tokens = 120;
      options.sampling.temperature = 0.9;
      options.seed = seed_;
      options.kv.blocks = kv;
      std::vector<int32_t> seen;
      model->device()->account().reset_peaks();
      const auto stop_after = [&](int32_t token) {
        seen.push_back(token);
        return static_cast<int64_t>(seen.size()) < tokens;
      };
      static_cast<void>(message_of([&] {
        generate(model->context(), model->reader(), model->architecture(), prompt, options,
                 stop_after);
      }));
      *peak = model->device()->account().peak(MemoryTag::kKvCache);
      EXPECT_EQ(model->device()->account().now(MemoryTag::kKvCache), 0);
      return seen;
    };
    const models::ArchitectureInfo& info = model->architecture().info();
    const int64_t parts = info.values_in_keys > 0 ? 1 : 2;  // keys, and values of their own
    const int64_t token = info.layers * parts * info.kv_heads * info.head_size *
                          dtype_size(model->reader().compute_type());
    for (const int64_t tokens : {11, 100}) {
      int64_t whole = 0;
      const std::vector<int32_t> expected = text({}, tokens, &whole);
      ASSERT_EQ(static_cast<int64_t>(expected.size()), tokens);
      EXPECT_GE(whole, 125 * token);
      EXPECT_LE(whole, 125 * token + kRounding * info.layers);
      for (const int64_t block_tokens : {1, 16, 64}) {
        int64_t peak = 0;
        EXPECT_EQ(text({block_tokens, 0}, tokens, &peak), expected) << "blocks of " << block_tokens;
        const int64_t used = 5 + tokens - 1;  // the last one is not read any more
        const int64_t blocks = (used + block_tokens - 1) / block_tokens;
        EXPECT_GE(peak, blocks * block_tokens * token);
        // Tables double: less than twice, beside the one before, 16 bytes for a block and layer.
        EXPECT_LE(peak, blocks * (block_tokens * token + kRounding + 3 * 16 * info.layers) +
                            2 * kRounding);
        if (tokens == 11) {
          EXPECT_LT(peak, whole);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, BlockCache, ::testing::ValuesIn(kFamilies),
                         [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace ds::infer::states
