#include "rank_device.h"

#include <cstdlib>

#include "ds.hpp"
#include "failure.h"
#include "format.h"

namespace tool {

std::string comm_config_on(const std::string& device, const std::string& comm_config) {
  if (device.rfind("cuda", 0) != 0) return comm_config;
  Json options = Json::parse(comm_config, nullptr, false);
  if (!options.is_object() || options.contains("transport")) return comm_config;
  options["transport"] = "nccl";
  return options.dump();
}

std::string resolved_device(const std::string& device) {
  if (device != "auto") return device;
  if (const char* const name = std::getenv("DS_ACCELERATOR"); name != nullptr && *name != '\0') {
    const std::string chosen = name;
    if (chosen == "cpu" || chosen == "cuda") return chosen;
    throw Failure("DS_ACCELERATOR is \"" + chosen + "\"; ds knows \"cpu\" and \"cuda\"");
  }
  const Json machine = parse_json(libds::report(), "the report");
  return machine.at("gpu").at("devices").empty() ? "cpu" : "cuda";
}

std::string rank_device(const std::string& device, const libds::Comm& comm) {
  if (device != "cuda" || comm.size() == 1) return device;
  const Json about = parse_json(comm.report(), "the report of the group");
  const Json machine = parse_json(libds::report(), "the report");
  const size_t gpus = machine.at("gpu").at("devices").size();
  const auto local = about.at("topology").at("local_rank").get<size_t>();
  return "cuda:" + std::to_string(gpus == 0 ? 0 : local % gpus);
}

}  // namespace tool
