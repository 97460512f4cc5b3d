// GPT-2 over the tape: loss and gradients against the double-precision reference, activation
// checkpointing, threads, decoding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "attached_state.h"
#include "fresh_seed.h"
#include "infer/generate.h"
#include "models/inputs.h"
#include "models/model.h"
#include "nn/loss.h"
#include "reference_gpt2.h"
#include "support.h"

namespace ds::models {
namespace {

using ::ds::fresh_seed;
using ::ds::testing::disturb;
using ::ds::testing::ReferenceConfig;
using ::ds::testing::Weights;

Json tiny_config(bool tied, const char* activation, double dropout = 0) {
  return {{"model_type", "gpt2"},
          {"vocab_size", 37},
          {"n_positions", 24},
          {"n_embd", 20},
          {"n_layer", 3},
          {"n_head", 4},
          {"n_inner", 52},
          {"resid_pdrop", dropout},
          {"embd_pdrop", dropout},
          {"attn_pdrop", dropout},
          {"activation_function", activation},
          {"tie_word_embeddings", tied},
          {"initializer_range", 0.2}};
}
ReferenceConfig reference_config(bool erf) { return {37, 24, 20, 3, 4, 52, 1e-5, erf}; }

struct Data {
  std::vector<std::vector<int32_t>> ids, labels;
  std::vector<std::vector<int>> masks;
};

Data random_data(std::mt19937_64& random, size_t batch, size_t length) {
  std::uniform_int_distribution<int32_t> token(0, 36);
  Data data;
  for (size_t b = 0; b < batch; ++b) {
    data.ids.emplace_back();
    data.labels.emplace_back();
    data.masks.emplace_back();
    for (size_t t = 0; t < length; ++t) {
      data.ids[b].push_back(token(random));
      data.labels[b].push_back(token(random) < 5 ? -100 : token(random));
      data.masks[b].push_back(t < b ? 0 : 1);  // left padding, more of it in later rows
    }
  }
  return data;
}

template <class T>
Tensor matrix(const std::shared_ptr<Device>& device, DType dtype,
              const std::vector<std::vector<T>>& rows) {
  Tensor out = Tensor::empty(
      device, dtype, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size())},
      MemoryTag::kOther);
  auto* to = static_cast<T*>(out.raw());
  for (const auto& row : rows) to = std::copy(row.begin(), row.end(), to);
  return out;
}

Weights weights_of(Model& model) {
  Weights out;
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const Tensor master = master_of(model, id);
    out[model.parameters()[id].name] = {master.data<float>(),
                                        master.data<float>() + master.elements()};
  }
  return out;
}

struct PassOptions {
  int64_t segments = 0;
  int threads = 1;
  bool masked = false;
};

// One forward and backward; gradients are left in the model's state.
double run_pass(Model& model, const Data& data, const PassOptions& pass) {
  ThreadPool pool(pass.threads);
  const OpContext ctx{model.device(), &pool};
  train_state(model).gradients().allocate();
  nn::TapeOptions options;
  options.seed = 7;
  options.step = 3;
  nn::Tape tape(ctx, train_state(model).weights(), &train_state(model).gradients(), options);
  Batch batch;
  batch.ids = token_ids(ctx, matrix(model.device(), DType::kInt32, data.ids), "ids", 37);
  batch.position_ids = position_ids(ctx, batch.ids.size(0), batch.ids.size(1), 0);
  if (pass.masked) {
    batch.key_mask = key_mask(ctx, matrix(model.device(), DType::kInt32, data.masks), batch.ids);
  }
  const Tensor labels =
      label_ids(ctx, matrix(model.device(), DType::kInt32, data.labels), batch.ids, 37);
  ForwardOptions forward;
  forward.recompute.segments = pass.segments;
  const nn::Value logits = model.architecture().logits(tape, batch, forward);
  int64_t counted = 0;
  const nn::Value loss = nn::cross_entropy(tape, logits, labels, 37, counted);
  Tensor one = ctx.workspace(DType::kFloat32, {});
  *one.data<float>() = 1;
  loss.slot->add(ctx, one, true);
  tape.backward();
  return *loss.data.data<float>();
}

std::vector<float> gradients_of(Model& model) {
  const Tensor& flat = train_state(model).gradients().all();
  return {flat.data<float>(), flat.data<float>() + flat.elements()};
}

struct Variant {
  bool tied;
  const char* activation;
  bool masked;
};
class Gpt2Gradients : public ::testing::TestWithParam<Variant> {};

