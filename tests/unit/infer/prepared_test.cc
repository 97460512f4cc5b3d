// Models prepared for inference: every decoder family and weight form against the whole forward
// pass and against fp32 models of the same values, what is refused, threads, memory, perplexity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "engine/engine.h"
#include "fresh_seed.h"
#include "infer/generate.h"
#include "infer/kv_cache.h"
#include "models/adapters.h"
#include "models/inputs.h"
#include "models/model.h"
#include "models/saved_model.h"
#include "models/weights.h"

namespace ds::infer {
namespace {

using models::InferenceOptions;
using models::Model;
using models::WeightForm;

constexpr int32_t kVocab = 97;

struct Family {
  const char* name;
  const char* config;
};
// Wide enough for several groups; sizes that are no multiples of panels and groups. Weights are
// large, so that logits differ by several units.
constexpr Family kFamilies[] = {
    {"gpt2",
     R"({"model_type": "gpt2", "vocab_size": 97, "n_positions": 48, "n_embd": 72, "n_layer": 2,
         "n_head": 3, "initializer_range": 0.15})"},
    {"llama",
     R"({"model_type": "llama", "vocab_size": 97, "hidden_size": 72, "intermediate_size": 100,
         "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
         "max_position_embeddings": 48, "initializer_range": 0.15})"},
    {"mistral",
     R"({"model_type": "mistral", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 100,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "sliding_window": 7, "max_position_embeddings": 48, "initializer_range": 0.15})"},
    {"qwen2",
     R"({"model_type": "qwen2", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
         "max_position_embeddings": 48, "tie_word_embeddings": true, "initializer_range": 0.15})"},
    {"qwen3",
     R"({"model_type": "qwen3", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 24, "max_position_embeddings": 48, "initializer_range": 0.15})"},
    {"olmo2",
     R"({"model_type": "olmo2", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 48,
         "initializer_range": 0.15})"},
    {"gpt_neox",
     R"({"model_type": "gpt_neox", "vocab_size": 97, "hidden_size": 72, "intermediate_size": 144,
         "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 48,
         "rotary_pct": 0.5, "initializer_range": 0.15})"},
    {"deepseek_v2",
     R"({"model_type": "deepseek_v2", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 4, "q_lora_rank": null,
         "kv_lora_rank": 36, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20,
         "n_routed_experts": null, "max_position_embeddings": 48, "initializer_range": 0.15})"},
};

// Rounding may change whom a router chooses: only what is computed alike is compared.
constexpr Family kExpertFamilies[] = {
    {"mixtral",
     R"({"model_type": "mixtral", "vocab_size": 97, "hidden_size": 72, "intermediate_size": 44,
         "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
         "num_local_experts": 11, "max_position_embeddings": 48, "initializer_range": 0.15})"},
    {"qwen2_moe",
     R"({"model_type": "qwen2_moe", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
         "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 36,
         "shared_expert_intermediate_size": 52, "max_position_embeddings": 48,
         "initializer_range": 0.15})"},
    {"deepseek_v3",
     R"({"model_type": "deepseek_v3", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 36,
         "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "n_routed_experts": 8,
         "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 36,
         "first_k_dense_replace": 1, "max_position_embeddings": 48, "initializer_range": 0.15})"},
};

bool has_experts(const Family& family) {
  return std::any_of(std::begin(kExpertFamilies), std::end(kExpertFamilies),
                     [&](const Family& f) { return f.name == family.name; });
}

std::vector<Family> all_families() {
  std::vector<Family> all(std::begin(kFamilies), std::end(kFamilies));
  all.insert(all.end(), std::begin(kExpertFamilies), std::end(kExpertFamilies));
  return all;
}

struct Form {
  WeightForm weights;
  int64_t group;
  bool symmetric;
};
constexpr Form kForms[] = {{WeightForm::kFloat32, 64, true}, {WeightForm::kBFloat16, 64, true},
                           {WeightForm::kInt8, 32, true},    {WeightForm::kInt8, 0, true},
                           {WeightForm::kInt4, 32, true},    {WeightForm::kInt4, 32, false}};

InferenceOptions options_of(const Form& form, int threads = 2) {
  return {form.weights, form.group, form.symmetric, threads};
}
std::string text_of(const Form& form) {
  return str_cat(weight_form_name(form.weights), " group ", form.group,
                 form.symmetric ? "" : " with minima");
}

