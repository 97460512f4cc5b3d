// A little of everything through the C ABI, for comparison between CPUs: training of a GPT-2 and a
// Llama in fp32 and bf16, and logits with weights in each form. Prints one line of JSON.
// usage: cpu_run STEPS
#include <ds.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace {

using Json = nlohmann::json;

const char* const kModels[] = {
    R"({"model_type": "gpt2", "vocab_size": 97, "n_positions": 32, "n_embd": 48, "n_layer": 2,
        "n_head": 3, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})",
    R"({"model_type": "llama", "vocab_size": 97, "max_position_embeddings": 32, "hidden_size": 48,
        "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-5})"};

libds::Tensor tokens(int64_t batch, int64_t length, uint32_t seed) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < batch * length; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.push_back((seed >> 8) % 97);
  }
  return libds::Tensor::from(ids, {batch, length});
}

Json logits_of(libds::Generator& generator) {
  const libds::Tensor out = generator.logits(tokens(1, 9, 55));
  const auto* values = static_cast<const float*>(out.data());
  return std::vector<float>(values, values + 9 * 97);
}

// Losses while training, and what the model says then. Not the latter in bf16: Adam's first steps
// have the size of the rate whatever the gradient's, so a gradient near zero that rounds to the
// other sign moves a weight by twice the rate.
Json train(const char* model_json, bool bf16, uint32_t steps) {
  libds::Model model = libds::Model::create(model_json, 7);
  Json losses = Json::array();
  {
    const Json config = {{"train_micro_batch_size_per_gpu", 2},
                         {"bf16", {{"enabled", bf16}}},
                         {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}}};
    libds::Engine engine(config.dump(), model);
    for (uint32_t step = 0; step < steps; ++step) {
      const libds::Tensor loss = engine.forward(tokens(2, 24, step), tokens(2, 24, step + 100));
      losses.push_back(*static_cast<const float*>(loss.data()));
      engine.backward(loss);
      engine.step();
    }
  }
  Json out = {{"losses", losses}};
  if (!bf16) {
    libds::Generator generator(model);
    out["logits"] = logits_of(generator);
  }
  return out;
}

// Fresh weights in one of the forms that models only run in.
Json infer(const char* model_json, const char* form) {
  libds::Model model = libds::Model::create(model_json, 7);
  libds::Generator prepared(model, Json{{"weights", form}, {"group_size", 16}}.dump());
  return {{"logits", logits_of(prepared)}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::invalid_argument("usage: cpu_run STEPS");
    const auto steps = static_cast<uint32_t>(std::stoul(argv[1]));
    Json out = Json::object();
    const char* const names[] = {"gpt2", "llama"};
    for (size_t i = 0; i < 2; ++i) {
      const std::string name = names[i];
      out[name + " training fp32"] = train(kModels[i], false, steps);
      out[name + " training bf16"] = train(kModels[i], true, steps);
      for (const char* form : {"fp32", "bf16", "int8", "int4"}) {
        out[name + " weights " + form] = infer(kModels[i], form);
      }
    }
    std::cout << out << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