TEST_P(Gpt2Gradients, MatchFiniteDifferencesOfTheDoubleReference) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  std::mt19937_64 random(seed);
  const Variant variant = GetParam();
  const auto model = Model::create(tiny_config(variant.tied, variant.activation), seed);
  disturb(*model, random);
  const Data data = random_data(random, 3, 11);
  const ReferenceConfig reference = reference_config(std::string(variant.activation) == "gelu");
  const auto masks = variant.masked ? data.masks : std::vector<std::vector<int>>();

  const double loss = run_pass(*model, data, {0, 2, variant.masked});
  Weights weights = weights_of(*model);
  // fp32 against double: the loss is a mean of sums of a few hundred rounded terms.
  EXPECT_NEAR(loss, testing::reference_loss(reference, weights, data.ids, data.labels, masks),
              2e-5 * std::abs(loss));

  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const std::string& name = model->parameters()[id].name;
    testing::Vector& w = weights[name];
    const Tensor gradient = train_state(*model).gradients().view(id);
    // A random direction tests every element of the tensor at once.
    std::normal_distribution<double> normal;
    testing::Vector direction(w.size());
    double analytic = 0, scale = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      direction[i] = normal(random);
      analytic += direction[i] * gradient.data<float>()[i];
      scale += std::pow(direction[i] * gradient.data<float>()[i], 2);
    }
    const testing::Vector kept = w;
    const double h = 1e-5;
    const auto at = [&](double step) {
      for (size_t i = 0; i < w.size(); ++i) w[i] = kept[i] + step * direction[i];
      return testing::reference_loss(reference, weights, data.ids, data.labels, masks);
    };
    const double numeric = (at(h) - at(-h)) / (2 * h);
    w = kept;
    // Truncation is h^2 times third derivatives; fp32 backward rounds at 1e-6 of the summed terms.
    EXPECT_NEAR(analytic, numeric, 2e-4 * (std::sqrt(scale) + std::abs(numeric)) + 1e-6) << name;
  }
}
INSTANTIATE_TEST_SUITE_P(Variants, Gpt2Gradients,
                         ::testing::Values(Variant{true, "gelu_new", false},
                                           Variant{false, "gelu", false},
                                           Variant{true, "gelu_pytorch_tanh", true}));

TEST(Gpt2, CheckpointingAndThreadsGiveTheSameBits) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(tiny_config(true, "gelu_new", 0.2), 5);
  disturb(*model, random);
  const Data data = random_data(random, 4, 13);
  const double loss = run_pass(*model, data, {0, 1, true});
  const std::vector<float> expected = gradients_of(*model);
  for (const PassOptions& pass :
       {PassOptions{0, 2, true}, PassOptions{1, 1, true}, PassOptions{2, 2, true},
        PassOptions{3, 1, true}, PassOptions{99, 3, true}}) {
    EXPECT_EQ(run_pass(*model, data, pass), loss) << pass.segments;
    const std::vector<float> actual = gradients_of(*model);
    ASSERT_EQ(std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << pass.segments << " segments, " << pass.threads << " threads";
  }
}

TEST(Gpt2, CheckpointingHoldsLessMemory) {
  const auto peak = [](int64_t segments) {
    std::mt19937_64 random(1);
    Json config = tiny_config(true, "gelu_new");
    config["n_layer"] = 12;
    const auto model = Model::create(config, 5);
    const Data data = random_data(random, 8, 24);
    model->device()->account().reset_peaks();
    run_pass(*model, data, {segments, 1, false});
    return model->device()->account().peak(MemoryTag::kActivations);
  };
  EXPECT_LT(peak(12), peak(0) / 2);
}

TEST(Gpt2, Bf16StaysNearFp32) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(tiny_config(true, "gelu_new"), 5);
  const Data data = random_data(random, 4, 16);
  const double fp32 = run_pass(*model, data, {});
  train_state(*model).set_compute_type(model->context(), DType::kBFloat16);
  const double bf16 = run_pass(*model, data, {});
  EXPECT_NE(fp32, bf16);
  EXPECT_NEAR(bf16, fp32, 1e-2 * fp32);
}

TEST(Gpt2, InitialisationHasMegatronsSpread) {
  Json config = tiny_config(true, "gelu_new");
  config["n_embd"] = 64;
  config["n_inner"] = 256;
  config["vocab_size"] = 512;
  config["initializer_range"] = 0.02;
  const auto model = Model::create(config, 11);
  const auto spread = [&](const char* name) {
    const Tensor t = model->get(name);
    double sum = 0;
    for (int64_t i = 0; i < t.elements(); ++i) sum += std::pow(t.data<float>()[i], 2);
    return std::sqrt(sum / static_cast<double>(t.elements()));
  };
  EXPECT_NEAR(spread("wte.weight"), 0.02, 0.001);
  EXPECT_NEAR(spread("h.1.attn.c_attn.weight"), 0.02, 0.001);
  EXPECT_NEAR(spread("h.1.attn.c_proj.weight"), 0.02 / std::sqrt(6.0), 0.001);
  EXPECT_NEAR(spread("h.2.mlp.c_proj.weight"), 0.02 / std::sqrt(6.0), 0.001);
  EXPECT_EQ(spread("h.0.mlp.c_fc.bias"), 0);
  EXPECT_EQ(spread("ln_f.weight"), 1);
  EXPECT_NE(model->get("wte.weight").data<float>()[0],
            Model::create(config, 12)->get("wte.weight").data<float>()[0]);
}