std::shared_ptr<Model> make(const Family& family, uint64_t seed) {
  return Model::create(parse_json(family.config, family.name, Code::kConfig), seed);
}

std::vector<int32_t> random_ids(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocab);
  return ids;
}

Tensor id_tensor(Model& model, const std::vector<int32_t>& ids) {
  Tensor t = Tensor::empty(model.device(), DType::kInt32, {1, static_cast<int64_t>(ids.size())},
                           MemoryTag::kOther);
  std::memcpy(t.raw(), ids.data(), ids.size() * 4);
  return t;
}

std::vector<float> all_logits(Model& model, const std::vector<int32_t>& ids) {
  const Tensor logits = batch_logits(model.context(), model.reader(), model.architecture(),
                                     id_tensor(model, ids), Tensor());
  return {logits.data<float>(), logits.data<float>() + logits.elements()};
}

// Logits after every token, the first `together` of them fed at once and the others one by one.
std::vector<float> cached_logits(Model& model, const std::vector<int32_t>& ids, size_t together) {
  const OpContext ctx = model.context();
  KvCache cache(model.device(), model.architecture().info(), 1, static_cast<int64_t>(ids.size()),
                model.reader().compute_type());
  std::vector<float> out;
  for (size_t at = 0; at < ids.size();) {
    const size_t count = at == 0 ? together : 1;
    models::Batch batch;
    batch.ids = id_tensor(model, {ids.begin() + static_cast<std::ptrdiff_t>(at),
                                  ids.begin() + static_cast<std::ptrdiff_t>(at + count)});
    batch.position_ids = models::position_ids(ctx, 1, static_cast<int64_t>(count), cache.length(0));
    nn::TapeOptions tape_options;
    tape_options.record = tape_options.training = false;
    nn::Tape tape(ctx, model.reader(), nullptr, tape_options);
    models::ForwardOptions forward;
    forward.state = &cache;
    const Tensor logits = model.architecture().logits(tape, batch, forward).data;
    for (int64_t i = 0; i < logits.elements(); ++i) {
      out.push_back(logits.dtype() == DType::kFloat32 ? logits.data<float>()[i]
                                                      : to_float(logits.data<bfloat16>()[i]));
    }
    at += count;
  }
  return out;
}

// Root of the mean squared difference over that of the values.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    size += std::pow(double{b[i]}, 2);
  }
  EXPECT_GT(size, 0);
  return std::sqrt(difference / size);
}

// What rounding activations to the compute type leaves after two layers: bf16 has 2^-9 per
// rounding, some twenty of which follow each other.
double bound(const Form& form) { return form.weights == WeightForm::kFloat32 ? 1e-5 : 0.03; }

TEST(Prepared, CachedDecodingGivesTheWholeForward) {
  const uint64_t seed = ds::fresh_seed();
  for (const Family& family : all_families()) {
    for (const Form& form : kForms) {
      if (has_experts(family) && form.weights != WeightForm::kFloat32) continue;
      SCOPED_TRACE(str_cat(family.name, " ", text_of(form), ", seed ", seed));
      auto model = make(family, seed);
      model = model->prepared_copy(options_of(form));
      const std::vector<int32_t> ids = random_ids(seed, 23);
      const std::vector<float> whole = all_logits(*model, ids);
      EXPECT_LT(relative_distance(cached_logits(*model, ids, 12), whole), bound(form));
      EXPECT_LT(relative_distance(cached_logits(*model, ids, 3), whole), bound(form));
    }
  }
}

// A tied table of a model that was prepared: rows are looked up in bf16, beside codes that make
// logits. A model with two tables holds the same values: what `given` had, rounded, and codes.
std::shared_ptr<Model> with_two_tables(const Family& family, uint64_t seed, Model& prepared) {
  Json config = parse_json(family.config, family.name, Code::kConfig);
  config["tie_word_embeddings"] = false;
  auto model = Model::create(config, seed + 1);
  const auto given = make(family, seed);
  const nn::Parameter& table = prepared.parameters()[0];
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const std::string& name = model->parameters()[id].name;
    if (name == table.name) {
      Tensor rounded = given->get(name);
      for (int64_t i = 0; i < rounded.elements(); ++i) {
        float& value = rounded.data<float>()[i];
        value = to_float(to_bfloat16(value));
      }
      model->set(name, rounded);
    } else {
      model->set(name, prepared.get(name == table.aliases[0] ? table.name : name));
    }
  }
  return model;
}

