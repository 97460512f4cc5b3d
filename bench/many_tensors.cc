// What a step costs the host per tensor: two ranks update the same number of elements, cut into few
// and into many tensors, whose gradients the program gives.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "comm/factory.h"
#include "config/config.h"
#include "engine/engine.h"
#include "engine/external_gradients.h"
#include "models/model.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kWorld = 2;
constexpr int64_t kElements = 10'000'000;

double milliseconds(const std::function<void()>& body) {
  const Clock::time_point begin = Clock::now();
  body();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The calling thread's own work, which other programs on the machine do not lengthen.
double cpu_milliseconds(const std::function<void()>& body) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  body();
  return now() - begin;
}

struct Times {
  double add = 0, step = 0, cpu = 0;
};

Times measure(int64_t tensors, int stage, const std::string& optimizer, int steps) {
  const auto group = ds::make_local_group(kWorld, {});
  Times out;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] {
      ds::nn::ParameterSet set;
      for (int64_t i = 0; i < tensors; ++i) {
        ds::nn::Parameter p;
        p.name = "tensor." + std::to_string(i);
        p.shape = {kElements / tensors};
        p.decays = true;
        set.add(std::move(p));
      }
      const ds::Json config = {{"train_micro_batch_size_per_gpu", 1},
                               {"threads", 1},
                               {"zero_allow_untested_optimizer", true},
                               {"zero_optimization", {{"stage", stage}}},
                               {"optimizer", {{"type", optimizer}, {"params", {{"lr", 1e-4}}}}}};
      const auto model = ds::models::Model::from_parameters(std::move(set));
      std::unique_ptr<ds::Engine> engine;
      engine = std::make_unique<ds::Engine>(ds::dump_json(config), model,
                                            group[static_cast<size_t>(rank)]);
      const ds::Tensor gradient = ds::Tensor::zeros(model->device(), ds::DType::kFloat32,
                                                    {kElements / tensors}, ds::MemoryTag::kOther);
      std::fill_n(gradient.data<float>(), gradient.elements(), 1e-3f);
      const std::vector<const ds::Tensor*> gradients(static_cast<size_t>(tensors), &gradient);
      std::vector<double> add, step, cpu;
      for (int i = 0; i < steps; ++i) {
        add.push_back(milliseconds([&] { engine->gradients().add({}, gradients); }));
        step.push_back(
            milliseconds([&] { cpu.push_back(cpu_milliseconds([&] { engine->step(); })); }));
      }
      if (rank == 0) out = {median(add), median(step), median(cpu)};
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 15;
  try {
    std::printf("%-6s %-5s %8s %10s %10s %10s\n", "", "stage", "tensors", "add ms", "step ms",
                "step cpu");
    for (const char* optimizer : {"Adam", "Lamb"}) {
      for (const int stage : {0, 2}) {
        for (const int64_t tensors : {100, 10'000}) {
          const Times times = measure(tensors, stage, optimizer, steps);
          std::printf("%-6s %-5d %8lld %10.1f %10.2f %10.2f\n", optimizer, stage,
                      static_cast<long long>(tensors), times.add, times.step, times.cpu);
        }
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "many_tensors: %s\n", error.what());
    return 1;
  }
  return 0;
}
