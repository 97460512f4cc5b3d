// Texts that are longer than a model's positions: what is kept, and that somebody hears of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "infer/generate.h"
#include "models/model.h"
#include "unit/base/heard_log.h"

namespace ds::infer {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> continued(size_t prompt, int64_t tokens) {
  const auto model = models::Model::create({{"model_type", "gpt2"},
                                            {"vocab_size", 11},
                                            {"n_positions", 16},
                                            {"n_embd", 8},
                                            {"n_layer", 1},
                                            {"n_head", 2}},
                                           3);
  GenerateOptions options;
  options.max_tokens = tokens;
  return generate(model->context(), model->reader(), model->architecture(),
                  std::vector<int32_t>(prompt, 5), options, nullptr);
}

TEST(Positions, NothingIsSaidWhileTheTextFits) {
  const HeardLog log;
  EXPECT_EQ(continued(6, 10).size(), 10u);
  EXPECT_EQ(log.text(), "");
}

TEST(Positions, ATextThatFillsThemIsCutWithOneWarning) {
  const HeardLog log;
  EXPECT_EQ(continued(6, 40).size(), 40u);
  EXPECT_THAT(log.text(), HasSubstr("the model's 16 positions after 11 new tokens"));
  EXPECT_THAT(log.text(), HasSubstr("its last 8 tokens"));
  const std::string text = log.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(Positions, APromptThatDoesNotFitIsReadFromItsEndWithAWarning) {
  const HeardLog log;
  EXPECT_EQ(continued(30, 1).size(), 1u);
  EXPECT_THAT(log.text(), HasSubstr("the prompt has 30 tokens, the model 16 positions"));
  EXPECT_THAT(log.text(), HasSubstr("its last 15 tokens"));
}

}  // namespace
}  // namespace ds::infer
