// Generators, and moving a model, through the C ABI: options, hostile and good, what a generator
// shares with its model, and the early end of a generation.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "capi/world.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;

// A generator, which the caller ends; none when it is refused.
ds_generator* prepare(ds_model* model, const char* options, ds_status expected = DS_OK) {
  ds_generator* out = nullptr;
  EXPECT_EQ(ds_generator_create(model, options, &out), expected)
      << options << ": " << ds_last_error_message();
  EXPECT_EQ(out != nullptr, expected == DS_OK);
  return out;
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
  const auto count = info_of(tensor).elements;
  std::vector<float> values(static_cast<size_t>(count));
  EXPECT_DS_OK(ds_tensor_read(tensor, values.data(), count * 4));
  ds_tensor_destroy(tensor);
  return values;
}

std::vector<float> logits(ds_generator* generator, const ds_tensor* ids) {
  const ds_batch batch = batch_of(ids);
  ds_tensor* out = nullptr;
  EXPECT_DS_OK(ds_generator_logits(generator, &batch, &out));
  return values_of(out);
}

std::string device_of(const ds_model* model) {
  const ds_model_info info = info_of(model);
  return info.device_kind == DS_DEVICE_CPU ? "cpu" : ds::str_cat("cuda:", info.device_index);
}

ds::Json machine_report() {
  char* text = nullptr;
  EXPECT_DS_OK(ds_report(&text));
  ds::Json report = ds::Json::parse(text);
  ds_string_free(text);
  return report;
}

