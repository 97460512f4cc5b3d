#include "inference_weights.h"

#include <cstdlib>

#include "command.h"
#include "format.h"
#include "rank_device.h"

namespace tool {

CLI::Option* add_device_option(CLI::App& sub, std::string& device) {
  // Who says what to run on in the environment means it.
  if (const char* const name = std::getenv("DS_ACCELERATOR"); name != nullptr && *name != '\0') {
    device = "auto";
  }
  return sub
      .add_option(
          "--device", device,
          "cpu, or a GPU such as cuda:0 (`ds report` lists them); cuda: the first one, of several "
          "ranks each its own; auto: what DS_ACCELERATOR names, else a GPU where there is one")
      ->type_name("DEVICE")
      ->capture_default_str();
}

void add_weight_options(CLI::App& sub, WeightOptions& o, bool threads) {
  add_device_option(sub, o.device);
  sub.add_option("--weights", o.weights,
                 "hold weights as fp32, bf16, int8 or int4; default: fp32, as they were trained")
      ->check(CLI::IsMember({"fp32", "bf16", "int8", "int4"}))
      ->type_name("FORM");
  sub.add_option("--group-size", o.group_size,
                 "weights that share a scale in int8 and int4, a multiple of 8; 0 = a whole row")
      ->check(at_least(0))
      ->capture_default_str();
  sub.add_flag(
         "--int8-activations{prompts}", o.int8_activations,
         "with int8 and int4, round activations to 8 bits where the CPU is faster for it: those of "
         "prompts, or with --int8-activations=all also those of tokens")
      ->check(CLI::IsMember({"prompts", "all"}));
  sub.add_option("--weights-folder", o.folder,
                 "keep weights of linear layers in a file there and read them where they are used, "
                 "for models larger than memory")
      ->type_name("FOLDER");
  sub.add_option(
         "--max-in-cpu", o.max_in_cpu,
         "elements of them that stay in memory all the same, of experts those used last, with "
         "--weights-folder")
      ->check(at_least(0))
      ->capture_default_str();
  sub.add_option("--read-ahead", o.read_ahead,
                 "elements of them that are read before they are used, with --weights-folder")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 28))
      ->capture_default_str();
  if (!threads) return;
  sub.add_option("--threads", o.threads, "CPU threads; default: all that may be used")
      ->check(at_least(1));
}

void add_cache_options(CLI::App& sub, WeightOptions& o) {
  sub.add_option("--kv-block-tokens", o.kv_block_tokens,
                 "keep keys and values in blocks of so many tokens, which are taken as the text "
                 "grows; 0 = in one piece for the longest text that may come")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  sub.add_option("--kv-pool-tokens", o.kv_pool_tokens,
                 "tokens that the blocks hold at most; a longer text ends with an error; 0 = any "
                 "number")
      ->check(at_least(0))
      ->capture_default_str();
  sub.add_option("--kv-cache", o.kv_cache,
                 "how keys and values are kept: auto, as the model computes, or int8, in 8-bit "
                 "codes, on the CPU")
      ->check(CLI::IsMember({"auto", "int8"}))
      ->capture_default_str();
}

namespace {

// The generator's options; empty: the model's own weights serve.
Json form_of(const WeightOptions& o, bool prepared) {
  Json form = Json::object();
  if (o.kv_block_tokens > 0 || o.kv_pool_tokens > 0) {
    form["kv_block_tokens"] = o.kv_block_tokens;
    form["kv_pool_tokens"] = o.kv_pool_tokens;
  }
  if (o.kv_cache != "auto") form["kv_cache"] = o.kv_cache;
  if (!prepared && o.weights.empty() && !o.threads && o.folder.empty() &&
      o.int8_activations.empty()) {
    return form;
  }
  form["weights"] = o.weights.empty() ? "fp32" : o.weights;
  form["group_size"] = o.group_size;
  form["threads"] = o.threads.value_or(0);
  if (o.int8_activations == "all") {
    form["int8_activations"] = "all";
  } else if (!o.int8_activations.empty()) {
    form["int8_activations"] = true;
  }
  if (!o.folder.empty()) {
    form["offload_param"] = {{"device", "nvme"},
                             {"nvme_path", o.folder},
                             {"max_in_cpu", o.max_in_cpu},
                             {"buffer_count", 1},
                             {"buffer_size", o.read_ahead}};
  }
  return form;
}

}  // namespace

libds::Generator make_generator(libds::Model model, const WeightOptions& o) {
  model.set_device(o.device);
  return libds::Generator(model, form_of(o, false).dump());
}

void add_comm_option(CLI::App& sub, WeightOptions& o) {
  sub.add_option("--comm-config", o.comm_config,
                 "of several ranks: communication options as JSON (docs/communication.md)")
      ->type_name("JSON");
}

libds::Comm make_comm(const WeightOptions& o) {
  return {-1, -1, comm_config_on(resolved_device(o.device), o.comm_config)};
}

libds::Generator make_generator(libds::Model model, const WeightOptions& o, libds::Comm& comm) {
  if (comm.size() == 1) return make_generator(std::move(model), o);
  model.set_device(rank_device(resolved_device(o.device), comm));
  return libds::Generator(model, comm, form_of(o, true).dump());
}

}  // namespace tool
