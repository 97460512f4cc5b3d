// Whether a plan fits: what it takes of each place, beside what there is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/system_memory.h"
#include "engine/plan_memory.h"

namespace ds {

// Plans are at most so far off; what is to fit leaves that.
inline constexpr double kPlanMargin = 0.05;
// The place of a shortage on a GPU.
inline constexpr const char* kGpuMemory = "memory of the GPU";

// What a rank may have.
struct PlanRoom {
  std::vector<MemoryCeiling> host;
  int64_t gpu = -1;             // bytes of the GPU; -1: not known, or there is none
  int local_ranks = 1;          // that share a host and its disks
  std::optional<int64_t> disk;  // for files of a rank; unset: what the file systems say
  // A plan is this share off at most: what exceeds a ceiling by less may still run.
  double tolerance = kPlanMargin;
};
// That of this machine.
PlanRoom room_here(int local_ranks);

// What a plan takes of the host's memory, and of a GPU's. Where a rank computes in the host's
// memory this is what it takes from the system: what accounts say is less, by blocks that are
// rounded up and kept between uses.
int64_t host_bytes(const PlanContext& plan, const MemoryPlan& memory);
int64_t gpu_bytes(const PlanContext& plan, const MemoryPlan& memory);

// Of one place, or of a budget.
struct Shortage {
  std::string place;  // "memory", kGpuMemory, "room in /fast", the use of a budget
  std::string limit;  // what sets it
  bool in_files = false;
  int64_t needed = 0, there = 0;
};
// The largest first; empty: it fits.
std::vector<Shortage> shortages(const PlanContext& plan, const MemoryPlan& memory,
                                const PlanRoom& room);

// A table of what a plan holds by use, one line each.
std::string describe_plan(const PlanContext& plan, const MemoryPlan& memory);

}  // namespace ds
