// Ways to train: optimizers, precisions, frozen parameters, adapters, families and kinds of data.
#include <gmock/gmock.h>

#include <fstream>
#include <limits>
#include <random>

#include "data/dataset_spec.h"
#include "engine_world.h"
#include "models/adapters.h"
#include "models/inputs.h"
#include "models/saved_model.h"
#include "test_paths.h"

namespace ds {
namespace {

using ::testing::HasSubstr;
using namespace engine_test;  // NOLINT: what these tests are about

Json optimizer(const char* type, Json params, Json more = Json::object()) {
  more["type"] = type;
  more["params"] = std::move(params);
  return {{"optimizer", std::move(more)}, {"scheduler", nullptr}};
}

struct Way {
  const char* name;
  Json change;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

std::vector<Way> ways() {
  const Json adam = {{"lr", 1e-2}, {"weight_decay", 0.1}};
  const auto with_more = [](Json base, const Json& more) {
    base.merge_patch(more);
    return base;
  };
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  return {
      {"AdamL2", optimizer("Adam", {{"lr", 1e-2}, {"weight_decay", 0.1}, {"adam_w_mode", false}})},
      {"Adagrad", optimizer("Adagrad", {{"lr", 2e-3}})},
      {"AdagradWithASum",
       optimizer("Adagrad",
                 {{"lr", 2e-2}, {"lr_decay", 0.01}, {"initial_accumulator_value", 0.1}})},
      {"Amsgrad", optimizer("AdamW", {{"lr", 1e-2}, {"amsgrad", true}})},
      {"AmsgradInt8States",
       optimizer("AdamW", {{"lr", 1e-2}, {"amsgrad", true}}, {{"state_dtype", "int8"}})},
      {"Nadam", optimizer("NAdam", {{"lr", 1e-2}, {"weight_decay", 0.01}})},
      {"Rmsprop", optimizer("RMSprop", {{"lr", 1e-3}})},
      {"RmspropCentered",
       optimizer("RMSprop", {{"lr", 1e-3}, {"momentum", 0.9}, {"centered", true}})},
      {"Lion", optimizer("Lion", {{"lr", 1e-3}, {"weight_decay", 0.1}})},
      {"Lamb", optimizer("Lamb", {{"lr", 1e-2}, {"weight_decay", 0.01}})},
      {"Sgd", optimizer("SGD", {{"lr", 1e-1}, {"momentum", 0.9}, {"nesterov", true}})},
      {"Muon", optimizer("Muon", {{"lr", 2e-2}})},
      {"AdamBf16States", optimizer("AdamW", adam, {{"state_dtype", "bf16"}})},
      {"AdamInt8States", optimizer("AdamW", adam, {{"state_dtype", "int8"}})},
      {"Groups",
       optimizer("AdamW", adam,
                 {{"param_groups", {{{"name", "norms"}, {"match", {"*ln_*"}}, {"lr", 1e-3}}}}})},
      {"Bf16", with_more(optimizer("AdamW", adam), bf16)},
      {"Bf16Split", with_more(optimizer("AdamW", adam),
                              {{"bf16", {{"enabled", true}, {"split_master", true}}}})},
      {"Bf16SplitInt8", with_more(optimizer("AdamW", adam, {{"state_dtype", "int8"}}),
                                  {{"bf16", {{"enabled", true}, {"split_master", true}}}})},
      {"Bf16GradientsInBf16",
       with_more(optimizer("AdamW", adam),
                 {{"bf16", {{"enabled", true}}}, {"data_types", {{"grad_accum_dtype", "bf16"}}}})},
      {"Fp16", with_more(optimizer("AdamW", adam), {{"fp16", {{"enabled", true}}}})},
      {"Fp16Static",
       with_more(optimizer("AdamW", adam), {{"fp16", {{"enabled", true}, {"loss_scale", 128}}}})},
      {"OneCycle",
       with_more(
           optimizer("SGD", {{"lr", 1e-1}, {"momentum", 0.9}}),
           {{"scheduler",
             {{"type", "OneCycle"},
              {"params",
               {{"cycle_min_lr", 1e-2}, {"cycle_max_lr", 1e-1}, {"cycle_first_step_size", 6}}}}}})},
  };
}

class TrainingWay : public ::testing::TestWithParam<Way> {};

TEST_P(TrainingWay, LearnsAndResumesToTheBit) {
  const Folder folder;
  Json config = base_config();
  config.erase("scheduler");
  config = with(config, GetParam().change);
  const auto straight = make_engine(config, model_config(0));
  std::vector<double> losses;
  for (int i = 0; i < 16; ++i) losses.push_back(straight->train_batch().loss);
  EXPECT_LT(losses.back(), losses.front());

  const auto first = make_engine(config, model_config(0));
  for (int i = 0; i < 8; ++i) first->train_batch();
  first->save(folder.path(), "");
  const auto second = make_engine(config, model_config(0));
  second->train_batch();
  second->load(folder.path(), "");
  for (size_t i = 8; i < 16; ++i) ASSERT_EQ(second->train_batch().loss, losses[i]) << "step " << i;
  EXPECT_EQ(second->loss_scale(), straight->loss_scale());
  const nn::ParameterSet& parameters = straight->model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const std::string& name = parameters[id].name;
    ASSERT_TRUE(same_bits(flat(straight->model()->get(name)), flat(second->model()->get(name))));
    ASSERT_EQ(straight->values().optimizer_states(name), second->values().optimizer_states(name));
    for (const std::string& state : straight->values().optimizer_states(name)) {
      ASSERT_TRUE(same_bits(flat(straight->values().optimizer_state(name, state)),
                            flat(second->values().optimizer_state(name, state))))
          << name << " " << state;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, TrainingWay, ::testing::ValuesIn(ways()),
                         [](const auto& way) { return std::string(way.param.name); });

// A lower precision follows the fp32 run: bf16 keeps 8 bits, fp16 11, of every activation.
TEST(Training, LowPrecisionFollowsFp32) {
  const Json base = with(base_config(), {{"scheduler", nullptr}});
  const auto losses = [&](const Json& change) {
    const auto engine = make_engine(with(base, change), model_config(0));
    std::vector<double> out;
    for (int i = 0; i < 12; ++i) out.push_back(engine->train_batch().loss);
    return out;
  };
  const auto worst = [](const std::vector<double>& a, const std::vector<double>& b) {
    double out = 0;
    for (size_t i = 0; i < a.size(); ++i) out = std::max(out, std::abs(a[i] - b[i]));
    return out;
  };
  const std::vector<double> fp32 = losses(Json::object());
  const double bf16 = worst(fp32, losses({{"bf16", {{"enabled", true}}}}));
  const double fp16 = worst(fp32, losses({{"fp16", {{"enabled", true}}}}));
  EXPECT_LT(bf16, 5e-2);
  EXPECT_LT(fp16, 1e-2);
  EXPECT_GT(bf16, 0);  // it did compute in another type
  EXPECT_GT(fp16, 0);
}

// fp16 begins at a scale that overflows: steps are skipped, halving it, until gradients fit.
TEST(Training, TheDynamicScaleFindsItsWay) {
  const Json change = {
      {"fp16", {{"enabled", true}, {"initial_scale_power", 30}, {"hysteresis", 1}}},
      {"scheduler", nullptr}};
  const auto engine = make_engine(with(base_config(), change), model_config(0));
  const std::vector<float> before = weights(*engine);
  StepReport report = engine->train_batch();
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.skip_reason, SkipReason::kNonFinite);
  EXPECT_FALSE(report.first_bad_tensor.empty());
  EXPECT_EQ(report.loss_scale, std::ldexp(1.0, 30));
  EXPECT_EQ(engine->loss_scale(), std::ldexp(1.0, 29));
  EXPECT_TRUE(same_bits(before, weights(*engine)));
  int skipped = 1;
  while (!report.applied && skipped < 30) {
    report = engine->train_batch();
    skipped += report.applied ? 0 : 1;
  }
  EXPECT_TRUE(report.applied);
  EXPECT_EQ(report.progress.skipped, skipped);
  EXPECT_EQ(engine->optimizer_steps(), 1);
}

// In each precision and type of gradients: the tensor is named, the step skipped, nothing changed.
TEST(Training, AnInjectedNonFiniteGradientIsNamedAndChangesNothing) {
  const Json precisions[] = {
      Json::object(),
      {{"bf16", {{"enabled", true}}}},
      {{"bf16", {{"enabled", true}, {"split_master", true}}}},
      {{"bf16", {{"enabled", true}}}, {"data_types", {{"grad_accum_dtype", "bf16"}}}},
      {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}},
      {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}},
       {"data_types", {{"grad_accum_dtype", "fp16"}}}}};
  for (const Json& precision : precisions) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      const auto engine =
          make_engine(with(with(base_config(), {{"gradient_accumulation_steps", 1}}), precision),
                      model_config(0));
      ASSERT_TRUE(engine->train_batch().applied);
      const std::string name = "h.1.mlp.c_fc.bias";
      const auto everything = [&] {
        std::vector<float> all;
        const nn::ParameterSet& parameters = engine->model()->parameters();
        for (nn::ParamId id = 0; id < parameters.size(); ++id) {
          const auto append = [&](const Tensor& t) {
            all.insert(all.end(), t.data<float>(), t.data<float>() + t.elements());
          };
          append(engine->model()->get(parameters[id].name));
          for (const std::string& state : engine->values().optimizer_states(parameters[id].name)) {
            append(engine->values().optimizer_state(parameters[id].name, state));
          }
        }
        return all;
      };
      const std::vector<float> before = everything();
      std::vector<int64_t> ids(4 * 8);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7 % 61);
      const Tensor tokens = ids_tensor(ids, 4);
      engine->backward(engine->forward({tokens, tokens, {}, {}, {}}));
      const Tensor gradient = engine->gradients().get(name);
      gradient.data<float>()[gradient.elements() - 1] = bad;
      engine->gradients().set(name, gradient);
      const StepReport report = engine->step();
      EXPECT_FALSE(report.applied);
      EXPECT_EQ(report.skip_reason, SkipReason::kNonFinite);
      EXPECT_EQ(report.first_bad_tensor, name) << dump_json(precision);
      EXPECT_TRUE(same_bits(before, everything()));
      EXPECT_TRUE(engine->train_batch().applied);
    }
  }
}

