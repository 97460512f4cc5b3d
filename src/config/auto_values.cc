#include "config/auto_values.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "base/text.h"
#include "config/parse.h"

namespace ds {
namespace {

AutoOutcome take(Json value) { return {AutoOutcome::Kind::kValue, std::move(value), {}}; }
AutoOutcome absent() { return {AutoOutcome::Kind::kAbsent, nullptr, {}}; }
AutoOutcome unknown(std::string text) {
  return {AutoOutcome::Kind::kUnknown, nullptr, std::move(text)};
}

template <class T>
AutoOutcome take_or_absent(const std::optional<T>& value) {
  return value ? take(*value) : absent();
}

bool has_prefix(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

}  // namespace

std::optional<int64_t> hidden_size_of(const Json& model_config) {
  if (!model_config.is_object()) return std::nullopt;
  const auto size = [](const Json& value) -> std::optional<int64_t> {
    // Far beyond any model; its square must fit.
    constexpr int64_t kMost = int64_t{1} << 24;
    if (!value.is_number_integer() || value < 1 || value > kMost) return std::nullopt;
    return value.get<int64_t>();
  };
  for (const char* name : {"hidden_size", "n_embd", "d_model"}) {
    const auto it = model_config.find(name);
    if (it != model_config.end()) return size(*it);
  }
  std::optional<int64_t> largest;
  if (const auto it = model_config.find("hidden_sizes");
      it != model_config.end() && it->is_array()) {
    for (const Json& one : *it) largest = std::max(largest, size(one));
  }
  return largest;
}

std::string explain_auto(const Key& key) {
  const std::string types = describe_types(key, /*with_null=*/false);
  if (key.required) return "\"auto\" is not resolved here; give " + types;
  if (key.caller_decides) {
    return "\"auto\" leaves the choice to the program, which does not make it; give " + types +
           ", or leave the key out for " + show_value(key.default_value);
  }
  if (key.default_value.is_object()) {
    return "\"auto\" is not resolved here; leave the key out, or give " + types;
  }
  return "\"auto\" is not resolved here; leave the key out for its default (" +
         (key.default_value.is_null() ? "unset" : show_value(key.default_value)) + "), or give " +
         types;
}

// A value of the document, in whose objects the last name may be one of several spellings.
const Json* AutoResolver::at(std::initializer_list<const char*> path) const {
  const Json* here = &document_;
  for (const char* name : path) {
    if (!here->is_object()) return nullptr;
    const auto it = here->find(name);
    if (it == here->end()) return nullptr;
    here = &*it;
  }
  return here;
}

AutoOutcome AutoResolver::precision(const char* own, const char* other) const {
  if (values_.precision) return take(*values_.precision == own);
  const bool other_is_bf16 = std::string_view(other) == "bf16";
  for (const char* section : {"fp16", "bf16", "bfloat16"}) {
    if ((section[0] == 'b') != other_is_bf16) continue;
    const Json* enabled = at({section, "enabled"});
    if (enabled != nullptr && *enabled == true) return take(false);
  }
  return unknown(str_cat("\"auto\" leaves the precision to the caller, who does not say it",
                         "; set it to true or false, or give precision (fp32, fp16 or bf16)"));
}

AutoOutcome AutoResolver::optimizer(std::string_view name) const {
  if (name == "lr") {
    if (values_.lr) return take(*values_.lr);
    return unknown("\"auto\" leaves the learning rate to the caller, who does not say it; give lr");
  }
  if (name == "betas") {
    return take(
        Json::array({values_.beta1.value_or(kAutoBeta1), values_.beta2.value_or(kAutoBeta2)}));
  }
  if (name == "eps") return take(values_.eps.value_or(kAutoEps));
  if (name == "weight_decay") return take(values_.weight_decay.value_or(kAutoDecay));
  return unknown("\"auto\" has no meaning here; give a value, or leave the key out");
}

AutoOutcome AutoResolver::scheduler(std::string_view name) const {
  if (name == "warmup_min_lr") return take(0.0);
  if (name == "warmup_num_steps") return take(values_.warmup_steps.value_or(0));
  if (name == "warmup_max_lr") {
    if (values_.lr) return take(*values_.lr);
    const Json* lr = at({"optimizer", "params", "lr"});
    if (lr != nullptr && lr->is_number()) return take(*lr);
    return unknown("\"auto\" is the optimizer's learning rate, which nobody says; give lr");
  }
  if (name == "total_num_steps") {
    if (values_.total_steps) return take(*values_.total_steps);
    return unknown(
        "\"auto\" leaves the length of the training to the caller, who does not say it; give "
        "total_num_steps (--steps)");
  }
  return unknown("\"auto\" has no meaning here; give a value, or leave the key out");
}

AutoOutcome AutoResolver::zero(std::string_view name) const {
  if (name == "stage") {
    if (values_.stage) return take(*values_.stage);
    return unknown("\"auto\" leaves the stage to the caller, who does not say it; give stage");
  }
  for (const auto& [object, device] : {std::pair{"offload_optimizer", &values_.offload_optimizer},
                                       std::pair{"offload_param", &values_.offload_param}}) {
    if (name != std::string(object) + "/device") continue;
    if (*device) return take(**device);
    return unknown(
        str_cat("\"auto\" leaves the device to the caller, who does not say it; give ", object));
  }
  // Without a model the defaults hold: these sizes decide about speed alone.
  if (!environment_.hidden_size) return absent();
  const auto hidden = static_cast<double>(*environment_.hidden_size);
  const auto whole = [](double size) { return take(static_cast<int64_t>(std::floor(size))); };
  if (name == "reduce_bucket_size") return whole(hidden * hidden);
  if (name == "stage3_prefetch_bucket_size") return whole(0.9 * hidden * hidden);
  if (name == "stage3_param_persistence_threshold") return whole(10 * hidden);
  return absent();
}

AutoOutcome AutoResolver::resolve(const std::string& path) const {
  const std::string_view view = path;
  if (path == "/train_batch_size") return take_or_absent(values_.train_batch);
  if (path == "/train_micro_batch_size_per_gpu") return take_or_absent(values_.micro_batch);
  if (path == "/gradient_accumulation_steps") return take_or_absent(values_.accumulation);
  if (path == "/gradient_clipping") return take(values_.gradient_clipping.value_or(kAutoClipping));
  if (path == "/fp16/enabled") return precision("fp16", "bf16");
  if (path == "/bf16/enabled") return precision("bf16", "fp16");
  constexpr std::string_view kOptimizer = "/optimizer/params/";
  constexpr std::string_view kScheduler = "/scheduler/params/";
  constexpr std::string_view kZero = "/zero_optimization/";
  if (has_prefix(view, kOptimizer)) return optimizer(view.substr(kOptimizer.size()));
  if (has_prefix(view, kScheduler)) return scheduler(view.substr(kScheduler.size()));
  if (has_prefix(view, kZero)) return zero(view.substr(kZero.size()));
  if (has_prefix(view, "/optimizer/") || has_prefix(view, "/scheduler/")) {
    return unknown("\"auto\" has no meaning here; give a value");
  }
  return absent();
}

}  // namespace ds
