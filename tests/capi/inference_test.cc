// Preparing a model for inference, and moving it, through the C ABI: options, hostile and good, and
// what the handle still does afterwards.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/json.h"
#include "capi/world.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;

ds_status prepare(ds_model* model, const char* options) {
  char* out = nullptr;
  const ds_status status = ds_model_prepare_inference(model, options, &out);
  EXPECT_EQ(out != nullptr, status == DS_OK);
  ds_string_free(out);
  return status;
}

// A world without its engine, which would hold the model.
class CapiInference : public ::testing::Test {
 protected:
  CapiInference() {
    ds_engine_destroy(world_.engine);
    world_.engine = nullptr;
    world_.optimizer = nullptr;
  }
  World world_;
};

std::vector<float> values_of(ds_tensor* tensor) {
  int64_t count = 0;
  EXPECT_DS_OK(ds_tensor_elements(tensor, &count));
  std::vector<float> values(static_cast<size_t>(count));
  EXPECT_DS_OK(ds_tensor_read(tensor, values.data(), count * 4));
  ds_tensor_destroy(tensor);
  return values;
}

std::vector<float> logits(ds_model* model, const ds_tensor* ids) {
  ds_tensor* out = nullptr;
  EXPECT_DS_OK(ds_model_logits(model, ids, nullptr, &out));
  return values_of(out);
}

std::string device_of(const ds_model* model) {
  char* out = nullptr;
  EXPECT_DS_OK(ds_model_device(model, &out));
  const std::string name = out == nullptr ? "" : out;
  ds_string_free(out);
  return name;
}

TEST_F(CapiInference, DevicesAreChosenByName) {
  EXPECT_EQ(device_of(world_.model), "cpu");
  EXPECT_DS_OK(ds_model_set_device(world_.model, "cpu"));
  for (const char* name : {"", "CPU", "gpu", "cuda:", "cuda:-1", "cuda:1x"}) {
    EXPECT_EQ(ds_model_set_device(world_.model, name), DS_ERR_INVALID_ARGUMENT) << name;
    EXPECT_THAT(ds_last_error_message(), HasSubstr("\"cuda:0\"")) << name;
  }
  char* text = nullptr;
  ASSERT_DS_OK(ds_report(&text));
  const ds::Json gpu = ds::Json::parse(text).at("gpu");
  ds_string_free(text);
  if (gpu.at("usable").get<bool>()) GTEST_SKIP() << "this machine has a GPU; tests/cuda uses it";
  EXPECT_EQ(ds_model_set_device(world_.model, "cuda:0"), DS_ERR_UNSUPPORTED);
  EXPECT_THAT(ds_last_error_message(), HasSubstr(gpu.at("reason").get<std::string>()));
  EXPECT_EQ(device_of(world_.model), "cpu");
  EXPECT_EQ(logits(world_.model, world_.ids), logits(world_.model, world_.ids));
}

TEST(CapiDevice, AnEngineHoldsItsModelWhereItIs) {
  World world;
  EXPECT_EQ(ds_model_set_device(world.model, "cpu"), DS_ERR_STATE);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("engine"));
  EXPECT_EQ(device_of(world.model), "cpu");
}

TEST_F(CapiInference, HostileOptionsAreRefusedByName) {
  const struct {
    const char* options;
    ds_status status;
    const char* message;
  } cases[] = {
      {"{\"weights\": \"int3\"}", DS_ERR_INVALID_ARGUMENT, "int3"},
      {"{\"weights\": 8}", DS_ERR_CONFIG, "/weights"},
      {"{\"wieghts\": \"int8\"}", DS_ERR_CONFIG, "did you mean \"weights\""},
      {"{\"group_size\": 12}", DS_ERR_CONFIG, "/group_size"},
      {"{\"group_size\": -64}", DS_ERR_CONFIG, "/group_size"},
      {"{\"group_size\": 1e300}", DS_ERR_CONFIG, "/group_size"},
      {"{\"group_size\": \"64\"}", DS_ERR_CONFIG, "/group_size"},
      {"{\"threads\": -1}", DS_ERR_CONFIG, "/threads"},
      {"{\"threads\": 100000000}", DS_ERR_CONFIG, "/threads"},
      {"{\"symmetric\": 1}", DS_ERR_CONFIG, "/symmetric"},
      {"[]", DS_ERR_CONFIG, "object"},
      {"{", DS_ERR_CONFIG, "inference options"},
  };
  const std::vector<float> before = logits(world_.model, world_.ids);
  for (const auto& c : cases) {
    EXPECT_EQ(prepare(world_.model, c.options), c.status) << c.options;
    EXPECT_THAT(ds_last_error_message(), HasSubstr(c.message)) << c.options;
  }
  EXPECT_EQ(logits(world_.model, world_.ids), before);
}

