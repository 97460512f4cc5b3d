// Whole models on a GPU beside the same on the CPU: training, evaluation, decoding, checkpoints.
// They take the same steps up to roundings, and a GPU takes them twice with the same bits.
#include <gmock/gmock.h>

#include <cmath>

#include "cuda/model_world.h"
#include "infer/generate.h"
#include "models/adapters.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about

struct Variant {
  const char* name;
  Json model;
  Json config;
  // Largest differences from the CPU: of a loss, and of a weight after the steps.
  double loss;
  double weight;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

Json neox_config() {
  return {{"model_type", "gpt_neox"},      {"vocab_size", 61},       {"hidden_size", 32},
          {"intermediate_size", 48},       {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"max_position_embeddings", 32}, {"rotary_pct", 0.5}};
}

// bf16 rounds activations to 8 bits: where the two round apart, a gradient changes by its 256th,
// and Adam's first steps make of the sign of a small gradient a step of the learning rate. In fp8
// what was rounded apart may get another code, 8 times as far away.
std::vector<Variant> variants() {
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  const Json fp8 = with(bf16, {{"fp8", {{"enabled", true}, {"amax_history_len", 2}}}});
  return {{"Gpt2", model_config(0.1), Json::object(), 1e-5, 2e-4},
          {"Gpt2Checkpointed", model_config(0.1),
           Json{{"activation_checkpointing", {{"enabled", true}}}}, 1e-5, 2e-4},
          {"Gpt2Bf16", model_config(0.1), bf16, 2e-2, 5e-2},
          {"Llama", llama_config(), Json::object(), 1e-5, 2e-4},
          {"LlamaBf16", llama_config(), with(bf16, {{"gradient_clipping", 1.0}}), 2e-2, 5e-2},
          {"GptNeoX", neox_config(), Json::object(), 1e-5, 2e-4},
          {"Gpt2Fp8", model_config(0.1), fp8, 4e-2, 6e-2},
          {"LlamaFp8Checkpointed", llama_config(),
           with(fp8, {{"activation_checkpointing", {{"enabled", true}}}}), 4e-2, 6e-2}};
}

class GpuTraining : public GpuModel, public ::testing::WithParamInterface<Variant> {};

TEST_P(GpuTraining, FollowsTheCpu) {
  const Variant& variant = GetParam();
  const Json config = with(base_config(), variant.config);
  const auto cpu = make_engine_on(false, config, variant.model);
  const auto gpu = make_engine_on(true, config, variant.model);
  const auto again = make_engine_on(true, config, variant.model);
  for (int i = 0; i < 3; ++i) {
    const StepReport expected = cpu->train_batch(), actual = gpu->train_batch();
    EXPECT_TRUE(actual.applied);
    EXPECT_EQ(actual.tokens, expected.tokens);
    EXPECT_NEAR(actual.loss, expected.loss, variant.loss) << "step " << i;
    EXPECT_NEAR(actual.grad_norm, expected.grad_norm,
                1e-2 * expected.grad_norm * (variant.loss > 1e-3 ? 1 : 1e-2));
    EXPECT_EQ(again->train_batch().loss, actual.loss);
  }
  EXPECT_LT(largest_difference(weights_of(*gpu), weights_of(*cpu)), variant.weight);
  EXPECT_TRUE(same_bits(weights_of(*gpu), weights_of(*again)));
  EXPECT_TRUE(same_bits(states_of(*gpu), states_of(*again)));
  const auto data = periodic_data();
  EXPECT_NEAR(gpu->evaluate(*data, 2), cpu->evaluate(*data, 2), variant.loss * 5);
}

TEST_P(GpuTraining, GoesOnFromACheckpointOfTheCpu) {
  const Variant& variant = GetParam();
  const Folder folder;
  const Json config = with(base_config(), variant.config);
  const auto straight = make_engine_on(true, config, variant.model);
  straight->train_batch();
  straight->save(folder.path("gpu"), "one");
  const auto cpu = make_engine_on(false, config, variant.model);
  cpu->load(folder.path("gpu"), "one");
  EXPECT_TRUE(same_bits(weights_of(*cpu), weights_of(*straight)));
  cpu->save(folder.path("cpu"), "one");
  const auto resumed = make_engine_on(true, config, variant.model);
  resumed->load(folder.path("cpu"), "one");
  EXPECT_EQ(resumed->train_batch().loss, straight->train_batch().loss);
  EXPECT_TRUE(same_bits(weights_of(*resumed), weights_of(*straight)));
}

INSTANTIATE_TEST_SUITE_P(Models, GpuTraining, ::testing::ValuesIn(variants()),
                         [](const auto& test) { return test.param.name; });

TEST_F(GpuModel, LowRankAdaptersTrain) {
  models::LoraOptions options;
  options.r = 2;
  options.alpha = 4;
  options.dropout = 0.1;
  options.target_modules = {"all-linear"};
  std::vector<float> after[2];
  for (const bool on_gpu : {false, true}) {
    const auto model = make_model(llama_config(), on_gpu);
    models::add_lora(*model, options);
    Engine engine(dump_json(base_config()), model, nullptr);
    engine.set_dataset(periodic_data());
    for (int i = 0; i < 3; ++i) engine.train_batch();
    after[on_gpu ? 1 : 0] = weights_of(engine);
  }
  EXPECT_LT(largest_difference(after[0], after[1]), 2e-4);
}

TEST_F(GpuModel, PaddingAndSegmentsAreSeen) {
  std::vector<double> losses;
  for (const bool on_gpu : {false, true}) {
    const auto engine = make_engine_on(on_gpu, base_config(), llama_config());
    const Tensor ids = ids_tensor({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2);
    const Tensor labels = ids_tensor({2, 3, 4, -100, 6, 7, 8, 9, 10, 11, 12, -100}, 2);
    const Tensor mask = ids_tensor({0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, 2);
    const Tensor segments = ids_tensor({0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3}, 2);
    for (const Tensor& which : {mask, Tensor()}) {
      const Tensor loss = engine->forward({ids, labels, which, segments, {}});
      losses.push_back(double{*loss.data<float>()});
      engine->backward(loss);
      engine->step();
    }
  }
  EXPECT_NEAR(losses[2], losses[0], 1e-5);
  EXPECT_NEAR(losses[3], losses[1], 1e-5);
}

// Every token that the GPU chooses is, on the CPU, the likeliest or as likely as that one.
TEST_F(GpuModel, Generates) {
  for (const Json& config : {model_config(0), llama_config(), neox_config()}) {
    SCOPED_TRACE(config.at("model_type").get<std::string>());
    const auto cpu = make_model(config, false), gpu = make_model(config, true);
    const std::vector<int32_t> prompt{3, 9, 27, 20, 60};
    infer::GenerateOptions options;
    options.max_tokens = 9;
    const auto continue_on = [&](models::Model& model) {
      return infer::generate(model.context(), model.reader(), model.architecture(), prompt, options,
                             {});
    };
    const std::vector<int32_t> text = continue_on(*gpu);
    EXPECT_EQ(text.size(), 9U);
    EXPECT_EQ(continue_on(*gpu), text);
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), text.begin(), text.end());
    const auto length = static_cast<int64_t>(all.size());
    const Tensor ids = Tensor::empty(cpu->host(), DType::kInt32, {1, length}, MemoryTag::kOther);
    std::copy(all.begin(), all.end(), ids.data<int32_t>());
    const auto logits_on = [&](models::Model& model) {
      return to_host(
          infer::batch_logits(model.context(), model.reader(), model.architecture(), ids, Tensor()),
          model.host());
    };
    const Tensor expected = logits_on(*cpu), actual = logits_on(*gpu);
    EXPECT_LT(largest_difference(flat(actual), flat(expected)), 1e-4);
    const int64_t vocab = expected.size(2);
    for (size_t i = 0; i < text.size(); ++i) {
      const float* const row =
          expected.data<float>() + (static_cast<int64_t>(prompt.size() + i) - 1) * vocab;
      EXPECT_GE(row[text[i]], *std::max_element(row, row + vocab) - 1e-4f) << "token " << i;
    }
    // Weights in other forms say the same twice, and nearly what they say on the CPU.
    for (const models::WeightForm form :
         {models::WeightForm::kBFloat16, models::WeightForm::kInt8, models::WeightForm::kInt4}) {
      models::InferenceOptions held;
      held.weights = form;
      held.group_size = 16;
      held.threads = 1;
      const auto narrow_cpu = make_model(config, false)->prepared_copy(held);
      const auto narrow_gpu = make_model(config, true)->prepared_copy(held);
      EXPECT_EQ(continue_on(*narrow_gpu), continue_on(*narrow_gpu));
      EXPECT_LT(largest_difference(flat(logits_on(*narrow_gpu)), flat(logits_on(*narrow_cpu))),
                2e-2);
    }
  }
}

TEST_F(GpuModel, Encoders) {
  const Json config = {
      {"model_type", "bert"},    {"architectures", {"BertForSequenceClassification"}},
      {"vocab_size", 61},        {"hidden_size", 32},
      {"num_hidden_layers", 2},  {"num_attention_heads", 4},
      {"intermediate_size", 64}, {"max_position_embeddings", 32},
      {"num_labels", 3}};
  std::vector<float> after[2];
  for (const bool on_gpu : {false, true}) {
    Engine engine(dump_json(with(base_config(), {{"gradient_accumulation_steps", 1}})),
                  make_model(config, on_gpu), nullptr);
    for (int i = 0; i < 2; ++i) {
      const Tensor ids = ids_tensor({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 4);
      engine.backward(engine.forward({ids, ids_tensor({0, 2, 1, 1}, 4), {}, {}, {}}));
      engine.step();
    }
    after[on_gpu ? 1 : 0] = weights_of(engine);
  }
  EXPECT_LT(largest_difference(after[0], after[1]), 1e-3);
}

}  // namespace
}  // namespace ds
