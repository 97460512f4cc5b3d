#include "config/config.h"

#include <utility>

#include "base/text.h"
#include "config/config_table.h"

namespace ds {
namespace {

// Far above any hand-written document; bounds the work that a hostile one can cause.
constexpr size_t kMaxBytes = size_t{4} << 20;

template <class T>
std::optional<T> optional_at(const ParsedObject& parsed, std::string_view path) {
  const Json& value = parsed.at(path);
  return value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

template <class T>
T get(const ParsedObject& parsed, std::string_view path) {
  return parsed.at(path).get<T>();
}

OptimizerConfig read_optimizer(const ParsedObject& parsed) {
  const Json& params = parsed.at("/optimizer/params");
  OptimizerConfig out;
  out.type = parsed.at("/optimizer/type") == "AdamW" ? OptimizerType::kAdamW : OptimizerType::kAdam;
  out.lr = params.at("lr").get<double>();
  out.beta1 = params.at("betas").at(0).get<double>();
  out.beta2 = params.at("betas").at(1).get<double>();
  out.eps = params.at("eps").get<double>();
  out.weight_decay = params.at("weight_decay").get<double>();
  out.decoupled = out.type == OptimizerType::kAdamW || params.at("adam_w_mode").get<bool>();
  out.bias_correction = params.at("bias_correction").get<bool>();
  return out;
}

SchedulerConfig read_scheduler(const ParsedObject& parsed) {
  const Json& params = parsed.at("/scheduler/params");
  const auto number = [&](const char* name) { return params.at(name).get<double>(); };
  const auto maybe = [&](const char* name) {
    const Json& value = params.at(name);
    return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
  };
  const auto steps = [&](const char* name) { return params.at(name).get<int64_t>(); };
  const auto flag = [&](const char* name) { return params.at(name).get<bool>(); };
  const auto shape = [&] {
    return params.at("warmup_type") == "log" ? WarmupShape::kLog : WarmupShape::kLinear;
  };

  const std::string type = parsed.at("/scheduler/type").get<std::string>();
  if (type == "LRRangeTest") {
    return LrRangeTestConfig{number("lr_range_test_min_lr"), steps("lr_range_test_step_size"),
                             number("lr_range_test_step_rate"), flag("lr_range_test_staircase")};
  }
  if (type == "WarmupLR") {
    return WarmupLrConfig{number("warmup_min_lr"), maybe("warmup_max_lr"),
                          steps("warmup_num_steps"), shape()};
  }
  if (type == "WarmupDecayLR") {
    return WarmupDecayLrConfig{steps("total_num_steps"), number("warmup_min_lr"),
                               maybe("warmup_max_lr"), steps("warmup_num_steps"), shape()};
  }
  if (type == "WarmupCosineLR") {
    return WarmupCosineLrConfig{steps("total_num_steps"), number("warmup_min_ratio"),
                                number("cos_min_ratio"), steps("warmup_num_steps"), shape()};
  }
  DS_CHECK(type == "OneCycle", Code::kInternal, "no typed parameters for schedule ", type);
  return OneCycleConfig{.min_lr = number("cycle_min_lr"),
                        .max_lr = number("cycle_max_lr"),
                        .first_steps = steps("cycle_first_step_size"),
                        .second_steps = steps("cycle_second_step_size"),
                        .first_stairs = steps("cycle_first_stair_count"),
                        .second_stairs = steps("cycle_second_stair_count"),
                        .decay_steps = steps("decay_step_size"),
                        .decay_lr_rate = number("decay_lr_rate"),
                        .cycle_momentum = flag("cycle_momentum"),
                        .min_momentum = number("cycle_min_mom"),
                        .max_momentum = number("cycle_max_mom"),
                        .decay_momentum_rate = number("decay_mom_rate")};
}

MonitorConfig read_monitor(const ParsedObject& parsed, std::string_view section) {
  const Json& values = parsed.at(section);
  return {values.at("enabled").get<bool>(), values.at("output_path").get<std::string>(),
          values.at("job_name").get<std::string>()};
}

TagValidation read_tag_validation(const ParsedObject& parsed) {
  const Json& value = parsed.at("/checkpoint/tag_validation");
  if (value == "Fail") return TagValidation::kFail;
  return value == "Ignore" ? TagValidation::kIgnore : TagValidation::kWarn;
}

Json with_origins(const Json& value, const std::string& path,
                  const std::map<std::string, std::string>& origins) {
  if (const auto it = origins.find(path); it != origins.end()) {
    Json out = Json::object();
    out["value"] = value;
    out["origin"] = it->second;
    return out;
  }
  Json out = Json::object();
  for (const auto& [name, item] : value.items()) {
    out.get_ref<Json::object_t&>().emplace_back(
        name, with_origins(item, path + "/" + pointer_token(name), origins));
  }
  return out;
}

}  // namespace

Json Config::resolved_with_origins() const {
  return with_origins(parsed_.values, "", parsed_.origins);
}

Config load_config(std::string_view json_text, const ConfigEnvironment& environment) {
  DS_CHECK(json_text.size() <= kMaxBytes, Code::kConfig, "configuration: ", json_text.size(),
           " bytes; a document has at most ", kMaxBytes);
  JsonLimits limits;
  limits.allow_comments = true;
  const Json document = parse_json(json_text, "configuration", Code::kConfig, limits);

  Config out;
  out.parsed_ = parse_object(config_table(), document);
  ParsedObject& parsed = out.parsed_;
  out.batch = apply_config_rules(parsed, environment);
  refuse_lacking(config_table(), parsed);

  out.precision.compute = get<bool>(parsed, "/bf16/enabled") ? Precision::kBf16 : Precision::kFp32;
  out.precision.check_grad_overflow = get<bool>(parsed, "/bf16/check_grad_overflow");
  if (!parsed.at("/optimizer").is_null()) out.optimizer = read_optimizer(parsed);
  if (!parsed.at("/scheduler").is_null()) out.scheduler = read_scheduler(parsed);
  out.gradient_clipping = get<double>(parsed, "/gradient_clipping");
  out.seed = get<uint64_t>(parsed, "/seed");
  out.threads = get<int>(parsed, "/threads");
  out.steps_per_print = optional_at<int64_t>(parsed, "/steps_per_print");
  out.dump_state = get<bool>(parsed, "/dump_state");
  out.wall_clock_breakdown = get<bool>(parsed, "/wall_clock_breakdown");
  out.memory_breakdown = get<bool>(parsed, "/memory_breakdown");
  out.dataloader_drop_last = get<bool>(parsed, "/dataloader_drop_last");
  out.tensorboard = read_monitor(parsed, "/tensorboard");
  out.csv_monitor = read_monitor(parsed, "/csv_monitor");
  out.jsonl_monitor = read_monitor(parsed, "/jsonl_monitor");
  out.activation_checkpointing = {
      get<bool>(parsed, "/activation_checkpointing/enabled"),
      optional_at<int64_t>(parsed, "/activation_checkpointing/number_checkpoints")};
  out.tag_validation = read_tag_validation(parsed);
  return out;
}

}  // namespace ds
