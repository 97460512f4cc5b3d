#include "engine/plan_advice.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/text.h"
#include "engine/plan_share.h"

namespace ds {
namespace {

// One change, and how much it slows training down compared with the others.
struct Change {
  int cost;
  Json patch;
  const char* why;
  unsigned excludes = 0;  // changes by bit that it makes no sense with
  bool offloads = false;  // state, of which a share may be enough
};

int64_t largest_parameter(const PlanContext& plan) {
  int64_t largest = 1;
  for (nn::ParamId id = 0; id < plan.model.parameters->size(); ++id) {
    largest = std::max(largest, (*plan.model.parameters)[id].shape.elements());
  }
  return largest;
}

// Where files would go: where some lie already, else the current folder.
std::string file_folder(const Config& config) {
  const ZeroConfig& zero = config.zero;
  if (zero.offload_optimizer && zero.offload_optimizer->in_files()) {
    return zero.offload_optimizer->nvme_path;
  }
  if (zero.offload_param && zero.offload_param->in_files()) return zero.offload_param->nvme_path;
  std::error_code error;
  const std::filesystem::path inside = std::filesystem::absolute("state", error);
  return error ? "." : inside.parent_path().string();
}

// State and weights in files.
void add_files(const PlanContext& plan, std::vector<Change>& out) {
  const Config& config = plan.config;
  const ZeroConfig& zero = config.zero;
  const bool built_in = plan.model.architecture != nullptr;
  const std::string folder = file_folder(config);
  const Json optimizer = {
      {"device", "nvme"}, {"nvme_path", folder}, {"pipeline_read", true}, {"pipeline_write", true}};
  const unsigned next = 1U << out.size();
  if (!plan.in_files()) {
    out.push_back({10,
                   {{"zero_optimization",
                     {{"stage", std::max(zero.stage, 1)},
                      {"sub_group_size", sub_group_size(plan)},
                      {"offload_optimizer", optimizer}}}},
                   "masters, gradients and moments lie in files; name a folder of a fast disk",
                   built_in ? next << 1U : 0,
                   true});
  } else if (zero.offload_optimizer->pipeline_read || zero.offload_optimizer->pipeline_write) {
    out.push_back(
        {2,
         {{"zero_optimization",
           {{"offload_optimizer", {{"pipeline_read", false}, {"pipeline_write", false}}}}}},
         "parts of the update are neither read ahead nor written behind",
         0});
  }
  if (built_in && !weights_in_files(config)) {
    const int64_t live = 2 * largest_parameter(plan);
    out.push_back(
        {20,
         {{"zero_optimization",
           {{"stage", 3},
            {"sub_group_size", sub_group_size(plan)},
            {"offload_optimizer", optimizer},
            {"offload_param", {{"device", "nvme"}, {"nvme_path", folder}, {"max_in_cpu", 0}}},
            {"stage3_max_live_parameters", live},
            {"stage3_prefetch_bucket_size", std::min<int64_t>(live, 50'000'000)}}}},
         "weights lie in files, too, and are read where they are used",
         plan.in_files() ? 0 : next,
         true});
  }
}

// State and weights in the host's memory, beside a GPU.
void add_host(const PlanContext& plan, std::vector<Change>& out) {
  const ZeroConfig& zero = plan.config.zero;
  const unsigned next = 1U << out.size();
  const Json host = {{"device", "cpu"}};
  const bool whole_update = !(zero.offload_optimizer && zero.offload_optimizer->super_offload) &&
                            !(zero.zenflow && zero.zenflow->overlap_step);
  const bool weights = plan.model.architecture != nullptr && whole_update && !zero.offload_param;
  if (!zero.offload_optimizer) {
    out.push_back(
        {8,
         {{"zero_optimization", {{"stage", std::max(zero.stage, 1)}, {"offload_optimizer", host}}}},
         "the optimizer's state lies in the host's memory, where the update runs",
         weights ? next << 1U : 0,
         true});
  }
  if (weights) {
    const int64_t live = 2 * largest_parameter(plan);
    out.push_back(
        {16,
         {{"zero_optimization",
           {{"stage", 3},
            {"offload_optimizer", host},
            {"offload_param", host},
            {"stage3_max_live_parameters", live},
            {"stage3_prefetch_bucket_size", std::min<int64_t>(live, 50'000'000)}}}},
         "weights rest in the host's memory, too, and come to the GPU where they are used",
         zero.offload_optimizer ? 0 : next,
         true});
  }
}

// Another share of what is offloaded already: more of it, or less where its place is short.
void add_share(const PlanContext& plan, const PlanRoom& room, const Shortage& shortage,
               std::vector<Change>& out) {
  if (!takes_share(plan, room)) return;
  const bool all_of_it = plan.config.zero.offload_optimizer->ratio == 1;
  if (all_of_it && relieved_by_share(plan, shortage)) return;
  unsigned others = 0;
  for (size_t i = 0; i < out.size(); ++i) others |= out[i].offloads ? 1U << i : 0;
  out.push_back({2,
                 {{"zero_optimization", {{"offload_optimizer", Json::object()}}}},
                 "another share of the optimizer's state is offloaded",
                 others,
                 true});
}

std::vector<Change> changes_of(const PlanContext& plan, const PlanRoom& room,
                               const Shortage& shortage) {
  const Config& config = plan.config;
  const ZeroConfig& zero = config.zero;
  std::vector<Change> out;
  const auto add_micro_batch = [&](int64_t micro, unsigned excludes) {
    const int64_t times = config.batch.micro_batch / micro;
    out.push_back({1,
                   {{"train_micro_batch_size_per_gpu", micro},
                    {"gradient_accumulation_steps", config.batch.accumulation * times}},
                   "the same batch in more, smaller passes",
                   excludes});
  };
  const int64_t micro = config.batch.micro_batch;
  const bool built_in = plan.model.architecture != nullptr;
  if (built_in && micro > 1 && !config.batch_ramp_up) {
    const bool two = micro % 2 == 0 && micro > 2;
    if (two) add_micro_batch(micro / 2, 2);
    add_micro_batch(1, two ? 1 : 0);
  }
  if (built_in && !config.activation_checkpointing.enabled) {
    out.push_back({3,
                   {{"activation_checkpointing", {{"enabled", true}}}},
                   "backward computes each block again; the same bits"});
  }
  if (config.precision.compute == Precision::kFp32) {
    out.push_back({4, {{"bf16", {{"enabled", true}}}}, "computes in bf16, with fp32 masters"});
  } else if (config.precision.grad_accum_dtype == Precision::kFp32 &&
             config.precision.compute == Precision::kBf16) {
    out.push_back({4,
                   {{"data_types", {{"grad_accum_dtype", "bf16"}}}},
                   "gradients add up in bf16: rounded once per micro batch"});
  }
  const bool on_gpu = plan.on_gpu();
  if (plan.world > 1 && zero.stage < 3) {
    out.push_back({5,
                   {{"zero_optimization", {{"stage", zero.stage == 0 ? 2 : 3}}}},
                   zero.stage == 0 ? "each rank keeps a share of gradients and optimizer state"
                                   : "weights are gathered from the ranks when they are used"});
  }
  if (on_gpu) add_host(plan, out);
  // Of a GPU's rank, once its state is on the host; updates ahead of the step need it in memory.
  const bool ahead = zero.offload_optimizer && zero.offload_optimizer->super_offload;
  if (!on_gpu || (plan.offloads() && !ahead)) add_files(plan, out);
  add_share(plan, room, shortage, out);
  return out;
}

struct Tried {
  unsigned changes = 0;  // by bit
  int cost = 0;
};

class Adviser {
 public:
  Adviser(const PlanModel& model, const Json& given, const AdviceOptions& options, ThreadPool& pool)
      : model_(model), given_(given), options_(options), pool_(pool) {}

