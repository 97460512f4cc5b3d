// Several texts in one pass: those of one after the other, bit for bit, whatever comes and goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "base/text.h"
#include "fresh_seed.h"
#include "infer/generate.h"
#include "unit/infer/texts.h"

namespace ds::infer::states {
namespace {

using ::testing::HasSubstr;

using models::Model;
using models::WeightForm;
using Prompts = std::vector<std::vector<int32_t>>;

std::vector<std::span<const int32_t>> spans(const Prompts& prompts) {
  return {prompts.begin(), prompts.end()};
}

Prompts together(Model& model, const Prompts& prompts, const GenerateOptions& options,
                 int64_t at_once,
                 const std::function<Reply(int64_t, int32_t)>& on_token = nullptr) {
  return generate_batch(model.context(), model.reader(), model.architecture(), spans(prompts),
                        options, {at_once}, on_token);
}

Prompts one_by_one(Model& model, const Prompts& prompts, GenerateOptions options) {
  Prompts out;
  for (const std::vector<int32_t>& prompt : prompts) {
    out.push_back(
        generate(model.context(), model.reader(), model.architecture(), prompt, options, nullptr));
    ++options.seed;
  }
  return out;
}

class TextsTogether : public ::testing::TestWithParam<Family> {
 protected:
  std::shared_ptr<Model> make(WeightForm form = WeightForm::kFloat32) const {
    return make_model(GetParam(), seed_)->prepared_copy({form, 16, true, 2});
  }
  Prompts prompts(std::initializer_list<size_t> lengths) {
    Prompts out;
    for (const size_t length : lengths) out.push_back(random_ids(random_, length));
    return out;
  }

