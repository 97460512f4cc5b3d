// What a program hears of an engine's calls and steps, and how it ends a call early: progress,
// interrupts, losses of its own, the gradient that is not finite, copies of the model.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "capi/world.h"
#include "ds.hpp"

namespace capi_test {
namespace {

using libds::Engine;
using libds::Model;
using libds::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string accumulating_config(int64_t accumulation, const std::string& more = "") {
  return ds::str_cat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
                     accumulation, R"(, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}})",
                     more, "}");
}

struct Trainer {
  explicit Trainer(const std::string& config)
      : model(Model::create(model_config(), 1)), engine(config, model) {
    std::ofstream(folder.file("text.txt")) << sample_text(7);
    const std::string spec = ds::str_cat(R"({"path": ")", folder.file("text.txt"),
                                         R"(", "sequence_length": 8, "split": "1"})");
    data = libds::Dataset::open(spec, &tokenizer);
    engine.set_dataset(&data);
  }
  TemporaryFolder folder;
  libds::Tokenizer tokenizer = libds::Tokenizer::bytes();
  libds::Dataset data;
  Model model;
  Engine engine;
};

std::vector<float> values(const Model& model, const std::string& name) {
  return model.parameter(name).to_vector<float>();
}

int status_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const libds::Error& error) {
    return error.status();
  }
  return DS_OK;
}

TEST(CapiControl, ProgressTellsEveryPart) {
  Trainer t(accumulating_config(3));
  std::vector<std::string> heard;
  t.engine.set_progress([&](const char* call, int64_t done, int64_t total) {
    heard.push_back(ds::str_cat(call, " ", done, "/", total));
    return true;
  });
  t.engine.train_batch();
  t.engine.evaluate(t.data, 2);
  EXPECT_THAT(heard, ElementsAre("train_batch 0/3", "train_batch 1/3", "train_batch 2/3",
                                 "evaluate 0/2", "evaluate 1/2"));
  t.engine.set_progress({});
  t.engine.train_batch();
  EXPECT_EQ(heard.size(), 5u);
}

// A training call that was ended in the middle of a step goes on with it: the same bits.
TEST(CapiControl, AnEndedStepGoesOn) {
  Trainer whole(accumulating_config(4)), cut(accumulating_config(4));
  int calls = 0;
  cut.engine.set_progress(
      [&](const char*, int64_t done, int64_t) { return !(done == 2 && calls++ == 0); });
  EXPECT_EQ(status_of([&] { cut.engine.train_batch(); }), DS_ERR_CALLBACK);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("train_batch after 2 of 4 parts"));
  const libds::StepReport a = whole.engine.train_batch(), b = cut.engine.train_batch();
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(b.step, 1);
  EXPECT_EQ(values(whole.model, "h.0.attn.c_attn.weight"),
            values(cut.model, "h.0.attn.c_attn.weight"));
}

// Given up instead, it is trained anew with the samples that it had read: the same bits.
TEST(CapiControl, AGivenUpStepReadsItsSamplesAgain) {
  Trainer whole(accumulating_config(4)), cut(accumulating_config(4));
  for (const int64_t end : {1, 3, 2}) {
    cut.engine.set_progress([&](const char*, int64_t done, int64_t) { return done < end; });
    EXPECT_EQ(status_of([&] { cut.engine.train_batch(); }), DS_ERR_CALLBACK);
    cut.engine.discard_gradients();
    cut.engine.set_progress({});
    const libds::StepReport a = whole.engine.train_batch(), b = cut.engine.train_batch();
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.samples, b.samples);
    EXPECT_EQ(a.micro_steps, b.micro_steps);
    EXPECT_EQ(a.tokens, b.tokens);
  }
  EXPECT_EQ(values(whole.model, "h.0.attn.c_attn.weight"),
            values(cut.model, "h.0.attn.c_attn.weight"));
}