TEST_F(CapiInference, DevicesAreChosenByName) {
  EXPECT_EQ(device_of(world_.model), "cpu");
  EXPECT_DS_OK(ds_model_set_device(world_.model, "cpu"));
  for (const char* name : {"", "CPU", "gpu", "cuda:", "cuda:-1", "cuda:1x"}) {
    EXPECT_EQ(ds_model_set_device(world_.model, name), DS_ERR_INVALID_ARGUMENT) << name;
    EXPECT_THAT(ds_last_error_message(), HasSubstr("\"cuda:0\"")) << name;
  }
  const ds::Json gpu = machine_report().at("gpu");
  if (gpu.at("usable").get<bool>()) GTEST_SKIP() << "this machine has a GPU; tests/cuda uses it";
  EXPECT_EQ(ds_model_set_device(world_.model, "cuda:0"), DS_ERR_UNSUPPORTED);
  EXPECT_THAT(ds_last_error_message(), HasSubstr(gpu.at("reason").get<std::string>()));
  EXPECT_EQ(device_of(world_.model), "cpu");
  EXPECT_EQ(logits(world_.generator, world_.ids), logits(world_.generator, world_.ids));
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
      {"{\"group_size\": 64}", DS_ERR_CONFIG, "needs \"weights\""},
      {"{\"weights\": \"bf16\", \"group_size\": 12}", DS_ERR_CONFIG, "/group_size"},
      {"{\"weights\": \"bf16\", \"group_size\": -64}", DS_ERR_CONFIG, "/group_size"},
      {"{\"weights\": \"bf16\", \"group_size\": 1e300}", DS_ERR_CONFIG, "/group_size"},
      {"{\"weights\": \"bf16\", \"group_size\": \"64\"}", DS_ERR_CONFIG, "/group_size"},
      {"{\"weights\": \"bf16\", \"threads\": -1}", DS_ERR_CONFIG, "/threads"},
      {"{\"weights\": \"bf16\", \"threads\": 100000000}", DS_ERR_CONFIG, "/threads"},
      {"{\"weights\": \"bf16\", \"symmetric\": 1}", DS_ERR_CONFIG, "/symmetric"},
      {R"({"weights": "int8", "int8_activations": 1})", DS_ERR_CONFIG, "/int8_activations"},
      {R"({"weights": "int8", "int8_activations": "some"})", DS_ERR_CONFIG,
       "must be false, true or \"all\""},
      {R"({"weights": "int8", "int8_activations": null})", DS_ERR_CONFIG, "/int8_activations"},
      {R"({"weights": "bf16", "int8_activations": true})", DS_ERR_CONFIG, "needs weights in"},
      {R"({"weights": "bf16", "int8_activations": "all"})", DS_ERR_CONFIG, "needs weights in"},
      {R"({"int8_activations": true})", DS_ERR_CONFIG, "needs \"weights\""},
      {R"({"weights": "int8", "overrides": [{"weights": "int4"}]})", DS_ERR_CONFIG, "match"},
      {R"({"weights": "int8", "overrides": [{"match": "x"}]})", DS_ERR_INVALID_ARGUMENT,
       "no matrix of a linear layer is named"},
      {R"({"weights": "int8", "overrides": [{"match": "*", "weights": "fp32"}]})",
       DS_ERR_INVALID_ARGUMENT, "cannot differ by fp32"},
      {R"({"weights": "int8", "overrides": [{"match": "*", "group_size": 9}]})", DS_ERR_CONFIG,
       "/overrides/0/group_size"},
      {R"({"overrides": []})", DS_ERR_CONFIG, "/overrides"},
      {R"({"offload_param": {"device": "nvme", "nvme_path": "/tmp"}})", DS_ERR_CONFIG,
       "/offload_param"},
      {R"({"weights": "int8", "offload_param": []})", DS_ERR_CONFIG, "/offload_param"},
      {R"({"weights": "int8", "offload_param": {"device": "tape"}})", DS_ERR_CONFIG,
       "/offload_param/device"},
      {R"({"weights": "int8", "offload_param": {"device": "nvme"}})", DS_ERR_CONFIG, "nvme_path"},
      {R"({"weights": "int8", "offload_param": {"device": "nvme", "nvme_path": "/dev/null/x"}})",
       DS_ERR_IO, "/dev/null/x"},
      {R"({"weights": "int8", "offload_param": {"device": "nvme", "nvme_path": "/tmp",
           "max_in_cpu": -1}})",
       DS_ERR_CONFIG, "/offload_param/max_in_cpu"},
      {R"({"kv_block_tokens": -1})", DS_ERR_CONFIG, "/kv_block_tokens"},
      {R"({"kv_block_tokens": 1.5})", DS_ERR_CONFIG, "/kv_block_tokens"},
      {R"({"kv_block_tokens": 1e9})", DS_ERR_CONFIG, "/kv_block_tokens"},
      {R"({"kv_pool_tokens": 64})", DS_ERR_CONFIG, "needs kv_block_tokens"},
      {R"({"kv_cache": "int4"})", DS_ERR_CONFIG, "must be auto (as the model computes) or int8"},
      {R"({"kv_cache": 8})", DS_ERR_CONFIG, "/kv_cache"},
      {R"({"kv_block_tokens": 16, "kv_pool_tokens": 15})", DS_ERR_CONFIG,
       "at least kv_block_tokens, 16"},
      {"[]", DS_ERR_CONFIG, "object"},
      {"{", DS_ERR_CONFIG, "generator options"},
  };
  const std::vector<float> before = logits(world_.generator, world_.ids);
  for (const auto& c : cases) {
    prepare(world_.model, c.options, c.status);
    EXPECT_THAT(ds_last_error_message(), HasSubstr(c.message)) << c.options;
  }
  EXPECT_EQ(logits(world_.generator, world_.ids), before);
}

ds_generator_info info_of_generator(const ds_generator* generator) {
  ds_generator_info info = DS_GENERATOR_INFO_INIT;
  EXPECT_DS_OK(ds_generator_describe(generator, &info));
  return info;
}

