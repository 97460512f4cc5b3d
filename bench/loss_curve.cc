// Trains on given tokens and prints every step's loss, to be compared with other programs and runs:
//   loss_curve MODEL TOKENS BATCH LENGTH CONFIG.json [--device cuda:0] [--export FOLDER]
// MODEL is a config.json, whose weights are made from a fixed seed, or a Hugging Face folder.
// TOKENS holds int32 numbers: for every step the ids [BATCH, LENGTH], then the labels. Prints
// {"losses": [..], "weights": "checksum of their bits", "seconds": ..}. --export writes the weights
// as a folder instead, and trains nothing.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <ds.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/checksum.h"

namespace {

using Json = nlohmann::json;

std::string read_text(const std::string& path) {
  const std::ifstream file(path);
  if (!file) throw std::runtime_error(path + " cannot be read");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<int64_t> read_tokens(const std::string& path) {
  const std::string bytes = read_text(path);
  std::vector<int32_t> narrow(bytes.size() / sizeof(int32_t));
  std::memcpy(narrow.data(), bytes.data(), narrow.size() * sizeof(int32_t));
  return {narrow.begin(), narrow.end()};
}

libds::Model open(const std::string& name) {
  const bool config = name.size() > 5 && name.substr(name.size() - 5) == ".json";
  return config ? libds::Model::create(read_text(name), 1) : libds::Model::open(name);
}

// The value behind an option, which leaves the arguments.
std::string take(std::vector<std::string>& arguments, const char* name) {
  const auto at = std::find(arguments.begin(), arguments.end(), name);
  if (at == arguments.end() || at + 1 == arguments.end()) return {};
  std::string value = *(at + 1);
  arguments.erase(at, at + 2);
  return value;
}

Json train(const std::vector<std::string>& arguments, const std::string& device) {
  const std::vector<int64_t> tokens = read_tokens(arguments[2]);
  const int64_t batch = std::stoll(arguments[3]), length = std::stoll(arguments[4]);
  const int64_t each = batch * length;
  if (each < 1) throw std::runtime_error("BATCH and LENGTH must be at least 1");
  libds::Model model = open(arguments[1]);
  if (!device.empty()) model.set_device(device);
  libds::Engine engine(read_text(arguments[5]), model);
  Json losses = Json::array();
  const auto began = std::chrono::steady_clock::now();
  for (size_t at = 0; at + static_cast<size_t>(2 * each) <= tokens.size();
       at += static_cast<size_t>(2 * each)) {
    const auto part = [&](int64_t which) {
      const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(at) + which * each;
      return libds::Tensor::from(std::vector<int64_t>(first, first + each), {batch, length});
    };
    const libds::Tensor loss = engine.forward(part(0), part(1));
    losses.push_back(loss.to_vector<float>().at(0));
    engine.backward(loss);
    engine.step();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return {{"losses", losses}, {"weights", bench::checksum(model)}, {"seconds", seconds}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> arguments(argv, argv + argc);
    const std::string device = take(arguments, "--device");
    const std::string folder = take(arguments, "--export");
    if (!folder.empty() && arguments.size() > 1) {
      open(arguments[1]).export_to(folder);
      std::cout << Json{{"exported", folder}} << std::endl;
      return 0;
    }
    if (arguments.size() != 6) {
      std::cerr << "usage: loss_curve MODEL TOKENS BATCH LENGTH CONFIG.json [--device cuda:0]\n"
                   "       loss_curve MODEL --export FOLDER\n";
      return 2;
    }
    std::cout << train(arguments, device) << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "loss_curve: " << error.what() << "\n";
    return 1;
  }
}
