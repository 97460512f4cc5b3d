// What the properties of training share: the state of an engine, and batches that differ by rank.
#pragma once

#include <cctype>
#include <fstream>

#include "unit/engine/log_lines.h"
#include "unit/zero/own_world.h"

namespace ds::properties {

using namespace zero_test;  // NOLINT: the worlds of those tests are these tests' worlds

// A readable name of a parametrised test, such as "Bf16Split".
struct Form {
  std::string name;
  Json change = Json::object();
};
inline void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }
inline std::string form_name(const ::testing::TestParamInfo<Form>& info) { return info.param.name; }

inline Json optimizer(const char* type, Json params, const Json& more = Json::object()) {
  Json section = {{"type", type}, {"params", std::move(params)}};
  section.merge_patch(more);
  return {{"optimizer", std::move(section)}, {"zero_allow_untested_optimizer", true}};
}

// Six samples are a step for one, two, three and six ranks.
inline constexpr int kStepSamples = 6;
inline Json step_config(int stage, int world, const Json& more = Json::object(),
                        const Json& zero = Json::object()) {
  Json config =
      zero_config(stage, {{"reduce_bucket_size", 4000}, {"stage3_param_persistence_threshold", 40}},
                  {{"train_micro_batch_size_per_gpu", kStepSamples / world}});
  if (more.contains("scheduler")) config.erase("scheduler");
  config.merge_patch(more);
  config["zero_optimization"].merge_patch(zero);
  return config;
}

inline std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Moments and the like of all parameters, whole; every rank calls it.
inline std::vector<float> optimizer_values(Engine& engine) {
  std::vector<float> out;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (!parameters[id].trainable) continue;
    for (const std::string& name : engine.values().optimizer_states(parameters[id].name)) {
      const std::vector<float> one =
          flat(engine.values().optimizer_state(parameters[id].name, name));
      out.insert(out.end(), one.begin(), one.end());
    }
  }
  return out;
}

// The masters of an engine of one process, whatever they are kept as.
inline std::vector<float> weights_of(Engine& engine) {
  std::vector<float> out;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const std::vector<float> one = flat(engine.model()->get(parameters[id].name));
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

struct Counters {
  int64_t steps, skipped, micro_steps, samples, tokens, optimizer_steps;
  double loss_scale;
  std::vector<double> rates;
  bool operator==(const Counters&) const = default;
};
inline Counters counters(const Engine& engine) {
  const Progress& p = engine.progress();
  return {p.steps,
          p.skipped,
          p.micro_steps,
          p.samples,
          p.tokens,
          engine.optimizer_steps(),
          engine.loss_scale(),
          engine.rates()};
}

// Fails on the ranks that do not have rank 0's numbers; ranks are threads of one test.
class AgreedState {
 public:
  void give(int rank, const std::vector<float>& values) {
    const std::lock_guard lock(mutex_);
    if (!given_) values_ = values;
    EXPECT_TRUE(same_bits(values_, values)) << "rank " << rank;
    given_ = true;
  }
  const std::vector<float>& values() const { return values_; }

 private:
  std::mutex mutex_;
  bool given_ = false;
  std::vector<float> values_;
};

// One micro batch of `rows` rows that depends on the rank and on its number.
inline StepReport micro_batch(Engine& engine, int rank, int64_t number, int64_t rows = 2) {
  std::vector<int64_t> ids(static_cast<size_t>(rows * 8));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(i * static_cast<size_t>(5 + number + 3 * rank) % 61);
  }
  const Tensor tokens = ids_tensor(ids, rows);
  engine.backward(engine.forward({tokens, tokens, {}, {}, {}}));
  return engine.step();
}

}  // namespace ds::properties
