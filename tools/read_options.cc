#include "read_options.h"

#include <utility>

#include "command.h"

namespace tool {
namespace {

std::string check_assignment(std::string& text) {
  const size_t equals = text.find('=');
  return equals == std::string::npos || equals == 0
             ? "'" + text + "' is no KEY=VALUE; write such as optimizer.params.lr=1e-4"
             : std::string();
}

// JSON where it is any, else a string: bf16.enabled=true, optimizer.type=Lion.
std::pair<std::string, Json> parse_assignment(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string value = text.substr(equals + 1);
  Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  return {text.substr(0, equals), json.is_discarded() ? Json(value) : std::move(json)};
}

}  // namespace

void add_read_options(CLI::App& sub, ReadOptions& o, const std::string& group) {
  const auto assignments = [&](const char* name, std::vector<std::string>& to, const char* text) {
    sub.add_option(name, to, text)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->check(CLI::Validator(check_assignment, "ASSIGNMENT"))
        ->type_name("KEY=VALUE")
        ->group(group);
  };
  assignments("--set", o.set,
              "set a value over the configuration's, by dotted path or JSON pointer, such as "
              "optimizer.params.lr=1e-4; may be repeated");
  sub.add_flag("--resolve-auto", o.resolve_auto,
               "take \"auto\" as Hugging Face's Trainer and Accelerate do")
      ->group(group);
  assignments("--auto", o.values,
              "what \"auto\" becomes: lr, weight_decay, betas, eps, gradient_clipping, precision, "
              "stage, warmup_num_steps, ...; implies --resolve-auto; may be repeated");
  sub.add_flag("--lenient", o.lenient,
               "pass over trailing commas, # comments, comment keys, and keys that DeepSpeed does "
               "not know")
      ->group(group);
}

Json read_options_document(const ReadOptions& o) {
  Json out = Json::object();
  Json set = Json::object();
  for (const std::string& text : o.set) {
    auto [key, value] = parse_assignment(text);
    set[key] = std::move(value);
  }
  if (!set.empty()) out["set"] = std::move(set);
  if (o.resolve_auto || !o.values.empty()) {
    Json values = Json::object();
    for (const std::string& text : o.values) {
      auto [key, value] = parse_assignment(text);
      values[key] = std::move(value);
    }
    out["resolve_auto"] = std::move(values);
  }
  if (o.lenient) out["lenient"] = true;
  return out;
}

void add_auto_value(Json& document, const char* key, Json value) {
  if (!document.contains("resolve_auto")) return;
  Json& values = document["resolve_auto"];
  if (!values.contains(key)) values[key] = std::move(value);
}

std::string list_problems(const Json& check) {
  std::string out;
  for (const Json& problem : check.at("problems")) {
    if (problem.at("kind") == "ignored") continue;
    const std::string path = problem.at("path").get<std::string>();
    const std::string advice = problem.at("advice").get<std::string>();
    if (!out.empty()) out += "\n";
    if (!path.empty()) out += path + ": ";
    out += problem.at("text").get<std::string>();
    if (!advice.empty()) out += "; " + advice;
  }
  return out;
}

}  // namespace tool