// A load that is ended before it has read anything has changed nothing.
TEST(CapiControl, ALoadThatIsEndedAtOnceChangesNothing) {
  const std::string config = accumulating_config(1);
  Trainer trained(config), plain(config), fresh(config), fresh_plain(config);
  for (Trainer* t : {&trained, &plain}) t->engine.train_batch();
  const std::string saved = trained.folder.file("saved");
  trained.engine.save(saved, "a");
  for (Trainer* t : {&trained, &plain}) t->engine.train_batch();
  for (Trainer* t : {&trained, &fresh}) {
    t->engine.set_progress([](const char*, int64_t, int64_t) { return false; });
    EXPECT_EQ(status_of([&] { t->engine.load(saved, "a"); }), DS_ERR_CALLBACK);
    EXPECT_THAT(ds_last_error_message(), HasSubstr("load after 0 of"));
    t->engine.set_progress({});
  }
  const auto expect_alike = [](Trainer& one, Trainer& other) {
    const libds::StepReport a = one.engine.train_batch(), b = other.engine.train_batch();
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(values(one.model, "wte.weight"), values(other.model, "wte.weight"));
  };
  expect_alike(trained, plain);
  expect_alike(fresh, fresh_plain);
  for (Trainer* t : {&trained, &fresh}) t->engine.load(saved, "a");
  expect_alike(trained, fresh);
}

TEST(CapiControl, AnotherThreadInterrupts) {
  Trainer t(accumulating_config(1));
  EXPECT_EQ(status_of([&] { t.engine.interrupt(); }), DS_OK);  // nothing runs: nothing happens
  t.engine.train_batch();
  std::atomic<bool> inside{false}, sent{false};
  t.engine.set_progress([&](const char*, int64_t, int64_t) {
    inside = true;
    while (!sent) std::this_thread::yield();
    return true;
  });
  std::thread other([&] {
    while (!inside) std::this_thread::yield();
    t.engine.interrupt();
    sent = true;
  });
  EXPECT_EQ(status_of([&] { t.engine.evaluate(t.data); }), DS_ERR_ABORTED);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("evaluate was interrupted"));
  other.join();
  t.engine.set_progress({});
  EXPECT_EQ(t.engine.train_batch().step, 2);  // and the engine goes on
}

TEST(CapiControl, TheEngineIsClosedToItsOwnCallback) {
  Trainer t(accumulating_config(1));
  int32_t status = DS_OK;
  t.engine.set_progress([&](const char*, int64_t, int64_t) {
    ds_engine_info info = DS_ENGINE_INFO_INIT;
    status = ds_engine_describe(t.engine.get(), &info);
    return true;
  });
  t.engine.train_batch();
  EXPECT_EQ(status, DS_ERR_STATE);
}

