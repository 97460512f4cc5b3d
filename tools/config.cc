// `ds config`: what is wrong with a DeepSpeed configuration, and what it means here; and every key
// that there is.
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "command.h"
#include "files.h"
#include "format.h"
#include "read_options.h"

namespace tool {
namespace {

struct ConfigOptions {
  std::string document;
  std::string model;
  std::string device = "cpu";
  ReadOptions reading;
  std::optional<int64_t> world;
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> steps;
  bool json = false;
};

Json model_config(const std::string& path) {
  return parse_json(read_text(folder_exists(path) ? path + "/config.json" : path), path);
}

// The problems of one kind below a title, nothing without one.
void print_group(const Json& check, const char* kind, const char* title) {
  bool first = true;
  for (const Json& problem : check.at("problems")) {
    if (problem.at("kind") != kind) continue;
    if (first) std::cout << title << "\n";
    first = false;
    const std::string path = problem.at("path").get<std::string>();
    const std::string advice = problem.at("advice").get<std::string>();
    std::cout << "  " << (path.empty() ? "" : path + ": ") << problem.at("text").get<std::string>()
              << (advice.empty() ? "" : "; " + advice) << "\n";
  }
}

// Values whose origin is the given one: path and value.
void print_origin(const Json& check, const char* origin, const char* title) {
  bool first = true;
  for (const auto& [path, from] : check.at("origins").items()) {
    if (from != origin) continue;
    if (first) std::cout << title << "\n";
    first = false;
    std::cout << "  " << path << ": " << check.at("config").at(Json::json_pointer(path)).dump()
              << "\n";
  }
}

void print_check(const Json& check, const ConfigOptions& o) {
  print_group(check, "error", "errors");
  print_group(check, "auto", "\"auto\" that nobody resolves");
  print_group(check, "missing_feature", "not in this build");
  print_group(check, "ignored", "passed over");
  if (check.at("accepted").get<bool>()) {
    print_origin(check, "auto", "\"auto\" became");
    print_origin(check, "derived", "follows from the rest");
    if (!check.at("warnings").empty()) std::cout << "warnings\n";
    for (const Json& warning : check.at("warnings")) {
      std::cout << "  " << warning.get<std::string>() << "\n";
    }
  }
  if (!check.at("document").is_null()) {
    std::cout << (check.at("accepted").get<bool>() ? "the document, for strict reading\n"
                                                   : "the document without what is refused\n")
              << check.at("document").dump(2) << "\n";
  }
  if (!check.at("accepted").get<bool>()) return;
  std::cout << "accepted for " << check.at("world").dump()
            << (check.at("world") == 1 ? " rank" : " ranks")
            << (o.world ? "" : ", which its batch sizes fit") << "\n";
}

int run_config(const ConfigOptions& o) {
  Json how = read_options_document(o.reading);
  how["require_optimizer"] = true;
  how["device"] = o.device;
  if (o.world) how["world"] = *o.world;
  if (!o.model.empty()) how["model"] = model_config(o.model);
  if (o.steps) add_auto_value(how, "total_num_steps", *o.steps);
  if (o.micro_batch && how.contains("resolve_auto")) {
    add_auto_value(how, "train_micro_batch_size_per_gpu", *o.micro_batch);
  } else if (o.micro_batch) {
    how["set"]["/train_batch_size"] = nullptr;  // follows from the others
    how["set"]["/train_micro_batch_size_per_gpu"] = *o.micro_batch;
  }
  const Json check =
      parse_json(libds::config_check(read_text(o.document), how.dump()), "the check");
  const bool accepted = check.at("accepted").get<bool>();
  if (o.json) {
    std::cout << check.dump(2) << "\n";
    return accepted ? kDone : kFailed;
  }
  print_check(check, o);
  if (!accepted) throw Failure(o.document + " is refused");
  return kDone;
}

void add_check(CLI::App& parent, Action& action) {
  CLI::App* sub = parent.add_subcommand(
      "check", "List everything that is wrong with a configuration, and what it resolves to");
  auto options = std::make_shared<ConfigOptions>();
  ConfigOptions& o = *options;
  sub->add_option("document", o.document, "DeepSpeed configuration; - is standard input")
      ->type_name("DS_CONFIG.json")
      ->required();
  sub->add_option("--model", o.model,
                  "config.json, or a folder with one: sizes that \"auto\" takes from the model")
      ->type_name("CONFIG_OR_FOLDER");
  sub->add_option("--world", o.world,
                  "ranks; default: as many as the three batch sizes fit, else 1")
      ->check(at_least(1))
      ->type_name("N");
  sub->add_option("--micro-batch", o.micro_batch,
                  "samples per pass: for \"auto\" with --resolve-auto, else instead of what the "
                  "configuration says")
      ->check(at_least(1))
      ->type_name("N");
  sub->add_option("--steps", o.steps, "optimizer steps in all, for total_num_steps \"auto\"")
      ->check(at_least(1))
      ->type_name("N");
  sub->add_option("--device", o.device, "where it would train")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->type_name("DEVICE")
      ->capture_default_str();
  add_read_options(*sub, o.reading);
  sub->add_flag("--json", o.json, "print JSON");
  sub->callback([&action, options] { action = [options] { return run_config(*options); }; });
}

void add_schema(CLI::App& parent, Action& action) {
  CLI::App* sub = parent.add_subcommand(
      "schema", "Print every key that a configuration may have, as a JSON Schema");
  sub->callback([&action] {
    action = [] {
      std::cout << libds::config_schema() << "\n";
      return kDone;
    };
  });
}

}  // namespace

void add_config(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("config", "Check a DeepSpeed configuration, list its keys");
  sub->require_subcommand(1);
  add_check(*sub, action);
  add_schema(*sub, action);
}

}  // namespace tool
