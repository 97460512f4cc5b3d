// Students that begin with layers of their teacher: every parameter against the teacher's own, what
// stays the student's, and what does not fit.
#include "models/layer_reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/text.h"
#include "models/adapters.h"
#include "models/weight_loaders.h"

namespace ds::models::reduction_test {
namespace {

using ::testing::HasSubstr;

struct Family {
  const char* name;
  const char* config;
  const char* layers;  // the key of their number
  const char* prefix;  // of the layers, as their author calls them
};
constexpr Family kFamilies[] = {
    {"gpt2", R"({"model_type": "gpt2", "vocab_size": 13, "n_positions": 6, "n_embd": 8,
                 "n_head": 2})",
     "n_layer", "transformer.h"},
    {"llama", R"({"model_type": "llama", "vocab_size": 13, "hidden_size": 8,
                  "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1,
                  "max_position_embeddings": 6})",
     "num_hidden_layers", "model.layers"},
    {"mixtral", R"({"model_type": "mixtral", "vocab_size": 13, "hidden_size": 8,
                    "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1,
                    "num_local_experts": 3, "max_position_embeddings": 6})",
     "num_hidden_layers", "model.layers"},
    {"gpt_neox", R"({"model_type": "gpt_neox", "vocab_size": 13, "hidden_size": 8,
                     "intermediate_size": 12, "num_attention_heads": 2,
                     "max_position_embeddings": 6, "rotary_pct": 0.5})",
     "num_hidden_layers", "gpt_neox.layers"},
    {"bert", R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"],
                 "vocab_size": 13, "hidden_size": 8, "intermediate_size": 12,
                 "num_attention_heads": 2, "max_position_embeddings": 6, "num_labels": 3})",
     "num_hidden_layers", "bert.encoder.layer"},
};

