// Planning without memory.
#include "engine/plan.h"

#include <optional>
#include <string>
#include <vector>

#include "capi/args.h"
#include "capi/fence.h"
#include "capi/read_options.h"

namespace ds::capi {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 60;

PlanQuestion question_of(const JsonArguments& given) {
  PlanQuestion out;
  out.compare = given.flag("compare", false);
  out.fit = given.flag("fit", false);
  const auto bytes = [&](const char* key, std::optional<int64_t>& to) {
    if (given.has(key)) to = given.required_integer(key, 1, kMostBytes);
  };
  bytes("memory", out.memory);
  bytes("gpu_memory", out.gpu_memory);
  bytes("disk", out.disk);
  out.folder = given.text("folder", "");
  if (!given.has("rates")) return out;
  const std::vector<std::string> names = {"product_flops",    "pass_flops", "memory_bytes",
                                          "gpu_memory_bytes", "read_bytes", "write_bytes",
                                          "near_bytes",       "far_bytes"};
  const JsonArguments rates(given.at("rates"), "plan options", "/rates", names);
  out.rates = Json::object();
  for (const std::string& name : names) {
    if (rates.has(name.c_str())) out.rates[name] = rates.number(name.c_str(), 0, 1, 1e20);
  }
  return out;
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines a C function of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_plan(const char* model_json, const char* config_json, const char* options_json,
                  char** out_json) {
  return guard(__func__, [&] {
    const std::string_view model = text_param(model_json, "model_json");
    const std::string_view config = text_param(config_json, "config_json");
    static_cast<void>(text_param(options_json, "options_json"));
    char*& out = out_param(out_json, "out_json");
    const JsonArguments given(
        options_json, "plan options",
        read_option_keys({"world", "ranks_per_node", "sequence_length", "device", "compare", "fit",
                          "memory", "gpu_memory", "disk", "folder", "rates"}));
    PlanOptions options;
    options.reading = read_options(given);
    options.world = static_cast<int>(given.integer("world", 1, 1, 1 << 20));
    options.ranks_per_node = static_cast<int>(given.integer("ranks_per_node", 0, 0, 1 << 20));
    options.sequence_length = given.integer("sequence_length", 0, 0, int64_t{1} << 31);
    if (given.has("device")) {
      const std::string device = given.required_text("device");
      if (device != "cpu" && device != "cuda")
        given.refuse("device", "must be \"cpu\" or \"cuda\"");
      options.on_gpu = device == "cuda";
    }
    const PlanQuestion question = question_of(given);
    out = make_c_string(dump_json(
        plan_training(parse_json(model, "model config", Code::kConfig), config, options, question),
        2));
  });
}
