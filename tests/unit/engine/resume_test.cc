// What a resume goes on with: loss scale, open steps, schedules, settings that changed, the run's
// id; and how much of a checkpoint a load takes over.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "checkpoint/reader.h"
#include "engine/resume_differences.h"
#include "engine_world.h"
#include "log_lines.h"

namespace ds {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;
using namespace engine_test;  // NOLINT: what these tests are about

// A scale that moves within a few steps, and a rate that nothing but set_lr changes.
Json fp16_config() {
  return with(base_config(), {{"scheduler", nullptr},
                              {"fp16",
                               {{"enabled", true},
                                {"initial_scale_power", 10},
                                {"loss_scale_window", 2},
                                {"hysteresis", 1}}}});
}

// Plain descent: an error in the gradient is one in the weights.
Json sgd_config(int64_t accumulation) {
  Json config = base_config();
  config["gradient_accumulation_steps"] = accumulation;
  config["gradient_clipping"] = 0;
  config["scheduler"] = nullptr;
  config["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 0.5}}}};
  return config;
}

Json with_lr(Json config, double lr) {
  config["optimizer"]["params"]["lr"] = lr;
  return config;
}

// The number tells micro batches apart.
StepReport micro_batch(Engine& engine, int64_t number) {
  std::vector<int64_t> ids(4 * 8);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(i * static_cast<size_t>(5 + number) % 61);
  }
  const Tensor tokens = ids_tensor(ids, 4);
  engine.backward(engine.forward({tokens, tokens, {}, {}, {}}));
  return engine.step();
}

void train(Engine& engine, int steps) {
  for (int i = 0; i < steps; ++i) engine.train_batch();
}

std::vector<float> moments(Engine& engine) {
  std::vector<float> out;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    for (const std::string& state : engine.values().optimizer_states(parameters[id].name)) {
      const std::vector<float> one =
          flat(engine.values().optimizer_state(parameters[id].name, state));
      out.insert(out.end(), one.begin(), one.end());
    }
  }
  return out;
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// ---- The loss scale -----------------------------------------------------------------------------

TEST(ResumedScale, AnotherLearningRateKeepsIt) {
  const Folder folder;
  const auto whole = make_engine(fp16_config());
  train(*whole, 5);
  ASSERT_NE(whole->loss_scale(), 1024) << "the scale did not move: nothing would be tested";
  whole->save(folder.path(), "a");
  whole->set_lr(3e-3);
  const auto resumed = make_engine(with_lr(fp16_config(), 3e-3));
  resumed->load(folder.path(), "a");
  EXPECT_EQ(resumed->loss_scale(), whole->loss_scale());
  for (int i = 0; i < 5; ++i) {
    const StepReport a = whole->train_batch(), b = resumed->train_batch();
    EXPECT_EQ(a.loss_scale, b.loss_scale) << i;
    EXPECT_EQ(b.lr, 3e-3);
  }
  EXPECT_TRUE(same_bits(weights(*resumed), weights(*whole)));
}

// The scaler's state goes on under other settings of fp16 too, as DeepSpeed's does.
TEST(ResumedScale, OtherScalerSettingsKeepTheScale) {
  const Folder folder;
  const auto first = make_engine(fp16_config());
  train(*first, 5);
  first->save(folder.path(), "a");
  const auto resumed = make_engine(with(fp16_config(), {{"fp16", {{"initial_scale_power", 4}}}}));
  resumed->load(folder.path(), "a");
  EXPECT_EQ(resumed->loss_scale(), first->loss_scale());
}

TEST(ResumedScale, WithoutOneADynamicScaleBegins) {
  const Folder folder;
  const auto first = make_engine(base_config());
  train(*first, 1);
  first->save(folder.path(), "a");
  const auto resumed = make_engine(fp16_config());
  resumed->load(folder.path(), "a");
  EXPECT_EQ(resumed->loss_scale(), 1024);
}

TEST(ResumedScale, AnOpenStepGoesOnUnderAnotherRate) {
  const Folder folder;
  const auto whole = make_engine(fp16_config());
  train(*whole, 4);
  micro_batch(*whole, 0);
  whole->save(folder.path(), "a");
  whole->set_lr(3e-3);
  const StepReport wanted = micro_batch(*whole, 1);
  const auto resumed = make_engine(with_lr(fp16_config(), 3e-3));
  resumed->load(folder.path(), "a");
  const StepReport report = micro_batch(*resumed, 1);
  ASSERT_TRUE(report.applied);
  EXPECT_EQ(report.grad_norm, wanted.grad_norm);
  EXPECT_TRUE(same_bits(weights(*resumed), weights(*whole)));
}

// Saved gradients carry the old scale, the rest of the step the new one. Powers of two: in fp32
// sums they change no bit but where fp16 activations underflow.
TEST(ResumedScale, AnOpenStepGoesOnUnderAnotherScale) {
  const auto scaled = [](double scale) {
    return with(sgd_config(2), {{"fp16", {{"enabled", true}, {"loss_scale", scale}}}});
  };
  for (const double now : {64.0, 4096.0}) {
    SCOPED_TRACE(now);
    const Folder folder;
    const auto whole = make_engine(scaled(512));
    micro_batch(*whole, 0);
    whole->save(folder.path(), "a");
    const StepReport wanted = micro_batch(*whole, 1);
    const auto resumed = make_engine(scaled(now));
    resumed->load(folder.path(), "a");
    EXPECT_EQ(resumed->loss_scale(), now);
    const StepReport report = micro_batch(*resumed, 1);
    EXPECT_NEAR(report.grad_norm, wanted.grad_norm, 1e-3 * wanted.grad_norm);
    EXPECT_LT(largest_difference(weights(*resumed), weights(*whole)), 1e-4);
  }
}

// ---- Open steps ---------------------------------------------------------------------------------

TEST(OpenStep, AnotherAccumulationGivesTheMeanOfAllMicroBatches) {
  for (const int64_t then : {2, 4, 8}) {
    SCOPED_TRACE(then);
    const Folder folder;
    const auto reference = make_engine(sgd_config(3), model_config(0));
    StepReport wanted;
    for (int64_t i = 0; i < 3; ++i) wanted = micro_batch(*reference, i);
    const auto first = make_engine(sgd_config(then), model_config(0));
    micro_batch(*first, 0);
    first->save(folder.path(), "a");
    const auto resumed = make_engine(sgd_config(3), model_config(0));
    resumed->load(folder.path(), "a");
    micro_batch(*resumed, 1);
    const StepReport report = micro_batch(*resumed, 2);
    EXPECT_EQ(report.skip_reason, SkipReason::kNone);
    EXPECT_NEAR(report.loss, wanted.loss, 1e-6 * wanted.loss);
    EXPECT_NEAR(report.grad_norm, wanted.grad_norm, 1e-5 * wanted.grad_norm);
    EXPECT_LT(largest_difference(weights(*resumed), weights(*reference)), 1e-6);
  }
}

// Ends after the second micro batch of the engine's next step.
void leave_step_open(Engine& engine) {
  engine.control().set_progress([](const char*, int64_t done, int64_t) { return done < 2; });
  error_of(Code::kCallback, [&] { engine.train_batch(); });
  engine.control().set_progress({});
}
void expect_same_progress(const Engine& one, const Engine& other) {
  EXPECT_EQ(one.progress().steps, other.progress().steps);
  EXPECT_EQ(one.progress().micro_steps, other.progress().micro_steps);
  EXPECT_EQ(one.progress().samples, other.progress().samples);
  EXPECT_EQ(one.progress().tokens, other.progress().tokens);
}

// However a step is given up, its samples are read again and nothing of it is counted.
TEST(OpenStep, AGivenUpOneIsTrainedAnew) {
  const Folder folder;
  const auto whole = make_engine(sgd_config(4)), saved = make_engine(sgd_config(4));
  for (Engine* const engine : {whole.get(), saved.get()}) train(*engine, 2);
  saved->save(folder.path(), "before");
  leave_step_open(*saved);
  EXPECT_EQ(saved->progress().micro_steps, 10);
  saved->save(folder.path(), "open");

  const auto loaded = make_engine(sgd_config(4)), without = make_engine(sgd_config(4)),
             weights_alone = make_engine(sgd_config(4));
  loaded->load(folder.path(), "open");
  expect_same_progress(*loaded, *saved);
  loaded->discard_gradients();
  without->load(folder.path(), "open", {.optimizer_states = false});
  weights_alone->load(folder.path(), "before");
  leave_step_open(*weights_alone);
  weights_alone->load(folder.path(), "open", {.module_only = true});
  for (Engine* const engine : {loaded.get(), without.get(), weights_alone.get()}) {
    expect_same_progress(*engine, *whole);
  }
  whole->train_batch();
  for (Engine* const engine : {loaded.get(), without.get(), weights_alone.get()}) {
    engine->train_batch();
    expect_same_progress(*engine, *whole);
    EXPECT_TRUE(same_bits(weights(*engine), weights(*whole)));
  }
}

TEST(OpenStep, AnAccumulationThatIsOverIsRefused) {
  const Folder folder;
  const auto first = make_engine(sgd_config(3));
  micro_batch(*first, 0);
  micro_batch(*first, 1);
  first->save(folder.path(), "a");
  const auto resumed = make_engine(sgd_config(2));
  EXPECT_THAT(error_of(Code::kConfig, [&] { resumed->load(folder.path(), "a"); }),
              HasSubstr("after 2 of the 3 micro batches"));
  resumed->load(folder.path(), "a", {.optimizer_states = false});
  EXPECT_EQ(micro_batch(*resumed, 0).skip_reason, SkipReason::kAccumulating);
}

// What a program divides its own gradients by is not known here.
TEST(OpenStep, OwnGradientsOfAnotherAccumulationAreRefused) {
  const Folder folder;
  const auto make = [](int64_t accumulation) {
    nn::ParameterSet set;
    nn::Parameter p;
    p.name = "w";
    p.shape = Shape{10};
    set.add(p);
    return std::make_unique<Engine>(dump_json(sgd_config(accumulation)),
                                    models::Model::from_parameters(std::move(set)), nullptr);
  };
  const auto first = make(2);
  first->step();
  first->save(folder.path(), "a");
  const auto other = make(4);
  EXPECT_THAT(error_of(Code::kConfig, [&] { other->load(folder.path(), "a"); }),
              HasSubstr("gradients of the caller's own"));
  make(2)->load(folder.path(), "a");
}

// ---- How much is taken over
// -----------------------------------------------------------------------

class PartialLoad : public ::testing::Test {
 protected:
  void SetUp() override {
    saved_ = make_engine(base_config());
    saved_->caller_state().client_state = {{"mine", 1}};
    train(*saved_, 3);
    saved_->save(folder_.path(), "a");
  }
  Folder folder_;
  std::unique_ptr<Engine> saved_;
};

TEST_F(PartialLoad, WeightsAlone) {
  const auto fresh = make_engine(base_config()), engine = make_engine(base_config());
  engine->load(folder_.path(), "a", {.module_only = true});
  EXPECT_TRUE(same_bits(weights(*engine), weights(*saved_)));
  EXPECT_TRUE(same_bits(moments(*engine), moments(*fresh)));
  EXPECT_EQ(engine->progress().steps, 0);
  EXPECT_EQ(engine->progress().samples, 0);
  EXPECT_EQ(engine->optimizer_steps(), 0);
  EXPECT_EQ(engine->rates(), fresh->rates());
  EXPECT_TRUE(engine->caller_state().client_state.is_null());
  EXPECT_TRUE(engine->train_batch().applied);
  engine->save(folder_.path(), "b");
  EXPECT_NE(CheckpointReader::open(folder_.path(), "b").manifest().run,
            CheckpointReader::open(folder_.path(), "a").manifest().run)
      << "another run";
}

TEST_F(PartialLoad, WithoutOptimizerState) {
  const auto fresh = make_engine(base_config()), engine = make_engine(base_config());
  engine->load(folder_.path(), "a", {.optimizer_states = false});
  EXPECT_TRUE(same_bits(weights(*engine), weights(*saved_)));
  EXPECT_TRUE(same_bits(moments(*engine), moments(*fresh)));
  EXPECT_EQ(engine->optimizer_steps(), 0);
  EXPECT_EQ(engine->progress().steps, 3);
  EXPECT_EQ(engine->rates(), saved_->rates()) << "the schedule goes on";
  EXPECT_EQ(engine->caller_state().client_state, saved_->caller_state().client_state);
  saved_->train_batch();
  engine->train_batch();
  EXPECT_EQ(engine->rates(), saved_->rates());
  // The schedule's place of its own survives the next checkpoint.
  engine->save(folder_.path(), "b");
  const auto again = make_engine(base_config());
  again->load(folder_.path(), "b");
  EXPECT_EQ(again->optimizer_steps(), 1);
  EXPECT_EQ(again->rates(), engine->rates());
  again->train_batch();
  engine->train_batch();
  EXPECT_EQ(again->rates(), engine->rates());
  EXPECT_TRUE(same_bits(weights(*again), weights(*engine)));
}

TEST_F(PartialLoad, WithoutTheSchedule) {
  const auto fresh = make_engine(base_config()), engine = make_engine(base_config());
  engine->load(folder_.path(), "a", {.schedule = false});
  EXPECT_TRUE(same_bits(moments(*engine), moments(*saved_)));
  EXPECT_EQ(engine->optimizer_steps(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(engine->rates(), fresh->rates()) << i;
    engine->train_batch();
    fresh->train_batch();
  }
}

TEST_F(PartialLoad, NamesThatDiffer) {
  Json deeper = model_config();
  deeper["n_layer"] = 3;
  const auto engine = make_engine(base_config(), deeper);
  const std::vector<float> own = flat(engine->model()->get("h.2.mlp.c_fc.weight"));
  error_of(Code::kNotFound, [&] { engine->load(folder_.path(), "a"); });
  {
    LogLines log;
    engine->load(folder_.path(), "a", {.module_strict = false});
    EXPECT_THAT(log.take("h.2.mlp.c_fc.weight"), SizeIs(1));
  }
  EXPECT_TRUE(same_bits(flat(engine->model()->get("h.2.mlp.c_fc.weight")), own));
  EXPECT_TRUE(same_bits(flat(engine->model()->get("h.1.mlp.c_fc.weight")),
                        flat(saved_->model()->get("h.1.mlp.c_fc.weight"))));
  EXPECT_EQ(engine->progress().steps, 3);
  engine->train_batch();

  engine->save(folder_.path(), "deeper");
  const auto smaller = make_engine(base_config());
  error_of(Code::kInvalidArgument, [&] { smaller->load(folder_.path(), "deeper"); });
  smaller->load(folder_.path(), "deeper", {.module_strict = false});
  EXPECT_TRUE(same_bits(flat(smaller->model()->get("h.1.mlp.c_fc.weight")),
                        flat(engine->model()->get("h.1.mlp.c_fc.weight"))));
}

TEST_F(PartialLoad, FamiliesAreComparedFirst) {
  const Json llama = {{"model_type", "llama"},    {"vocab_size", 61},
                      {"hidden_size", 32},        {"intermediate_size", 64},
                      {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                      {"num_key_value_heads", 2}, {"max_position_embeddings", 32}};
  const auto engine = make_engine(base_config(), llama);
  EXPECT_THAT(error_of(Code::kInvalidArgument, [&] { engine->load(folder_.path(), "a"); }),
              HasSubstr("holds a gpt2, the model is a llama"));
}

// ---- Settings that changed
// ------------------------------------------------------------------------

std::vector<std::string> differences(const Json& saved, int saved_ranks, const Json& now,
                                     int ranks) {
  const auto resolved = [](const Json& config, int world) {
    ConfigEnvironment environment;
    environment.data_parallel_size = world;
    return RunSettings{load_config(dump_json(config), environment).resolved(), world};
  };
  return resume_differences(resolved(saved, saved_ranks), resolved(now, ranks));
}

TEST(Differences, AreListedByTheirPaths) {
  const Json config = base_config();
  EXPECT_THAT(differences(config, 1, config, 1), IsEmpty());
  EXPECT_THAT(differences(config, 1, with_lr(config, 3e-4), 1),
              ElementsAre("/optimizer/params/lr was 0.01, is 0.0003"));
  EXPECT_THAT(differences(config, 1,
                          with(config, {{"threads", 2},
                                        {"wall_clock_breakdown", true},
                                        {"zero_optimization", {{"stage", 2}}},
                                        {"checkpoint", {{"keep", 3}}},
                                        {"activation_checkpointing", {{"enabled", true}}}}),
                          1),
              IsEmpty())
      << "these change no result";
  EXPECT_THAT(differences(config, 1, with(config, {{"gradient_clipping", 0.5}, {"seed", 7}}), 1),
              ElementsAre("/seed was 1234, is 7", "/gradient_clipping was 1.0, is 0.5"));
  Json lion = config;
  lion["optimizer"]["type"] = "Lion";
  EXPECT_THAT(differences(config, 1, lion, 1),
              ::testing::Contains("/optimizer/type was \"AdamW\", is \"Lion\""));
  EXPECT_THAT(
      differences(config, 1, with(config, {{"fp16", {{"enabled", true}, {"hysteresis", 1}}}}), 1),
      ElementsAre("/fp16/enabled was false, is true", HasSubstr("/data_types/param_dtype"),
                  HasSubstr("/communication_data_type")));
  // Options of what is turned off do not matter.
  EXPECT_THAT(differences(config, 1, with(config, {{"fp16", {{"initial_scale_power", 3}}}}), 1),
              IsEmpty());
}

TEST(Differences, ABatchComesWithTheAccumulationThatKeepsIt) {
  const Json config = base_config();  // micro batch 4, accumulation 2
  EXPECT_THAT(differences(config, 2, config, 1),
              ElementsAre("/train_batch_size was 16 (micro batch 4 x accumulation 2 x 2 ranks), is "
                          "8 (micro batch 4 x accumulation 2 x 1 rank); "
                          "gradient_accumulation_steps 4 keeps it"));
  EXPECT_THAT(differences(config, 2, with(config, {{"gradient_accumulation_steps", 4}}), 1),
              ElementsAre(HasSubstr("the same samples")));
  EXPECT_THAT(
      differences(config, 1, with(config, {{"train_micro_batch_size_per_gpu", 3}}), 1),
      ElementsAre("/train_batch_size was 8 (micro batch 4 x accumulation 2 x 1 rank), is 6 (micro "
                  "batch 3 x accumulation 2 x 1 rank)"));
}

TEST(Differences, AreWarningsAndRefusedByAStrictLoad) {
  const Folder folder;
  const auto first = make_engine(base_config());
  train(*first, 1);
  first->save(folder.path(), "a");
  const auto resumed = make_engine(with_lr(base_config(), 3e-4));
  const std::vector<float> before = weights(*resumed);
  EXPECT_THAT(error_of(Code::kConfig, [&] { resumed->load(folder.path(), "a", {.strict = true}); }),
              HasSubstr("/optimizer/params/lr was 0.01, is 0.0003"));
  EXPECT_TRUE(same_bits(weights(*resumed), before));
  LogLines log;
  resumed->load(folder.path(), "a");
  EXPECT_THAT(log.take("/optimizer/params/lr was 0.01, is 0.0003"), SizeIs(1));
  make_engine(base_config())->load(folder.path(), "a", {.strict = true});
  EXPECT_THAT(log.take("other settings"), IsEmpty());
}

std::shared_ptr<const GptDataset> other_data() {
  std::vector<int32_t> tokens(3000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 61);
  GptIndexOptions options;
  options.sequence_length = 16;
  return make_gpt_dataset(cut_running_tokens(tokens, 16, "test"), "100,0,0", Split::kTrain,
                          options);
}

TEST(Differences, AnotherDataSetIsNoticed) {
  const Folder folder;
  const auto first = make_engine(base_config());
  train(*first, 1);
  first->save(folder.path(), "a");
  LogLines log;
  const auto resumed = make_engine(base_config());
  resumed->load(folder.path(), "a");
  EXPECT_THAT(log.take("data set"), IsEmpty());
  resumed->set_dataset(periodic_data());
  EXPECT_THAT(log.take("data set"), IsEmpty());
  resumed->set_dataset(other_data());  // after the load
  EXPECT_THAT(log.take("the data set was another one"), SizeIs(1));
  resumed->load(folder.path(), "a");  // and before it
  EXPECT_THAT(log.take("the data set was another one"), SizeIs(1));
  error_of(Code::kConfig, [&] { resumed->load(folder.path(), "a", {.strict = true}); });
  const auto strict = make_engine(base_config());
  strict->load(folder.path(), "a", {.strict = true});
  error_of(Code::kConfig, [&] { strict->set_dataset(other_data()); });
  strict->train_batch();
}

// ---- What a checkpoint says of its run
// --------------------------------------------------------------

TEST(Run, KeepsItsIdOverAResume) {
  const Folder folder;
  const auto run_of = [&](const std::string& tag) {
    return CheckpointReader::open(folder.path(), tag).manifest().run;
  };
  const auto first = make_engine(base_config()), other = make_engine(base_config());
  first->save(folder.path(), "a");
  train(*first, 1);
  first->save(folder.path(), "b");
  EXPECT_THAT(run_of("a"), MatchesRegex("[0-9a-f]+"));
  EXPECT_THAT(run_of("a"), SizeIs(32));
  EXPECT_EQ(run_of("b"), run_of("a"));
  const auto resumed = make_engine(base_config());
  LogLines log;
  resumed->load(folder.path(), "");
  resumed->save(folder.path(), "c");
  EXPECT_EQ(run_of("c"), run_of("a"));
  EXPECT_THAT(log.take("another training run"), IsEmpty());
  other->save(folder.path(), "d");
  EXPECT_NE(run_of("d"), run_of("a"));
  const std::vector<std::string> warnings = log.take("another training run");
  ASSERT_THAT(warnings, SizeIs(1));
  EXPECT_THAT(warnings[0], HasSubstr("a, b, c"));
  other->save(folder.path(), "e");
  EXPECT_THAT(log.take("another training run"), IsEmpty()) << "told once";
}

TEST(Run, TheStageIsRecorded) {
  const Folder folder;
  for (const int stage : {0, 2}) {
    make_engine(with(base_config(), {{"zero_optimization", {{"stage", stage}}}}))
        ->save(folder.path(), "a");
    EXPECT_EQ(CheckpointReader::open(folder.path(), "a").manifest().topology.zero_stage, stage);
  }
}

// ---- Saving what was loaded, and hostile values
// -----------------------------------------------------

// Everything but the tag and what lies in the files' order.
void expect_equal_checkpoints(const std::string& a, const std::string& b) {
  const CheckpointReader one = CheckpointReader::open_folder(a),
                         two = CheckpointReader::open_folder(b);
  EXPECT_EQ(one.manifest().counters, two.manifest().counters);
  EXPECT_EQ(one.manifest().tensors, two.manifest().tensors);
  EXPECT_EQ(one.manifest().blobs, two.manifest().blobs);
  EXPECT_EQ(one.manifest().run, two.manifest().run);
  ASSERT_EQ(one.manifest().states.size(), two.manifest().states.size());
  for (size_t i = 0; i < one.manifest().states.size(); ++i) {
    const StateRecord &x = one.manifest().states[i], &y = two.manifest().states[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.integer, y.integer) << x.name;
    EXPECT_EQ(x.real, y.real) << x.name;
    EXPECT_EQ(x.bytes, y.bytes) << x.name;
  }
  EXPECT_TRUE(slurp(a + "/data-00000.bin") == slurp(b + "/data-00000.bin"));
}

TEST(LoadThenSave, GivesAnEqualCheckpoint) {
  // The first steps of this scale overflow: skipped steps are part of what is saved.
  const Json overflowing = with(fp16_config(), {{"fp16", {{"initial_scale_power", 30}}}});
  for (const auto& [config, steps, open] : {std::tuple{base_config(), 0, 0},
                                            {base_config(), 3, 0},
                                            {base_config(), 2, 1},
                                            {overflowing, 3, 0},
                                            {overflowing, 12, 1}}) {
    SCOPED_TRACE(str_cat(steps, " ", open));
    const Folder folder;
    const auto first = make_engine(config);
    train(*first, steps);
    if (open > 0) micro_batch(*first, 0);
    first->save(folder.path(), "a");
    const auto second = make_engine(config);
    second->load(folder.path(), "a");
    second->save(folder.path(), "b");
    expect_equal_checkpoints(folder.path("a"), folder.path("b"));
    const Progress &x = first->progress(), &y = second->progress();
    EXPECT_EQ(x.skipped, y.skipped);
    EXPECT_EQ(y.skipped > 0, config == overflowing);
    if (open > 0) {
      micro_batch(*first, 1);
      micro_batch(*second, 1);
    }
    for (int i = 0; i < 3; ++i) {
      const StepReport a = first->train_batch(), b = second->train_batch();
      EXPECT_EQ(a.progress.skipped, b.progress.skipped);
      EXPECT_EQ(a.loss_scale, b.loss_scale);
      EXPECT_EQ(a.loss, b.loss);
      EXPECT_EQ(a.tokens, b.tokens);
    }
    EXPECT_TRUE(same_bits(weights(*first), weights(*second)));
  }
}

// Checksums that match are no proof that a number makes sense.
TEST(HostileState, RatesAndScalesAreChecked) {
  const Folder folder;
  const auto first = make_engine(fp16_config());
  train(*first, 1);
  first->save(folder.path(), "a");
  const Manifest good = CheckpointReader::open(folder.path(), "a").manifest();
  const auto load_with = [&](const std::function<void(Json&)>& change) {
    Manifest manifest = good;
    for (StateRecord& state : manifest.states) {
      if (state.name != "updater") continue;
      Json updater = parse_json(state.bytes, "updater", Code::kCorrupt);
      change(updater);
      state.bytes = dump_json(updater);
    }
    std::ofstream(folder.path("a/manifest.dsm"), std::ios::binary) << encode_manifest(manifest);
    const auto engine = make_engine(fp16_config());
    engine->load(folder.path(), "a");
  };
  load_with([](Json&) {});
  const std::vector<std::function<void(Json&)>> changes = {
      [](Json& u) { u["rates"][0] = -1e-3; },
      [](Json& u) { u["rates"][0] = "fast"; },
      [](Json& u) { u["rates"] = 3; },
      [](Json& u) { u["steps"] = -1; },
      [](Json& u) { u["schedule_steps"] = -1; },
      [](Json& u) { u["loss_scaler"]["scale"] = 0; },
      [](Json& u) { u["loss_scaler"]["scale"] = -2; },
      [](Json& u) { u["loss_scaler"].erase("scale"); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    error_of(Code::kCorrupt, [&] { load_with(changes[i]); });
  }
}

// ---- How many stay
// ----------------------------------------------------------------------------------

std::vector<std::string> tags(const Folder& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.is_directory()) out.push_back(entry.path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Keep, TheNewestBySteps) {
  for (const bool decoupled : {false, true}) {
    SCOPED_TRACE(decoupled);
    const Folder folder;
    make_engine(base_config())->save(folder.path(), "other");  // another run's
    const auto engine = make_engine(with(
        base_config(), {{"checkpoint", {{"keep", 2}, {"writer", {{"decoupled", decoupled}}}}}}));
    for (int step = 1; step <= 11; ++step) {
      engine->train_batch();
      engine->save(folder.path(), "");
      engine->wait_for_save();
      std::vector<std::string> wanted = {str_cat("global_step", step), "other"};
      if (step > 1) wanted.push_back(str_cat("global_step", step - 1));
      std::sort(wanted.begin(), wanted.end());
      EXPECT_EQ(tags(folder), wanted) << "10 is newer than 9";
    }
    const auto resumed = make_engine(base_config());
    resumed->load(folder.path(), "");
    EXPECT_EQ(resumed->progress().steps, 11);
  }
}

// One that was saved just now stays, also when older steps are saved again after going back.
TEST(Keep, WhatWasSavedStaysAndDamagedOnesDoNotCount) {
  const Folder folder;
  const Json config = with(base_config(), {{"checkpoint", {{"keep", 2}}}});
  const auto engine = make_engine(base_config());
  for (int i = 0; i < 4; ++i) {
    engine->train_batch();
    engine->save(folder.path(), "");
  }
  // The manifest of 3 can be read, its data are too short: it is not one of the two.
  fs::resize_file(folder.path("global_step3/data-00000.bin"), 100);
  const auto back = make_engine(config);
  back->load(folder.path(), "global_step1");
  back->save(folder.path(), "again");
  EXPECT_THAT(tags(folder), ElementsAre("again", "global_step3", "global_step4"));
  EXPECT_EQ(slurp(folder.path("latest")).substr(0, 6), "again\n");
}

}  // namespace
}  // namespace ds
