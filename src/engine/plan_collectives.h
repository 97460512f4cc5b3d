// What the collectives of an optimizer step move, for the plan: from layout and configuration, with
// the engine's own gatherer for the weights of stage 3.
#pragma once

#include "base/json.h"
#include "engine/plan_context.h"

namespace ds {

// One object per kind of collective; see moved_per_step of ds_plan in ds.h.
Json plan_collectives(const PlanContext& plan);

}  // namespace ds
