// Small models of every decoder family, and passes over the attention state of several texts.
#pragma once

#include <memory>
#include <ostream>
#include <random>
#include <vector>

#include "infer/decoder.h"
#include "infer/kv_cache.h"
#include "models/model.h"

namespace ds::infer::states {

inline constexpr int32_t kVocab = 61;
inline constexpr int64_t kCapacity = 64;

struct Family {
  const char* name;
  const char* config;
};
inline void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }
inline constexpr Family kFamilies[] = {
    {"gpt2", R"({"model_type": "gpt2", "vocab_size": 61, "n_positions": 128, "n_embd": 48,
         "n_layer": 2, "n_head": 3, "initializer_range": 0.2})"},
    {"llama", R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 48,
         "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2})"},
    {"mistral", R"({"model_type": "mistral", "vocab_size": 61, "hidden_size": 48,
         "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "sliding_window": 7, "max_position_embeddings": 128,
         "initializer_range": 0.2})"},
    {"qwen2", R"({"model_type": "qwen2", "vocab_size": 61, "hidden_size": 48,
         "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 1, "tie_word_embeddings": true, "max_position_embeddings": 128,
         "initializer_range": 0.2})"},
    {"gpt_neox", R"({"model_type": "gpt_neox", "vocab_size": 61, "hidden_size": 48,
         "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 3,
         "max_position_embeddings": 128, "rotary_pct": 0.5, "initializer_range": 0.2})"},
    // Without experts, whose choices follow rounding.
    {"deepseek_v2", R"({"model_type": "deepseek_v2", "vocab_size": 61, "hidden_size": 48,
         "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 6,
         "q_lora_rank": 20, "kv_lora_rank": 22, "qk_nope_head_dim": 7, "qk_rope_head_dim": 10,
         "v_head_dim": 9, "n_routed_experts": null, "max_position_embeddings": 128,
         "initializer_range": 0.2})"}};

// A state and the passes over it.
class Texts {
 public:
  // In one piece.
  Texts(models::Model& model, int64_t batch) : Texts(model, batch, model.reader().compute_type()) {}
  // `dtype` of the cache: kInt8 for codes.
  Texts(models::Model& model, int64_t batch, DType dtype)
      : model_(model),
        cache_(model.device(), model.architecture().info(), batch, kCapacity, dtype) {}
  // In blocks.
  Texts(models::Model& model, int64_t batch, const std::shared_ptr<KvBlockPool>& pool)
      : model_(model), cache_(pool, batch, kCapacity) {}

  KvCache& cache() { return cache_; }

  // Feeds as many tokens to every sequence; fp32 logits [B][tokens * V].
  std::vector<std::vector<float>> feed(const std::vector<std::vector<int32_t>>& ids) {
    return feed(ids, cache_);
  }
  // The same through a state in front of the cache.
  std::vector<std::vector<float>> feed(const std::vector<std::vector<int32_t>>& ids,
                                       nn::AttentionState& state) {
    const OpContext ctx = model_.context();
    const auto count = static_cast<int64_t>(ids.front().size());
    models::Batch batch;
    batch.ids = ctx.workspace(DType::kInt32, {static_cast<int64_t>(ids.size()), count});
    batch.position_ids = ctx.workspace(DType::kInt32, batch.ids.shape());
    for (size_t b = 0; b < ids.size(); ++b) {
      for (size_t t = 0; t < ids[b].size(); ++t) {
        const size_t at = b * ids[b].size() + t;
        batch.ids.data<int32_t>()[at] = ids[b][t];
        batch.position_ids.data<int32_t>()[at] =
            static_cast<int32_t>(cache_.lengths()[b]) + static_cast<int32_t>(t);
      }
    }
    nn::Tape tape(ctx, model_.reader(), nullptr, inference_options());
    models::ForwardOptions options;
    options.state = &state;
    const Tensor logits = to_fp32(ctx, model_.architecture().logits(tape, batch, options).data);
    std::vector<std::vector<float>> out;
    for (int64_t b = 0; b < logits.size(0); ++b) {
      const float* const from = logits.data<float>() + b * count * kVocab;
      out.emplace_back(from, from + count * kVocab);
    }
    return out;
  }

 private:
  models::Model& model_;
  KvCache cache_;
};

inline std::shared_ptr<models::Model> make_model(const Family& family, uint64_t seed) {
  return models::Model::create(parse_json(family.config, family.name, Code::kConfig), seed);
}

inline std::vector<int32_t> random_ids(std::mt19937_64& random, size_t count) {
  std::vector<int32_t> out(count);
  for (int32_t& id : out) id = static_cast<int32_t>(random() % kVocab);
  return out;
}

inline std::vector<int32_t> part(const std::vector<int32_t>& ids, size_t first, size_t count) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(first),
          ids.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

}  // namespace ds::infer::states
