// Several texts in one call, through the C ABI: those of one after the other, what a callback says,
// and arguments that are refused.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "capi/world.h"
#include "ds.hpp"

namespace capi_test {
namespace {

using libds::Generator;
using libds::Model;
using libds::Tensor;
using ::testing::HasSubstr;
using Texts = std::vector<std::vector<int32_t>>;

constexpr const char* kGpt2 = R"({"model_type": "gpt2", "vocab_size": 61, "n_positions": 40,
    "n_embd": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.3})";
constexpr const char* kMixtral = R"({"model_type": "mixtral", "vocab_size": 61, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 40, "initializer_range": 0.3, "tie_word_embeddings": false})";
// Angles that depend on how long a text is.
constexpr const char* kDynamic = R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 20, "initializer_range": 0.3,
    "rope_scaling": {"type": "dynamic", "factor": 3.0}})";

Texts some_prompts() {
  Texts prompts;
  for (const int32_t length : {5, 1, 18, 3, 39, 2, 60, 7}) {
    prompts.emplace_back();
    for (int32_t i = 0; i < length; ++i) prompts.back().push_back((7 * length + i * i) % 61);
  }
  return prompts;
}

libds::GenerateOptions sampled() {
  libds::GenerateOptions options;
  options.max_tokens = 15;
  options.temperature = 0.9;
  options.seed = 3;
  options.stop_token = 8;
  return options;
}

Texts one_by_one(Generator& generator, const Texts& prompts, libds::GenerateOptions options) {
  Texts out;
  for (const auto& prompt : prompts) {
    out.push_back(generator.generate(Tensor::from(prompt), options));
    ++options.seed;
  }
  return out;
}

TEST(CapiBatchGeneration, TextsAreThoseOfOneAfterTheOther) {
  for (const char* const config : {kGpt2, kMixtral, kDynamic}) {
    const Model model = Model::create(config, 5);
    for (const char* const options :
         {"", R"({"weights": "fp32"})", R"({"weights": "bf16", "kv_cache": "int8"})",
          R"({"weights": "int8", "group_size": 16})",
          R"({"weights": "int8", "group_size": 32, "int8_activations": "all"})",
          R"({"weights": "int4", "group_size": 8, "kv_block_tokens": 4, "kv_pool_tokens": 120})"}) {
      Generator generator(model, options);
      const Texts expected = one_by_one(generator, some_prompts(), sampled());
      for (const int64_t at_once : {0, 1, 3}) {
        EXPECT_EQ(generator.generate_batch(some_prompts(), sampled(), at_once), expected)
            << config << options << at_once;
      }
    }
  }
}

TEST(CapiBatchGeneration, CallbacksHearEachTokenAndEndTexts) {
  const Model model = Model::create(kGpt2, 5);
  Generator generator(model);
  const Texts prompts = some_prompts(), expected = one_by_one(generator, prompts, sampled());
  Texts heard(prompts.size());
  const auto ends_the_third = [&](int64_t text, int32_t token) {
    heard[static_cast<size_t>(text)].push_back(token);
    return text != 3 || heard[3].size() < 2;
  };
  Texts shorter = expected;
  ASSERT_GT(shorter[3].size(), 2u);
  shorter[3].resize(2);
  EXPECT_EQ(generator.generate_batch(prompts, sampled(), 4, ends_the_third), shorter);
  EXPECT_EQ(heard, shorter);
  int tokens = 0;
  EXPECT_THROW(generator.generate_batch(prompts, sampled(), 4,
                                        [&](int64_t, int32_t) -> bool {
                                          if (++tokens == 5) throw std::string("enough");
                                          return true;
                                        }),
               std::string);
  EXPECT_EQ(tokens, 5);
  EXPECT_EQ(generator.generate_batch(prompts, sampled()), expected);
}

TEST(CapiBatchGeneration, AnswersOtherThanTheNamedOnesEndTheCall) {
  World world;
  ds_prompts prompts = DS_PROMPTS_INIT;
  prompts.ids = world.list;
  prompts.counts = world.counts;
  for (const ds_text_reply answer : {static_cast<ds_text_reply>(DS_TEXTS_END), 3, -1}) {
    ds_tensor *ids = nullptr, *counts = nullptr;
    ds_text_reply asked = answer;
    const ds_text_token_fn tell = [](void* data, int64_t, int32_t) {
      return *static_cast<ds_text_reply*>(data);
    };
    EXPECT_EQ(ds_generator_generate_batch(world.generator, &prompts, nullptr, tell, &asked, &ids,
                                          &counts),
              DS_ERR_CALLBACK);
    EXPECT_EQ(ids, nullptr);
    EXPECT_EQ(counts, nullptr);
  }
}

TEST(CapiBatchGeneration, ACallIsInterrupted) {
  World world;
  ds_prompts prompts = DS_PROMPTS_INIT;
  prompts.ids = world.list;
  prompts.counts = world.counts;
  ds_generate_options options = DS_GENERATE_OPTIONS_INIT;
  options.max_tokens = 1000;
  ds_tensor *ids = nullptr, *counts = nullptr;
  const ds_text_token_fn interrupt = [](void* generator, int64_t text, int32_t) -> ds_text_reply {
    if (text == 1) {
      EXPECT_DS_OK(ds_generator_interrupt(static_cast<ds_generator*>(generator)));
    }
    return DS_TEXT_GOES_ON;
  };
  EXPECT_EQ(ds_generator_generate_batch(world.generator, &prompts, &options, interrupt,
                                        world.generator, &ids, &counts),
            DS_ERR_ABORTED);
  EXPECT_EQ(ids, nullptr);
}

TEST(CapiBatchGeneration, RefusesWhatAreNoPrompts) {
  const Model model = Model::create(kGpt2, 5);
  const Generator generator(model);
  const auto message = [&](const std::vector<int64_t>& ids, const std::vector<int32_t>& counts,
                           int64_t at_once = 0) {
    const Tensor all = Tensor::from(ids), each = Tensor::from(counts);
    ds_prompts prompts = DS_PROMPTS_INIT;
    prompts.ids = all.get();
    prompts.counts = each.get();
    prompts.at_once = at_once;
    ds_tensor *out_ids = nullptr, *out_counts = nullptr;
    const ds_status status = ds_generator_generate_batch(generator.get(), &prompts, nullptr,
                                                         nullptr, nullptr, &out_ids, &out_counts);
    ds_tensor_destroy(out_ids);
    ds_tensor_destroy(out_counts);
    if (status == DS_OK) return std::string("no error");
    EXPECT_EQ(status, DS_ERR_INVALID_ARGUMENT);
    return std::string(ds_last_error_message());
  };
  EXPECT_EQ(message({}, {}), "no error");
  EXPECT_EQ(message({1, 2, 3}, {1, 2}), "no error");
  EXPECT_THAT(message({1, 2, 3}, {1, 0, 2}), HasSubstr("prompt 1: the prompt is empty"));
  EXPECT_THAT(message({1, 2, 3}, {-1}), HasSubstr("prompts.counts[0] is -1"));
  EXPECT_THAT(message({1, 2, 3}, {2, 2}), HasSubstr("prompts.counts[1] is 2, where 1 of the 3"));
  EXPECT_THAT(message({1, 2, 3}, {2}), HasSubstr("leaves 1 of the 3 tokens of prompts.ids"));
  EXPECT_THAT(message({1, 2, 61}, {1, 2}), HasSubstr("prompt 1: the prompt holds token 61"));
  EXPECT_THAT(message({1}, {1}, -1), HasSubstr("prompts.at_once is -1; 0 (for 16) or more"));
}

}  // namespace
}  // namespace capi_test
