// Damaged documents: load_config succeeds or throws ds::Error, and an accepted document resolves
// to itself. Bytes are damaged one way, the parsed structure another.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/config_table.h"
#include "fresh_seed.h"
#include "full_run.h"
#include "unit/config/samples.h"

namespace ds {
namespace {

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> documents = {
      R"({"train_batch_size":8,"gradient_clipping":1.0,"optimizer":{"type":"AdamW","params":
         {"lr":1e-3,"betas":[0.9,0.95],"weight_decay":0.1}},"scheduler":{"type":"WarmupDecayLR",
         "params":{"total_num_steps":100,"warmup_num_steps":10}},"bf16":{"enabled":true}})",
      R"({"train_micro_batch_size_per_gpu":4,"gradient_accumulation_steps":2,
         "zero_optimization":{"stage":0,"reduce_bucket_size":5e8,"cpu_offload":false,
         "leaf_module":{"classes":["A","B"]}},"fp16":{"enabled":false,"loss_scale":"3"},
         "tensorboard":{"enabled":true,"output_path":"x"},"activation_checkpointing":
         {"enabled":true,"number_checkpoints":2},"checkpoint":{"tag_validation":"Warn"}})",
      R"({"train_batch_size":8,"compression_training":{"weight_quantization":{"shared_parameters":
         {"enabled":false},"different_groups":{"g":{"params":{"start_bits":8,"target_bits":4},
         "modules":["a"]}}}},"amp":{"enabled":false,"x":[1]},"data_efficiency":{"data_sampling":
         {"curriculum_learning":{"curriculum_metrics":{"m":{"schedule_type":"custom"}}}}},
         "tensor_parallel":{"partition_config":{"layer_specs":[{"patterns":["q"],
         "partition_type":"row"}]}}})",
  };
  return documents;
}

struct Outcomes {
  int accepted = 0;
  int refused = 0;
};

void expect_error_or_success(const std::string& text, Outcomes& outcomes) {
  try {
    const Config config = load_config(text);
    const std::string resolved = dump_json(config.resolved());
    EXPECT_EQ(dump_json(load_config(resolved).resolved()), resolved) << text;
    ++outcomes.accepted;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kConfig) << text << "\n" << error.message();
    EXPECT_LT(error.message().size(), 4000u);
    ++outcomes.refused;
  }
}

std::string damage_bytes(std::string text, std::mt19937_64& random) {
  static const std::vector<std::string> pieces = {
      "{",         "}",       "[",    "]",  ",",     ":",
      "\"",        "null",    "true", "-1", "1e400", "1e308",
      "\"auto\"",  "\\u0000", "\xff", "//", "/*",    "9223372036854775808",
      "{\"\":{}}", "\"a\":1,"};
  for (uint64_t i = 0, n = random() % 3 + 1; i < n && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, random() % 8 + 1);
        break;
      case 2:
        text.insert(at, pieces[random() % pieces.size()]);
        break;
      case 3:
        text.insert(at, text.substr(random() % text.size(), random() % 30));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

// Replaces, removes or adds one value somewhere in the tree.
void damage_tree(Json& value, std::mt19937_64& random, const std::vector<std::string>& names) {
  if (value.is_structured() && !value.empty() && random() % 4 != 0) {
    damage_tree(*std::next(value.begin(), static_cast<int64_t>(random() % value.size())), random,
                names);
    return;
  }
  static const std::vector<Json> values = {nullptr,
                                           true,
                                           false,
                                           0,
                                           1,
                                           -1,
                                           7,
                                           0.5,
                                           5e8,
                                           -1e300,
                                           INT64_MAX,
                                           UINT64_MAX,
                                           "",
                                           "auto",
                                           "fp16",
                                           "Adam",
                                           "3",
                                           Json::array(),
                                           Json::object(),
                                           Json::array({1, "x", nullptr})};
  if (value.is_object() && random() % 2 == 0) {
    value[names[random() % names.size()]] = values[random() % values.size()];
  } else {
    value = values[random() % values.size()];
  }
}

TEST(Mutation, DamagedBytes) {
  for (const uint64_t seed : {uint64_t{1}, uint64_t{ds::fresh_seed()}}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Outcomes outcomes;
    const int tries = ds::testing::kSanitized ? 400 : 2000;
    for (int i = 0; i < tries; ++i) {
      expect_error_or_success(damage_bytes(seeds()[random() % seeds().size()], random), outcomes);
    }
    EXPECT_GT(outcomes.refused, tries / 2);
  }
}

TEST(Mutation, DamagedStructure) {
  std::vector<std::string> names;
  testing_support::visit_all_keys(config_table(), [&](const testing_support::Visit& visit) {
    names.push_back(visit.key.name);
  });
  for (const uint64_t seed : {uint64_t{1}, uint64_t{ds::fresh_seed()}}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Outcomes outcomes;
    const int tries = ds::testing::kSanitized ? 300 : 1500;
    for (int i = 0; i < tries; ++i) {
      Json document = Json::parse(seeds()[random() % seeds().size()]);
      for (uint64_t n = random() % 3 + 1; n > 0; --n) damage_tree(document, random, names);
      expect_error_or_success(dump_json(document), outcomes);
    }
    EXPECT_GT(outcomes.refused, tries / 15);
    EXPECT_GT(outcomes.accepted, tries / 150);
  }
}

}  // namespace
}  // namespace ds
