// A small model, data and configurations that engine tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "attached_state.h"
#include "data/corpus.h"
#include "data/gpt_dataset.h"
#include "engine/caller_state.h"
#include "engine/engine.h"
#include "engine/external_gradients.h"
#include "engine/parameter_scopes.h"
#include "engine/parameter_values.h"
#include "models/model.h"

namespace ds::engine_test {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "ds-engine-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path(const char* name = "") const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

inline Json model_config(double dropout = 0.1) {
  return {{"model_type", "gpt2"},   {"vocab_size", 61},      {"n_positions", 32},
          {"n_embd", 32},           {"n_layer", 2},          {"n_head", 4},
          {"resid_pdrop", dropout}, {"embd_pdrop", dropout}, {"attn_pdrop", dropout}};
}

inline Json base_config() {
  return {{"train_micro_batch_size_per_gpu", 4},
          {"gradient_accumulation_steps", 2},
          {"threads", 1},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-2}, {"weight_decay", 0.1}}}}},
          {"scheduler",
           {{"type", "WarmupCosineLR"},
            // The first step of a warm-up has rate 0 in any case; weights move from the second on.
            {"params",
             {{"total_num_steps", 20}, {"warmup_num_steps", 4}, {"warmup_min_ratio", 0.1}}}}}};
}
inline Json with(Json config, const Json& change) {
  config.merge_patch(change);
  return config;
}

inline std::shared_ptr<const GptDataset> periodic_data(int64_t length = 16) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 3000; ++i) {
    const int32_t previous = tokens.empty() ? 0 : tokens.back();
    tokens.push_back((previous * 3 + (i * i % 7 < 2 ? 1 : 0)) % 61);
  }
  GptIndexOptions options;
  options.sequence_length = length;
  return make_gpt_dataset(cut_running_tokens(tokens, length, "test"), "100,0,0", Split::kTrain,
                          options);
}

inline std::unique_ptr<Engine> make_engine(const Json& config, const Json& model = model_config()) {
  auto engine =
      std::make_unique<Engine>(dump_json(config), models::Model::create(model, 3), nullptr);
  engine->set_dataset(periodic_data());
  return engine;
}

inline std::vector<float> flat(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.elements()};
}
inline std::vector<float> weights(Engine& engine) {
  return flat(train_state(*engine.model()).masters().all());
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return worst;
}

template <class Fn>
std::string error_of(Code code, const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return {};
}

inline Tensor ids_tensor(const std::vector<int64_t>& values, int64_t rows) {
  static const std::shared_ptr<Device> device = make_cpu_device();
  Tensor out = Tensor::empty(device, DType::kInt64,
                             {rows, static_cast<int64_t>(values.size()) / rows}, MemoryTag::kOther);
  std::copy(values.begin(), values.end(), out.data<int64_t>());
  return out;
}

}  // namespace ds::engine_test