// The gradients do not depend on the weights here, so both keep the same masters, bit for bit.
TEST(Training, SplitMastersAreTheMasters) {
  const auto run = [](bool split) {
    nn::ParameterSet set;
    nn::Parameter p;
    p.name = "w";
    p.shape = Shape{1000};
    p.decays = true;
    set.add(p);
    auto model = models::Model::from_parameters(std::move(set));
    const Json config =
        with(base_config(), {{"gradient_accumulation_steps", 1},
                             {"scheduler", nullptr},
                             {"bf16", {{"enabled", true}, {"split_master", split}}}});
    Engine engine(dump_json(config), model, nullptr);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (int step = 0; step < 50; ++step) {
      Tensor gradient = model->context().workspace(DType::kFloat32, {1000});
      for (int i = 0; i < 1000; ++i) gradient.data<float>()[i] = normal(random);
      const int64_t index = 0;
      const Tensor* const given = &gradient;
      engine.gradients().add({&index, 1}, {&given, 1});
      EXPECT_TRUE(engine.step().applied);
    }
    return flat(model->get("w"));
  };
  EXPECT_TRUE(same_bits(run(false), run(true)));
}

int64_t size_of_files(const fs::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

int64_t trainable_elements(const models::Model& model) {
  int64_t n = 0;
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    if (model.parameters()[id].trainable) n += model.parameters()[id].shape.elements();
  }
  return n;
}

