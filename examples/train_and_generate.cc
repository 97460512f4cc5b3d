// Learns a tokenizer and a small GPT from a text file with ds.hpp, then continues a prompt:
// train_and_generate FILE [STEPS [PROMPT]]
#include <cstdio>
#include <ds.hpp>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int64_t kLength = 64;
constexpr int64_t kVocabulary = 512;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string shape(int64_t vocabulary) {
  return R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": )" +
         std::to_string(kLength) + R"(, "vocab_size": )" + std::to_string(vocabulary) + "}";
}

// What the data set does for a whole file, done by hand for one batch: inputs are a sample's first
// tokens, labels the same shifted by one.
libds::StepReport train_step(libds::Engine& engine, const libds::Dataset& data, int64_t batch) {
  std::vector<int32_t> ids, labels;
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t index = (engine.samples() + i) % data.size();
    const auto sample = data.sample(index).to_vector<int32_t>();
    ids.insert(ids.end(), sample.begin(), sample.end() - 1);
    labels.insert(labels.end(), sample.begin() + 1, sample.end());
  }
  const auto loss = engine.forward(libds::Tensor::from(ids, {batch, kLength}),
                                   libds::Tensor::from(labels, {batch, kLength}));
  engine.backward(loss);
  return engine.step();
}

void run(const std::string& path, int steps, const std::string& prompt) {
  const auto tokenizer = libds::Tokenizer::train(
      read_file(path), R"({"vocab_size": )" + std::to_string(kVocabulary) + "}");
  libds::DatasetSpec spec;
  spec.path = path;
  spec.sequence_length = kLength;
  const auto data = libds::Dataset::open(spec, &tokenizer);

  constexpr int64_t kBatch = 8;
  auto model = libds::Model::create(shape(tokenizer.vocab_size()), /*seed=*/1);
  libds::Engine engine(R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
                           "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}})",
                       model);
  for (int i = 0; i < steps; ++i) {
    const auto report = train_step(engine, data, kBatch);
    if (report.step % 10 == 0) {
      std::printf("step %d  loss %.4f\n", static_cast<int>(report.step), report.loss);
    }
  }

  libds::GenerateOptions how;
  how.max_tokens = 40;
  how.temperature = 0.7;
  libds::Generator generator(model);
  const auto ids = generator.generate(tokenizer.encode(prompt), how);
  std::cout << prompt << tokenizer.decode(ids) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: " << argv[0] << " FILE [STEPS [PROMPT]]\n";
    return 2;
  }
  try {
    run(argv[1], argc > 2 ? std::stoi(argv[2]) : 200, argc > 3 ? argv[3] : "The ");
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