  const uint64_t seed_ = ds::fresh_seed();
  std::mt19937_64 random_{seed_};
  int compared_ = 0;
};

// Logits of 16 texts of several lengths in one pass, each beside a cache of its own.
TEST_P(TextsTogether, HaveTheBitsOfEachAlone) {
  SCOPED_TRACE(seed_);
  constexpr int64_t kTexts = 16;
  for (const WeightForm form :
       {WeightForm::kFloat32, WeightForm::kBFloat16, WeightForm::kInt8, WeightForm::kInt4}) {
    const auto model = make(form);
    Texts together(*model, kTexts);
    std::deque<Texts> alone;
    for (int64_t i = 0; i < kTexts; ++i) {
      const std::vector<int32_t> prompt = random_ids(random_, static_cast<size_t>(1 + 7 * i % 37));
      together.cache().choose(i, 1);
      static_cast<void>(together.feed({prompt}));
      static_cast<void>(alone.emplace_back(*model, 1).feed({prompt}));
    }
    together.cache().choose(0, kTexts);
    for (int step = 0; step < 3; ++step) {
      Prompts tokens;
      for (int64_t i = 0; i < kTexts; ++i) tokens.push_back(random_ids(random_, 1));
      const auto found = together.feed(tokens);
      for (size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(found[i], alone[i].feed({tokens[i]}).front())
            << weight_form_name(form) << ", text " << i << ", step " << step;
      }
    }
  }
}

// Logits behind prompts that are read in one pass and behind tokens that follow, each beside a
// decoder of its own: few and many rows, padding, windows, and a cache in blocks or of codes.
TEST_P(TextsTogether, PromptsHaveTheBitsOfEachAlone) {
  SCOPED_TRACE(seed_);
  const Prompts groups[] = {prompts({20, 17, 25}), prompts({3, 4, 4, 2}), prompts({8, 7}),
                            prompts({100, 97, 120, 118}), Prompts(12, prompts({40}).front())};
  for (const WeightForm form :
       {WeightForm::kFloat32, WeightForm::kBFloat16, WeightForm::kInt8, WeightForm::kInt4}) {
    const auto model = make(form);
    const models::Architecture& architecture = model->architecture();
    const bool codes = form == WeightForm::kInt4 && architecture.info().values_in_keys == 0;
    GenerateOptions options;
    options.kv.codes = codes;
    for (const Prompts& group : groups) {
      const auto texts = std::ssize(group);
      Decoder together(model->context(), model->reader(), architecture, {texts, 128}, options);
      int64_t longest = 0;
      for (const auto& prompt : group) longest = std::max(longest, std::ssize(prompt));
      bool alike = true;
      for (const auto& prompt : group) {
        alike = alike && together.reads_alike(std::ssize(prompt), longest, texts * longest);
      }
      EXPECT_FALSE(alike && architecture.info().experts > 0);
      if (!alike) continue;
      ++compared_;
      SCOPED_TRACE(str_cat(weight_form_name(form), ", ", texts, " texts of up to ", longest));
      const auto all = spans(group);
      const std::span<const float> found = together.feed_prompts(0, all);
      std::vector<std::vector<float>> logits;
      for (int64_t i = 0; i < texts; ++i) {
        const float* const own = found.data() + i * kVocab;
        logits.emplace_back(own, own + kVocab);
        EXPECT_EQ(together.length(i), std::ssize(group[static_cast<size_t>(i)]));
      }
      const std::vector<int32_t> next = random_ids(random_, group.size());
      const std::span<const float> behind = together.feed_each(next);
      for (size_t i = 0; i < group.size(); ++i) {
        Decoder alone(model->context(), model->reader(), architecture, {1, 128}, options);
        EXPECT_THAT(alone.feed(0, group[i]), ::testing::ElementsAreArray(logits[i])) << i;
        EXPECT_THAT(alone.feed(0, {&next[i], 1}),
                    ::testing::ElementsAreArray(behind.subspan(i * kVocab, kVocab)))
            << i;
      }
    }
  }
  // All groups but those of more rows than dot products take.
  EXPECT_GE(compared_, make()->architecture().info().experts > 0 ? 0 : 16);
}

// The tokens of a pass come from the last text on: so those of prompts that were read together.
TEST_P(TextsTogether, PromptsOfOneLengthAreReadTogether) {
  const auto model = make(WeightForm::kInt8);
  GenerateOptions options;
  options.max_tokens = 1;
  const auto order = [&](std::initializer_list<size_t> lengths) {
    std::vector<int64_t> texts;
    together(*model, prompts(lengths), options, 8, [&](int64_t text, int32_t) {
      texts.push_back(text);
      return Reply::kGoOn;
    });
    return texts;
  };
  using Order = std::vector<int64_t>;
  const bool experts = model->architecture().info().experts > 0;
  EXPECT_EQ(order({20, 20, 20}), experts ? (Order{0, 1, 2}) : (Order{2, 1, 0}));
  // The second is padded, the third would be for the most part, the fifth has other products.
  EXPECT_EQ(order({20, 18, 44, 40, 4, 4}),
            experts ? (Order{0, 1, 2, 3, 4, 5}) : (Order{1, 0, 3, 2, 5, 4}));
  EXPECT_EQ(order({3, 4, 4, 5}), experts ? (Order{0, 1, 2, 3}) : (Order{2, 1, 0, 3}));
}

// Prompts shorter and longer than blocks and than what one product takes, texts that a token ends.
TEST_P(TextsTogether, AreThoseOfOneAfterTheOther) {
  SCOPED_TRACE(seed_);
  const Prompts asked = prompts(
      {5, 1, 40, 17, 18, 20, 3, 70, 16, 2, 9, 1, 30, 4, 6, 8, 11, 13, 100, 110, 99, 2, 7, 21});
  for (const WeightForm form :
       {WeightForm::kFloat32, WeightForm::kBFloat16, WeightForm::kInt8, WeightForm::kInt4}) {
    const auto model = make(form);
    GenerateOptions options;
    options.max_tokens = 25;
    options.sampling.temperature = 0.9;
    options.seed = seed_;
    // A token that occurs.
    options.stop_token = one_by_one(*model, asked, options).front()[4];
    const Prompts expected = one_by_one(*model, asked, options);
    EXPECT_LE(expected.front().size(), 4u);
    for (const int64_t at_once : {1, 3, 8, 16}) {
      EXPECT_EQ(together(*model, asked, options, at_once), expected)
          << weight_form_name(form) << ", " << at_once << " at once";
    }
  }
}

// Texts that outgrow the model's positions, at different moments.
TEST_P(TextsTogether, BeginAgainAsTheyDoAlone) {
  SCOPED_TRACE(seed_);
  const auto model = make(WeightForm::kBFloat16);
  const Prompts asked = prompts({120, 5, 127, 64, 300});
  GenerateOptions options;
  options.max_tokens = 140;
  options.sampling.temperature = 0.7;
  options.seed = seed_;
  const Prompts expected = one_by_one(*model, asked, options);
  for (const int64_t at_once : {2, 5}) {
    EXPECT_EQ(together(*model, asked, options, at_once), expected) << at_once << " at once";
  }
}

TEST_P(TextsTogether, WithBlocksOfAnySizeAndCodes) {
  SCOPED_TRACE(seed_);
  const auto model = make(WeightForm::kBFloat16);
  const Prompts asked = prompts({5, 33, 30, 2, 18, 7, 8});
  GenerateOptions options;
  options.max_tokens = 30;
  options.sampling.temperature = 0.8;
  options.seed = seed_;
  for (const bool codes : {false, true}) {
    if (codes && model->architecture().info().values_in_keys > 0) continue;
    options.kv = {{}, codes};
    const Prompts expected = one_by_one(*model, asked, options);
    for (const int64_t block_tokens : {1, 16, 64}) {
      options.kv.blocks = {block_tokens, 0};
      EXPECT_EQ(together(*model, asked, options, 4), expected)
          << "blocks of " << block_tokens << (codes ? ", codes" : "");
    }
  }
}

// Texts wait for blocks, and one that needs more than there are ends as it does alone.
TEST_P(TextsTogether, WaitWhereThePoolHasNoRoom) {
  SCOPED_TRACE(seed_);
  const auto model = make();
  const Prompts asked = prompts({5, 20, 2, 18, 17, 7, 30});
  GenerateOptions options;
  options.max_tokens = 20;
  options.seed = seed_;
  const Prompts expected = one_by_one(*model, asked, options);
  const models::ArchitectureInfo& info = model->architecture().info();
  for (const int64_t pool : {50, 80, 1000}) {
    options.kv.blocks = {10, pool};
    model->device()->account().reset_peaks();
    EXPECT_EQ(together(*model, asked, options, 6), expected) << "a pool of " << pool;
    const int64_t parts = info.values_in_keys > 0 ? 1 : 2;
    const int64_t token = info.layers * parts * info.kv_heads * info.head_size * 4;
    EXPECT_LE(model->device()->account().peak(MemoryTag::kKvCache), pool * token + 20000);
  }
  options.kv.blocks = {10, 40};
  Prompts seen(asked.size());
  try {
    together(*model, asked, options, 6, [&](int64_t text, int32_t token) {
      seen[static_cast<size_t>(text)].push_back(token);
      return Reply::kGoOn;
    });
    ADD_FAILURE() << "more tokens than there is room for";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfMemory);
    EXPECT_THAT(error.message(), HasSubstr("kv_pool_tokens"));
  }
  for (size_t i = 0; i + 1 < asked.size(); ++i) EXPECT_EQ(seen[i], expected[i]) << i;
  EXPECT_LT(seen.back().size(), expected.back().size());
  EXPECT_EQ(model->device()->account().now(MemoryTag::kKvCache), 0);
}

// What a caller answers: each text ends by itself, and the call for all.
TEST_P(TextsTogether, EndAsTheCallerWants) {
  SCOPED_TRACE(seed_);
  const auto model = make();
  const Prompts asked = prompts({5, 9, 2, 18, 7});
  GenerateOptions options;
  options.max_tokens = 12;
  options.sampling.temperature = 1;
  options.seed = seed_;
  const Prompts expected = one_by_one(*model, asked, options);
  std::map<int64_t, std::vector<int32_t>> seen;
  const auto answer = [&](int64_t text, int32_t token) {
    seen[text].push_back(token);
    return std::ssize(seen[text]) > text ? Reply::kEndText : Reply::kGoOn;
  };
  const Prompts found = together(*model, asked, options, 3, answer);
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(found[i], part(expected[i], 0, i + 1));
    EXPECT_EQ(seen[static_cast<int64_t>(i)], found[i]);
  }
  int tokens = 0;
  try {
    together(*model, asked, options, 3,
             [&](int64_t, int32_t) { return ++tokens == 6 ? Reply::kEndAll : Reply::kGoOn; });
    ADD_FAILURE() << "nothing ended the call";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCallback);
  }
  EXPECT_EQ(tokens, 6);
}