// Adapters or a few trainable tensors: resumes are bitwise, frozen tensors never move, and a
// checkpoint without them is about as large as what trains (master and two moments).
TEST(Training, FrozenAndAdaptedRunsResumeToTheBitFromSmallCheckpoints) {
  for (const bool lora : {false, true}) {
    const Folder folder;
    const Json model_json = model_config(0.1);
    const auto make = [&] {
      auto model = models::Model::create(model_json, 3);
      if (lora) {
        models::LoraOptions options;
        options.r = 2;
        options.dropout = 0.1;
        options.target_modules = {"c_attn", "c_fc"};
        models::add_lora(*model, options);
      } else {
        models::set_trainable(*model, {"*"}, false);
        models::set_trainable(*model, {"h.1.ln_*", "h.1.attn.c_proj.*"}, true);
      }
      const Json config =
          with(base_config(), {{"checkpoint", {{"exclude_frozen_parameters", true}}}});
      auto engine = std::make_unique<Engine>(dump_json(config), model, nullptr);
      engine->set_dataset(periodic_data());
      return engine;
    };
    const auto straight = make();
    const std::vector<float> frozen = flat(straight->model()->get("wte.weight"));
    EXPECT_LT(trainable_elements(*straight->model()),
              straight->model()->parameters().elements() / 10);
    for (int i = 0; i < 12; ++i) EXPECT_TRUE(straight->train_batch().applied);
    EXPECT_TRUE(same_bits(frozen, flat(straight->model()->get("wte.weight"))));
    const auto first = make();
    for (int i = 0; i < 6; ++i) first->train_batch();
    first->save(folder.path("saved"), "half");
    const int64_t state = 12 * trainable_elements(*first->model());
    const int64_t whole = 4 * first->model()->parameters().elements();
    EXPECT_LT(size_of_files(folder.path("saved")), state + 32 * 1024) << whole;
    const auto second = make();
    second->load(folder.path("saved"), "half");
    for (int i = 6; i < 12; ++i) second->train_batch();
    const nn::ParameterSet& parameters = straight->model()->parameters();
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      const std::string& name = parameters[id].name;
      ASSERT_TRUE(same_bits(flat(straight->model()->get(name)), flat(second->model()->get(name))))
          << name;
    }
    // Alone it is no model, and it says so.
    EXPECT_THAT(error_of(Code::kNotFound, [&] { models::open_saved_model(folder.path("saved")); }),
                HasSubstr("without frozen parameters"));
  }
}