TEST_F(CapiInference, FormsAreToldBack) {
  EXPECT_EQ(info_of_generator(world_.generator).weights, DS_WEIGHTS_MODEL);
  EXPECT_EQ(info_of_generator(world_.generator).bytes, 0);
  ds_generator* const half = prepare(world_.model, R"({"weights": "bf16"})");
  ds_generator_info info = info_of_generator(half);
  EXPECT_EQ(info.weights, DS_WEIGHTS_BFLOAT16);
  EXPECT_GE(info.threads, 1);
  EXPECT_EQ(info.bytes, 2 * info_of(world_.model).elements);
  EXPECT_LT(info.bytes_per_token, info.bytes);
  EXPECT_EQ(info.bytes_saved, info.bytes) << "half of fp32";
  EXPECT_EQ(info_of_generator(world_.generator).bytes_saved, 0);
  ds_generator_destroy(half);
  ds_generator* const codes =
      prepare(world_.model, R"({"weights": "int4", "group_size": 32, "symmetric": false})");
  info = info_of_generator(codes);
  EXPECT_EQ(info.weights, DS_WEIGHTS_INT4);
  EXPECT_EQ(info.group_size, 32);
  EXPECT_EQ(info.symmetric, 0);
  EXPECT_EQ(info.bytes_saved, 4 * info_of(world_.model).elements - info.bytes);
  ds_generator_destroy(codes);
  // Some layers in another form: more bytes than int4 for all.
  ds_generator* const mixed = prepare(world_.model, R"({"weights": "int4", "group_size": 32,
      "symmetric": false, "overrides": [{"match": "h.0.*", "weights": "int8", "group_size": 16}]})");
  EXPECT_GT(info_of_generator(mixed).bytes, info.bytes);
  EXPECT_EQ(info_of_generator(mixed).weights, DS_WEIGHTS_INT4);
  ds_generator_destroy(mixed);
}

// Logits stay near those of float activations. (That the products of codes are right is for
// kernels_matmul to show; on CPUs without them the option changes nothing.)
bool is_usable(std::string_view name) {
  const ds::Json report = machine_report();
  for (const ds::Json& entry : report.at("compatibility")) {
    if (entry.at("feature") == name) return entry.at("usable").get<bool>();
  }
  ADD_FAILURE() << "the report has no " << name;
  return false;
}

TEST_F(CapiInference, ActivationsMayBeRoundedToo) {
  const bool rounds = is_usable("int8_activations");
  ds_tensor* const many = make_ids(3, 8, 11);  // more rows than each weight is read once for
  for (const char* const form : {"int8", "int4"}) {
    const std::string plain = ds::str_cat(R"({"weights": ")", form, R"(", "group_size": 32)");
    ds_generator* const floats = prepare(world_.model, (plain + "}").c_str());
    ds_generator* const codes =
        prepare(world_.model, (plain + R"(, "int8_activations": true})").c_str());
    ds_generator* const all =
        prepare(world_.model, (plain + R"(, "int8_activations": "all"})").c_str());
    const std::vector<float> expected = logits(floats, many), got = logits(codes, many);
    // Many rows are alike; few are rounded with "all" alone.
    EXPECT_EQ(logits(all, many), got) << form;
    EXPECT_EQ(logits(all, world_.ids) == logits(floats, world_.ids), !rounds) << form;
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_EQ(logits(codes, world_.ids), logits(floats, world_.ids)) << "16 rows";
    float largest = 0, far = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      far = std::max(far, std::abs(got[i] - expected[i]));
    }
    // Five products whose activations are off by 0.4 % of their largest.
    EXPECT_LE(far, 0.05f * largest) << form;
    EXPECT_EQ(far > 0, rounds) << form;
    ds_generator_destroy(all);
    ds_generator_destroy(floats);
    ds_generator_destroy(codes);
  }
  ds_tensor_destroy(many);
}