  std::vector<Remedy> run() {
    const PlanContext now(model_, dump_json(given_), options_.plan);
    const MemoryPlan memory = plan_memory(now, pool_);
    const std::vector<Shortage> short_of = shortages(now, memory, options_.room);
    if (short_of.empty()) return {};
    first_ = short_of.front();
    changes_ = changes_of(now, options_.room, first_);
    const auto& offload = now.config.zero.offload_optimizer;
    given_share_ = offload ? offload->ratio : 1;
    std::vector<Remedy> fitting, helping;
    std::vector<unsigned> found;
    for (const Tried& tried : by_cost()) {
      // More than what is enough.
      const bool more = std::any_of(found.begin(), found.end(), [&](unsigned enough) {
        return (tried.changes & enough) == enough;
      });
      if (more) continue;
      std::optional<Remedy> remedy = try_changes(tried.changes);
      if (!remedy) continue;
      if (remedy->fits) {
        found.push_back(tried.changes);
        fitting.push_back(*std::move(remedy));
        if (fitting.size() == options_.most) break;
      } else if (remedy->saved > 0) {
        helping.push_back(*std::move(remedy));
      }
    }
    if (!fitting.empty()) return fitting;
    std::stable_sort(helping.begin(), helping.end(),
                     [](const Remedy& a, const Remedy& b) { return a.saved > b.saved; });
    helping.resize(std::min(helping.size(), options_.most));
    return helping;
  }

