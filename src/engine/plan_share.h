// How much of an optimizer's state has to be offloaded for a plan to fit: the share that
// zero_optimization.offload_optimizer.ratio says. The rest stays where it is faster.
#pragma once

#include <memory>
#include <vector>

#include "base/json.h"
#include "engine/plan_room.h"

namespace ds {

// Shares that are considered: so many steps up to all of it.
constexpr int kShareSteps = 20;

// Whether a share can be offloaded, and it is known what room there is for the rest.
bool takes_share(const PlanContext& plan, const PlanRoom& room);
// Whether it is less short, the more is offloaded.
bool relieved_by_share(const PlanContext& plan, const Shortage& shortage);
// Elements that are offloaded of the optimizer's state of a rank; 0: all stays.
int64_t offloaded_elements(const PlanContext& plan);

// A configuration with a share, planned.
struct SharePlan {
  double share = 1;
  std::unique_ptr<PlanContext> plan;
  MemoryPlan memory;
  std::vector<Shortage> left;
};

// With the least share that leaves a margin of what it relieves. With all of it where no share
// does, or where what stays is short elsewhere. A share that the configuration names does not
// count.
SharePlan plan_least_share(const PlanModel& model, const Json& config, const PlanOptions& options,
                           const PlanRoom& room, ThreadPool& pool);

// Says a share in a configuration that offloads an optimizer's state, or in what is merged into
// one; of all of it nothing is said.
void set_share(Json& config, double share);

}  // namespace ds