TEST(Training, ASavedModelKeepsItsAdaptersAndWhatIsFrozen) {
  const Folder folder;
  auto model = models::Model::create(model_config(0), 3);
  models::LoraOptions options;
  options.target_modules = {"c_attn"};
  models::add_lora(*model, options);
  Engine engine(dump_json(base_config()), model, nullptr);
  engine.set_dataset(periodic_data());
  for (int i = 0; i < 3; ++i) engine.train_batch();
  engine.save(folder.path(), "");
  const auto opened = models::open_saved_model(folder.path());
  ASSERT_TRUE(opened->lora().has_value());
  ASSERT_EQ(opened->parameters().size(), model->parameters().size());
  for (nn::ParamId id = 0; id < opened->parameters().size(); ++id) {
    const std::string& name = opened->parameters()[id].name;
    EXPECT_EQ(opened->parameters()[id].trainable, model->parameters()[id].trainable) << name;
    EXPECT_TRUE(same_bits(flat(opened->get(name)), flat(model->get(name)))) << name;
  }
}

Json llama_config() {
  return {{"model_type", "llama"},
          {"vocab_size", 300},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 64},
          {"tie_word_embeddings", false},
          {"attention_dropout", 0.0}};
}

// Packed fine-tuning data: only answers count, pieces do not see each other.
TEST(Training, PackedFineTuningGivesWhatSingleExamplesGive) {
  const Folder folder;
  const fs::path file = folder.path("chat.jsonl");
  {
    std::ofstream out(file);
    for (int i = 0; i < 12; ++i) {
      out << R"({"prompt": "add )" << i << R"( and 1: ", "completion": ")" << i + 1 << "\"}\n";
    }
  }
  const auto mean_loss = [&](int64_t length, bool pack) {
    DatasetSpec spec;
    spec.kind = DatasetKind::kPacked;
    spec.path = file;
    spec.sequence_length = length;
    spec.split = "1,0,0";
    spec.pack = pack;
    const DatasetPtr data = open_dataset(spec, make_byte_tokenizer());
    const Json config = with(base_config(), {{"train_micro_batch_size_per_gpu", 1}});
    Engine engine(dump_json(config), models::Model::create(llama_config(), 7), nullptr);
    const double loss = engine.evaluate(*data, 0);
    engine.set_dataset(data);
    const double before = engine.train_batch().loss;
    double after = before;
    for (int i = 0; i < 20; ++i) after = engine.train_batch().loss;
    EXPECT_LT(after, before);
    return loss;
  };
  // The same labels in other company: sums of the same losses in another order.
  EXPECT_NEAR(mean_loss(64, true), mean_loss(32, false), 1e-5);
}

Json bert_config(const char* architecture) {
  return {{"model_type", "bert"},
          {"architectures", {architecture}},
          {"vocab_size", 97},
          {"hidden_size", 32},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"intermediate_size", 64},
          {"max_position_embeddings", 32},
          {"type_vocab_size", 2},
          {"hidden_dropout_prob", 0.0},
          {"attention_probs_dropout_prob", 0.0},
          {"num_labels", 3}};
}

