// Models, engines and optimizers through the C ABI: order of calls, wrong tensors, reports, and
// what may be read and set.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "capi/world.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;

std::vector<float> read(ds_tensor* tensor) {
  const auto count = info_of(tensor).elements;
  std::vector<float> values(static_cast<size_t>(count));
  EXPECT_DS_OK(ds_tensor_read(tensor, values.data(), count * 4));
  ds_tensor_destroy(tensor);
  return values;
}

ds_step_report report_struct() {
  ds_step_report report = {};
  report.struct_size = sizeof(report);
  return report;
}

std::vector<float> parameter(ds_model* model, const char* name) {
  ds_tensor* tensor = nullptr;
  EXPECT_DS_OK(ds_model_get_parameter(model, index_of(model, name), &tensor));
  return read(tensor);
}

TEST(CapiEngine, BoundariesAreTheCallers) {
  World world;
  for (const int32_t bad : {-2, 2, 7}) {
    EXPECT_EQ(ds_engine_set_boundary(world.engine, bad), DS_ERR_INVALID_ARGUMENT);
  }
  const auto step = [&] {
    EXPECT_DS_OK(ds_engine_backward(world.engine, world.forward()));
    ds_step_report report = report_struct();
    EXPECT_DS_OK(ds_engine_step(world.engine, &report));
    return report.applied != 0;
  };
  ASSERT_DS_OK(ds_engine_set_boundary(world.engine, 0));
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(step()) << i;
  ds_step_report report = report_struct();
  EXPECT_EQ(ds_engine_train_batch(world.engine, &report), DS_ERR_STATE);
  ASSERT_DS_OK(ds_engine_set_boundary(world.engine, 1));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(step()) << i;
  ASSERT_DS_OK(ds_engine_set_boundary(world.engine, -1));
}

TEST(CapiEngine, WrongOrderOfCalls) {
  World world;
  ds_step_report report = report_struct();
  EXPECT_EQ(ds_engine_step(world.engine, &report), DS_ERR_STATE);
  EXPECT_EQ(ds_engine_backward(world.engine, world.tensor), DS_ERR_STATE);
  ds_tensor* loss = world.forward();
  const ds_batch batch = batch_of(world.ids, world.ids);
  ds_tensor* second = nullptr;
  EXPECT_EQ(ds_engine_forward(world.engine, &batch, &second), DS_ERR_STATE);
  EXPECT_EQ(ds_engine_step(world.engine, &report), DS_ERR_STATE);
  EXPECT_EQ(ds_engine_train_batch(world.engine, &report), DS_ERR_STATE);
  EXPECT_EQ(ds_engine_save(world.engine, world.folder.file("s").c_str(), nullptr), DS_ERR_STATE);
  // The loss of this forward, and no other tensor.
  ds_tensor* other = nullptr;
  ASSERT_DS_OK(ds_tensor_create(DS_FLOAT32, nullptr, 0, &other));
  EXPECT_EQ(ds_engine_backward(world.engine, other), DS_ERR_INVALID_ARGUMENT);
  ds_tensor_destroy(other);
  ASSERT_DS_OK(ds_engine_backward(world.engine, loss));
  EXPECT_EQ(ds_engine_backward(world.engine, loss), DS_ERR_STATE);
  EXPECT_EQ(ds_engine_forward(world.engine, &batch, &second), DS_ERR_STATE);
  EXPECT_EQ(ds_model_set_parameter(world.model, index_of(world.model, "ln_f.weight"),
                                   world.tensor) == DS_OK,
            false);
  ASSERT_DS_OK(ds_engine_step(world.engine, &report));
  EXPECT_EQ(report.applied, 1);
  EXPECT_EQ(second, nullptr);
  ds_tensor_destroy(loss);
  ds_engine_set_dataset(world.engine, nullptr);
  EXPECT_EQ(ds_engine_train_batch(world.engine, nullptr), DS_ERR_STATE);
}

