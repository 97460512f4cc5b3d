// Decoding on a GPU: recorded tokens have the bits of those that are launched kernel by kernel,
// over every room that there is a graph for, for all families with a cache and all forms of
// weights.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "cuda/model_world.h"
#include "ds.hpp"
#include "fresh_seed.h"
#include "infer/decoder.h"
#include "infer/generate.h"
#include "infer/kv_cache.h"
#include "models/adapters.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about

struct Family {
  const char* name;
  Json config;
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

// Small, with more positions than two splits of keys.
std::vector<Family> families() {
  const Json long_llama = with(llama_config(), {{"max_position_embeddings", 600}});
  Json gpt2 = with(model_config(0), {{"n_positions", 600}});
  const Json neox = {
      {"model_type", "gpt_neox"},       {"vocab_size", 61},       {"hidden_size", 32},
      {"intermediate_size", 48},        {"num_hidden_layers", 2}, {"num_attention_heads", 4},
      {"max_position_embeddings", 600}, {"rotary_pct", 0.5}};
  Json mistral = with(long_llama, {{"model_type", "mistral"}, {"sliding_window", 40}});
  Json scaled = with(long_llama, {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}});
  Json dynamic = with(llama_config(), {{"max_position_embeddings", 300},
                                       {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}});
  return {{"Gpt2", gpt2},       {"Llama", long_llama}, {"GptNeoX", neox},
          {"Mistral", mistral}, {"Scaled", scaled},    {"Dynamic", dynamic}};
}

std::vector<int32_t> some_ids(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 61);
  return ids;
}

class GpuDecoding : public GpuModel, public ::testing::WithParamInterface<Family> {
 protected:
  infer::Decoder decoder(models::Model& model, int64_t capacity, bool graphs) const {
    infer::GenerateOptions options;
    options.graphs = graphs;
    return infer::Decoder(model.context(), model.reader(), model.architecture(), {1, capacity},
                          options);
  }
  // Feeds both the same, and compares the bits of what they give.
  static void step(infer::Decoder& recorded, infer::Decoder& plain, std::span<const int32_t> ids,
                   const char* what, size_t at) {
    const std::span<const float> a = recorded.feed(0, ids), b = plain.feed(0, ids);
    ASSERT_EQ(a.size(), b.size());
    ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0) << what << ", token " << at;
  }

  const uint64_t seed_ = ds::fresh_seed();
};

TEST_P(GpuDecoding, RecordedTokensHaveTheSameBits) {
  SCOPED_TRACE(seed_);
  const auto model = make_model(GetParam().config, true);
  constexpr int64_t kCapacity = 530;
  auto recorded = decoder(*model, kCapacity, true), plain = decoder(*model, kCapacity, false);
  const std::vector<int32_t> ids = some_ids(1200, seed_);
  size_t at = 0;
  const auto feed = [&](int64_t n, const char* what) {
    step(recorded, plain, std::span(ids).subspan(at, static_cast<size_t>(n)), what, at);
    at += static_cast<size_t>(n);
  };
  feed(7, "prompt");
  for (int i = 0; i < 8; ++i) feed(1, "short text");
  feed(236, "more text at once");  // 251
  for (int i = 0; i < 10; ++i) feed(1, "over the end of the first split");
  feed(245, "more text at once");  // 506
  for (int i = 0; i < 12; ++i) feed(1, "over the end of the second split");
  recorded.forget(0);
  plain.forget(0);
  feed(3, "a new prompt");
  for (int i = 0; i < 5; ++i) feed(1, "graphs that are there already");
}

TEST_P(GpuDecoding, EveryFormOfWeights) {
  SCOPED_TRACE(seed_);
  for (const models::WeightForm form :
       {models::WeightForm::kBFloat16, models::WeightForm::kInt8, models::WeightForm::kInt4}) {
    models::InferenceOptions held;
    held.weights = form;
    held.group_size = 16;
    held.threads = 1;
    const auto model = make_model(GetParam().config, true)->prepared_copy(held);
    auto recorded = decoder(*model, 40, true), plain = decoder(*model, 40, false);
    const std::vector<int32_t> ids = some_ids(40, seed_);
    step(recorded, plain, std::span(ids).first(9), "prompt", 0);
    for (size_t i = 9; i < 16; ++i) {
      step(recorded, plain, std::span(ids).subspan(i, 1), "token", i);
    }
  }
}

// Feeds as many tokens to every text of a cache; logits [B, tokens, V] on the host.
Tensor feed_all(models::Model& model, infer::KvCache& cache,
                const std::vector<std::vector<int32_t>>& ids) {
  const OpContext ctx = model.context(), host = infer::host_of(ctx);
  const auto count = static_cast<int64_t>(ids.front().size());
  models::Batch batch;
  batch.ids = host.workspace(DType::kInt32, {static_cast<int64_t>(ids.size()), count});
  batch.position_ids = host.workspace(DType::kInt32, batch.ids.shape());
  for (int64_t b = 0; b < batch.ids.size(0); ++b) {
    for (int64_t t = 0; t < count; ++t) {
      batch.ids.data<int32_t>()[b * count + t] =
          ids[static_cast<size_t>(b)][static_cast<size_t>(t)];
      batch.position_ids.data<int32_t>()[b * count + t] = static_cast<int32_t>(cache.length(b) + t);
    }
  }
  batch = models::to_device(std::move(batch), ctx.device);
  nn::Tape tape(ctx, model.reader(), nullptr, infer::inference_options());
  models::ForwardOptions options;
  options.state = &cache;
  const Tensor logits = model.architecture().logits(tape, batch, options).data;
  return to_host(infer::to_fp32(ctx, logits), host.device);
}

