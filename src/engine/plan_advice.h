// What makes a plan fit that does not: changes of the configuration, each of which was planned.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/plan_room.h"

namespace ds {

struct Remedy {
  Json patch;        // to merge into the configuration (RFC 7396)
  std::string cost;  // what it costs
  bool fits = false;
  int64_t needed = 0;  // of the place that is shortest
  int64_t saved = 0;
};

struct AdviceOptions {
  PlanOptions plan;  // of the world, and how long samples are
  PlanRoom room;
  // Whether an engine could be made of it; null: any that can be planned.
  std::function<bool(const Config&)> possible;
  size_t most = 3;
};

// What an update of state in files should take at a time.
int64_t sub_group_size(const PlanContext& plan);

// `given` is the configuration as asked for. Those that fit, cheapest first; where there is none,
// those that save most.
std::vector<Remedy> find_remedies(const PlanModel& model, const Json& given,
                                  const AdviceOptions& options, ThreadPool& pool);

// One of each a line or two, or "" for none.
std::string describe_remedies(const std::vector<Remedy>& remedies, const Shortage& shortage);

}  // namespace ds
