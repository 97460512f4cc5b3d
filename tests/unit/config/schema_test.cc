// The JSON Schema says of each kind of key what strict reading accepts.
#include "config/schema.h"

#include <gtest/gtest.h>

#include <functional>

namespace ds {
namespace {

class Schema : public ::testing::Test {
 protected:
  const Json& key(const std::vector<const char*>& path) const {
    const Json* here = &schema_;
    for (const char* name : path) {
      if (const Json* object = alternative(*here, "object")) here = object;
      here = &here->at("properties").at(name);
    }
    return *here;
  }
  // The part of a key's schema that is about values of this type; null without one.
  static const Json* alternative(const Json& schema, const char* type) {
    if (!schema.contains("anyOf")) return schema.value("type", "") == type ? &schema : nullptr;
    for (const Json& one : schema.at("anyOf")) {
      if (one.value("type", "") == type) return &one;
    }
    return nullptr;
  }
  const Json& of(const std::vector<const char*>& path, const char* type) const {
    const Json* found = alternative(key(path), type);
    if (found == nullptr) throw std::runtime_error("no such type: " + dump_json(key(path)));
    return *found;
  }

  const Json schema_ = config_schema();
};

TEST_F(Schema, ListsHaveTheirSizes) {
  const Json& ramp_up = of({"rampup_batch_size"}, "array");
  EXPECT_EQ(ramp_up.at("minItems"), 3);
  EXPECT_EQ(ramp_up.at("maxItems"), 3);
  EXPECT_EQ(dump_json(ramp_up.at("items")), R"({"type":"integer","minimum":1.0})");
  const Json& any = of({"data_types", "keep_in_fp32_modules"}, "array");
  EXPECT_FALSE(any.contains("minItems"));
  EXPECT_FALSE(any.contains("maxItems"));
  EXPECT_NE(alternative(key({"rampup_batch_size"}), "null"), nullptr);
  EXPECT_EQ(alternative(key({"rampup_batch_size"}), "string"), nullptr);
}

TEST_F(Schema, NumbersHaveTheirBounds) {
  const Json& batch = of({"train_batch_size"}, "integer");
  EXPECT_EQ(batch.at("minimum"), 1);
  EXPECT_FALSE(batch.contains("maximum"));
  EXPECT_FALSE(batch.contains("multipleOf"));
  const Json& stage = of({"zero_optimization", "stage"}, "integer");
  EXPECT_EQ(stage.at("minimum"), 0);
  EXPECT_EQ(stage.at("maximum"), 3);
  EXPECT_EQ(of({"fp16", "loss_scale"}, "number").at("minimum"), 0);
}

TEST_F(Schema, KeysHaveTheirDefaultsAndNothingElseIsAllowed) {
  EXPECT_EQ(key({"zero_optimization", "stage"}).at("default"), 0);
  EXPECT_FALSE(key({"train_batch_size"}).contains("default"));
  EXPECT_EQ(schema_.at("additionalProperties"), false);
  EXPECT_EQ(schema_.at("type"), "object");
  EXPECT_EQ(key({"bfloat16"}), key({"bf16"})) << "under each of its names";
  EXPECT_FALSE(schema_.contains("required"));
}

TEST_F(Schema, SaysOfKeysThatAreNotThereWhatIsLacking) {
  EXPECT_EQ(dump_json(schema_).find("Not in this build: ."), std::string::npos);
  const std::string stage = key({"zero_optimization", "stage"}).at("description");
  EXPECT_EQ(stage.find("Not in this build"), std::string::npos) << stage;
}

// Every pattern of the schema is one that JSON Schema has, and every type of a value, too.
TEST_F(Schema, SaysNothingThatJsonSchemaDoesNotKnow) {
  const std::set<std::string> types = {"object",  "array",   "string", "number",
                                       "integer", "boolean", "null"};
  int visited = 0;
  const std::function<void(const Json&)> visit = [&](const Json& schema) {
    if (schema.is_boolean()) return;
    ++visited;
    if (schema.contains("type")) {
      EXPECT_TRUE(types.contains(schema.at("type").get<std::string>())) << dump_json(schema);
    }
    if (schema.contains("anyOf")) {
      EXPECT_GE(schema.at("anyOf").size(), 2u) << dump_json(schema);
      for (const Json& one : schema.at("anyOf")) visit(one);
    }
    if (schema.contains("properties")) {
      for (const auto& item : schema.at("properties").items()) visit(item.value());
    }
    for (const char* below : {"items", "additionalProperties"}) {
      if (schema.contains(below)) visit(schema.at(below));
    }
    if (schema.contains("minItems") && schema.contains("maxItems")) {
      EXPECT_LE(schema.at("minItems").get<int64_t>(), schema.at("maxItems").get<int64_t>());
      EXPECT_GT(schema.at("minItems").get<int64_t>(), 0);
    }
  };
  visit(schema_);
  EXPECT_GT(visited, 500);
}

}  // namespace
}  // namespace ds
