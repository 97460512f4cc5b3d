// Times training steps of a model through the C ABI:
//   train_step MODEL.json BATCH LENGTH fp32|bf16 STEPS|serve [THREADS] [KEY=JSON ...]
// prints {"milliseconds": [..], "peak_bytes": N}. The first two steps warm up and do not count.
// With "serve" it greets with a line, then answers each line "N" on standard input with the
// milliseconds of N steps. KEY=JSON adds to the configuration. Processes of a launcher train
// together, each with a batch of its own.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ds.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace {

using Json = nlohmann::json;

std::vector<int64_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out.push_back((seed >> 8) % vocab);
  }
  return out;
}

class Training {
 public:
  Training(const std::string& model_json, int64_t batch, int64_t length, const Json& config)
      : vocab_(Json::parse(model_json).at("vocab_size")),
        shape_{batch, length},
        model_(libds::Model::create(model_json, 1)),
        engine_(config.dump(), model_, &comm_),
        seed_(static_cast<uint32_t>(comm_.rank()) * 1000 + 1) {}

  double step() {
    const libds::Tensor ids = tokens(), labels = tokens();
    const auto began = std::chrono::steady_clock::now();
    const libds::Tensor loss = engine_.forward(ids, labels);
    engine_.backward(loss);
    engine_.step();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
        .count();
  }
  Json steps(int count) {
    Json times = Json::array();
    for (int i = 0; i < count; ++i) times.push_back(step());
    return times;
  }
  Json memory() { return Json::parse(engine_.memory_report()); }

 private:
  libds::Tensor tokens() {
    return libds::Tensor::from(random_tokens(shape_[0] * shape_[1], vocab_, seed_++), shape_);
  }

  int64_t vocab_;
  std::vector<int64_t> shape_;
  libds::Comm comm_;
  libds::Model model_;
  libds::Engine engine_;
  uint32_t seed_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::cerr << "usage: train_step MODEL.json BATCH LENGTH fp32|bf16 STEPS|serve [THREADS] "
                 "[KEY=JSON ...]\n";
    return 2;
  }
  try {
    std::stringstream text;
    text << std::ifstream(argv[1]).rdbuf();
    const int64_t batch = std::atoll(argv[2]), length = std::atoll(argv[3]);
    Json config = {
        {"train_micro_batch_size_per_gpu", batch},
        {"threads", argc > 6 ? std::atoi(argv[6]) : 0},
        {"bf16", {{"enabled", std::string(argv[4]) == "bf16"}}},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}, {"weight_decay", 0.1}}}}}};
    for (int i = 7; i < argc; ++i) {
      const std::string entry = argv[i];
      const size_t equals = entry.find('=');
      if (equals == std::string::npos) throw std::runtime_error(entry + " is not KEY=JSON");
      config.merge_patch({{entry.substr(0, equals), Json::parse(entry.substr(equals + 1))}});
    }
    Training training(text.str(), batch, length, config);
    training.steps(2);
    if (std::string(argv[5]) != "serve") {
      const Json times = training.steps(std::atoi(argv[5]));
      std::cout << Json{{"milliseconds", times}, {"peak_bytes", training.memory()["total"]["peak"]}}
                << "\n";
      return 0;
    }
    std::cout << training.memory() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << training.steps(std::atoi(line.c_str())) << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "train_step: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
