// `ds plan`: what training would take on each rank of a world that need not be there.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "files.h"
#include "format.h"
#include "read_options.h"

namespace tool {
namespace {

struct PlanOptions {
  std::string model;
  std::string config;
  std::optional<double> parameters;
  int64_t layers = 1;
  int64_t world = 1;
  std::optional<int64_t> ranks_per_node;
  std::optional<int64_t> micro_batch;
  ReadOptions reading;
  std::optional<int64_t> sequence_length;
  std::string device;
  bool compare = false, fit = false;
  std::optional<int64_t> memory, gpu_memory, disk;  // bytes
  std::string folder;
  std::vector<std::string> rates;  // KEY=VALUE
  std::string save;
  bool json = false;
};

std::string model_of(const PlanOptions& o) {
  if (o.parameters) return Json{{"parameters", *o.parameters}, {"layers", o.layers}}.dump();
  return read_text(folder_exists(o.model) ? o.model + "/config.json" : o.model);
}

// The options document of the library.
Json library_options(const PlanOptions& o) {
  Json options = read_options_document(o.reading);
  if (o.micro_batch) {
    options["set"]["/train_batch_size"] = nullptr;  // follows from the others
    options["set"]["/train_micro_batch_size_per_gpu"] = *o.micro_batch;
  }
  options["world"] = o.world;
  if (o.ranks_per_node) options["ranks_per_node"] = *o.ranks_per_node;
  if (o.sequence_length) options["sequence_length"] = *o.sequence_length;
  if (!o.device.empty()) options["device"] = o.device;
  if (o.memory) options["memory"] = *o.memory;
  if (o.gpu_memory) options["gpu_memory"] = *o.gpu_memory;
  if (o.disk) options["disk"] = *o.disk;
  if (o.fit) {
    options["fit"] = true;
    if (!o.folder.empty()) options["folder"] = o.folder;
  } else if (o.compare || o.memory || o.gpu_memory || o.disk) {
    options["compare"] = true;
  }
  for (const std::string& rate : o.rates) {
    const size_t sign = rate.find('=');
    if (sign == std::string::npos) throw UsageError("--rate " + rate + ": NAME=NUMBER is needed");
    options["rates"][rate.substr(0, sign)] = parse_json(rate.substr(sign + 1), "--rate " + rate);
  }
  return options;
}

std::string bytes(const Json& value) { return format_bytes(value.get<double>()); }

void print_table(const Json& plan, const char* key, const char* title) {
  if (!plan.contains(key)) return;
  std::cout << title << "\n";
  for (const auto& [tag, value] : plan[key].items()) {
    std::cout << format("  %-21s %s\n", tag.c_str(), bytes(value).c_str());
  }
}

void print_traffic(const Json& plan) {
  if (plan["moved_per_step"].empty()) return;
  std::cout << "sent by each rank per step\n";
  for (const Json& one : plan["moved_per_step"]) {
    std::cout << format(
        "  %-21s %s within the node, %s across nodes, %lld calls\n",
        (one["collective"].get<std::string>() + " " + one["of"].get<std::string>()).c_str(),
        bytes(one["within_node"]).c_str(), bytes(one["across_nodes"]).c_str(),
        static_cast<long long>(one["calls"].get<int64_t>()));
  }
}

void print_comparison(const Json& plan) {
  if (plan["fits"].get<bool>()) {
    std::cout << "it fits\n";
    return;
  }
  std::cout << "it does not fit\n";
  for (const Json& one : plan["shortages"]) {
    std::cout << format("  %s: %s are needed, %s there (%s)\n",
                        one["place"].get<std::string>().c_str(), bytes(one["needed_bytes"]).c_str(),
                        bytes(one["available_bytes"]).c_str(),
                        one["limit"].get<std::string>().c_str());
  }
  if (plan["remedies"].empty()) return;
  std::cout << (plan["remedies"][0]["fits"].get<bool>()
                    ? "what makes it fit, cheapest first (merge one into the configuration)\n"
                    : "nothing that is known makes it fit; what helps most\n");
  for (const Json& one : plan["remedies"]) {
    std::cout << format("  %s\n    %s, %s less; %s\n", one["merge"].dump().c_str(),
                        bytes(one["needed_bytes"]).c_str(), bytes(one["saved_bytes"]).c_str(),
                        one["cost"].get<std::string>().c_str());
  }
}

void print_fit(const Json& fit) {
  const Json& seconds = fit["seconds_per_step"];
  std::cout << format(
                   "a step should take %.3g s (compute %.3g, update %.3g, files %.3g, "
                   "collectives %.3g); variants looked at: %lld\n",
                   seconds["total"].get<double>(), seconds["compute"].get<double>(),
                   seconds["update"].get<double>(), seconds["files"].get<double>(),
                   seconds["collectives"].get<double>(),
                   static_cast<long long>(fit["tried"].get<int64_t>()))
            << "configuration\n"
            << fit["config"].dump(2) << "\n";
}

int run_plan(const PlanOptions& o) {
  // With --parameters there is no model, and the first argument is the configuration.
  const bool shifted = o.parameters && o.config.empty();
  const std::string& path = shifted ? o.model : o.config;
  if (path.empty() || (o.parameters && !shifted)) {
    throw UsageError("give MODEL and CONFIG, or --parameters and CONFIG");
  }
  if (!o.fit && !o.save.empty()) throw UsageError("--save is for --fit");
  const std::string config = read_text(path);
  const Json plan =
      parse_json(libds::plan(model_of(o), config, library_options(o).dump()), "the plan");
  if (o.fit && !o.save.empty()) write_text(o.save, plan["fit"]["config"].dump(2) + "\n");
  if (o.json) {
    std::cout << plan.dump(2) << "\n";
    return kDone;
  }
  std::cout << format("model    %s parameters in %lld tensors\n",
                      format_count(plan["model"]["parameters"].get<double>()).c_str(),
                      static_cast<long long>(plan["model"]["tensors"].get<int64_t>()));
  if (plan.contains("teacher")) {
    const Json& teacher = plan["teacher"];
    std::cout << format("teacher  %s parameters, %s active, %s in %s on each rank\n",
                        format_count(teacher["parameters"].get<double>()).c_str(),
                        format_count(teacher["active_parameters"].get<double>()).c_str(),
                        format_bytes(teacher["bytes"].get<double>()).c_str(),
                        teacher["weights"].get<std::string>().c_str());
  }
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
                      plan["compute_type"].get<std::string>().c_str());
  print_table(plan, "memory_per_rank", "memory of each rank");
  print_table(plan, "host_memory_per_rank", "memory of the host, beside each rank's GPU");
  print_table(plan, "files_per_rank", "in files of each rank");
  print_traffic(plan);
  if (plan.contains("fits")) print_comparison(plan);
  if (plan.contains("fit")) print_fit(plan["fit"]);
  return kDone;
}

// What the plan is compared with.
void add_room_options(CLI::App& sub, PlanOptions& o) {
  sub.add_option("--device", o.device,
                 "where ranks compute, cpu or cuda; default: cuda where the configuration "
                 "offloads the optimizer")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->type_name("DEVICE");
  sub.add_flag("--compare", o.compare,
               "tell whether it fits into what this machine has, and what would help");
  sub.add_flag("--fit", o.fit,
               "look for the fastest variant that fits and print its configuration: micro batch, "
               "checkpointing, stage, and how much lies on the host and in files");
  const auto size = [&sub](const char* name, std::optional<int64_t>& bytes, const char* what) {
    sub.add_option(name, bytes, what)->transform(CLI::AsSizeValue(false))->type_name("BYTES");
  };
  size("--memory", o.memory, "memory that a rank may have, such as 6G, instead of this machine's");
  size("--gpu-memory", o.gpu_memory, "memory of each rank's GPU");
  size("--disk", o.disk, "room for the files of a rank, instead of what is free");
  sub.add_option("--folder", o.folder,
                 "with --fit: where files may be, if the configuration names no folder; default: "
                 "the current one")
      ->type_name("FOLDER");
  sub.add_option("--rate", o.rates,
                 "with --fit: a rate per second that is then not measured: product_flops, "
                 "pass_flops, memory_bytes, gpu_memory_bytes, read_bytes, write_bytes, near_bytes, "
                 "far_bytes; may be repeated")
      ->type_name("NAME=NUMBER");
  sub.add_option("--save", o.save, "with --fit: a file for the configuration")->type_name("FILE");
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App* sub =
      app.add_subcommand("plan", "Tell what memory and traffic training would take, without it");
  auto options = std::make_shared<PlanOptions>();
  PlanOptions& o = *options;
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
  add_room_options(*sub, o);
  sub->add_flag("--json", o.json, "print JSON");
  sub->callback([&action, options] { action = [options] { return run_plan(*options); }; });
}

}  // namespace tool