// Two texts of unequal lengths in one cache, one of them longer than a split of keys. Attention has
// the bits of each alone (cases_attention.cc), but products of twice as many rows may be cut, and
// so summed, in another way.
TEST_P(GpuDecoding, UnequalTextsOfOneCacheAreThoseOfEachAlone) {
  SCOPED_TRACE(seed_);
  const auto model = make_model(GetParam().config, true);
  const auto cache_of = [&](int64_t batch) {
    return infer::KvCache(model->device(), model->architecture().info(), batch, 290,
                          model->reader().compute_type());
  };
  infer::KvCache both = cache_of(2), first = cache_of(1), second = cache_of(1);
  const std::vector<int32_t> short_text = some_ids(40, seed_), long_text = some_ids(300, seed_ + 1);
  const auto part = [](const std::vector<int32_t>& ids, int64_t at, int64_t count) {
    return std::vector<int32_t>(ids.begin() + at, ids.begin() + at + count);
  };
  const auto distance = [](const Tensor& x, const Tensor& y, int64_t tokens) {
    const float* const a = x.data<float>();
    const float* const b = y.data<float>();
    double difference = 0, size = 0;
    for (int64_t i = 0; i < tokens * x.size(2); ++i) {
      difference += std::pow(double{a[i]} - double{b[i]}, 2);
      size += std::pow(double{b[i]}, 2);
    }
    return std::sqrt(difference / size);
  };
  const auto step = [&](int64_t count, int64_t of_short) {
    const int64_t at0 = both.length(0), at1 = both.length(1);
    std::vector<int32_t> padded = part(short_text, at0, of_short);
    padded.resize(static_cast<size_t>(count), 5);
    const Tensor logits = feed_all(*model, both, {padded, part(long_text, at1, count)});
    const Tensor own0 = feed_all(*model, first, {padded});
    const Tensor own1 = feed_all(*model, second, {part(long_text, at1, count)});
    EXPECT_LT(distance(logits.slice(0, 0, 1), own0, of_short), 1e-5) << "short, behind " << at0;
    EXPECT_LT(distance(logits.slice(0, 1, 2), own1, count), 1e-5) << "long, behind " << at1;
    both.shorten(0, at0 + of_short);
    first.shorten(0, at0 + of_short);
  };
  step(250, 5);  // a padded prompt
  step(20, 20);  // more than attention takes behind lengths in memory
  step(3, 3);
  for (int i = 0; i < 3; ++i) step(1, 1);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuDecoding, ::testing::ValuesIn(families()),
                         [](const auto& test) { return test.param.name; });

// Texts that come and go in one pass, some of which outgrow their positions, in places of one
// piece: products of up to 8 rows sum as those of one, and attention as that of each text alone.
TEST_P(GpuDecoding, TextsTogetherAreThoseOfOneAfterTheOther) {
  SCOPED_TRACE(seed_);
  const Json small =
      with(GetParam().config,
           {{GetParam().config.contains("n_positions") ? "n_positions" : "max_position_embeddings",
             70}});
  const auto model = make_model(small, true);
  infer::GenerateOptions options;
  options.max_tokens = 30;
  options.sampling.temperature = 0.8;
  options.seed = seed_;
  options.stop_token = 11;
  options.graphs = false;
  std::vector<std::vector<int32_t>> prompts, expected;
  for (const int64_t length : {5, 60, 1, 20, 69, 9, 3}) prompts.push_back(some_ids(length, length));
  for (size_t i = 0; i < prompts.size(); ++i) {
    infer::GenerateOptions own = options;
    own.seed += i;
    expected.push_back(infer::generate(model->context(), model->reader(), model->architecture(),
                                       prompts[i], own, {}));
  }
  const std::vector<std::span<const int32_t>> given(prompts.begin(), prompts.end());
  for (const int64_t at_once : {1, 3, 7}) {
    EXPECT_EQ(infer::generate_batch(model->context(), model->reader(), model->architecture(), given,
                                    options, {at_once}, {}),
              expected)
        << at_once << " at once";
  }
}

// As programs ask for it.
TEST_F(GpuModel, TextsOfTheHeaderAreTheSameWithoutGraphs) {
  for (const Json& config : {model_config(0), llama_config()}) {
    libds::Model model = libds::Model::create(dump_json(config), 3);
    model.set_device("cuda:0");
    const libds::Tensor prompt = libds::Tensor::from(std::vector<int32_t>{3, 9, 27});
    libds::GenerateOptions options;
    options.max_tokens = 20;
    options.temperature = 1;
    libds::Generator generator(model);
    const std::vector<int32_t> text = generator.generate(prompt, options);
    options.graphs = false;
    EXPECT_EQ(generator.generate(prompt, options), text);
  }
}

// Beside an engine, whose weights change between texts, and with adapters.
TEST_F(GpuModel, TextsFollowTheWeights) {
  models::LoraOptions lora;
  lora.r = 2;
  lora.alpha = 4;
  lora.target_modules = {"all-linear"};
  const auto model = make_model(llama_config(), true);
  models::add_lora(*model, lora);
  Engine engine(dump_json(with(base_config(), {{"bf16", {{"enabled", true}}}})), model, nullptr);
  engine.set_dataset(periodic_data());
  const std::vector<int32_t> prompt{3, 9, 27};
  for (int i = 0; i < 3; ++i) {
    infer::GenerateOptions options;
    options.max_tokens = 12;
    options.sampling.temperature = 1;
    options.seed = static_cast<uint64_t>(i);
    const auto text = [&](bool graphs) {
      options.graphs = graphs;
      return infer::generate(model->context(), model->reader(), model->architecture(), prompt,
                             options, {});
    };
    EXPECT_EQ(text(true), text(false));
    for (int k = 0; k < 2; ++k) engine.train_batch();
  }
}

}  // namespace
}  // namespace ds
