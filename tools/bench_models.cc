#include "bench_models.h"

#include <algorithm>
#include <array>

#include "format.h"

namespace tool {
namespace {

struct Shape {
  const char* name;
  const char* family;
  int64_t width;
  int64_t layers;
  int64_t heads;
  int64_t kv_heads;  // from here on of models other than GPT-2
  int64_t inner;
  int64_t vocabulary;
  int64_t positions;
};

// GPT-2: Radford et al. 2019, table 2. Llama 3.2 1B and Qwen2 0.5B: as published by their makers.
// The tiny ones are for tests.
constexpr std::array kShapes = {
    Shape{"tiny", "gpt2", 64, 2, 2, 2, 256, 256, 64},
    Shape{"tiny-llama", "llama", 64, 2, 4, 2, 128, 256, 64},
    Shape{"gpt2-124m", "gpt2", 768, 12, 12, 12, 3072, 50257, 1024},
    Shape{"gpt2-355m", "gpt2", 1024, 24, 16, 16, 4096, 50257, 1024},
    Shape{"gpt2-774m", "gpt2", 1280, 36, 20, 20, 5120, 50257, 1024},
    Shape{"gpt2-1.5b", "gpt2", 1600, 48, 25, 25, 6400, 50257, 1024},
    Shape{"llama-1b", "llama", 2048, 16, 32, 8, 8192, 128256, 8192},
    Shape{"qwen2-0.5b", "qwen2", 896, 24, 14, 2, 4864, 151936, 8192},
};

}  // namespace

std::vector<std::string> bench_model_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

std::optional<std::string> bench_model(const std::string& name) {
  const auto found = std::find_if(kShapes.begin(), kShapes.end(),
                                  [&](const Shape& shape) { return name == shape.name; });
  if (found == kShapes.end()) return std::nullopt;
  const Shape& s = *found;
  Json config = {{"model_type", s.family}, {"vocab_size", s.vocabulary}};
  if (std::string(s.family) == "gpt2") {
    config["n_positions"] = s.positions;
    config["n_embd"] = s.width;
    config["n_layer"] = s.layers;
    config["n_head"] = s.heads;
    return config.dump();
  }
  config["max_position_embeddings"] = s.positions;
  config["hidden_size"] = s.width;
  config["intermediate_size"] = s.inner;
  config["num_hidden_layers"] = s.layers;
  config["num_attention_heads"] = s.heads;
  config["num_key_value_heads"] = s.kv_heads;
  config["hidden_act"] = "silu";
  config["rms_norm_eps"] = 1e-6;
  config["rope_theta"] = 1e6;
  config["tie_word_embeddings"] = true;
  return config.dump();
}

}  // namespace tool
