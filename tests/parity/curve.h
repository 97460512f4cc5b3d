// The training run that is compared with PyTorch: a small GPT-2, fixed tokens, 50 AdamW steps
// through the C ABI. tests/parity/gpt2_curve.py does the same with Transformers and torch.optim.
#pragma once

#include <ds.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace parity {

inline constexpr int kSteps = 50;
inline constexpr int64_t kBatch = 4;
inline constexpr int64_t kLength = 32;
inline constexpr int64_t kSeed = 20240607;

inline const char* const kModel = R"({
  "model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 3,
  "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "initializer_range": 0.1})";

inline std::string engine_config(bool bf16) {
  return std::string(R"({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
    "bf16": {"enabled": )") +
         (bf16 ? "true" : "false") + "}}";
}

// Token t of row b at a step: a linear congruential generator both sides can write down, of which
// one bit per token is noise, so that there is something to learn.
inline std::vector<int64_t> tokens(int step) {
  std::vector<int64_t> out;
  uint32_t state = 12345u + 977u * static_cast<uint32_t>(step);
  for (int64_t b = 0; b < kBatch; ++b) {
    int64_t previous = 0;
    for (int64_t t = 0; t <= kLength; ++t) {
      state = state * 1664525u + 1013904223u;
      previous = (previous * 3 + 17 * static_cast<int64_t>(state >> 31) + 11) % 32;
      out.push_back(previous);
    }
  }
  return out;
}

inline void check(ds_status status) {
  if (status != DS_OK) throw std::runtime_error(ds_last_error_message());
}

inline ds_tensor* matrix(const std::vector<int64_t>& all, int64_t first) {
  const int64_t shape[] = {kBatch, kLength};
  ds_tensor* tensor = nullptr;
  check(ds_tensor_create(DS_INT64, shape, 2, &tensor));
  std::vector<int64_t> values;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t t = 0; t < kLength; ++t) {
      values.push_back(all[static_cast<size_t>(b * (kLength + 1) + t + first)]);
    }
  }
  check(ds_tensor_write(tensor, values.data(), static_cast<int64_t>(values.size() * 8)));
  return tensor;
}

inline std::vector<double> run(bool bf16) {
  ds_model* model = nullptr;
  ds_engine* engine = nullptr;
  check(ds_model_create(kModel, kSeed, &model));
  check(ds_engine_create(engine_config(bf16).c_str(), nullptr, model, nullptr, &engine));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<int64_t> all = tokens(step);
    ds_tensor* inputs[] = {matrix(all, 0), matrix(all, 1)};
    ds_batch batch = DS_BATCH_INIT;
    batch.ids = inputs[0];
    batch.labels = inputs[1];
    ds_tensor* loss = nullptr;
    check(ds_engine_forward(engine, &batch, &loss));
    double value = 0;
    check(ds_tensor_item(loss, &value));
    losses.push_back(value);
    check(ds_engine_backward(engine, loss));
    check(ds_engine_step(engine, nullptr));
    ds_tensor_destroy(loss);
    ds_tensor_destroy(inputs[0]);
    ds_tensor_destroy(inputs[1]);
  }
  ds_engine_destroy(engine);
  ds_model_destroy(model);
  return losses;
}

}  // namespace parity