// An unprepared fp32 model that is given the values which the form holds must agree: products read
// exactly the values that get() tells.
TEST(Prepared, ProductsUseTheValuesThatGetTells) {
  const uint64_t seed = ds::fresh_seed();
  for (const Family& family : kFamilies) {
    for (const Form& form : kForms) {
      SCOPED_TRACE(str_cat(family.name, " ", text_of(form), ", seed ", seed));
      auto model = make(family, seed);
      auto plain = make(family, seed + 1);
      model = model->prepared_copy(options_of(form));
      const std::vector<int32_t> ids = random_ids(seed, 16);
      const bool tied = !model->parameters()[0].aliases.empty();
      const bool two_forms =
          tied && (form.weights == WeightForm::kInt8 || form.weights == WeightForm::kInt4);
      if (two_forms) plain = with_two_tables(family, seed, *model);
      for (nn::ParamId id = 0; !two_forms && id < model->parameters().size(); ++id) {
        const std::string& name = model->parameters()[id].name;
        plain->set(name, model->get(name));
      }
      EXPECT_LT(relative_distance(all_logits(*model, ids), all_logits(*plain, ids)), bound(form));
    }
  }
}

TEST(Prepared, FloatWeightsGenerateTheSameTokensAndValues) {
  const uint64_t seed = ds::fresh_seed();
  for (const Family& family : all_families()) {
    SCOPED_TRACE(str_cat(family.name, ", seed ", seed));
    auto model = make(family, seed);
    const std::vector<int32_t> prompt = random_ids(seed, 5);
    GenerateOptions options;
    options.max_tokens = 30;
    const auto generate_now = [&] {
      return generate(model->context(), model->reader(), model->architecture(), prompt, options,
                      nullptr);
    };
    const std::vector<int32_t> before = generate_now();
    const std::vector<float> logits = all_logits(*model, prompt);
    InferenceOptions how;
    how.weights = WeightForm::kFloat32;
    model = model->prepared_copy(how);
    EXPECT_EQ(generate_now(), before);
    EXPECT_EQ(all_logits(*model, prompt), logits);
  }
}

TEST(Prepared, SameBitsForAnyThreadCount) {
  const uint64_t seed = ds::fresh_seed();
  for (const Form& form : kForms) {
    SCOPED_TRACE(str_cat(text_of(form), ", seed ", seed));
    std::vector<float> first;
    for (const int threads : {1, 2, 3}) {
      auto model = make(kFamilies[1], seed);
      model = model->prepared_copy(options_of(form, threads));
      const models::InferenceReport report = model->inference_report();
      EXPECT_EQ(report.threads, threads);
      std::vector<float> logits = cached_logits(*model, random_ids(seed, 20), 11);
      if (threads == 1)
        first = std::move(logits);
      else
        EXPECT_EQ(logits, first) << threads << " threads";
    }
  }
}