TEST(Gpt2, LogitsMatchTheReference) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(tiny_config(true, "gelu_new"), 9);
  disturb(*model, random);
  const Data data = random_data(random, 2, 17);
  const OpContext ctx = model->context();
  const Tensor ids = matrix(model->device(), DType::kInt32, data.ids);
  const Tensor logits = infer::batch_logits(ctx, model->reader(), model->architecture(), ids, {});
  const Weights weights = weights_of(*model);
  for (size_t b = 0; b < 2; ++b) {
    const auto expected = testing::reference_logits(reference_config(false), weights, data.ids[b]);
    for (size_t t = 0; t < 17; ++t) {
      for (size_t v = 0; v < 37; ++v) {
        EXPECT_NEAR(logits.data<float>()[(b * 17 + t) * 37 + v], expected[t][v], 1e-4);
      }
    }
  }
}

TEST(Generate, GreedyDecodingFollowsTheReferenceAndTheCache) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(tiny_config(true, "gelu_new"), 9);
  disturb(*model, random);
  const std::vector<int32_t> prompt{3, 1, 4, 1, 5};
  infer::GenerateOptions options;
  options.max_tokens = 15;
  const std::vector<int32_t> text = infer::generate(
      model->context(), model->reader(), model->architecture(), prompt, options, nullptr);
  ASSERT_EQ(text.size(), 15u);
  std::vector<int32_t> all = prompt;
  const Weights weights = weights_of(*model);
  for (const int32_t token : text) {
    const testing::Vector last =
        testing::reference_logits(reference_config(false), weights, all).back();
    const double best = *std::max_element(last.begin(), last.end());
    // Equal up to what fp32 can tell apart.
    EXPECT_NEAR(last[static_cast<size_t>(token)], best, 1e-4);
    all.push_back(token);
  }
}

TEST(Generate, GoesOnPastTheLastPosition) {
  const auto model = Model::create(tiny_config(true, "gelu_new"), 9);
  infer::GenerateOptions options;
  options.max_tokens = 100;
  options.sampling.temperature = 1;
  options.seed = 3;
  const std::vector<int32_t> long_prompt(60, 2);
  for (const std::vector<int32_t>& prompt : {std::vector<int32_t>{1}, long_prompt}) {
    const auto a = infer::generate(model->context(), model->reader(), model->architecture(), prompt,
                                   options, nullptr);
    const auto b = infer::generate(model->context(), model->reader(), model->architecture(), prompt,
                                   options, nullptr);
    EXPECT_EQ(a.size(), 100u);
    EXPECT_EQ(a, b);
  }
}

TEST(Generate, StopsAtTheStopTokenAndWhenTheCallerAsks) {
  const auto model = Model::create(tiny_config(true, "gelu_new"), 9);
  infer::GenerateOptions options;
  options.max_tokens = 10;
  const std::vector<int32_t> prompt{1};
  const auto free_text = infer::generate(model->context(), model->reader(), model->architecture(),
                                         prompt, options, nullptr);
  options.stop_token = free_text[0];
  EXPECT_TRUE(infer::generate(model->context(), model->reader(), model->architecture(), prompt,
                              options, nullptr)
                  .empty());
  options.stop_token.reset();
  int seen = 0;
  try {
    infer::generate(model->context(), model->reader(), model->architecture(), prompt, options,
                    [&](int32_t) { return ++seen < 3; });
    FAIL() << "the callback was ignored";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCallback);
  }
  EXPECT_EQ(seen, 3);
}

TEST(ModelConfig, RefusesWhatItDoesNotKnow) {
  const auto message = [](const Json& change) {
    Json config = tiny_config(true, "gelu_new");
    config.update(change);
    try {
      Model model(config);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message({{"n_layers", 3}}), ::testing::HasSubstr("n_layers; did you mean n_layer?"));
  EXPECT_THAT(message({{"n_head", 3}}), ::testing::HasSubstr("not a multiple of n_head 3"));
  EXPECT_THAT(message({{"vocab_size", 0}}), ::testing::HasSubstr("vocab_size"));
  EXPECT_THAT(message({{"vocab_size", 1e30}}), ::testing::HasSubstr("vocab_size"));
  EXPECT_THAT(message({{"resid_pdrop", 1.0}}), ::testing::HasSubstr("resid_pdrop"));
  EXPECT_THAT(message({{"activation_function", "mish"}}), ::testing::HasSubstr("mish"));
  EXPECT_THAT(message({{"model_type", "mamba"}}), ::testing::HasSubstr("mamba"));
  EXPECT_THAT(message({{"architectures", {"GPT2ForTokenClassification"}}}),
              ::testing::HasSubstr("GPT2ForTokenClassification"));
  EXPECT_EQ(message({{"reorder_and_upcast_attn", true}}), "accepted");
  EXPECT_EQ(message({{"summary_type", "cls_index"}}), "accepted");
}

}  // namespace
}  // namespace ds::models
