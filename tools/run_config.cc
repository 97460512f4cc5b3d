#include "run_config.h"

#include <filesystem>
#include <vector>

#include "ds.hpp"
#include "failure.h"
#include "files.h"
#include "format.h"

namespace tool {
namespace {

constexpr int64_t kDefaultSeed = 1234;

// Turns a monitor on whose files go below `folder`.
void enable_monitor(Json& set, const std::string& section, const std::string& folder) {
  const std::filesystem::path path(folder);
  const auto clean = (path.has_filename() ? path : path.parent_path()).lexically_normal();
  set["/" + section + "/enabled"] = true;
  set["/" + section + "/output_path"] =
      clean.has_parent_path() ? clean.parent_path().string() : ".";
  set["/" + section + "/job_name"] = clean.filename().string();
}

std::string refusal(const std::string& path, const Json& check) {
  size_t count = 0;
  for (const Json& problem : check.at("problems")) count += problem.at("kind") != "ignored";
  const std::string name = path.empty() ? "" : path + ": ";
  const std::string problems = list_problems(check);
  if (count == 1) return name + "configuration: " + problems;
  return name + "configuration: " + std::to_string(count) + " problems\n" + problems;
}

std::string show(const Json& value) {
  return value.is_number_float() ? format_value("%g", value.get<double>()) : value.dump();
}

// "lr 0.0003, betas [0.9,0.95]": members that there are, of those named.
std::string members(const Json& object, std::initializer_list<const char*> names) {
  std::string out;
  for (const char* name : names) {
    if (!object.contains(name) || object[name].is_null()) continue;
    out += (out.empty() ? "" : ", ") + std::string(name) + " ";
    if (object[name].is_array()) {
      std::string list;
      for (const Json& item : object[name]) list += (list.empty() ? "" : " ") + show(item);
      out += list;
    } else {
      out += object[name].is_string() ? object[name].get<std::string>() : show(object[name]);
    }
  }
  return out;
}

// The shares of dropout that a model's config.json gives, or its family's own.
std::string describe_dropout(const Json& model) {
  const std::string family = model.value("model_type", std::string());
  struct Kind {
    const char* name;
    const char* family;  // that has it at `standard` when the file does not say
    double standard;
  };
  constexpr Kind kKinds[] = {{"embd_pdrop", "gpt2", 0.1},
                             {"resid_pdrop", "gpt2", 0.1},
                             {"attn_pdrop", "gpt2", 0.1},
                             {"hidden_dropout_prob", "bert", 0.1},
                             {"attention_probs_dropout_prob", "bert", 0.1},
                             {"attention_dropout", "", 0.0}};
  std::string out;
  for (const Kind& kind : kKinds) {
    double share = family == kind.family ? kind.standard : 0.0;
    const auto given = model.find(kind.name);
    if (given != model.end() && given->is_number()) share = given->get<double>();
    if (share > 0) out += (out.empty() ? "" : ", ") + format_value("%g", share) + " " + kind.name;
  }
  return out.empty() ? "no dropout" : "dropout " + out;
}

}  // namespace

const char* default_config() {
  return R"({
  "train_micro_batch_size_per_gpu": 8,
  "gradient_clipping": 1.0,
  "optimizer": {
    "type": "AdamW",
    "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
  }
})";
}

RunConfig load_config(const ConfigOptions& options) {
  RunConfig config;
  config.text = !options.path.empty()      ? read_text(options.path)
                : !options.resumed.empty() ? options.resumed
                                           : default_config();
  Json how = read_options_document(options.reading);
  how["require_optimizer"] = true;
  Json set = how.value("set", Json::object());
  if (options.seed) set["/seed"] = *options.seed;
  if (options.threads) set["/threads"] = *options.threads;
  if (options.micro_batch) {
    set["/train_batch_size"] = nullptr;  // follows from the others
    set["/train_micro_batch_size_per_gpu"] = *options.micro_batch;
  }
  if (!options.tensorboard.empty()) enable_monitor(set, "tensorboard", options.tensorboard);
  if (!options.csv.empty()) enable_monitor(set, "csv_monitor", options.csv);
  if (options.keep) set["/checkpoint/keep"] = *options.keep;
  if (!options.ramp_up.empty()) set["/rampup_batch_size"] = options.ramp_up;
  if (!options.dataloader_type.empty()) set["/dataloader_type"] = options.dataloader_type;
  how["set"] = std::move(set);
  if (options.steps > 0) add_auto_value(how, "total_num_steps", options.steps);

  Json check_options = how;
  check_options["world"] = options.world;
  check_options["device"] = options.device.compare(0, 4, "cuda") == 0 ? "cuda" : "cpu";
  const Json check = parse_json(libds::config_check(config.text, check_options.dump()),
                                "the check of the configuration");
  if (!check.at("accepted").get<bool>()) throw Failure(refusal(options.path, check));
  const bool own_seed = check.at("origins").at("/seed") != "default";
  config.seed = own_seed ? check.at("config").at("seed").get<int64_t>()
                         : options.resumed_seed.value_or(kDefaultSeed);
  how["set"]["/seed"] = config.seed;
  config.options = how.dump();
  return config;
}

std::string describe_settings(const Json& resolved, const Json& model) {
  const Json& optimizer = resolved.at("optimizer");
  std::string out = optimizer.at("type").get<std::string>() + " " +
                    members(optimizer.at("params"), {"lr", "muon_lr", "adam_lr", "betas", "eps",
                                                     "momentum", "weight_decay"});
  if (const Json& scheduler = resolved.at("scheduler"); scheduler.is_null()) {
    out += "; constant rate";
  } else {
    const std::string how =
        members(scheduler.at("params"),
                {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type",
                 "total_num_steps", "cycle_min_lr", "cycle_max_lr", "lr_range_test_min_lr"});
    out += "; " + scheduler.at("type").get<std::string>() + (how.empty() ? "" : " " + how);
  }
  const auto on = [&](const char* section) {
    return resolved.at(section).at("enabled").get<bool>();
  };
  const double clipping = resolved.at("gradient_clipping").get<double>();
  out += "\n" + std::string(on("bf16") ? "bf16" : on("fp16") ? "fp16" : "fp32");
  if (on("fp8")) out += " with fp8 linear layers";
  out += ", micro batch " + resolved.at("train_micro_batch_size_per_gpu").dump() + " x " +
         resolved.at("gradient_accumulation_steps").dump() + " passes, ";
  out += clipping > 0 ? "clipping " + format_value("%g", clipping) : "no clipping";
  return out + ", " + describe_dropout(model);
}

}  // namespace tool
