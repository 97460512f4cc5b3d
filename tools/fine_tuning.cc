#include "fine_tuning.h"

#include <charconv>
#include <cmath>
#include <functional>

#include "command.h"

namespace tool {
namespace {

struct LoraRank {
  int64_t r = 0;
  double alpha = 0;
};

std::optional<LoraRank> parse_lora_rank(const std::string& text) {
  LoraRank out;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, out.r);
  if (error != std::errc() || out.r < 1 || out.r > 65536) return std::nullopt;
  out.alpha = static_cast<double>(out.r);
  if (at == end) return out;
  if (*at != ':') return std::nullopt;
  const auto [last, alpha_error] = std::from_chars(at + 1, end, out.alpha);
  const bool good = alpha_error == std::errc() && last == end && std::isfinite(out.alpha);
  return good && out.alpha > 0 ? std::optional<LoraRank>(out) : std::nullopt;
}

Json lora_options(const FineTuneOptions& o) {
  const LoraRank rank = *parse_lora_rank(o.lora);
  Json out = {{"r", rank.r}, {"lora_alpha", rank.alpha}};
  out["target_modules"] = o.lora_targets.empty() ? Json("all-linear") : Json(o.lora_targets);
  if (o.lora_dropout) out["lora_dropout"] = *o.lora_dropout;
  return out;
}

// Whoever typed the option shall see its name.
void with_option(const std::string& option, const std::function<void()>& call) {
  try {
    call();
  } catch (const libds::Error& error) {
    throw Failure(option + ": " + plain_message(error));
  }
}

}  // namespace

CLI::Validator lora_rank() {
  return {[](std::string& text) {
            return parse_lora_rank(text)
                       ? std::string()
                       : "'" + text + "' is no rank from 1 to 65536; write R or R:ALPHA, as 8:16";
          },
          "RANK"};
}

void adapt(libds::Model& model, const FineTuneOptions& o, int64_t seed) {
  if (!o.lora.empty()) {
    Json options = lora_options(o);
    options["seed"] = seed;
    with_option("--lora " + o.lora, [&] { model.add_lora(options.dump()); });
  }
  if (!o.adapter.empty()) {
    with_option("--adapter " + o.adapter, [&] { model.load_adapter(o.adapter); });
  }
  for (const std::string& pattern : o.freeze) {
    with_option("--freeze", [&] { model.set_trainable(pattern, false); });
  }
  for (const std::string& pattern : o.unfreeze) {
    with_option("--unfreeze", [&] { model.set_trainable(pattern, true); });
  }
}

Json describe_adaptation(const FineTuneOptions& o) {
  Json out = Json::object();
  if (!o.lora.empty()) out["lora"] = lora_options(o);
  if (!o.adapter.empty()) out["adapter"] = o.adapter;
  if (!o.freeze.empty()) out["freeze"] = o.freeze;
  if (!o.unfreeze.empty()) out["unfreeze"] = o.unfreeze;
  return out;
}

ParameterCounts count_parameters(const libds::Model& model) {
  ParameterCounts counts;
  const ds_model_info info = model.info();
  counts.all = info.elements;
  counts.trained = info.trainable_elements;
  return counts;
}

}  // namespace tool
