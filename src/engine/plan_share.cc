#include "engine/plan_share.h"

#include <algorithm>
#include <utility>

#include "engine/share_options.h"
#include "zero/state_files.h"

namespace ds {
namespace {

class ShareSearch {
 public:
  ShareSearch(const PlanModel& model, const Json& config, const PlanOptions& options,
              const PlanRoom& room, ThreadPool& pool)
      : model_(model), config_(config), options_(options), room_(room), pool_(pool) {
    careful_.tolerance = std::min(room.tolerance, -kPlanMargin);
  }

  SharePlan run() {
    SharePlan all = plan(kShareSteps);
    if (!takes_share(*all.plan, room_) || !enough(all)) return all;
    int most = kShareSteps, too_little = 0;
    SharePlan least;
    while (most - too_little > 1) {
      const int steps = (most + too_little) / 2;
      SharePlan some = plan(steps);
      if (enough(some)) {
        most = steps;
        least = std::move(some);
      } else {
        too_little = steps;
      }
    }
    const bool all_of_it = !least.plan || (all.left.empty() && !least.left.empty());
    return all_of_it ? std::move(all) : std::move(least);
  }

 private:
  SharePlan plan(int steps) const {
    SharePlan out;
    out.share = static_cast<double>(steps) / kShareSteps;
    Json config = config_;
    set_share(config, out.share);
    out.plan = std::make_unique<PlanContext>(model_, dump_json(config), options_);
    out.memory = plan_memory(*out.plan, pool_);
    out.left = shortages(*out.plan, out.memory, room_);
    return out;
  }

  bool enough(const SharePlan& some) const {
    const std::vector<Shortage> left = shortages(*some.plan, some.memory, careful_);
    return std::none_of(left.begin(), left.end(),
                        [&](const Shortage& one) { return relieved_by_share(*some.plan, one); });
  }

  const PlanModel& model_;
  const Json& config_;
  const PlanOptions& options_;
  const PlanRoom& room_;
  ThreadPool& pool_;
  PlanRoom careful_ = room_;
};

}  // namespace

bool takes_share(const PlanContext& plan, const PlanRoom& room) {
  if (plan.in_files()) return true;
  return plan.offloads() && room.gpu >= 0 && may_keep_share_on_device(plan.config);
}

bool relieved_by_share(const PlanContext& plan, const Shortage& shortage) {
  if (!plan.in_files()) return shortage.place == kGpuMemory;
  // What travels comes through buffers, which are for that.
  return !shortage.in_files && shortage.place != "io";
}

int64_t offloaded_elements(const PlanContext& plan) {
  if (!plan.in_files() && !plan.offloads()) return 0;
  const int64_t held = plan.layout->held(zero::StateRole::kMasters);
  if (!plan.in_files() && !keeps_share_on_device(plan.config)) return held;
  return held - zero::StateFiles::stay_of(held, plan.config.zero.offload_optimizer->ratio);
}

SharePlan plan_least_share(const PlanModel& model, const Json& config, const PlanOptions& options,
                           const PlanRoom& room, ThreadPool& pool) {
  return ShareSearch(model, config, options, room, pool).run();
}

void set_share(Json& config, double share) {
  const Json::json_pointer offload("/zero_optimization/offload_optimizer");
  if (!config.contains(offload) || !config[offload].is_object()) return;
  if (share < 1) {
    config[offload]["ratio"] = share;
  } else {
    config[offload].erase("ratio");
  }
}

}  // namespace ds
