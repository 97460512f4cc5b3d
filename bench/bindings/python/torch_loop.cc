// Training steps with PyTorch's gradients in C++: what torch_loop.py does in Python, with the same
// sizes, seeds and threads. Built and run beside it by torch_and_cc.py.
//
//   torch_loop WORK BATCH HIDDEN      WORK: torch, preset or module (see torch_and_cc.py)
//
// Reads lines of a number of steps and a word, which says something to torch_loop.py only, and
// answers each with the nanoseconds of these steps in one line; at the end of its input it prints a
// checksum of the weights' bits.
#include <ds.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr int64_t kWidth = 256;

void check(ds_status status) {
  if (status == DS_OK) return;
  std::fprintf(stderr, "torch_loop: %s\n", ds_last_error_message());
  std::exit(1);
}

torch::nn::Sequential make_module(int64_t hidden) {
  torch::manual_seed(0);
  torch::nn::Sequential
      module;  // one after another, so that the seed gives each what it gives in Python
  module->push_back(torch::nn::Linear(kWidth, hidden));
  module->push_back(torch::nn::GELU());
  module->push_back(torch::nn::Linear(hidden, hidden));
  module->push_back(torch::nn::GELU());
  module->push_back(torch::nn::Linear(hidden, kWidth));
  return module;
}

ds_model* make_model(const torch::nn::Sequential& module) {
  const auto named = module->named_parameters();
  std::vector<ds_parameter> parameters;
  std::vector<ds_tensor*> values;
  for (const auto& item : named) {
    const torch::Tensor& weight = item.value();
    ds_tensor* value = nullptr;
    check(ds_tensor_from_buffer(weight.data_ptr(), DS_FLOAT32, weight.sizes().data(), nullptr,
                                static_cast<int32_t>(weight.dim()), nullptr, nullptr, &value));
    ds_parameter parameter = DS_PARAMETER_INIT;
    parameter.name = item.key().c_str();
    parameter.shape = weight.sizes().data();
    parameter.ndim = static_cast<int32_t>(weight.dim());
    parameter.value = value;
    parameter.lend = 1;  // updates arrive in the module's memory
    parameters.push_back(parameter);
    values.push_back(value);
  }
  ds_model* model = nullptr;
  check(ds_model_create_from_parameters(parameters.data(), static_cast<int64_t>(parameters.size()),
                                        &model));
  for (ds_tensor* value : values) ds_tensor_destroy(value);
  return model;
}

// Gradients gather where the engine keeps them.
ds_engine* make_engine(const torch::nn::Sequential& module, int64_t batch) {
  const std::string config =
      "{\"train_micro_batch_size_per_gpu\": " + std::to_string(batch) +
      ", \"threads\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}}";
  ds_engine* engine = nullptr;
  check(ds_engine_create(config.c_str(), nullptr, make_model(module), nullptr, &engine));
  int64_t index = 0;
  for (torch::Tensor& weight : module->parameters()) {
    ds_tensor* view = nullptr;
    ds_tensor_info info = DS_TENSOR_INFO_INIT;
    check(ds_engine_view_gradient(engine, index++, &view));
    check(ds_tensor_describe(view, &info));
    weight.mutable_grad() = torch::from_blob(info.data, weight.sizes());
  }
  return engine;
}

void end_micro_batch(ds_engine* engine, double loss) {
  check(ds_engine_set_loss(engine, loss));
  ds_step_report report = DS_STEP_REPORT_INIT;
  check(ds_engine_step(engine, &report));
}

std::function<void()> preset_step(const torch::nn::Sequential& module, int64_t batch) {
  ds_engine* engine = make_engine(module, batch);
  torch::manual_seed(1);
  std::vector<torch::Tensor> given, views;
  for (const torch::Tensor& weight : module->parameters()) {
    given.push_back(torch::randn(weight.sizes()));
    views.push_back(weight.grad());
  }
  return [=] {
    for (size_t i = 0; i < views.size(); ++i) views[i].add_(given[i]);
    end_micro_batch(engine, 1.0);
  };
}

std::function<void()> module_step(torch::nn::Sequential module, int64_t batch, bool with_engine) {
  ds_engine* engine = with_engine ? make_engine(module, batch) : nullptr;
  torch::manual_seed(1);
  const auto x = torch::randn({batch, kWidth}), y = torch::randn({batch, kWidth});
  return [=]() mutable {
    const auto loss = torch::nn::functional::mse_loss(module->forward(x), y);
    const auto value = loss.item<double>();
    loss.backward();
    if (engine != nullptr) end_micro_batch(engine, value);
  };
}

// FNV-1a over the bits of all weights.
uint64_t checksum(const torch::nn::Sequential& module) {
  uint64_t sum = 14695981039346656037U;
  for (const torch::Tensor& weight : module->parameters()) {
    const auto* const values = weight.const_data_ptr<float>();
    for (int64_t i = 0; i < weight.numel(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, values + i, sizeof bits);
      sum = (sum ^ bits) * 1099511628211U;
    }
  }
  return sum;
}

void answer(const std::function<void()>& step) {
  std::string way;
  for (int64_t steps = 0; std::cin >> steps >> way;) {
    std::string line;
    for (int64_t i = 0; i < steps; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      step();
      const auto spent = std::chrono::steady_clock::now() - begin;
      line += std::to_string(std::chrono::nanoseconds(spent).count()) + " ";
    }
    std::cout << line << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s torch|preset|module BATCH HIDDEN\n", argv[0]);
    return 2;
  }
  const std::string work = argv[1];
  const int64_t batch = std::atoll(argv[2]);
  torch::set_num_threads(1);
  const auto module = make_module(std::atoll(argv[3]));
  answer(work == "preset" ? preset_step(module, batch)
                          : module_step(module, batch, work == "module"));
  std::cout << checksum(module) << std::endl;
}
