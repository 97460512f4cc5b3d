#include "engine/engine_documents.h"

namespace ds {

Json config_document(const Config& config) {
  Json origins = Json::object();
  for (const auto& [path, origin] : config.origins()) origins[path] = origin;
  Json document = Json::object();
  document["config"] = config.resolved();
  document["given"] = config.given();
  document["origins"] = std::move(origins);
  document["warnings"] = config.warnings();
  return document;
}

Json memory_report(const models::Model& model, const StepMetrics& metrics) {
  const Device& device = *model.device();
  const MemoryAccount& account = device.account();
  Json tags = Json::object();
  for (int i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    tags[std::string(memory_tag_name(tag))] = {{"now", account.now(tag)},
                                               {"peak", metrics.peak(tag)}};
  }
  Json report = {{"device", device.describe()},
                 {"tags", std::move(tags)},
                 {"total", {{"now", account.total_now()}, {"peak", metrics.total_peak()}}},
                 {"reserved", device.reserved_bytes()},
                 {"system_allocations", device.system_allocations()}};
  if (device.kind() == DeviceKind::kCpu) return report;
  Json host = Json::object();
  const auto add = [&](const char* name, const Device& memory) {
    const MemoryAccount& there = memory.account();
    Json by_tag = Json::object();
    for (int i = 0; i < kMemoryTags; ++i) {
      const auto tag = static_cast<MemoryTag>(i);
      by_tag[std::string(memory_tag_name(tag))] = {{"now", there.now(tag)},
                                                   {"peak", there.peak(tag)}};
    }
    host[name] = {{"tags", std::move(by_tag)},
                  {"now", there.total_now()},
                  {"peak", there.total_peak()},
                  {"reserved", memory.reserved_bytes()}};
  };
  add("pageable", *model.host());
  add("pinned", *host_memory_of(model.device()));
  report["host"] = std::move(host);
  return report;
}

}  // namespace ds