TEST_F(CapiInference, NullMeansTheDefaultsAndTheReportTellsThem) {
  char* out = nullptr;
  ASSERT_DS_OK(ds_model_prepare_inference(world_.model, nullptr, &out));
  const ds::Json report = ds::parse_json(out, "report", ds::Code::kConfig);
  ds_string_free(out);
  EXPECT_EQ(report.at("weights"), "bf16");
  EXPECT_GE(report.at("threads"), 1);
  int64_t parameters = 0;
  ASSERT_DS_OK(ds_model_parameter_count(world_.model, &parameters));
  EXPECT_EQ(report.at("bytes"), 2 * parameters);
  EXPECT_LT(report.at("bytes_per_token"), report.at("bytes"));
}

TEST_F(CapiInference, WhatGoesOnAndWhatDoesNot) {
  ASSERT_DS_OK(prepare(world_.model, R"({"weights": "int4", "group_size": 32, "threads": 1})"));
  // Reads give what products use; exports hold the same.
  ds_tensor* weight = nullptr;
  ASSERT_DS_OK(ds_model_get_tensor(world_.model, "h.0.attn.c_attn.weight", &weight));
  const std::vector<float> first = values_of(weight);
  const std::string folder = world_.folder.file("exported");
  ASSERT_DS_OK(ds_model_export(world_.model, folder.c_str(), DS_FLOAT32));
  ds_model* exported = nullptr;
  ASSERT_DS_OK(ds_model_open(folder.c_str(), &exported));
  ASSERT_DS_OK(ds_model_get_tensor(exported, "h.0.attn.c_attn.weight", &weight));
  EXPECT_EQ(values_of(weight), first);
  ds_model_destroy(exported);

  ds_tensor* new_ids = nullptr;
  ASSERT_DS_OK(ds_model_generate(world_.model, world_.list, nullptr, nullptr, nullptr, &new_ids));
  ds_tensor_destroy(new_ids);
  for (const float x : logits(world_.model, world_.ids)) ASSERT_TRUE(std::isfinite(x));

  EXPECT_EQ(prepare(world_.model, nullptr), DS_ERR_STATE);
  ds_engine* engine = nullptr;
  EXPECT_EQ(ds_engine_create(engine_config().c_str(), world_.model, nullptr, &engine),
            DS_ERR_STATE);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("prepared for inference"));
  EXPECT_EQ(ds_model_save(world_.model, world_.folder.file("s").c_str(), nullptr), DS_ERR_STATE);
  EXPECT_EQ(ds_model_set_trainable(world_.model, "*", 0), DS_ERR_STATE);
  ASSERT_DS_OK(ds_model_get_tensor(world_.model, "ln_f.weight", &weight));
  EXPECT_EQ(ds_model_set_tensor(world_.model, "ln_f.weight", weight), DS_ERR_STATE);
  ds_tensor_destroy(weight);
  EXPECT_EQ(ds_model_view_tensor(world_.model, "ln_f.weight", &weight), DS_ERR_STATE);
}

TEST(CapiInferenceEngine, AnEngineKeepsTheModel) {
  World world;
  EXPECT_EQ(prepare(world.model, nullptr), DS_ERR_STATE);
  ds_tensor* const loss = world.forward();
  EXPECT_DS_OK(ds_engine_backward(world.engine, loss));
  ds_tensor_destroy(loss);
}

}  // namespace
}  // namespace capi_test
