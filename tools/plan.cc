// `ds plan`: what training would take on each rank of a world that need not be there.
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

struct Options {
  std::string model;
  std::string config;
  std::optional<double> parameters;
  int64_t layers = 1;
  int64_t world = 1;
  std::optional<int64_t> ranks_per_node;
  std::optional<int64_t> micro_batch;
  ReadOptions reading;
  std::optional<int64_t> sequence_length;
  bool json = false;
};

std::string model_of(const Options& o) {
  if (o.parameters) return Json{{"parameters", *o.parameters}, {"layers", o.layers}}.dump();
  return read_text(folder_exists(o.model) ? o.model + "/config.json" : o.model);
}

int run(const Options& o) {
  // With --parameters there is no model, and the first argument is the configuration.
  const bool shifted = o.parameters && o.config.empty();
  const std::string& path = shifted ? o.model : o.config;
  if (path.empty() || (o.parameters && !shifted)) {
    throw UsageError("give MODEL and CONFIG, or --parameters and CONFIG");
  }
  const std::string config = read_text(path);
  Json options = read_options_document(o.reading);
  if (o.micro_batch) {
    options["set"]["/train_batch_size"] = nullptr;  // follows from the others
    options["set"]["/train_micro_batch_size_per_gpu"] = *o.micro_batch;
  }
  options["world"] = o.world;
  if (o.ranks_per_node) options["ranks_per_node"] = *o.ranks_per_node;
  if (o.sequence_length) options["sequence_length"] = *o.sequence_length;
  const Json plan = parse_json(libds::plan(model_of(o), config, options.dump()), "the plan");
  if (o.json) {
    std::cout << plan.dump(2) << "\n";
    return kDone;
  }
  const auto bytes = [](const Json& value) { return format_bytes(value.get<double>()); };
  std::cout << format("model    %s parameters in %lld tensors\n",
                      format_count(plan["model"]["parameters"].get<double>()).c_str(),
                      static_cast<long long>(plan["model"]["tensors"].get<int64_t>()));
  if (const Json& model = plan["model"]; model.contains("experts")) {
    std::cout << format("experts  %lld of %lld for each token: %s parameters active\n",
                        static_cast<long long>(model["experts_per_token"].get<int64_t>()),
                        static_cast<long long>(model["experts"].get<int64_t>()),
                        format_count(model["active_parameters"].get<double>()).c_str());
  }
  std::cout << format("world    %lld ranks, %lld per node, ZeRO stage %lld, %s\n",
                      static_cast<long long>(plan["world"].get<int64_t>()),
                      static_cast<long long>(plan["ranks_per_node"].get<int64_t>()),
                      static_cast<long long>(plan["stage"].get<int64_t>()),
                      plan["compute_type"].get<std::string>().c_str())
            << "memory of each rank\n";
  for (const auto& [tag, value] : plan["memory_per_rank"].items()) {
    std::cout << format("  %-21s %s\n", tag.c_str(), bytes(value).c_str());
  }
  if (plan.contains("host_memory_per_rank")) {
    std::cout << "memory of the host, beside each rank's GPU\n";
    for (const auto& [tag, value] : plan["host_memory_per_rank"].items()) {
      std::cout << format("  %-21s %s\n", tag.c_str(), bytes(value).c_str());
    }
  }
  if (plan.contains("files_per_rank")) {
    std::cout << "in files of each rank\n";
    for (const auto& [tag, value] : plan["files_per_rank"].items()) {
      std::cout << format("  %-21s %s\n", tag.c_str(), bytes(value).c_str());
    }
  }
  if (plan["moved_per_step"].empty()) return kDone;
  std::cout << "sent by each rank per step\n";
  for (const Json& one : plan["moved_per_step"]) {
    std::cout << format(
        "  %-21s %s within the node, %s across nodes, %lld calls\n",
        (one["collective"].get<std::string>() + " " + one["of"].get<std::string>()).c_str(),
        bytes(one["within_node"]).c_str(), bytes(one["across_nodes"]).c_str(),
        static_cast<long long>(one["calls"].get<int64_t>()));
  }
  return kDone;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App* sub =
      app.add_subcommand("plan", "Tell what memory and traffic training would take, without it");
  auto options = std::make_shared<Options>();
  Options& o = *options;
  sub->add_option("model", o.model, "config.json or a folder with one; left out with --parameters")
      ->type_name("MODEL");
  sub->add_option("config", o.config, "DeepSpeed configuration")->type_name("CONFIG");
  sub->add_option("--world", o.world, "how many ranks")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("--ranks-per-node", o.ranks_per_node, "ranks that share a host; default: all")
      ->check(at_least(1))
      ->type_name("N");
  sub->add_option("--micro-batch", o.micro_batch, "samples, instead of what the configuration says")
      ->check(at_least(1))
      ->type_name("N");
  add_read_options(*sub, o.reading);
  sub->add_option("--sequence-length", o.sequence_length,
                  "tokens per sample; default: the model's positions")
      ->check(at_least(1))
      ->type_name("N");
  sub->add_option("--parameters", o.parameters,
                  "a model of so many parameters, such as 7.5e9, of which nothing else is known")
      ->check(CLI::Range(1.0, 1e15))
      ->type_name("N");
  sub->add_option("--layers", o.layers, "with --parameters: equal tensors that they are in")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str();
  sub->add_flag("--json", o.json, "print JSON");
  sub->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace tool