// A prepared copy runs by itself: what becomes of the model is not its business, nor the other way.
TEST_F(CapiInference, APreparedCopyStandsAlone) {
  ds_generator* const codes =
      prepare(world_.model, R"({"weights": "int4", "group_size": 32, "threads": 1})");
  const std::vector<float> before = logits(codes, world_.ids);
  for (const float x : before) ASSERT_TRUE(std::isfinite(x));
  // Reads give what products use: an fp32 model of these values agrees up to bf16 activations.
  const int64_t count = info_of(world_.model).parameters;
  for (int64_t i = 0; i < count; ++i) {
    ds_tensor* value = nullptr;
    ASSERT_DS_OK(ds_generator_get_parameter(codes, i, &value));
    ASSERT_DS_OK(ds_model_set_parameter(world_.model, i, value));
    ds_tensor_destroy(value);
  }
  EXPECT_EQ(logits(codes, world_.ids), before);
  ds_tensor* new_ids = nullptr;
  ASSERT_DS_OK(ds_generator_generate(codes, world_.list, nullptr, nullptr, nullptr, &new_ids));
  ds_tensor_destroy(new_ids);
  // The model trains, changes and ends.
  ASSERT_DS_OK(
      ds_engine_create(engine_config().c_str(), nullptr, world_.model, nullptr, &world_.engine));
  ASSERT_DS_OK(ds_engine_set_dataset(world_.engine, world_.dataset));
  ASSERT_DS_OK(ds_engine_train_batch(world_.engine, nullptr));
  ds_engine_destroy(world_.engine);
  ds_model_destroy(world_.model);
  world_.engine = nullptr;
  world_.model = nullptr;
  EXPECT_EQ(logits(codes, world_.ids), before);
  // The other generator keeps the model that it runs.
  EXPECT_FALSE(logits(world_.generator, world_.ids).empty());
  ds_generator_destroy(codes);
}

TEST(CapiInferenceEngine, AGeneratorFollowsTheTraining) {
  World world;
  const std::vector<float> before = logits(world.generator, world.ids);
  ds_generator* const copy = prepare(world.model, R"({"weights": "fp32"})");
  EXPECT_EQ(logits(copy, world.ids), before);
  ASSERT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
  EXPECT_NE(logits(world.generator, world.ids), before);
  EXPECT_EQ(logits(copy, world.ids), before);
  ds_generator_destroy(copy);
}

int64_t cache_bytes() {
  char* text = nullptr;
  EXPECT_DS_OK(ds_memory_report(&text));
  const ds::Json report = ds::Json::parse(text);
  ds_string_free(text);
  return report.at("host").at("tags").at("kv_cache").at("now").get<int64_t>();
}

// Keys and values in blocks: the same text, and memory that grows with it.
TEST_F(CapiInference, KeysAndValuesInBlocks) {
  struct Text {
    std::vector<int32_t> ids;
    std::vector<int64_t> bytes;  // of keys and values at each token
  };
  ds_generate_options options = DS_GENERATE_OPTIONS_INIT;
  options.max_tokens = 12;
  options.temperature = 1;
  options.seed = 7;
  const auto generate = [&](const char* form, ds_status expected = DS_OK) {
    ds_generator* const generator = prepare(world_.model, form);
    Text text;
    ds_tensor* out = nullptr;
    const auto on_token = [](void* data, int32_t id) -> int32_t {
      static_cast<Text*>(data)->ids.push_back(id);
      static_cast<Text*>(data)->bytes.push_back(cache_bytes());
      return 0;
    };
    EXPECT_EQ(ds_generator_generate(generator, world_.list, &options, on_token, &text, &out),
              expected)
        << ds_last_error_message();
    ds_tensor_destroy(out);
    ds_generator_destroy(generator);
    EXPECT_EQ(cache_bytes(), 0);
    return text;
  };
  for (const std::string weights : {"", R"(, "weights": "fp32")", R"(, "weights": "int8")"}) {
    const Text whole = generate(ds::str_cat(R"({"kv_block_tokens": 0)", weights, "}").c_str());
    ASSERT_EQ(whole.ids.size(), 12U);
    EXPECT_EQ(whole.bytes.front(), whole.bytes.back());
    for (const int size : {1, 2, 64}) {
      const Text blocks =
          generate(ds::str_cat(R"({"kv_block_tokens": )", size, weights, "}").c_str());
      EXPECT_EQ(blocks.ids, whole.ids) << weights << ", blocks of " << size;
      if (size < 64) {
        EXPECT_LT(blocks.bytes.front(), blocks.bytes.back());
      }
    }
  }
  const int64_t prompt = info_of(world_.list).elements;
  const std::string full =
      ds::str_cat(R"({"kv_block_tokens": 2, "kv_pool_tokens": )", prompt + 4, "}");
  const Text begun = generate(full.c_str(), DS_ERR_OUT_OF_MEMORY);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("a larger kv_pool_tokens makes room"));
  EXPECT_GE(begun.ids.size(), 4U);
  EXPECT_LT(begun.ids.size(), 12U);
}