// Where matrices rest changes no bit, whether all of them do or some, are read ahead or not, and
// however often a prompt is read.
TEST(Prepared, WeightsInAFileGiveTheBitsOfMemory) {
  const uint64_t seed = ds::fresh_seed();
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / str_cat("ds-weight-file-", getpid());
  std::filesystem::create_directories(folder);
  for (const Family& family : all_families()) {
    for (const Form& form : kForms) {
      // Experts are many small pieces of the file, which take long to read.
      if (has_experts(family) && (form.group == 32 || form.weights == WeightForm::kBFloat16)) {
        continue;
      }
      SCOPED_TRACE(str_cat(family.name, " ", text_of(form), ", seed ", seed));
      InferenceOptions how = options_of(form);
      const auto memory = make(family, seed)->prepared_copy(how);
      const std::vector<int32_t> ids = random_ids(seed, 23);
      const std::vector<float> whole = all_logits(*memory, ids);
      const std::vector<float> cached = cached_logits(*memory, ids, 12);
      for (const auto& [stay, ahead] : {std::pair{0, 0}, {0, 1 << 20}, {9000, 20'000}}) {
        SCOPED_TRACE(str_cat(stay, " elements in memory, ", ahead, " read ahead"));
        how.file = models::WeightFileOptions{folder, stay, ahead};
        const auto model = make(family, seed)->prepared_copy(how);
        for (int turn = 0; turn < 2; ++turn) {
          EXPECT_EQ(all_logits(*model, ids), whole);
          EXPECT_EQ(cached_logits(*model, ids, 12), cached);
        }
        for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
          const std::string& name = model->parameters()[id].name;
          const Tensor a = model->get(name), b = memory->get(name);
          EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0) << name;
        }
        EXPECT_EQ(model->inference_report().bytes, memory->inference_report().bytes);
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "files have names";
  std::filesystem::remove_all(folder);
}

// A model many times as large as what may be in memory.
TEST(Prepared, AFileOfWeightsNeedsMemoryForThoseInUse) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const Json config = {{"model_type", "llama"},
                       {"vocab_size", 97},
                       {"hidden_size", 128},
                       {"intermediate_size", 512},
                       {"num_hidden_layers", 12},
                       {"num_attention_heads", 4},
                       {"max_position_embeddings", 64},
                       {"tie_word_embeddings", false}};
  InferenceOptions how;
  how.file = models::WeightFileOptions{folder, 0, 200'000};
  const auto model = Model::create(config, 3)->prepared_copy(how);
  const MemoryAccount& account = model->device()->account();
  const int64_t bytes = model->inference_report().bytes;
  EXPECT_LT(account.now(MemoryTag::kParameters), bytes / 50);
  static_cast<void>(cached_logits(*model, random_ids(5, 8), 4));
  EXPECT_LT(account.peak(MemoryTag::kIo), bytes / 3);
  EXPECT_GT(account.peak(MemoryTag::kIo), 0);
}

TEST(Prepared, AFolderForWeightsThatIsNotThereIsNamed) {
  InferenceOptions how;
  how.file = models::WeightFileOptions{"/dev/null/weights", 0, 0};
  try {
    make(kFamilies[0], 1)->prepared_copy(how);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.message(), testing::HasSubstr("/dev/null/weights"));
  }
}

TEST(Prepared, ReportCountsTheBytes) {
  auto model = make(kFamilies[0], 1);  // width 72, tied
  model = model->prepared_copy(options_of({WeightForm::kInt4, 32, true}));
  const models::InferenceReport report = model->inference_report();
  EXPECT_EQ(report.weights, WeightForm::kInt4);
  EXPECT_EQ(report.group_size, 32);
  // Rows in panels of 16, 3 groups of 32 in 72 columns and 9 in 288; scales take two bytes.
  const auto codes = [](int64_t n, int64_t k) {
    const int64_t rows = (n + 15) / 16 * 16;
    return rows * k / 2 + rows * ((k + 31) / 32) * 2;
  };
  const int64_t block = codes(216, 72) + codes(72, 72) + codes(288, 72) + codes(72, 288);
  const int64_t vectors = 2 * (2 * (4 * 72 + 216 + 72 + 288 + 72) + 2 * 72);
  const int64_t per_token = 2 * block + codes(97, 72) + vectors;
  EXPECT_EQ(report.bytes_per_token, per_token);
  EXPECT_EQ(report.bytes, per_token + 2 * (97 * 72 + 48 * 72));
  EXPECT_EQ(report.bytes_saved, 4 * model->parameters().elements() - report.bytes);
}

// Each matrix has the values of its own form, bit for bit those of a copy in that form alone.
// A folder of several files, opened and prepared: what the process holds at any time is at most the
// prepared weights and the parts that are on their way, whatever the size of a matrix or a file.
TEST(Prepared, LoadingAFolderTakesThePreparedSizeAndParts) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / str_cat("ds-prepared-", getpid());
  // The table of tokens has 8 million elements, 32 MiB in fp32.
  const Json config = {
      {"model_type", "llama"},         {"vocab_size", 43690},         {"hidden_size", 192},
      {"intermediate_size", 512},      {"num_hidden_layers", 2},      {"num_attention_heads", 6},
      {"max_position_embeddings", 64}, {"tie_word_embeddings", false}};
  models::export_model(*Model::create(config, 1), folder, DType::kBFloat16, 9'000'000);
  int64_t shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    shards += entry.path().extension() == ".safetensors" ? 1 : 0;
  }
  EXPECT_GE(shards, 3);
  // A part in fp32 and, as the files hold it, in bf16.
  const int64_t parts = (4 + 2) * (int64_t{1} << 20);
  MemoryAccount& account = process_account(false);
  for (const WeightForm form : {WeightForm::kBFloat16, WeightForm::kInt8, WeightForm::kInt4}) {
    account.reset_peaks();
    const int64_t before = account.total_now(), weights = account.now(MemoryTag::kParameters);
    const auto model = models::open_model(folder)->prepared_copy(options_of({form, 64, true}));
    const int64_t bytes = model->inference_report().bytes;
    SCOPED_TRACE(str_cat(models::weight_form_name(form), ": ", bytes, " bytes prepared, peak ",
                         account.total_peak() - before));
    EXPECT_LE(account.total_peak() - before, bytes + bytes / 50 + parts);
    // Blocks of memory are rounded up.
    EXPECT_LE(account.peak(MemoryTag::kParameters) - weights, bytes + bytes / 50);
  }
  std::filesystem::remove_all(folder);
}