TEST(Training, EncodersLearnClassesAndHiddenTokens) {
  const Json config = with(base_config(), {{"gradient_accumulation_steps", 1},
                                           {"train_micro_batch_size_per_gpu", 6},
                                           {"scheduler", nullptr}});
  std::mt19937 random(3);
  std::vector<int64_t> ids(6 * 8), hidden(6 * 8, -100), types(6 * 8);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(random() % 97);
    types[i] = i % 8 >= 4;
    if (i % 5 == 0) hidden[i] = static_cast<int64_t>(random() % 97);
  }
  {
    Engine engine(dump_json(config),
                  models::Model::create(bert_config("BertForSequenceClassification"), 1), nullptr);
    const std::vector<int64_t> classes = {0, 1, 2, 2, 1, 0};
    Tensor labels = ids_tensor(classes, 6).view({6});
    double loss = 0, first = 0;
    for (int i = 0; i < 40; ++i) {
      const Tensor value =
          engine.forward({ids_tensor(ids, 6), labels, {}, {}, ids_tensor(types, 6)});
      engine.backward(value);
      loss = engine.step().loss;
      if (i == 0) first = loss;
    }
    EXPECT_NEAR(first, std::log(3.0), 0.3);
    EXPECT_LT(loss, 0.1);
    labels.data<int64_t>()[2] = 3;
    EXPECT_THAT(error_of(Code::kInvalidArgument,
                         [&] {
                           engine.forward({ids_tensor(ids, 6), labels, {}, {}, {}});
                         }),
                HasSubstr("labels"));
  }
  Engine engine(dump_json(config), models::Model::create(bert_config("BertForMaskedLM"), 1),
                nullptr);
  double loss = 0;
  for (int i = 0; i < 60; ++i) {
    const Tensor value = engine.forward({ids_tensor(ids, 6), ids_tensor(hidden, 6), {}, {}, {}});
    engine.backward(value);
    loss = engine.step().loss;
  }
  EXPECT_LT(loss, 1.0);
  Engine encoder(dump_json(config), models::Model::create(bert_config("BertModel"), 1), nullptr);
  EXPECT_THAT(error_of(Code::kUnsupported,
                       [&] {
                         encoder.forward({ids_tensor(ids, 6), ids_tensor(hidden, 6), {}, {}, {}});
                       }),
              HasSubstr("encoder without a head"));
}

// Written by version 0.1 after three steps; the losses are those of its unbroken run.
TEST(Training, ACheckpointOfVersion01GoesOn) {
  const Json model = {{"model_type", "gpt2"}, {"vocab_size", 256}, {"n_positions", 16},
                      {"n_embd", 8},          {"n_layer", 1},      {"n_head", 2},
                      {"resid_pdrop", 0.0},   {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}};
  const Json config = {
      {"train_micro_batch_size_per_gpu", 2},
      {"seed", 7},
      {"threads", 1},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}, {"weight_decay", 0.1}}}}},
      {"scheduler",
       {{"type", "WarmupLR"}, {"params", {{"warmup_num_steps", 5}, {"warmup_max_lr", 0.01}}}}}};
  const Folder folder;
  {
    std::ofstream out(folder.path("text.txt"));
    for (int i = 0; i < 60; ++i) out << "the quick brown fox jumps over the lazy dog. ";
    out << "\n";
  }
  DatasetSpec spec;
  spec.path = folder.path("text.txt");
  spec.sequence_length = 16;
  spec.seed = 7;
  Engine engine(dump_json(config), models::Model::create(model, 1), nullptr);
  engine.set_dataset(open_dataset(spec, make_byte_tokenizer()));
  engine.load(test_data().string() + "/checkpoint/v0.1", "");
  const double losses[] = {5.539159774780273, 5.50316047668457, 5.410403728485107};
  const double rates[] = {0.006826061944859854, 0.00861353116146786, 0.01};
  for (int i = 0; i < 3; ++i) {
    const StepReport report = engine.train_batch();
    EXPECT_NEAR(report.loss, losses[i], 1e-5);  // products may be summed in another order here
    EXPECT_NEAR(report.lr, rates[i], 1e-15);
    EXPECT_EQ(report.progress.steps, 4 + i);
  }
}

}  // namespace
}  // namespace ds
