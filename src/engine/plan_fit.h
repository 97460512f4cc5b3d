// The fastest configuration that fits: variants of the given one that train the same batch, by the
// time that a step of each should take.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/plan_room.h"

namespace ds {

struct FitOptions {
  PlanOptions plan;
  PlanRoom room;
  std::string folder;  // for files, where the configuration names none
  Json rates;          // by the names of PlanRates; the others are measured
};

// {"config": the given document with what was chosen, "changes", "seconds_per_step": by what it is
// spent on, "rates", "tried"}. Precision, batch and optimizer stay. kOutOfMemory where nothing
// fits, with what comes nearest.
Json fit_plan(const PlanModel& model, const Json& given, const FitOptions& options,
              ThreadPool& pool);

}  // namespace ds