TEST(CapiControl, ProgressIsReleasedOnce) {
  int released = 0;
  {
    Trainer t(accumulating_config(1));
    const auto release = [](void* count) { ++*static_cast<int*>(count); };
    const ds_progress_fn go_on = [](void*, const char*, int64_t, int64_t) -> int32_t { return 0; };
    ASSERT_DS_OK(ds_engine_set_progress(t.engine.get(), go_on, &released, release));
    EXPECT_EQ(ds_engine_set_progress(nullptr, go_on, &released, release), DS_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(released, 0);
    ASSERT_DS_OK(ds_engine_set_progress(t.engine.get(), go_on, &released, release));
    EXPECT_EQ(released, 1);
  }
  EXPECT_EQ(released, 2);
}

// ---- losses of the caller ----

struct OwnGradients {
  explicit OwnGradients(const std::string& config) : model(make()), engine(config, model) {}
  static Model make() {
    libds::Parameter w;
    w.name = "w";
    w.shape = {4};
    return Model::from_parameters({w});
  }
  void add(float value) {
    const std::vector<float> data(4, value);
    add(data);
  }
  void add(const std::vector<float>& data) {
    const int64_t shape[] = {4};
    ds_tensor* made = nullptr;
    EXPECT_DS_OK(ds_tensor_create(DS_FLOAT32, shape, 1, &made));
    EXPECT_DS_OK(ds_tensor_write(made, data.data(), 16));
    const Tensor gradient(made);
    engine.add_gradient(0, gradient);
  }
  Model model;
  Engine engine;
};

TEST(CapiControl, LossesOfTheCallerAreReported) {
  OwnGradients own(accumulating_config(2));
  own.add(1);
  own.engine.set_loss(7);
  own.engine.set_loss(3);  // replaces
  EXPECT_EQ(own.engine.step().loss, 3);
  own.add(1);
  own.engine.set_loss(4);
  const libds::StepReport report = own.engine.step();
  EXPECT_TRUE(report.applied);
  EXPECT_EQ(report.loss, 3.5);
  own.add(1);
  EXPECT_TRUE(std::isnan(own.engine.step().loss));
  own.engine.set_loss(5);
  own.add(1);
  EXPECT_EQ(own.engine.step().loss, 5);  // of the micro batches that had one
  own.add(1);
  own.engine.set_loss(9);
  own.engine.discard_gradients();
  own.add(1);
  own.engine.step();
  own.add(1);
  EXPECT_TRUE(std::isnan(own.engine.step().loss));
}

TEST(CapiControl, ALossOfTheForwardCannotBeReplaced) {
  World world;
  ds_tensor* const loss = world.forward();
  EXPECT_EQ(ds_engine_set_loss(world.engine, 1), DS_ERR_STATE);
  ds_tensor_destroy(loss);
}

TEST(CapiControl, MonitorsShowTheLossOnlyWhenThereIsOne) {
  TemporaryFolder folder;
  OwnGradients own(
      accumulating_config(1, ds::str_cat(R"(, "jsonl_monitor": {"enabled": true, "output_path": ")",
                                         folder.path().string(), R"(", "job_name": "job"})")));
  own.add(1);
  own.engine.step();
  own.add(1);
  own.engine.set_loss(2.5);
  own.engine.step();
  std::ifstream file(folder.path() / "job" / "metrics.jsonl");
  std::vector<ds::Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(ds::Json::parse(line));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_FALSE(lines[0].contains("Train/Samples/train_loss"));
  EXPECT_EQ(lines[1]["Train/Samples/train_loss"], 2.5);
  EXPECT_EQ(lines[1]["step"], 2);     // of the optimizer
  EXPECT_EQ(lines[1]["samples"], 4);  // two micro batches of two
}

// ---- what is wrong with a step ----

TEST(CapiControl, TheBadElementIsNamed) {
  OwnGradients own(accumulating_config(1));
  const float infinity = std::numeric_limits<float>::infinity();
  own.add({1, 2, -infinity, std::nanf("")});
  libds::StepReport report = own.engine.step();
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.first_bad_parameter, 0);
  EXPECT_EQ(report.first_bad_element, 2);
  EXPECT_EQ(report.first_bad_value, -HUGE_VAL);
  own.add({1, std::nanf(""), 0, 0});
  report = own.engine.step();
  EXPECT_EQ(report.first_bad_element, 1);
  EXPECT_TRUE(std::isnan(report.first_bad_value));
  own.add(1);
  report = own.engine.step();
  EXPECT_EQ(report.first_bad_element, -1);
  EXPECT_EQ(report.first_bad_value, 0);
}

