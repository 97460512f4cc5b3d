// Times training steps of a GPT-2 through the C ABI:
//   train_step MODEL.json BATCH LENGTH fp32|bf16 STEPS [THREADS]
// prints {"milliseconds": [..], "peak_bytes": N}. The first two steps warm up and do not count.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ds.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace {

constexpr int kWarmUp = 2;

std::vector<int64_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out.push_back((seed >> 8) % vocab);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::cerr << "usage: train_step MODEL.json BATCH LENGTH fp32|bf16 STEPS [THREADS]\n";
    return 2;
  }
  try {
    std::stringstream text;
    text << std::ifstream(argv[1]).rdbuf();
    const int64_t batch = std::atoll(argv[2]), length = std::atoll(argv[3]);
    const int64_t vocab = nlohmann::json::parse(text.str()).at("vocab_size");
    const nlohmann::json config = {
        {"train_micro_batch_size_per_gpu", batch},
        {"threads", argc > 6 ? std::atoi(argv[6]) : 0},
        {"bf16", {{"enabled", std::string(argv[4]) == "bf16"}}},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}, {"weight_decay", 0.1}}}}}};
    libds::Model model = libds::Model::create(text.str(), 1);
    libds::Engine engine(config.dump(), model);
    const std::vector<int64_t> shape{batch, length};
    const auto tensor = [&](uint32_t seed) {
      return libds::Tensor::from(random_tokens(batch * length, vocab, seed), shape);
    };
    nlohmann::json times = nlohmann::json::array();
    for (int step = 0; step < std::atoi(argv[5]) + kWarmUp; ++step) {
      const libds::Tensor ids = tensor(2u * step), labels = tensor(2u * step + 1);
      const auto began = std::chrono::steady_clock::now();
      const libds::Tensor loss = engine.forward(ids, labels);
      engine.backward(loss);
      engine.step();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - began;
      if (step >= kWarmUp) times.push_back(took.count());
    }
    const auto memory = nlohmann::json::parse(engine.memory_report());
    std::cout << nlohmann::json{{"milliseconds", times}, {"peak_bytes", memory["total"]["peak"]}}
              << "\n";
  } catch (const std::exception& error) {
    std::cerr << "train_step: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
