// What "auto" is worked out from: a model's hidden size, and the sizes that the caller says.
#include "config/auto_values.h"

#include <gtest/gtest.h>

#include "config/check.h"

namespace ds {
namespace {

std::optional<int64_t> hidden(const char* model) {
  return hidden_size_of(parse_json(model, "model", Code::kConfig));
}

TEST(Auto, HiddenSizeUnderAnyOfItsNames) {
  EXPECT_EQ(hidden(R"({"hidden_size": 768, "n_embd": 1})"), 768);
  EXPECT_EQ(hidden(R"({"n_embd": 64})"), 64);
  EXPECT_EQ(hidden(R"({"d_model": 1})"), 1);
  EXPECT_EQ(hidden(R"({"hidden_sizes": [8, 32, "x", 16]})"), 32);
  EXPECT_EQ(hidden(R"({"hidden_sizes": []})"), std::nullopt);
  EXPECT_EQ(hidden(R"({"hidden_sizes": 8})"), std::nullopt);
  EXPECT_EQ(hidden(R"({"width": 8})"), std::nullopt);
}

TEST(Auto, HiddenSizesThatCannotBeAreNone) {
  EXPECT_EQ(hidden(R"({"hidden_size": 16777216})"), 16777216);
  for (const char* size : {"0", "-8", "16777217", "8.5", "\"8\"", "null", "[8]"}) {
    EXPECT_EQ(hidden((std::string(R"({"hidden_size": )") + size + "}").c_str()), std::nullopt)
        << size;
  }
  for (const char* model : {"8", "[8]", "\"hidden_size\"", "null"}) {
    EXPECT_EQ(hidden(model), std::nullopt) << model;
  }
}

// Each "auto" takes the value that the caller says of it, and of none of the others.
TEST(Auto, BatchSizesThatTheCallerSays) {
  const char* document = R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                             "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"})";
  const auto batch_of = [&](const AutoValues& values) {
    ReadOptions how;
    how.resolve_auto = values;
    ConfigEnvironment environment;
    environment.data_parallel_size = 2;
    const CheckedConfig checked = check_config(document, environment, how);
    const BatchConfig& batch = checked.batch;
    return std::array{batch.train_batch, batch.micro_batch, batch.accumulation};
  };
  AutoValues values;
  values.micro_batch = 3;
  values.accumulation = 5;
  EXPECT_EQ(batch_of(values), (std::array<int64_t, 3>{30, 3, 5}));
  values.accumulation.reset();
  EXPECT_EQ(batch_of(values), (std::array<int64_t, 3>{6, 3, 1}));
  values.train_batch = 24;
  EXPECT_EQ(batch_of(values), (std::array<int64_t, 3>{24, 3, 4}));
}

// A schedule's highest rate is the optimizer's, if that says one.
TEST(Auto, RatesThatNobodySaysAreAskedFor) {
  ReadOptions how;
  how.resolve_auto = AutoValues();
  const auto problems = [&](const char* optimizer) {
    return check_config(std::string(R"({"train_batch_size": 8, "optimizer": {"type": "AdamW")") +
                            optimizer + R"(}, "scheduler": {"type": "WarmupLR",
                                "params": {"warmup_max_lr": "auto"}}})",
                        {}, how)
        .parsed.problems;
  };
  EXPECT_TRUE(problems(R"(, "params": {"lr": 0.5})").empty());
  for (const char* none : {"", R"(, "params": {"eps": 1e-6})"}) {
    ASSERT_EQ(problems(none).size(), 1u) << none;
    EXPECT_NE(problems(none)[0].message().find("which nobody says"), std::string::npos);
  }
}

}  // namespace
}  // namespace ds