// Warnings, as the log's sink receives them.
class Warnings {
 public:
  Warnings() { EXPECT_DS_OK(ds_log_set(&Warnings::take, this, nullptr)); }
  ~Warnings() { ds_log_set(nullptr, nullptr, nullptr); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  int count(const std::string& part) {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for (const std::string& text : texts_) found += text.find(part) != std::string::npos ? 1 : 0;
    return found;
  }

 private:
  static void take(void* self, int32_t, const char*, const char* text) {
    auto* const me = static_cast<Warnings*>(self);
    const std::lock_guard lock(me->mutex_);
    me->texts_.emplace_back(text);
  }
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

TEST(CapiControl, UncountedLabelsAndOtherSizesAreTold) {
  World world;
  Warnings warnings;
  const auto train = [&](ds_tensor* ids, ds_tensor* labels) {
    const ds_batch batch = batch_of(ids, labels);
    ds_tensor* loss = nullptr;
    EXPECT_DS_OK(ds_engine_forward(world.engine, &batch, &loss));
    EXPECT_DS_OK(ds_engine_backward(world.engine, loss));
    ds_tensor_destroy(loss);
    ds_step_report report{};
    report.struct_size = sizeof(report);
    EXPECT_DS_OK(ds_engine_step(world.engine, &report));
    return report;
  };
  EXPECT_EQ(train(world.ids, world.ids).tokens, kBatch * 8);
  EXPECT_EQ(warnings.count("no label"), 0);
  ds_tensor* const ignored = make_ids(kBatch, 8, 1);
  const std::vector<int32_t> minus(static_cast<size_t>(kBatch * 8), -100);
  ASSERT_DS_OK(ds_tensor_write(ignored, minus.data(), static_cast<int64_t>(minus.size() * 4)));
  for (int i = 0; i < 2; ++i) {
    const ds_step_report report = train(world.ids, ignored);
    EXPECT_EQ(report.tokens, 0);
    EXPECT_EQ(report.loss, 0);
  }
  EXPECT_EQ(warnings.count("no label"), 1);
  EXPECT_EQ(warnings.count("train_micro_batch_size_per_gpu"), 0);
  ds_tensor* const larger = make_ids(kBatch + 1, 8, 2);
  for (int i = 0; i < 2; ++i) train(larger, larger);
  EXPECT_EQ(warnings.count("train_micro_batch_size_per_gpu"), 1);
  ds_tensor_destroy(ignored);
  ds_tensor_destroy(larger);
}

// ---- copies ----

TEST(CapiControl, ACopyStaysWhenTheModelTrainsOn) {
  Trainer t(accumulating_config(1));
  t.engine.train_batch();
  const std::string name = "h.0.mlp.c_fc.weight";
  const Model copy = t.model.copy();
  const std::vector<float> before = values(t.model, name);
  EXPECT_EQ(values(copy, name), before);
  std::thread training([&] {
    for (int i = 0; i < 3; ++i) t.engine.train_batch();
  });
  libds::GenerateOptions options;
  options.max_tokens = 4;
  const int32_t prompt[] = {1, 2, 3};
  std::vector<int32_t> first, again;
  for (std::vector<int32_t>* out : {&first, &again}) {
    const Tensor ids(make_list({prompt[0], prompt[1], prompt[2]}));
    *out = libds::Generator(copy).generate(ids, options);
  }
  training.join();
  EXPECT_EQ(first, again);
  EXPECT_EQ(values(copy, name), before);
  EXPECT_NE(values(t.model, name), before);
}

TEST(CapiControl, ACopyKeepsAdaptersAndWhatIsFrozen) {
  Model model = Model::create(model_config(), 3);
  ASSERT_DS_OK(ds_model_add_lora(model.get(), R"({"r": 2, "target_modules": ["attn.c_attn"]})"));
  const Model copy = model.copy();
  const std::vector<std::string> names = model.parameter_names();
  ASSERT_EQ(copy.parameter_names(), names);
  for (const std::string& name : names) {
    EXPECT_EQ(values(copy, name), values(model, name)) << name;
  }
  EXPECT_EQ(copy.parameters(), model.parameters());
  TemporaryFolder folder;
  EXPECT_DS_OK(ds_model_save_adapter(copy.get(), folder.file("a").c_str(), DS_FLOAT32));
}

TEST(CapiControl, OwnParametersAreNotCopied) {
  OwnGradients own(accumulating_config(1));
  EXPECT_EQ(status_of([&] { own.model.copy(); }), DS_ERR_UNSUPPORTED);
}

}  // namespace
}  // namespace capi_test
