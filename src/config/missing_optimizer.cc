#include "config/missing_optimizer.h"

#include "base/text.h"
#include "config/auto_values.h"
#include "config/config_table.h"

namespace ds {

bool add_missing_optimizer(ParsedObject& parsed, const ReadOptions& options) {
  constexpr const char* kPath = "/optimizer";
  Json section = {{"type", "AdamW"}};
  std::string origin = "default";
  if (options.resolve_auto) {
    const AutoValues& values = *options.resolve_auto;
    if (!values.lr) {
      parsed.add(make_problem(ProblemKind::kAuto, kPath,
                              "missing: the caller makes the optimizer then, and does not say its "
                              "learning rate; give lr, or an optimizer with type and params"));
      return false;
    }
    section["params"] = {
        {"lr", *values.lr},
        {"betas", {values.beta1.value_or(kAutoBeta1), values.beta2.value_or(kAutoBeta2)}},
        {"eps", values.eps.value_or(kAutoEps)},
        {"weight_decay", values.weight_decay.value_or(kAutoDecay)}};
    origin = "auto";
  } else if (options.require_optimizer) {
    parsed.add(make_problem(ProblemKind::kError, kPath,
                            "missing, and nothing else says what trains; give type and params, "
                            "such as {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}}"));
    return false;
  }
  ParsedObject made = parse_object(config_table(), {{"optimizer", section}});
  parsed.values["optimizer"] = made.values.at("optimizer");
  parsed.origins.erase(kPath);
  for (auto& [path, from] : made.origins) {
    if (path.rfind("/optimizer/", 0) == 0) parsed.origins[path] = from == "given" ? origin : from;
  }
  parsed.warnings.push_back(str_cat("configuration: /optimizer: missing; AdamW with lr ",
                                    show_value(parsed.at("/optimizer/params/lr")), " trains"));
  return true;
}

}  // namespace ds
