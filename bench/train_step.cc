// Times training steps of a model through the C ABI:
//   train_step MODEL.json BATCH LENGTH fp32|bf16 STEPS|serve [THREADS] [KEY=JSON ...]
//              [--device cuda:0]
// prints {"milliseconds": [..], "peak_bytes": N}. The first two steps warm up and do not count.
// With
// --device it prints every step's loss, those of the first two too, and a checksum of the weights.
// With "serve" it greets with a line, then answers each line "N" on standard input with the
// milliseconds of N steps, and "memory" with the report of the memory. KEY=JSON adds to the
// configuration. Processes of a launcher train together, each with a batch of its own. With
// --device batches come from a data set, as ds_engine_train_batch takes them: then a step waits for
// a GPU at its end alone.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ds.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/checksum.h"

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
  Training(const std::string& model_json, int64_t batch, int64_t length, const Json& config,
           const std::string& device)
      : vocab_(Json::parse(model_json).at("vocab_size")),
        shape_{batch, length},
        model_(create(model_json, device)),
        engine_(config.dump(), model_, &comm_),
        smallest_(smallest_of(model_)),
        seed_(static_cast<uint32_t>(comm_.rank()) * 1000 + 1) {
    if (!device.empty()) give_dataset(batch * length);
  }

  // From the begin of a step to that of the next; the last one ends when a GPU has finished too.
  Json steps(int count) {
    std::vector<libds::Tensor> batches;
    for (int i = 0; dataset_.get() == nullptr && i < 2 * count; ++i) batches.push_back(tokens());
    Json times = Json::array();
    auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) {
      if (batches.empty()) {
        losses_.push_back(engine_.train_batch().loss);
      } else {
        const auto at = static_cast<size_t>(2 * i);
        const libds::Tensor loss = engine_.forward(batches[at], batches[at + 1]);
        engine_.backward(loss);
        engine_.step();
      }
      if (i + 1 == count && model_.device() != "cpu") model_.parameter(smallest_);
      const auto now = std::chrono::steady_clock::now();
      times.push_back(std::chrono::duration<double, std::milli>(now - began).count());
      began = now;
    }
    return times;
  }
  Json memory() { return Json::parse(engine_.memory_report()); }
  // Of the steps whose batches came from a data set.
  const Json& losses() const { return losses_; }
  std::string checksum() const { return bench::checksum(model_); }

 private:
  static libds::Model create(const std::string& json, const std::string& device) {
    libds::Model model = libds::Model::create(json, 1);
    if (!device.empty()) model.set_device(device);
    return model;
  }
  // Random tokens of a hundred batches, as a file of Megatron's format with one document.
  void give_dataset(int64_t per_batch) {
    std::string folder = (std::filesystem::temp_directory_path() / "train-step-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error(folder + " cannot be made");
    const std::string prefix = folder + "/tokens";
    const std::vector<int64_t> wide = random_tokens(100 * per_batch + 1, vocab_, seed_);
    const std::vector<int32_t> tokens(wide.begin(), wide.end());
    std::ofstream data(prefix + ".bin", std::ios::binary), index(prefix + ".idx", std::ios::binary);
    const auto put = [](std::ofstream& file, const auto& value) {
      file.write(reinterpret_cast<const char*>(&value), sizeof value);
    };
    data.write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * sizeof(int32_t)));
    index.write("MMIDIDX\0", 9);
    put(index, uint64_t{1});                          // version
    put(index, uint8_t{4});                           // int32
    put(index, uint64_t{1});                          // sequences
    put(index, uint64_t{2});                          // bounds of documents
    put(index, static_cast<int32_t>(tokens.size()));  // of the sequence, in tokens
    put(index, int64_t{0});                           // and where it begins
    put(index, int64_t{0});
    put(index, int64_t{1});
    data.close();
    index.close();
    libds::DatasetSpec spec;
    spec.path = prefix;
    spec.sequence_length = shape_[1];
    spec.split = "1,0,0";
    dataset_ = libds::Dataset::open(spec);
    engine_.set_dataset(&dataset_);
    std::filesystem::remove_all(folder);  // what is open stays
  }
  static std::string smallest_of(const libds::Model& model) {
    std::string found;
    int64_t least = 0;
    for (int64_t i = 0; i < model.info().parameters; ++i) {
      const int64_t elements = model.parameter_info(i).elements;
      if (found.empty() || elements < least) {
        found = model.parameter_name(i);
        least = elements;
      }
    }
    return found;
  }
  libds::Tensor tokens() {
    return libds::Tensor::from(random_tokens(shape_[0] * shape_[1], vocab_, seed_++), shape_);
  }

  int64_t vocab_;
  std::vector<int64_t> shape_;
  libds::Comm comm_;
  libds::Model model_;
  libds::Engine engine_;
  Json losses_ = Json::array();
  libds::Dataset dataset_;  // none: every batch is given
  std::string smallest_;    // a parameter: reading it waits for a GPU
  uint32_t seed_;
};

// Takes "--device NAME" out of the arguments.
std::string take_device(std::vector<std::string>& arguments) {
  const auto at = std::find(arguments.begin(), arguments.end(), "--device");
  if (at == arguments.end() || at + 1 == arguments.end()) return {};
  const std::string name = *(at + 1);
  arguments.erase(at, at + 2);
  return name;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  const std::string device = take_device(arguments);
  if (arguments.size() < 6) {
    std::cerr << "usage: train_step MODEL.json BATCH LENGTH fp32|bf16 STEPS|serve [THREADS] "
                 "[KEY=JSON ...] [--device cuda:0]\n";
    return 2;
  }
  try {
    std::stringstream text;
    text << std::ifstream(arguments[1]).rdbuf();
    const int64_t batch = std::stoll(arguments[2]), length = std::stoll(arguments[3]);
    Json config = {
        {"train_micro_batch_size_per_gpu", batch},
        {"threads", arguments.size() > 6 ? std::stoi(arguments[6]) : 0},
        {"bf16", {{"enabled", arguments[4] == "bf16"}}},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}, {"weight_decay", 0.1}}}}}};
    for (size_t i = 7; i < arguments.size(); ++i) {
      const std::string& entry = arguments[i];
      const size_t equals = entry.find('=');
      if (equals == std::string::npos) throw std::runtime_error(entry + " is not KEY=JSON");
      config.merge_patch({{entry.substr(0, equals), Json::parse(entry.substr(equals + 1))}});
    }
    Training training(text.str(), batch, length, config, device);
    training.steps(2);
    if (arguments[5] != "serve") {
      const Json times = training.steps(std::stoi(arguments[5]));
      Json out = {{"milliseconds", times}, {"peak_bytes", training.memory()["total"]["peak"]}};
      if (!device.empty()) {
        out["losses"] = training.losses();
        out["weights"] = training.checksum();
      }
      std::cout << out << "\n";
      return 0;
    }
    std::cout << training.memory() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << (line == "memory" ? training.memory() : training.steps(std::stoi(line)))
                << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "train_step: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