TEST(Prepared, LayersMayHaveFormsOfTheirOwn) {
  const auto base = make(kFamilies[0], 1);
  models::InferenceOptions mixed = options_of({WeightForm::kInt4, 32, true});
  mixed.overrides = {{"h.0.*", WeightForm::kInt8, 16, true},
                     {"h.0.mlp.*", WeightForm::kBFloat16, 0, true},
                     {"h.1.attn.c_proj.weight", WeightForm::kInt4, 32, false}};
  const auto model = base->prepared_copy(mixed);
  const auto all4 = base->prepared_copy(options_of({WeightForm::kInt4, 32, true}));
  const auto all8 = base->prepared_copy(options_of({WeightForm::kInt8, 16, true}));
  const auto minima = base->prepared_copy(options_of({WeightForm::kInt4, 32, false}));
  const auto dense = base->prepared_copy(options_of({WeightForm::kBFloat16, 0, true}));
  const auto expect_like = [&](const std::string& name, Model& other) {
    const Tensor a = model->get(name), b = other.get(name);
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0) << name;
  };
  expect_like("h.0.attn.c_attn.weight", *all8);
  expect_like("h.0.mlp.c_fc.weight", *dense);
  expect_like("h.1.attn.c_proj.weight", *minima);
  expect_like("h.1.mlp.c_fc.weight", *all4);
  EXPECT_GT(model->inference_report().bytes, all4->inference_report().bytes);
  EXPECT_LT(model->inference_report().bytes, dense->inference_report().bytes);
}

Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().empty());
    return error.code();
  }
  return Code::kOk;
}

TEST(Prepared, WhatTrainsOrChangesIsRefused) {
  auto model = make(kFamilies[0], 3);
  model = model->prepared_copy({});
  const Tensor value = model->get("wte.weight");
  EXPECT_EQ(code_of([&] { (void)model->prepared_copy({}); }), Code::kState);
  EXPECT_EQ(code_of([&] { model->set("wte.weight", value); }), Code::kState);
  EXPECT_EQ(code_of([&] { models::set_trainable(*model, {"*"}, false); }), Code::kState);
  EXPECT_EQ(code_of([&] { models::add_lora(*model, {}); }), Code::kState);
  EXPECT_EQ(code_of([&] { save_model(*model, "/dev/null/x", "one", "test"); }), Code::kState);
  EXPECT_EQ(code_of([&] { Engine engine("{\"train_batch_size\": 1}", model, nullptr); }),
            Code::kState);
  EXPECT_FALSE(all_logits(*model, {1, 2, 3}).empty());
}

TEST(Prepared, BrokenWeightsAreNamedAndNothingChanges) {
  auto model = make(kFamilies[0], 3);
  Tensor value = model->get("h.1.mlp.c_fc.weight");
  value.data<float>()[5] = NAN;
  model->set("h.1.mlp.c_fc.weight", value);
  try {
    (void)model->prepared_copy(options_of({WeightForm::kInt8, 64, true}));
    FAIL() << "NaN has no scale";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(error.message().find("h.1.mlp.c_fc.weight"), std::string::npos) << error.message();
  }
  EXPECT_FALSE(model->prepared());
  value.data<float>()[5] = 0;
  model->set("h.1.mlp.c_fc.weight", value);
  model = model->prepared_copy(options_of({WeightForm::kInt8, 64, true}));
  EXPECT_TRUE(model->prepared());
}