TEST(CapiEngine, WrongTensors) {
  World world;
  ds_tensor* loss = nullptr;
  const auto forward = [&](ds_tensor* ids, ds_tensor* labels, ds_tensor* mask) {
    const ds_batch batch = batch_of(ids, labels, mask);
    return ds_engine_forward(world.engine, &batch, &loss);
  };
  ds_tensor* shorter = make_ids(kBatch, 4, 1);
  ds_tensor* longer = make_ids(kBatch, kPositions + 1, 1);
  ds_tensor* floats = nullptr;
  const int64_t shape[] = {kBatch, 8};
  ASSERT_DS_OK(ds_tensor_create(DS_FLOAT32, shape, 2, &floats));
  EXPECT_EQ(forward(world.list, world.list, nullptr), DS_ERR_INVALID_ARGUMENT);  // one dimension
  EXPECT_EQ(forward(floats, world.ids, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("float32"));
  EXPECT_EQ(forward(world.ids, floats, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(forward(world.ids, shorter, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(forward(longer, longer, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(forward(world.ids, world.ids, shorter), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(forward(world.ids, world.ids, floats), DS_ERR_INVALID_ARGUMENT);
  std::vector<int32_t> values(static_cast<size_t>(kBatch * 8), 1);
  ds_tensor* bad = make_ids(kBatch, 8, 1);
  for (const int32_t id : {-1, static_cast<int32_t>(kVocab), INT32_MAX, INT32_MIN, -100}) {
    values[5] = id;
    ASSERT_DS_OK(ds_tensor_write(bad, values.data(), kBatch * 8 * 4));
    EXPECT_EQ(forward(bad, world.ids, nullptr), DS_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(ds_last_error_message(), HasSubstr(std::to_string(id)));
    if (id != -100) {
      EXPECT_EQ(forward(world.ids, bad, nullptr), DS_ERR_INVALID_ARGUMENT);
    }
  }
  EXPECT_EQ(forward(nullptr, world.ids, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("batch.ids is NULL"));
  EXPECT_EQ(forward(world.ids, nullptr, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("batch.labels is NULL"));
  EXPECT_EQ(ds_engine_forward(world.engine, nullptr, &loss), DS_ERR_INVALID_ARGUMENT);
  const ds_batch no_size{};
  EXPECT_EQ(ds_engine_forward(world.engine, &no_size, &loss), DS_ERR_INVALID_ARGUMENT);
  const ds_batch labelled = batch_of(world.ids, world.ids);
  EXPECT_EQ(ds_generator_logits(world.generator, &labelled, &loss), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("batch.labels must be NULL"));
  EXPECT_EQ(loss, nullptr);
  // After all that the engine works, also with a label that does not count.
  EXPECT_DS_OK(forward(world.ids, bad, world.ids));
  for (ds_tensor* t : {shorter, longer, floats, bad, loss}) ds_tensor_destroy(t);
}

TEST(CapiEngine, ReportOfOlderAndNewerCallers) {
  World world;
  struct Older {  // knew only the counters
    int64_t struct_size, step, micro_steps, samples, guard;
  } older = {32, -1, -1, -1, -1};
  ASSERT_DS_OK(ds_engine_train_batch(world.engine, reinterpret_cast<ds_step_report*>(&older)));
  EXPECT_EQ(older.struct_size, 32);
  EXPECT_EQ(older.step, 1);
  EXPECT_EQ(older.samples, kBatch);
  EXPECT_EQ(older.guard, -1);
  struct Newer {
    ds_step_report known;
    int64_t added;
  } newer = {};
  newer.known.struct_size = sizeof(newer);
  newer.added = -1;
  ASSERT_DS_OK(ds_engine_train_batch(world.engine, &newer.known));
  EXPECT_EQ(newer.known.step, 2);
  EXPECT_EQ(newer.known.tokens, kBatch * 8);
  EXPECT_GT(newer.known.loss, 0);
  EXPECT_GT(newer.known.grad_norm, 0);
  EXPECT_EQ(newer.known.lr, 1e-3);
  EXPECT_EQ(newer.known.loss_scale, 1);
  EXPECT_GT(newer.known.seconds, 0);
  EXPECT_EQ(newer.known.first_bad_parameter, -1);
  EXPECT_EQ(newer.added, 0);
}

TEST(CapiEngine, NonFiniteGradientsAreSkippedAndNamed) {
  World world;
  const std::vector<float> before = parameter(world.model, "wte.weight");
  ds_tensor* gain = nullptr;
  ASSERT_DS_OK(ds_model_get_parameter(world.model, index_of(world.model, "ln_f.weight"), &gain));
  std::vector<float> values(16, std::nanf(""));
  ASSERT_DS_OK(ds_tensor_write(gain, values.data(), 64));
  ASSERT_DS_OK(ds_model_set_parameter(world.model, index_of(world.model, "ln_f.weight"), gain));
  ds_tensor_destroy(gain);
  ds_step_report report = report_struct();
  ASSERT_DS_OK(ds_engine_train_batch(world.engine, &report));
  EXPECT_EQ(report.applied, 0);
  EXPECT_EQ(report.skip_reason, DS_SKIP_NON_FINITE);
  EXPECT_EQ(report.grad_norm, -1);
  EXPECT_GE(report.first_bad_parameter, 0);
  EXPECT_EQ(parameter(world.model, "wte.weight"), before);
}

TEST(CapiEngine, ClientStateConfigurationAndMemory) {
  World world;
  char* text = nullptr;
  ASSERT_DS_OK(ds_engine_client_state(world.engine, &text));
  EXPECT_EQ(take(text), "null");
  ASSERT_DS_OK(ds_engine_set_client_state(world.engine, R"({"epoch": 3, "b": [1]})"));
  EXPECT_EQ(ds_engine_set_client_state(world.engine, "{nonsense"), DS_ERR_INVALID_ARGUMENT);
  ASSERT_DS_OK(ds_engine_client_state(world.engine, &text));
  EXPECT_EQ(take(text), R"({"epoch":3,"b":[1]})");
  const std::string folder = world.folder.file("saved");
  ASSERT_DS_OK(ds_engine_save(world.engine, folder.c_str(), "with state"));
  ASSERT_DS_OK(ds_engine_set_client_state(world.engine, nullptr));
  ASSERT_DS_OK(ds_engine_load(world.engine, folder.c_str(), nullptr, nullptr));
  ASSERT_DS_OK(ds_engine_client_state(world.engine, &text));
  EXPECT_EQ(take(text), R"({"epoch":3,"b":[1]})");

  ASSERT_DS_OK(ds_engine_config(world.engine, &text));
  const ds::Json config = ds::parse_json(take(text), "config", ds::Code::kInternal);
  EXPECT_EQ(config.at("config").at("train_micro_batch_size_per_gpu"), kBatch);
  EXPECT_TRUE(config.at("origins").is_object());
  EXPECT_TRUE(config.at("warnings").is_array());

  ASSERT_DS_OK(ds_engine_memory_report(world.engine, &text));
  const ds::Json memory = ds::parse_json(take(text), "memory", ds::Code::kInternal);
  EXPECT_GT(memory.at("tags").at("parameters").at("now").get<int64_t>(), 0);
}

TEST(CapiEngine, RefusesConfigurationsAndPlaces) {
  World world;
  ds_engine_destroy(world.engine);
  ds_engine* out = nullptr;
  for (const char* config :
       {"", "[]", "{", R"({"train_batch_sise": 3})", R"({"train_batch_size": "many"})"}) {
    EXPECT_EQ(ds_engine_create(config, nullptr, world.model, nullptr, &out), DS_ERR_CONFIG)
        << config << ": " << ds_last_error_message();
  }
  EXPECT_EQ(out, nullptr);
  // A refused configuration leaves the model free.
  ASSERT_DS_OK(
      ds_engine_create(engine_config().c_str(), nullptr, world.model, nullptr, &world.engine));
  EXPECT_EQ(ds_engine_load(world.engine, "/no/such/folder", nullptr, nullptr), DS_ERR_NOT_FOUND);
  EXPECT_EQ(ds_engine_save(world.engine, "", nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_engine_save(world.engine, world.folder.file("x").c_str(), ""),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_engine_save(world.engine, world.folder.file("x").c_str(), "../up"),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_engine_save(world.engine, world.folder.file("x").c_str(), "\xFF"),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_engine_save(world.engine, world.folder.file("text.txt").c_str(), nullptr),
            DS_ERR_IO);
  EXPECT_EQ(ds_checkpoint_verify(world.folder.path().c_str(), nullptr), DS_ERR_NOT_FOUND);
  ds_model* model = nullptr;
  EXPECT_EQ(ds_model_create(R"({"model_type": "never heard of"})", 1, &model), DS_ERR_UNSUPPORTED);
  EXPECT_EQ(ds_model_create("{}", 1, &model) == DS_OK, false);
  EXPECT_EQ(ds_model_open("/no/such/folder", nullptr, &model), DS_ERR_NOT_FOUND);
  EXPECT_EQ(model, nullptr);
}

TEST(CapiEngine, DamageIsFoundAndNamed) {
  World world;
  const std::string folder = world.folder.file("saved");
  ASSERT_DS_OK(ds_engine_save(world.engine, folder.c_str(), "one"));
  ASSERT_DS_OK(ds_checkpoint_verify(folder.c_str(), "one"));
  // One byte in the middle of the largest file.
  std::filesystem::path largest;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() &&
        (largest.empty() || entry.file_size() > std::filesystem::file_size(largest))) {
      largest = entry.path();
    }
  }
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(largest) / 2);
  {
    std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(middle);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(middle);
    file.put(byte);
  }
  EXPECT_EQ(ds_checkpoint_verify(folder.c_str(), nullptr), DS_ERR_CORRUPT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr(largest.filename().string()));
  // An engine that has trained keeps its state; one that has not is closed until a load succeeds.
  EXPECT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
  EXPECT_EQ(ds_engine_load(world.engine, folder.c_str(), "one", nullptr), DS_ERR_CORRUPT);
  EXPECT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
  ASSERT_DS_OK(ds_engine_save(world.engine, folder.c_str(), "two"));
  ASSERT_DS_OK(ds_engine_load(world.engine, folder.c_str(), "two", nullptr));
  EXPECT_EQ(ds_engine_load(world.engine, folder.c_str(), "one", nullptr), DS_ERR_CORRUPT);
  const std::string copy = world.folder.file("copy");
  ds_tensor* out = nullptr;
  const ds_batch batch = batch_of(world.ids);
  for (const ds_status status :
       {ds_engine_train_batch(world.engine, nullptr),
        ds_engine_save(world.engine, folder.c_str(), "three"),
        ds_model_get_parameter(world.model, index_of(world.model, "wte.weight"), &out),
        ds_generator_logits(world.generator, &batch, &out),
        ds_model_export(world.model, copy.c_str(), DS_FLOAT32, 0)}) {
    EXPECT_EQ(status, DS_ERR_STATE);
    EXPECT_THAT(ds_last_error_message(), HasSubstr("incomplete"));
  }
  EXPECT_EQ(out, nullptr);
  EXPECT_FALSE(std::filesystem::exists(copy));
  EXPECT_DS_OK(ds_engine_load(world.engine, folder.c_str(), nullptr, nullptr));
  EXPECT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
  // Nor is one that has trained spared if it gives that up.
  EXPECT_EQ(ds_engine_load(world.engine, folder.c_str(), "one", R"({"restore_on_failure": false})"),
            DS_ERR_CORRUPT);
  EXPECT_EQ(ds_engine_train_batch(world.engine, nullptr), DS_ERR_STATE);
  EXPECT_DS_OK(
      ds_engine_load(world.engine, folder.c_str(), nullptr, R"({"restore_on_failure": false})"));
  EXPECT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
}

TEST(CapiEngine, LoadsInPart) {
  World world;
  const std::string folder = world.folder.file("saved");
  EXPECT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
  ASSERT_DS_OK(ds_engine_save(world.engine, folder.c_str(), "one"));
  const std::vector<float> saved = parameter(world.model, "wte.weight");
  EXPECT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
  const auto load = [&](const char* options) {
    return ds_engine_load(world.engine, folder.c_str(), "one", options);
  };
  const auto step = [&] { return info_of(world.engine).step; };
  const auto optimizer_steps = [&] { return info_of(world.optimizer).steps; };
  ASSERT_DS_OK(load(R"({"load_module_only": true})"));
  EXPECT_EQ(parameter(world.model, "wte.weight"), saved);
  EXPECT_EQ(step(), 2);
  EXPECT_EQ(optimizer_steps(), 2);
  ASSERT_DS_OK(load(R"({"load_optimizer_states": false})"));
  EXPECT_EQ(step(), 1);
  EXPECT_EQ(optimizer_steps(), 2);
  ASSERT_DS_OK(load(nullptr));
  EXPECT_EQ(optimizer_steps(), 1);
  ASSERT_DS_OK(load(R"({"strict": true, "load_module_strict": true,
                        "load_lr_scheduler_states": true})"));

  EXPECT_EQ(load(R"({"load_module_onli": true})"), DS_ERR_CONFIG);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("did you mean \"load_module_only\"?"));
  EXPECT_EQ(load(R"({"strict": 1})"), DS_ERR_CONFIG);
  EXPECT_EQ(load("[]"), DS_ERR_CONFIG);
  EXPECT_EQ(ds_engine_load(world.engine, folder.c_str(), "two", nullptr), DS_ERR_NOT_FOUND);
  EXPECT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
}

TEST(CapiCheckpoint, IsListedByStepsAndDeleted) {
  World world;
  const std::string folder = world.folder.file("saved");
  for (int i = 0; i < 11; ++i) {
    EXPECT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
    if (i < 8) continue;
    ASSERT_DS_OK(ds_engine_save(world.engine, folder.c_str(), nullptr));
  }
  const auto inspect = [&] {
    char* text = nullptr;
    EXPECT_DS_OK(ds_checkpoint_inspect(folder.c_str(), nullptr, &text));
    return ds::parse_json(take(text), "checkpoint", ds::Code::kInternal);
  };
  ds::Json document = inspect();
  EXPECT_EQ(document.at("tags"), ds::Json({"global_step9", "global_step10", "global_step11"}));
  EXPECT_EQ(document.at("run").get<std::string>().size(), 32u);
  for (const ds::Json& run : document.at("runs")) EXPECT_EQ(run, document.at("run"));
  EXPECT_EQ(document.at("config").at("train_micro_batch_size_per_gpu"), kBatch);

  ASSERT_DS_OK(ds_checkpoint_delete(folder.c_str(), "global_step11"));
  document = inspect();
  EXPECT_EQ(document.at("tag"), "global_step10");
  EXPECT_EQ(document.at("tags"), ds::Json({"global_step9", "global_step10"}));
  EXPECT_EQ(ds_checkpoint_delete(folder.c_str(), "global_step11"), DS_ERR_NOT_FOUND);
  EXPECT_EQ(ds_checkpoint_delete(folder.c_str(), nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_checkpoint_delete(folder.c_str(), ""), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_checkpoint_delete(folder.c_str(), ".."), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_checkpoint_delete(nullptr, "global_step9"), DS_ERR_INVALID_ARGUMENT);
}

TEST(CapiModel, WeightsInAndOut) {
  World world;
  const int64_t count = info_of(world.model).parameters, total = info_of(world.model).elements;
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    char* name = nullptr;
    ASSERT_DS_OK(ds_model_parameter_name(world.model, i, &name));
    sum += static_cast<int64_t>(parameter(world.model, name).size());
    ds_string_free(name);
  }
  EXPECT_EQ(sum, total);
  char* name = nullptr;
  EXPECT_EQ(ds_model_parameter_name(world.model, -1, &name), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_model_parameter_name(world.model, count, &name), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(name, nullptr);
  ds_tensor* tensor = nullptr;
  int64_t index = -7;
  EXPECT_EQ(ds_model_parameter_index(world.model, "ln_f.wieght", &index), DS_ERR_NOT_FOUND);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("ln_f.weight"));
  EXPECT_EQ(ds_model_parameter_index(world.model, "\xFF\xFE", &index), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(index, -7);
  for (const int64_t bad : {int64_t{-1}, count, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(ds_model_get_parameter(world.model, bad, &tensor), DS_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(ds_last_error_message(), HasSubstr("parameter is " + std::to_string(bad)));
    EXPECT_EQ(ds_model_view_parameter(world.model, bad, &tensor), DS_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(ds_engine_view_gradient(world.engine, bad, &tensor), DS_ERR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(ds_model_set_parameter(world.model, index_of(world.model, "ln_f.weight"), world.tensor),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_model_set_parameter(world.model, index_of(world.model, "ln_f.weight"), world.list),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(tensor, nullptr);

  const std::string folder = world.folder.file("exported");
  EXPECT_EQ(ds_model_export(world.model, folder.c_str(), DS_INT8, 0), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_model_export(world.model, folder.c_str(), 99, 0), DS_ERR_INVALID_ARGUMENT);
  ASSERT_DS_OK(ds_model_export(world.model, folder.c_str(), DS_FLOAT32, 0));
  ds_model* again = nullptr;
  ASSERT_DS_OK(ds_model_open(folder.c_str(), nullptr, &again));
  EXPECT_EQ(parameter(again, "wte.weight"), parameter(world.model, "wte.weight"));
  ds_tensor *first = nullptr, *second = nullptr;
  const ds_batch batch = batch_of(world.ids);
  ASSERT_DS_OK(ds_generator_logits(world.generator, &batch, &first));
  ds_generator* other = nullptr;
  ASSERT_DS_OK(ds_generator_create(again, nullptr, &other));
  ASSERT_DS_OK(ds_generator_logits(other, &batch, &second));
  ds_generator_destroy(other);
  EXPECT_EQ(read(first), read(second));
  ds_model_destroy(again);
}

TEST(CapiModel, GenerateChecksItsArguments) {
  World world;
  ds_tensor* out = nullptr;
  ds_generate_options options = {};
  const auto generate = [&](ds_tensor* prompt) {
    options.struct_size = sizeof(options);
    return ds_generator_generate(world.generator, prompt, &options, nullptr, nullptr, &out);
  };
  ds_tensor* outside = make_list({1, static_cast<int32_t>(kVocab)});
  ds_tensor* empty = make_list({});
  EXPECT_EQ(generate(outside), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(generate(empty), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(generate(world.ids), DS_ERR_INVALID_ARGUMENT);     // two dimensions
  EXPECT_EQ(generate(world.tensor), DS_ERR_INVALID_ARGUMENT);  // floats
  options.temperature = -1;
  EXPECT_EQ(generate(world.list), DS_ERR_INVALID_ARGUMENT);
  options = {};
  options.top_k = -1;
  EXPECT_EQ(generate(world.list), DS_ERR_INVALID_ARGUMENT);
  options = {};
  options.top_p = 1.5;
  EXPECT_EQ(generate(world.list), DS_ERR_INVALID_ARGUMENT);
  options = {};
  options.temperature = std::nan("");
  EXPECT_EQ(generate(world.list), DS_ERR_INVALID_ARGUMENT);
  options = {};
  options.reserved = 1;
  EXPECT_EQ(generate(world.list), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(out, nullptr);
  // Same seed, same text; the stop token ends it and is left out.
  const auto sample = [&](int64_t seed) {
    options = {};
    options.temperature = 1;
    options.max_tokens = 40;
    options.seed = seed;
    EXPECT_DS_OK(generate(world.list));
    const auto count = info_of(out).elements;
    std::vector<int32_t> ids(static_cast<size_t>(count));
    EXPECT_DS_OK(ds_tensor_read(out, ids.data(), count * 4));
    ds_tensor_destroy(out);
    return ids;
  };
  const std::vector<int32_t> ids = sample(5);
  EXPECT_EQ(ids.size(), 40u);
  EXPECT_EQ(sample(5), ids);
  EXPECT_NE(sample(6), ids);
  ds_tensor_destroy(outside);
  ds_tensor_destroy(empty);
}

TEST(CapiOptimizer, ReadsAndSets) {
  World world;
  EXPECT_EQ(info_of(world.optimizer).lr, 1e-3);
  ASSERT_DS_OK(ds_optimizer_set_lr(world.optimizer, 5e-4));
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(ds_optimizer_set_lr(world.optimizer, bad), DS_ERR_INVALID_ARGUMENT);
  }
  ds_step_report report = report_struct();
  ASSERT_DS_OK(ds_engine_train_batch(world.engine, &report));
  EXPECT_EQ(report.lr, 5e-4);
  EXPECT_EQ(info_of(world.optimizer).steps, 1);
  const int64_t gain = index_of(world.model, "ln_f.weight");
  const auto get = [&](const char* state, ds_tensor** out) {
    return ds_engine_get_values(world.engine, gain, DS_VALUE_STATE, state, DS_EXTENT_WHOLE, out);
  };
  const auto set = [&](const char* state, const ds_tensor* value) {
    return ds_engine_set_values(world.engine, gain, DS_VALUE_STATE, state, DS_EXTENT_WHOLE, value);
  };
  ds_tensor* moment = nullptr;
  ASSERT_DS_OK(get("exp_avg", &moment));
  EXPECT_DS_OK(set("exp_avg_sq", moment));
  const std::vector<float> values = read(moment);
  moment = nullptr;
  EXPECT_NE(values, std::vector<float>(16, 0.0F));
  ASSERT_DS_OK(get("exp_avg_sq", &moment));
  EXPECT_EQ(read(moment), values);
  moment = nullptr;
  for (const char* const name : {"momentum", "parameter", "gradient", ""}) {
    EXPECT_EQ(get(name, &moment), DS_ERR_NOT_FOUND) << name;
  }
  EXPECT_EQ(get(nullptr, &moment), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(set("exp_avg", world.tensor), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(moment, nullptr);
}

// One address for everything that a parameter has, whole and this process's part.
TEST(CapiValues, KindsAndExtents) {
  World world;
  EXPECT_DS_OK(ds_engine_backward(world.engine, world.forward()));
  for (const ds_value_kind kind : {DS_VALUE_PARAMETER, DS_VALUE_GRADIENT, DS_VALUE_STATE}) {
    const char* const state = kind == DS_VALUE_STATE ? "exp_avg" : nullptr;
    SCOPED_TRACE(kind);
    ds_tensor *whole = nullptr, *local = nullptr;
    ASSERT_DS_OK(ds_engine_get_values(world.engine, 0, kind, state, DS_EXTENT_WHOLE, &whole));
    ASSERT_DS_OK(ds_engine_get_values(world.engine, 0, kind, state, DS_EXTENT_LOCAL, &local));
    EXPECT_EQ(info_of(whole).ndim, 2);
    EXPECT_EQ(info_of(local).ndim, 1);
    int64_t first = -1, count = -1;
    ASSERT_DS_OK(ds_engine_local_range(world.engine, 0, &first, &count));
    EXPECT_EQ(first, 0);
    EXPECT_EQ(info_of(local).elements, count);
    // What is set is what is got: one set and the other read.
    std::vector<float> values = read(local);
    for (float& x : values) x = x * 0.5f + 1;
    ASSERT_DS_OK(ds_tensor_write(whole, values.data(), count * 4));
    ASSERT_DS_OK(ds_engine_set_values(world.engine, 0, kind, state, DS_EXTENT_WHOLE, whole));
    ds_tensor_destroy(whole);
    ASSERT_DS_OK(ds_engine_get_values(world.engine, 0, kind, state, DS_EXTENT_LOCAL, &local));
    EXPECT_EQ(read(local), values);
  }
  ds_tensor* none = nullptr;
  for (const int32_t bad : {-1, 0, 4}) {
    EXPECT_EQ(ds_engine_get_values(world.engine, 0, bad, nullptr, DS_EXTENT_WHOLE, &none),
              DS_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(ds_engine_get_values(world.engine, 0, DS_VALUE_GRADIENT, nullptr, bad, &none),
              bad == 0 || bad == -1 || bad == 4 ? DS_ERR_INVALID_ARGUMENT : DS_OK);
  }
  EXPECT_EQ(
      ds_engine_get_values(world.engine, 0, DS_VALUE_GRADIENT, "exp_avg", DS_EXTENT_WHOLE, &none),
      DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("state must be NULL"));
  EXPECT_EQ(none, nullptr);
}

TEST(CapiBlobs, AreSavedAndComeBack) {
  World world;
  const std::string folder = world.folder.file("saved");
  const std::string random("\0\xFF state", 8), name = "loader \xC3\xA4";
  const auto blob = [&](const char* of) {
    ds_tensor* out = nullptr;
    EXPECT_DS_OK(ds_engine_blob(world.engine, of, &out));
    std::string bytes(static_cast<size_t>(info_of(out).elements), '\0');
    EXPECT_EQ(info_of(out).dtype, DS_UINT8);
    EXPECT_DS_OK(ds_tensor_read(out, bytes.data(), static_cast<int64_t>(bytes.size())));
    ds_tensor_destroy(out);
    return bytes;
  };
  ASSERT_DS_OK(ds_engine_set_blob(world.engine, name.c_str(), random.data(), 8));
  ASSERT_DS_OK(ds_engine_set_blob(world.engine, "two", "second", 6));
  ASSERT_DS_OK(ds_engine_save(world.engine, folder.c_str(), nullptr));
  ASSERT_DS_OK(ds_engine_set_blob(world.engine, "two", nullptr, 0));
  ASSERT_DS_OK(ds_engine_set_blob(world.engine, name.c_str(), "other", 5));
  ds_tensor* none = nullptr;
  EXPECT_EQ(ds_engine_blob(world.engine, "two", &none), DS_ERR_NOT_FOUND);
  EXPECT_EQ(none, nullptr);
  ASSERT_DS_OK(ds_engine_load(world.engine, folder.c_str(), nullptr, nullptr));
  EXPECT_EQ(blob(name.c_str()), random);
  EXPECT_EQ(blob("two"), "second");
  char* text = nullptr;
  ASSERT_DS_OK(ds_engine_blobs(world.engine, &text));
  EXPECT_EQ(ds::parse_json(take(text), "blobs", ds::Code::kInternal),
            (ds::Json{{name, 8}, {"two", 6}}));

  EXPECT_EQ(ds_engine_set_blob(world.engine, "", "x", 1), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_engine_set_blob(world.engine, std::string(201, 'n').c_str(), "x", 1),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_engine_set_blob(world.engine, "x", nullptr, 3), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_engine_set_blob(world.engine, "x", "x", -1), DS_ERR_INVALID_ARGUMENT);
  const std::vector<char> large((size_t{64} << 20) - 13);
  EXPECT_EQ(ds_engine_set_blob(world.engine, "x", large.data(), static_cast<int64_t>(large.size())),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("at most 67108864"));
}

}  // namespace
}  // namespace capi_test
