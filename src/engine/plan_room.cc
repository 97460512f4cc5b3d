#include "engine/plan_room.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/text.h"

namespace ds {
namespace {

struct Use {
  const char* name;
  int64_t MemoryTable::*bytes;
  std::optional<int64_t> MemoryPlanConfig::Budgets::*budget;
};
constexpr Use kUses[] = {
    {"parameters", &MemoryTable::parameters, &MemoryPlanConfig::Budgets::parameters},
    {"gradients", &MemoryTable::gradients, &MemoryPlanConfig::Budgets::gradients},
    {"optimizer", &MemoryTable::optimizer, &MemoryPlanConfig::Budgets::optimizer},
    {"activations", &MemoryTable::activations, &MemoryPlanConfig::Budgets::activations},
    {"communication", &MemoryTable::communication, &MemoryPlanConfig::Budgets::communication},
    {"io", &MemoryTable::io, &MemoryPlanConfig::Budgets::io},
};

// By folder.
std::map<std::string, int64_t> files_of(const PlanContext& plan, const MemoryPlan& memory) {
  std::map<std::string, int64_t> out;
  const ZeroConfig& zero = plan.config.zero;
  const ActivationCheckpointingConfig& checkpoints = plan.config.activation_checkpointing;
  const int64_t inputs = memory.files.activations;
  if (inputs > 0) out[checkpoints.nvme_path] += inputs;
  const int64_t state = memory.files.total() - memory.weight_files - inputs;
  if (state > 0) out[zero.offload_optimizer->nvme_path] += state;
  if (memory.weight_files > 0) out[zero.offload_param->nvme_path] += memory.weight_files;
  return out;
}

// What this process may still write there; -1 where the file system does not say.
int64_t free_room(const std::string& folder) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || space.capacity == 0 || space.capacity == static_cast<std::uintmax_t>(-1)) return -1;
  return static_cast<int64_t>(::geteuid() == 0 ? space.free : space.available);
}

}  // namespace

PlanRoom room_here(int local_ranks) {
  PlanRoom room;
  room.host = memory_ceilings(read_system_memory());
  room.local_ranks = local_ranks;
  return room;
}

int64_t host_bytes(const PlanContext& plan, const MemoryPlan& memory) {
  return plan.on_gpu() ? memory.host.total() : std::max(memory.device.total(), memory.reserved);
}
int64_t gpu_bytes(const PlanContext& plan, const MemoryPlan& memory) {
  return plan.on_gpu() ? memory.device.total() : 0;
}

std::vector<Shortage> shortages(const PlanContext& plan, const MemoryPlan& memory,
                                const PlanRoom& room) {
  std::vector<Shortage> out;
  const auto compare = [&](const std::string& place, const std::string& limit, int64_t needed,
                           int64_t there, double tolerance) {
    if (there < 0 || static_cast<double>(needed) * (1 - tolerance) <= static_cast<double>(there)) {
      return;
    }
    out.push_back({place, limit, false, needed, there});
  };
  const int64_t host = host_bytes(plan, memory);
  for (const MemoryCeiling& ceiling : room.host) {
    const int64_t ranks = ceiling.of_machine ? room.local_ranks : 1;
    compare(ranks > 1 ? str_cat("memory, of ", ranks, " ranks") : "memory", ceiling.what,
            ranks * host, ceiling.bytes, room.tolerance);
  }
  const MemoryPlanConfig& set = plan.config.memory_plan;
  compare("memory", "memory_plan.limit_bytes", host, set.limit_bytes.value_or(-1), 0);
  compare(kGpuMemory, "what it has", gpu_bytes(plan, memory), room.gpu, room.tolerance);
  for (const Use& use : kUses) {
    int64_t bytes = memory.device.*use.bytes;
    if (plan.offloads()) bytes += memory.host.*use.bytes;
    compare(use.name, str_cat("memory_plan.budgets.", use.name), bytes,
            (set.budgets.*use.budget).value_or(-1), 0);
  }
  const size_t in_memory = out.size();
  compare("files", "memory_plan.budgets.files", memory.files.total(),
          set.budgets.files.value_or(-1), 0);
  if (room.disk) {
    compare("room for files", "what is given", memory.files.total(), *room.disk, 0);
  } else {
    for (const auto& [folder, bytes] : files_of(plan, memory)) {
      const int64_t ranks = room.local_ranks;
      compare(str_cat("room in ", printable(folder, 200), ranks > 1 ? ", of all ranks here" : ""),
              "what the disk has free", ranks * bytes, free_room(folder), 0);
    }
  }
  for (size_t i = in_memory; i < out.size(); ++i) out[i].in_files = true;
  std::stable_sort(out.begin(), out.end(), [](const Shortage& a, const Shortage& b) {
    return a.needed - a.there > b.needed - b.there;
  });
  return out;
}

std::string describe_plan(const PlanContext& plan, const MemoryPlan& memory) {
  const bool beside = plan.offloads(), files = memory.files.total() > 0;
  std::string out = str_cat("planned, fullest in ", memory.in_update ? "the update" : "backward",
                            plan.on_gpu() ? " (GPU" : " (memory", beside ? " / host" : "",
                            files ? " / files" : "", "):\n");
  const auto row = [&](const std::string& name, int64_t device, int64_t host, int64_t in_files) {
    if (device == 0 && host == 0 && in_files == 0) return;
    out += str_cat("  ", name, ": ", format_bytes(device));
    if (beside) out += str_cat(" / ", format_bytes(host));
    if (files) out += str_cat(" / ", format_bytes(in_files));
    out += "\n";
  };
  for (const Use& use : kUses) {
    row(use.name, memory.device.*use.bytes, memory.host.*use.bytes, memory.files.*use.bytes);
  }
  row("total", memory.device.total(), memory.host.total(), memory.files.total());
  if (!plan.on_gpu() && memory.reserved > memory.device.total()) {
    out += str_cat("  in blocks of the system: ", format_bytes(memory.reserved), "\n");
  }
  return out;
}

}  // namespace ds