 private:
  std::vector<Tried> by_cost() const {
    std::vector<Tried> out;
    for (unsigned set = 1; set < 1U << changes_.size(); ++set) {
      Tried tried{set, 0};
      bool possible = true;
      for (size_t i = 0; i < changes_.size(); ++i) {
        if ((set >> i & 1U) == 0) continue;
        tried.cost += changes_[i].cost;
        possible = possible && (set & changes_[i].excludes) == 0;
      }
      if (possible) out.push_back(tried);
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Tried& a, const Tried& b) { return a.cost < b.cost; });
    return out;
  }

  // None where the configuration would be refused.
  std::optional<Remedy> try_changes(unsigned set) {
    Remedy out;
    out.patch = Json::object();
    std::vector<std::string> costs;
    bool offloads = false;
    for (size_t i = 0; i < changes_.size(); ++i) {
      if ((set >> i & 1U) == 0) continue;
      offloads = offloads || changes_[i].offloads;
      merge(out.patch, changes_[i].patch);
      costs.emplace_back(changes_[i].why);
    }
    Json changed = given_;
    changed.merge_patch(out.patch);
    try {
      const SharePlan planned = plan_changed(changed, offloads);
      const PlanContext& plan = *planned.plan;
      const MemoryPlan& memory = planned.memory;
      const std::vector<Shortage>& left = planned.left;
      if (options_.possible && !options_.possible(plan.config)) return {};
      if (offloads) say_share(planned, out.patch, costs);
      out.cost = join(costs, "; ");
      out.fits = left.empty();
      out.needed = first_.in_files ? memory.files.total() : bytes_of_place(plan, memory);
      out.saved = first_.needed - out.needed;
      // What moves a shortage elsewhere is no help.
      if (std::any_of(left.begin(), left.end(),
                      [&](const Shortage& one) { return one.in_files != first_.in_files; })) {
        return {};
      }
      return out;
    } catch (const Error&) {
      return {};
    }
  }

  SharePlan plan_changed(const Json& changed, bool offloads) const {
    if (offloads) return plan_least_share(model_, changed, options_.plan, options_.room, pool_);
    SharePlan out;
    out.plan = std::make_unique<PlanContext>(model_, dump_json(changed), options_.plan);
    out.memory = plan_memory(*out.plan, pool_);
    out.left = shortages(*out.plan, out.memory, options_.room);
    return out;
  }

  void say_share(const SharePlan& planned, Json& patch, std::vector<std::string>& costs) const {
    if (planned.share < 1) {
      set_share(patch, planned.share);
      costs.push_back(str_cat(planned.share, " of the optimizer's state is enough, the rest stays ",
                              planned.plan->in_files() ? "in memory" : "on the GPU"));
    } else if (given_share_ < 1) {
      patch["zero_optimization"]["offload_optimizer"]["ratio"] = 1;
    }
  }

  int64_t bytes_of_place(const PlanContext& plan, const MemoryPlan& memory) const {
    PlanRoom none = options_.room;
    if (first_.place == kGpuMemory) return gpu_bytes(plan, memory);
    const int64_t ranks = first_.place == "memory" ? 1 : none.local_ranks;
    return ranks * host_bytes(plan, memory);
  }

  static void merge(Json& into, const Json& patch) {
    for (const auto& [key, value] : patch.items()) {
      if (value.is_object() && into.contains(key)) {
        merge(into[key], value);
      } else if (key != "stage" || !into.contains(key) || into[key] < value) {
        into[key] = value;
      }
    }
  }

  const PlanModel& model_;
  const Json& given_;
  const AdviceOptions& options_;
  ThreadPool& pool_;
  Shortage first_;
  double given_share_ = 1;
  std::vector<Change> changes_;
};

}  // namespace

// Small models in small parts: what an update maps at a time is memory.
int64_t sub_group_size(const PlanContext& plan) {
  constexpr int64_t kLeast = 65536;
  const int64_t most = std::min(plan.config.zero.sub_group_size, zero::StateFiles::kMostElements);
  return std::min(most, std::max(plan.layout->held(zero::StateRole::kMasters) / 16, kLeast));
}

std::vector<Remedy> find_remedies(const PlanModel& model, const Json& given,
                                  const AdviceOptions& options, ThreadPool& pool) {
  return Adviser(model, given, options, pool).run();
}

std::string describe_remedies(const std::vector<Remedy>& remedies, const Shortage& shortage) {
  if (remedies.empty()) return {};
  std::string out = remedies.front().fits
                        ? "What makes it fit, cheapest first (merge one into the configuration):\n"
                        : "Nothing that is known makes it fit; what helps most:\n";
  for (const Remedy& remedy : remedies) {
    out += str_cat("  ", dump_json(remedy.patch), "\n    ", shortage.place, ": ",
                   format_bytes(remedy.needed), ", ", format_bytes(remedy.saved), " less; ",
                   remedy.cost, "\n");
  }
  return out;
}

}  // namespace ds