TEST(Prepared, AdaptersStayBesideQuantisedWeights) {
  const uint64_t seed = ds::fresh_seed();
  auto model = make(kFamilies[1], seed);
  models::LoraOptions lora;
  lora.r = 4;
  lora.target_modules = {"q_proj", "down_proj"};
  models::add_lora(*model, lora);
  Tensor b = model->get("layers.0.mlp.down_proj.lora_B.weight");
  for (int64_t i = 0; i < b.elements(); ++i) b.data<float>()[i] = 0.1f * static_cast<float>(i % 7);
  model->set("layers.0.mlp.down_proj.lora_B.weight", b);
  const std::vector<int32_t> ids = random_ids(seed, 14);
  const std::vector<float> before = all_logits(*model, ids);
  model = model->prepared_copy(options_of({WeightForm::kInt8, 32, true}));
  EXPECT_LT(relative_distance(all_logits(*model, ids), before), 0.05) << "seed " << seed;
  EXPECT_LT(relative_distance(cached_logits(*model, ids, 9), before), 0.05);
}

TEST(Prepared, WarmTokensAskTheSystemForNothing) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(text_of(form));
    auto model = make(kFamilies[0], 1);
    model = model->prepared_copy(options_of(form));
    GenerateOptions options;
    options.max_tokens = 40;
    options.sampling = {0.8, 20, 0.9};
    std::vector<int64_t> asked;
    generate(model->context(), model->reader(), model->architecture(), random_ids(1, 4), options,
             [&](int32_t) {
               asked.push_back(model->device()->system_allocations());
               return true;
             });
    ASSERT_EQ(asked.size(), 40u);
    EXPECT_EQ(asked[4], asked.back());
  }
}

// Mean loss of a text in double.
double loss_of(Model& model, const std::vector<int32_t>& ids) {
  const std::vector<float> logits = all_logits(model, ids);
  double sum = 0;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    const float* row = logits.data() + t * kVocab;
    double total = 0;
    for (int32_t v = 0; v < kVocab; ++v) total += std::exp(double{row[v]});
    sum += std::log(total) - row[ids[t + 1]];
  }
  return sum / static_cast<double>(ids.size() - 1);
}

// A text in which most tokens follow from the one before.
std::vector<int32_t> chain(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids{1};
  while (ids.size() < count) {
    ids.push_back(random() % 5 == 0 ? static_cast<int32_t>(random() % kVocab)
                                    : (ids.back() * 5 + 11) % kVocab);
  }
  return ids;
}

TEST(Prepared, QuantisedWeightsKeepTheLossOfATrainedModel) {
  const uint64_t seed = ds::fresh_seed();
  const Json config = parse_json(R"({"model_type": "gpt2", "vocab_size": 97, "n_positions": 48,
      "n_embd": 64, "n_layer": 2, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})",
                                 "config", Code::kConfig);
  const auto trained = Model::create(config, seed);
  {
    Engine engine(R"({"train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})",
                  trained, nullptr);
    for (uint64_t step = 0; step < 120; ++step) {
      const std::vector<int32_t> text = chain(seed + step, 8 * 33);
      MicroBatch batch;
      batch.ids = Tensor::empty(trained->device(), DType::kInt32, {8, 32}, MemoryTag::kOther);
      batch.labels = Tensor::empty(trained->device(), DType::kInt32, {8, 32}, MemoryTag::kOther);
      for (int64_t i = 0; i < 8 * 32; ++i) {
        const auto at = static_cast<size_t>(i / 32 * 33 + i % 32);
        batch.ids.data<int32_t>()[i] = text[at];
        batch.labels.data<int32_t>()[i] = text[at + 1];
      }
      engine.backward(engine.forward(batch));
      engine.step();
    }
  }
  const std::vector<int32_t> text = chain(seed + 1000, 48);
  const double before = loss_of(*trained, text);
  ASSERT_LT(before, 3.0) << "not trained; an untrained model has 4.57; seed " << seed;
  for (const Form& form : kForms) {
    auto model = Model::create(config, 0);
    for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
      const std::string& name = model->parameters()[id].name;
      model->set(name, trained->get(name));
    }
    model = model->prepared_copy(options_of(form));
    const double change = loss_of(*model, text) - before;
    RecordProperty(text_of(form), std::to_string(change));
    const double allowed = form.weights == WeightForm::kFloat32    ? 1e-5
                           : form.weights == WeightForm::kBFloat16 ? 0.02
                           : form.weights == WeightForm::kInt8     ? 0.05
                                                                   : 0.3;
    EXPECT_LT(std::abs(change), allowed) << text_of(form) << ", seed " << seed;
  }
}

}  // namespace
}  // namespace ds::infer
