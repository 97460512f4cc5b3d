// What generation keeps of latent attention: latents alone, which adapters and weights in codes do
// not change; and many tokens behind others, whose keys and values are made again.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "fresh_seed.h"
#include "infer/generate.h"
#include "models/adapters.h"
#include "models/lora.h"
#include "unit/infer/texts.h"

namespace ds::infer::latent_states {
namespace {

using namespace states;  // NOLINT: models and passes of these tests
using models::Model;
using models::WeightForm;

constexpr int64_t kLayers = 2, kRank = 22, kTurning = 10;

const Family& latent_family() {
  for (const Family& family : kFamilies) {
    if (std::string(family.name) == "deepseek_v2") return family;
  }
  throw std::logic_error("no family with latent attention");
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(double{a.at(i)} - double{b[i]}, 2);
    size += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / size);
}

// Logits after all tokens, without a state.
std::vector<float> whole(Model& model, const std::vector<int32_t>& ids) {
  const Tensor tokens =
      model.context().workspace(DType::kInt32, {1, static_cast<int64_t>(ids.size())});
  std::copy(ids.begin(), ids.end(), tokens.data<int32_t>());
  const Tensor logits =
      batch_logits(model.context(), model.reader(), model.architecture(), tokens, Tensor());
  return {logits.data<float>(), logits.data<float>() + logits.elements()};
}

TEST(LatentState, HoldsLatentsAlone) {
  const auto model = make_model(latent_family(), 3);
  const MemoryAccount& account = model->device()->account();
  const int64_t before = account.now(MemoryTag::kKvCache);
  const Texts texts(*model, 2);
  EXPECT_EQ(account.now(MemoryTag::kKvCache) - before,
            2 * kCapacity * kLayers * (kRank + kTurning) * 4);
}

// In any pieces: few tokens are compared with latents, many with keys that are made again.
TEST(LatentState, PiecesOfATextGiveTheWhole) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto model = make_model(latent_family(), seed);
  const std::vector<int32_t> text = random_ids(random, 41);
  const std::vector<float> expected = whole(*model, text);
  for (const std::vector<size_t>& pieces :
       {std::vector<size_t>{41}, {1, 40}, {4, 4, 33}, {5, 6, 7, 1, 22}, {20, 2, 3, 16}}) {
    Texts texts(*model, 1);
    std::vector<float> logits;
    size_t at = 0;
    for (const size_t count : pieces) {
      const auto own = texts.feed({part(text, at, count)})[0];
      logits.insert(logits.end(), own.begin(), own.end());
      at += count;
    }
    EXPECT_LT(distance(logits, expected), 1e-5) << pieces.size() << " pieces";
  }
}

TEST(LatentState, AdaptersOfTheExpandingMatrixAreFollowed) {
  const auto model = make_model(latent_family(), 5);
  std::mt19937_64 random(6);
  const std::vector<int32_t> text = random_ids(random, 17);
  const std::vector<float> before = whole(*model, text);
  models::LoraOptions lora;
  lora.r = 3;
  lora.target_modules = {"kv_b_proj"};
  models::add_lora(*model, lora);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = str_cat("layers.", layer, ".self_attn.kv_b_proj.lora_B.weight");
    const Tensor b = model->get(name);
    for (int64_t i = 0; i < b.elements(); ++i) {
      b.data<float>()[i] = 0.2f * static_cast<float>(i % 5) - 0.4f;
    }
    model->set(name, b);
  }
  const std::vector<float> expected = whole(*model, text);
  EXPECT_GT(distance(before, expected), 0.05);
  Texts texts(*model, 1);
  std::vector<float> logits;
  for (const int32_t id : text) {
    const auto own = texts.feed({{id}})[0];
    logits.insert(logits.end(), own.begin(), own.end());
  }
  EXPECT_LT(distance(logits, expected), 1e-5);
}

// The matrix is read head by head, too: codes would not do.
TEST(LatentState, TheExpandingMatrixIsNeverInCodes) {
  const auto model = make_model(latent_family(), 5);
  const auto prepared = model->prepared_copy({WeightForm::kInt4, 16, true, 1});
  const std::string name = "layers.1.self_attn.kv_b_proj.weight";
  const Tensor exact = model->get(name), held = prepared->get(name);
  for (int64_t i = 0; i < exact.elements(); ++i) {
    const float value = exact.data<float>()[i];
    EXPECT_EQ(held.data<float>()[i], to_float(to_bfloat16(value)));
  }
  models::InferenceOptions other{WeightForm::kInt8, 16, true, 1};
  other.overrides = {{name, WeightForm::kInt4, 16, true}};
  EXPECT_THROW(static_cast<void>(model->prepared_copy(other)), Error);
}

}  // namespace
}  // namespace ds::infer::latent_states