// Keys and values in codes: less memory, and the same text with blocks of any size.
TEST_F(CapiInference, KeysAndValuesInCodes) {
  ds_generate_options options = DS_GENERATE_OPTIONS_INIT;
  options.max_tokens = 12;
  options.temperature = 1;
  options.seed = 7;
  struct Text {
    std::vector<int32_t> ids;
    int64_t bytes = 0;  // of keys and values at the last token
  };
  const auto generate = [&](const std::string& form) {
    ds_generator* const generator = prepare(world_.model, form.c_str());
    Text text;
    ds_tensor* out = nullptr;
    const auto on_token = [](void* data, int32_t id) -> int32_t {
      static_cast<Text*>(data)->ids.push_back(id);
      static_cast<Text*>(data)->bytes = cache_bytes();
      return 0;
    };
    EXPECT_DS_OK(ds_generator_generate(generator, world_.list, &options, on_token, &text, &out));
    ds_tensor_destroy(out);
    ds_generator_destroy(generator);
    EXPECT_EQ(cache_bytes(), 0);
    return text;
  };
  for (const std::string weights : {"", R"(, "weights": "bf16")", R"(, "weights": "int8")"}) {
    const Text whole = generate(R"({"kv_cache": "auto")" + weights + "}");
    const Text coded = generate(R"({"kv_cache": "int8")" + weights + "}");
    ASSERT_EQ(coded.ids.size(), 12U);
    EXPECT_LT(coded.bytes, whole.bytes);
    for (const int size : {1, 64}) {
      const std::string blocks = ds::str_cat(R"(, "kv_block_tokens": )", size);
      EXPECT_EQ(generate(R"({"kv_cache": "int8")" + blocks + weights + "}").ids, coded.ids)
          << weights << ", blocks of " << size;
    }
  }
}

// Another thread ends a generation before its next token.
TEST(CapiInferenceEngine, AGenerationIsInterrupted) {
  World world;
  ds_generate_options options = DS_GENERATE_OPTIONS_INIT;
  options.max_tokens = 1000;
  int seen = 0;
  struct Watch {
    ds_generator* generator;
    int* seen;
  } watch{world.generator, &seen};
  ds_tensor* out = nullptr;
  const auto on_token = [](void* data, int32_t) -> int32_t {
    const Watch& w = *static_cast<Watch*>(data);
    if (++*w.seen == 3) {
      EXPECT_DS_OK(ds_generator_interrupt(w.generator));
    }
    return 0;
  };
  EXPECT_EQ(ds_generator_generate(world.generator, world.list, &options, on_token, &watch, &out),
            DS_ERR_ABORTED);
  EXPECT_EQ(seen, 3);
  EXPECT_EQ(out, nullptr);
  // An interrupt without a generation has no effect on the next one.
  ASSERT_DS_OK(ds_generator_interrupt(world.generator));
  options.max_tokens = 4;
  EXPECT_DS_OK(
      ds_generator_generate(world.generator, world.list, &options, nullptr, nullptr, &out));
  EXPECT_EQ(info_of(out).elements, 4);
  ds_tensor_destroy(out);
}

}  // namespace
}  // namespace capi_test