std::shared_ptr<Model> make(const Family& family, int64_t layers, uint64_t seed,
                            const Json& changes = Json::object()) {
  Json config = parse_json(family.config, family.name, Code::kConfig);
  config[family.layers] = layers;
  config.update(changes);
  return Model::create(config, seed);
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

// A student's name in its teacher, by a list of the layers.
std::string name_there(const std::string& name, const std::string& prefix,
                       const std::vector<int64_t>& layers) {
  const size_t at = name.find(prefix + '.');
  if (at == std::string::npos) return name;
  const size_t begin = at + prefix.size() + 1, end = name.find('.', begin);
  const int layer = std::stoi(name.substr(begin, end - begin));
  return name.substr(0, begin) + std::to_string(layers[static_cast<size_t>(layer)]) +
         name.substr(end);
}

// The prefix without what files may leave off, as our names do for some families.
std::string short_prefix(const Model& model, const std::string& prefix) {
  const std::string off = model.architecture().external_prefix();
  return prefix.rfind(off, 0) == 0 ? prefix.substr(off.size()) : prefix;
}

TEST(LayerReduction, LayersAndModulesAreTheTeachers) {
  const std::vector<int64_t> chosen = {1, 4, 0};
  for (const Family& family : kFamilies) {
    for (const char* const prefix : {"", family.prefix}) {
      SCOPED_TRACE(str_cat(family.name, ", prefix ", prefix));
      const auto teacher = make(family, 5, 1), student = make(family, 3, 2);
      student->set_weight_loader(reduced_weights(*student, teacher, {prefix, chosen, {}}));
      int in_layers = 0;
      for (nn::ParamId id = 0; id < student->parameters().size(); ++id) {
        const std::string& name = student->parameters()[id].name;
        const std::string there = name_there(name, short_prefix(*student, family.prefix), chosen);
        if (there != name) ++in_layers;
        EXPECT_TRUE(same(student->get(name), teacher->get(there))) << name << " from " << there;
      }
      EXPECT_GT(in_layers, 5);
    }
  }
}

TEST(LayerReduction, OnlyModulesThatAreNamedAreCopied) {
  const Family& bert = kFamilies[4];
  const auto teacher = make(bert, 4, 1), student = make(bert, 2, 2), fresh = make(bert, 2, 2);
  // As the documents of DeepSpeed's examples have them.
  const LayerReduction reduction{
      "bert.encoder.layer", {1, 3}, std::vector<std::string>{"bert.pooler", "bert.embeddings"}};
  student->set_weight_loader(reduced_weights(*student, teacher, reduction));
  const std::vector<int64_t> chosen = {1, 3};
  int own = 0;
  for (nn::ParamId id = 0; id < student->parameters().size(); ++id) {
    const std::string& name = student->parameters()[id].name;
    const std::string there = name_there(name, "encoder.layer", chosen);
    if (name.find("classifier") != std::string::npos) {
      ++own;
      EXPECT_TRUE(same(student->get(name), fresh->get(name))) << name;
    } else {
      EXPECT_TRUE(same(student->get(name), teacher->get(there))) << name;
    }
  }
  EXPECT_EQ(own, 2);
  const auto none = make(bert, 2, 2);
  none->set_weight_loader(
      reduced_weights(*none, teacher, {"", {1, 3}, std::vector<std::string>{}}));
  const std::string table = "embeddings.word_embeddings.weight";
  const nn::ParamId id = [&] {
    for (nn::ParamId i = 0; i < none->parameters().size(); ++i) {
      if (none->parameters()[i].name.find(table) != std::string::npos) return i;
    }
    return nn::kNoParam;
  }();
  const std::string& name = none->parameters()[id].name;
  EXPECT_TRUE(same(none->get(name), fresh->get(name)));
}

TEST(LayerReduction, AdaptersAreTheStudents) {
  const auto teacher = make(kFamilies[0], 3, 1), student = make(kFamilies[0], 2, 2);
  LoraOptions lora;
  lora.r = 2;
  lora.target_modules = {"all-linear"};
  add_lora(*student, lora);
  ASSERT_TRUE(makes_fresh_weights(*student->held_weights("").loader()));
  student->set_weight_loader(reduced_weights(*student, teacher, {"", {0, 2}, {}}));
  int adapters = 0;
  for (nn::ParamId id = 0; id < student->parameters().size(); ++id) {
    const std::string& name = student->parameters()[id].name;
    if (name.find("lora_") == std::string::npos) continue;
    ++adapters;
    const Tensor value = student->get(name);
    const bool zero =
        *std::max_element(value.data<float>(), value.data<float>() + value.elements()) == 0;
    EXPECT_EQ(zero, name.find("lora_B") != std::string::npos) << name;
  }
  EXPECT_GT(adapters, 3);
}

TEST(LayerReduction, WhatDoesNotFitIsSaid) {
  const Family& gpt2 = kFamilies[0];
  const auto refused = [&](const std::shared_ptr<Model>& teacher, const LayerReduction& reduction) {
    const auto student = make(gpt2, 2, 2);
    try {
      static_cast<void>(reduced_weights(*student, teacher, reduction));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kConfig);
      return error.message();
    }
    ADD_FAILURE() << "not refused";
    return std::string();
  };
  const auto teacher = make(gpt2, 4, 1);
  EXPECT_THAT(refused(teacher, {"", {0, 1, 2}, {}}), HasSubstr("3 layers are named"));
  EXPECT_THAT(refused(teacher, {"", {0, 4}, {}}), HasSubstr("no layer 4"));
  EXPECT_THAT(refused(teacher, {"bert.encoder.layer", {0, 1}, {}}), HasSubstr("transformer.h"));
  EXPECT_THAT(refused(teacher, {"", {0, 1}, std::vector<std::string>{"bert.pooler"}}),
              HasSubstr("bert.pooler"));
  EXPECT_THAT(refused(make(gpt2, 4, 1, {{"n_embd", 16}}), {"", {0, 1}, {}}),
              HasSubstr("has its sizes"));
  EXPECT_THAT(refused(make(kFamilies[1], 4, 1), {"", {0, 1}, {}}), HasSubstr("no parameter for"));
}

}  // namespace
}  // namespace ds::models::reduction_test