TEST_P(TextsTogether, RefuseWhatOneTextRefuses) {
  const auto model = make();
  EXPECT_TRUE(together(*model, {}, {}, 4).empty());
  GenerateOptions none;
  none.max_tokens = 0;
  EXPECT_EQ(together(*model, {{1}, {2, 3}}, none, 4), Prompts(2));
  const auto message = [&](const Prompts& asked, int64_t at_once) {
    try {
      together(*model, asked, {}, at_once);
    } catch (const Error& error) {
      return str_cat(static_cast<int>(error.code()), " ", error.message());
    }
    return std::string("no error");
  };
  const std::string invalid = str_cat(static_cast<int>(Code::kInvalidArgument), " ");
  EXPECT_THAT(message({{1}, {}}, 4), HasSubstr(invalid + "prompt 1: the prompt is empty"));
  EXPECT_THAT(message({{1}, {2}, {61}}, 4),
              HasSubstr(invalid + "prompt 2: the prompt holds token"));
  EXPECT_THAT(message({{1}}, 0), HasSubstr(invalid + "at_once must be 1 or more, not 0"));
}

// Whose experts multiply the rows that chose them.
constexpr Family kExperts[] = {
    {"mixtral", R"({"model_type": "mixtral", "vocab_size": 61, "hidden_size": 48,
         "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
         "max_position_embeddings": 128, "initializer_range": 0.2})"},
    {"qwen2_moe", R"({"model_type": "qwen2_moe", "vocab_size": 61, "hidden_size": 48,
         "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_experts": 6, "num_experts_per_tok": 2,
         "moe_intermediate_size": 40, "shared_expert_intermediate_size": 32,
         "max_position_embeddings": 128, "initializer_range": 0.2})"}};
INSTANTIATE_TEST_SUITE_P(Experts, TextsTogether, ::testing::ValuesIn(kExperts),
                         [](const auto& one) { return std::string(one.param.name); });
INSTANTIATE_TEST_SUITE_P(Families, TextsTogether, ::testing::ValuesIn(kFamilies),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace ds::infer::states
