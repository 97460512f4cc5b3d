#include "config/config.h"

#include <utility>

#include "base/text.h"
#include "config/config_table.h"

namespace ds {
namespace {

// What more than one key decides.
void resolve_precision(const ParsedObject& parsed, PrecisionConfig& out) {
  const auto on = [&](const char* path) { return parsed.at(path).get<bool>(); };
  const bool fp16 = on("/fp16/enabled"), bf16 = on("/bf16/enabled");
  if (fp16) out.compute = Precision::kFp16;
  if (bf16) out.compute = Precision::kBf16;
  out.split_master = bf16 && on("/bf16/split_master");
  out.rounded_masters = (bf16 && on("/bf16/bf16_master_weights_and_grads")) ||
                        (!bf16 && fp16 && on("/fp16/fp16_master_weights_and_grads"));
}

const KnownOptimizer& optimizer_of(const std::string& name) {
  for (const KnownOptimizer& known : kOptimizers) {
    if (name == known.name) return known;
  }
  fail(Code::kInternal, "no typed parameters for optimizer ", name);
}

// The type, and what it makes of parameters that mean something else for others.
void resolve_optimizer(const ParsedObject& parsed, OptimizerConfig& out) {
  const Json& params = parsed.at("/optimizer/params");
  const auto flag = [&](const char* name, bool& to) {
    if (const auto it = params.find(name); it != params.end()) to = it->get<bool>();
  };
  const KnownOptimizer& known = optimizer_of(parsed.at("/optimizer/type").get<std::string>());
  out.type = known.type;
  out.mu = known.mu;
  using enum OptimizerType;
  flag("adam_w_mode", out.decoupled);
  if (out.type != kAdam) {
    out.decoupled = out.type != kAdagrad && out.type != kSgd && out.type != kRmsprop;
  }
  if (out.type == kAdam && out.mu != MuRule::kNone) out.decoupled = false;
  flag("decoupled_weight_decay", out.decoupled);
  if (out.type != kMuon) return;
  const auto rate = [&](const char* name, double& to) {
    if (const Json& value = params.at(name); !value.is_null()) to = value.get<double>();
  };
  if (parsed.is_given("/optimizer/params/lr")) out.adam_lr = out.lr;
  rate("adam_lr", out.adam_lr);
  rate("muon_lr", out.lr);
}

}  // namespace

void assign(PerGroup& field, const Key&, const Json& value) {
  if (value.is_null()) return;
  field =
      value.is_array() ? PerGroup(value.get<std::vector<double>>()) : PerGroup(value.get<double>());
}

// The schedule of the type that the section names.
void assign(SchedulerConfig& field, const Key& key, const Json& value) {
  const std::string type = value.at("type").get<std::string>();
  const Json& params = value.at("params");
  const auto read = [&]<class Schedule>(Schedule) {
    for (const auto& [name, table] : key.table->find("params")->variants) {
      if (name == type) field = read_as<Schedule>(*table, params);
    }
  };
  if (type == "LRRangeTest") return read(LrRangeTestConfig{});
  if (type == "WarmupLR") return read(WarmupLrConfig{});
  if (type == "WarmupDecayLR") return read(WarmupDecayLrConfig{});
  if (type == "WarmupCosineLR") return read(WarmupCosineLrConfig{});
  DS_CHECK(type == "OneCycle", Code::kInternal, "no typed parameters for schedule ", type);
  read(OneCycleConfig{});
}

Config load_config(std::string_view json_text, const ConfigEnvironment& environment,
                   const ReadOptions& options) {
  CheckedConfig checked = check_config(json_text, environment, options);
  throw_first_problem(checked.parsed.problems, "configuration", Code::kConfig);
  Config out;
  const ParsedObject& parsed = checked.parsed;
  read_fields(config_table(), parsed.values, &out, typeid(Config));
  out.batch = checked.batch;
  resolve_precision(parsed, out.precision);
  if (out.optimizer) resolve_optimizer(parsed, *out.optimizer);
  if (const Json& sizes = parsed.at("/rampup_batch_size"); !sizes.is_null()) {
    const auto size = [&](size_t i) { return sizes.at(i).get<int64_t>(); };
    out.batch_ramp_up = {size(0), size(1), size(2), out.batch.train_batch};
  }
  // Fetching one at a time is fetching nothing ahead.
  if (parsed.at("/zero_optimization/stage3_allgather_sequential").get<bool>()) {
    out.zero.prefetch_bucket_size = 0;
  }
  out.parsed_ = std::move(checked.parsed);
  return out;
}

}  // namespace ds
