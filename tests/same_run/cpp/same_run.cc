// The run of tests/same_run/README.md in C++: same_run RUN_JSON TEXT built_in|external OUTPUT
#include <ds.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

namespace {

using Json = nlohmann::json;

libds::Model train_built_in(const Json& run, const std::string& text, const std::string& config) {
  const Json& part = run.at("built_in");
  Json spec = part.at("dataset");
  spec["path"] = text;
  const libds::Tokenizer bytes = libds::Tokenizer::bytes();
  const libds::Dataset dataset = libds::Dataset::open(spec.dump(), &bytes);
  libds::Model model = libds::Model::create(part.at("model").dump(), part.at("seed"));
  libds::Engine engine(config, model);
  engine.set_dataset(&dataset);
  for (int step = 0; step < part.at("steps"); ++step) engine.train_batch();
  return model;
}

libds::Model train_external(const Json& run, const std::string& config) {
  const Json& part = run.at("external");
  std::vector<libds::Parameter> parameters;
  for (const Json& one : part.at("parameters")) {
    libds::Parameter p;
    p.name = one.at("name");
    p.shape = one.at("shape").get<std::vector<int64_t>>();
    parameters.push_back(p);
  }
  libds::Model model = libds::Model::from_parameters(parameters);
  libds::Engine engine(config, model);
  const auto count = static_cast<int64_t>(parameters.size());
  for (int64_t step = 0; step < part.at("steps"); ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      std::vector<libds::Tensor> gradients;
      for (int64_t p = 0; p < count; ++p) {
        const libds::Tensor weights = model.parameter(p);
        std::vector<float> g = weights.to_vector<float>();
        for (size_t j = 0; j < g.size(); ++j) {
          const int64_t n = (static_cast<int64_t>(j) * 7 + step * 3 + p * 5) % 11;
          g[j] = (g[j] - static_cast<float>(n) / 8.0f) / 2.0f;
        }
        gradients.push_back(libds::Tensor::from(g, weights.shape()));
      }
      engine.add_gradients(gradients);
      engine.step();
    }
  }
  return model;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    std::cerr << "usage: same_run RUN_JSON TEXT built_in|external OUTPUT\n";
    return 2;
  }
  const Json run = Json::parse(std::ifstream(argv[1]));
  const std::string config = run.at("engine").dump();
  const bool external = std::string(argv[3]) == "external";
  const libds::Model model =
      external ? train_external(run, config) : train_built_in(run, argv[2], config);
  std::ofstream out(argv[4], std::ios::binary);
  for (int64_t i = 0; i < model.info().parameters; ++i) {
    for (const float x : model.parameter(i).to_vector<float>()) {
      out.write(reinterpret_cast<const char*>(&x), sizeof x);
    }
  }
  return out.flush() ? 0 : 2;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
