#include "engine/plan_fit.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "engine/plan_advice.h"
#include "engine/plan_collectives.h"
#include "engine/plan_rates.h"
#include "engine/plan_share.h"

namespace ds {
namespace {

enum class Placement { kMemory, kOptimizerOnHost, kAllOnHost, kOptimizerInFiles, kAllInFiles };

// What may differ between configurations that train the same.
struct Choice {
  int64_t micro_batch = 1;
  int64_t checkpoint_every = 0;  // 0: nothing is computed again
  int stage = 0;
  Placement placement = Placement::kMemory;
  double share = 1;  // of the optimizer's state, where that is offloaded
};

struct StepTime {
  double compute = 0, update = 0, files = 0, collectives = 0;
  // Weights are read and gradients sent beside the computation.
  double total() const { return std::max(compute, collectives) + update + files; }
};

struct Candidate {
  Choice choice;
  Json changes;
  StepTime time;
  // How much has to be offloaded is not known yet: the time is that of the least.
  bool any_share = false;
  bool fits = false;  // as was found
};

class Fitter {
 public:
  Fitter(const PlanModel& model, const Json& given, const FitOptions& options, ThreadPool& pool)
      : model_(model),
        given_(given),
        options_(options),
        pool_(pool),
        base_(model, dump_json(given), options.plan),
        meter_(options.rates, pool) {}

  // The fastest come first. Of one that offloads, what it has to offload is found when no other
  // could be faster, and it waits for its turn again.
  Json run() {
    meter_.measure_disk(base_, folder());
    std::vector<Candidate> all = candidates();
    const size_t variants = all.size();
    std::optional<Shortage> nearest;
    int64_t tried = 0;
    while (!all.empty()) {
      const auto next = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
        return a.time.total() < b.time.total();
      });
      if (next->fits) return describe(*next, context(next->changes), tried);
      ++tried;
      const std::vector<Shortage> left = shortages_of(*next);
      next->fits = left.empty();
      if (next->fits) continue;
      const Shortage& most = left.front();
      if (!nearest || most.needed - most.there < nearest->needed - nearest->there) nearest = most;
      all.erase(next);
    }
    DS_CHECK(nearest, Code::kUnsupported, "no variant of the configuration can be planned");
    fail(Code::kOutOfMemory, "of ", variants, " variants of the configuration none fits: the ",
         "nearest needs ", format_bytes(nearest->needed), " of ", nearest->place, ", and ",
         format_bytes(nearest->there), " are there (", nearest->limit,
         "); give more, shorter samples, or more ranks");
  }

 private:
  std::string folder() const {
    const ZeroConfig& zero = base_.config.zero;
    if (zero.offload_optimizer && zero.offload_optimizer->in_files()) {
      return zero.offload_optimizer->nvme_path;
    }
    if (zero.offload_param && zero.offload_param->in_files()) return zero.offload_param->nvme_path;
    return options_.folder.empty() ? "." : options_.folder;
  }

  Json merged(const Json& changes) const {
    Json out = given_;
    out.merge_patch(changes);
    return out;
  }
  PlanContext context(const Json& changes) const {
    return {model_, dump_json(merged(changes)), options_.plan};
  }

  // With as much offloaded as has to be, which is chosen here where it was not yet.
  std::vector<Shortage> shortages_of(Candidate& one) {
    if (!one.any_share) {
      const PlanContext plan = context(one.changes);
      return shortages(plan, plan_memory(plan, pool_), options_.room);
    }
    const SharePlan some =
        plan_least_share(model_, merged(one.changes), options_.plan, options_.room, pool_);
    one.any_share = false;
    one.choice.share = some.share;
    one.changes = changes_of(one.choice);
    one.time = time_of(*some.plan, one.choice);
    return some.left;
  }

  // ---- what there is to choose from ----

  std::vector<int64_t> micro_batches() const {
    const int64_t samples = base_.config.batch.micro_batch * base_.config.batch.accumulation;
    if (base_.model.architecture == nullptr || base_.config.batch_ramp_up) {
      return {base_.config.batch.micro_batch};
    }
    std::vector<int64_t> out;
    for (int64_t micro = 1; micro <= samples && micro <= 256; ++micro) {
      const bool kept =
          (micro & (micro - 1)) == 0 || micro == samples || micro == base_.config.batch.micro_batch;
      if (samples % micro == 0 && kept) out.push_back(micro);
    }
    return out;
  }

  std::vector<int> stages(Placement placement) const {
    if (placement == Placement::kAllInFiles || placement == Placement::kAllOnHost) return {3};
    const int given = base_.config.zero.stage;
    if (base_.world == 1) return {placement == Placement::kMemory ? given : std::max(given, 1)};
    std::vector<int> out;
    for (const int stage : {0, 2, 3}) {
      if (placement == Placement::kMemory || stage > 0) out.push_back(stage);
    }
    return out;
  }

  std::vector<Candidate> candidates() {
    std::vector<Candidate> out;
    std::vector<Placement> placements = {Placement::kMemory};
    const bool weights = base_.model.architecture != nullptr;
    if (base_.on_gpu()) placements.push_back(Placement::kOptimizerOnHost);
    if (base_.on_gpu() && weights) placements.push_back(Placement::kAllOnHost);
    placements.push_back(Placement::kOptimizerInFiles);
    if (weights) placements.push_back(Placement::kAllInFiles);
    std::vector<int64_t> checkpoints = {0};
    if (base_.model.architecture != nullptr) {
      checkpoints.push_back(1);
      if (base_.model.layers >= 4) checkpoints.push_back(2);
    }
    for (const Placement placement : placements) {
      for (const int stage : stages(placement)) {
        for (const int64_t micro : micro_batches()) {
          for (const int64_t every : checkpoints) add({micro, every, stage, placement}, out);
        }
      }
    }
    return out;
  }

  // Where the configuration cannot be read so, as with a scheme of ranks that stage 3 alone has, it
  // is no candidate.
  void add(const Choice& choice, std::vector<Candidate>& out) {
    Candidate one{choice, changes_of(choice), {}};
    try {
      one.any_share = takes_share(context(one.changes), options_.room);
      if (one.any_share) {
        one.choice.share = 1.0 / kShareSteps;
        one.changes = changes_of(one.choice);
      }
      one.time = time_of(context(one.changes), one.choice);
    } catch (const Error&) {
      return;
    }
    out.push_back(std::move(one));
  }

  Json changes_of(const Choice& choice) const {
    const BatchConfig& batch = base_.config.batch;
    Json zero = {{"stage", choice.stage}};
    const Json file = {{"device", "nvme"}, {"nvme_path", folder()}};
    switch (choice.placement) {
      case Placement::kMemory:
        zero["offload_optimizer"] = nullptr;
        zero["offload_param"] = nullptr;
        break;
      case Placement::kAllOnHost:
        zero["offload_param"] = {{"device", "cpu"}};
        set_live(zero);
        [[fallthrough]];
      case Placement::kOptimizerOnHost:
        zero["offload_optimizer"] = {{"device", "cpu"}};
        break;
      case Placement::kAllInFiles:
        zero["offload_param"] = file;
        zero["offload_param"]["max_in_cpu"] = 0;
        set_live(zero);
        [[fallthrough]];
      case Placement::kOptimizerInFiles:
        zero["sub_group_size"] = sub_group_size(base_);
        zero["offload_optimizer"] = file;
        zero["offload_optimizer"]["super_offload"] = nullptr;  // needs it in memory
        zero["offload_optimizer"]["pipeline_read"] = true;
        zero["offload_optimizer"]["pipeline_write"] = true;
        break;
    }
    const auto& given = base_.config.zero.offload_optimizer;
    if (choice.share < 1) {
      zero["offload_optimizer"]["ratio"] = choice.share;
    } else if (given && given->ratio < 1 && choice.placement != Placement::kMemory) {
      zero["offload_optimizer"]["ratio"] = nullptr;
    }
    Json out = {{"zero_optimization", std::move(zero)}};
    if (base_.model.architecture == nullptr) return out;
    const int64_t samples = batch.micro_batch * batch.accumulation;
    out["train_micro_batch_size_per_gpu"] = choice.micro_batch;
    out["gradient_accumulation_steps"] = samples / choice.micro_batch;
    if (choice.checkpoint_every == 0) {
      out["activation_checkpointing"] = {{"enabled", false}};
    } else {
      out["activation_checkpointing"] = {{"enabled", true}, {"number_checkpoints", nullptr}};
      if (choice.checkpoint_every > 1) {
        out["activation_checkpointing"]["checkpoint_every_nth"] = choice.checkpoint_every;
      }
    }
    return out;
  }

  // Of weights that rest elsewhere, those that are there at a time.
  void set_live(Json& zero) const {
    int64_t live = 1;
    for (nn::ParamId id = 0; id < base_.model.parameters->size(); ++id) {
      live = std::max(live, 2 * (*base_.model.parameters)[id].shape.elements());
    }
    zero["stage3_max_live_parameters"] = live;
    zero["stage3_prefetch_bucket_size"] = std::min<int64_t>(live, 50'000'000);
  }

  // ---- what a step takes ----

  StepTime time_of(const PlanContext& plan, const Choice& choice) {
    StepTime out;
    out.compute = compute_seconds(plan, choice);
    out.update = update_seconds(plan);
    if (plan.in_files()) out.files = file_seconds(plan, choice);
    for (const Json& one : plan_collectives(plan)) {
      out.collectives += one.at("within_node").get<double>() / meter_.near_bytes() +
                         one.at("across_nodes").get<double>() / meter_.far_bytes();
    }
    return out;
  }

  // A GPU updates what it has of the state while its host updates the rest.
  double update_seconds(const PlanContext& plan) {
    // Masters and two moments are read and written, the gradient is read, weights are written.
    constexpr double kTouched = 4 * (2 + 4 + 1) + 2;
    const auto held = static_cast<double>(plan.layout->held(zero::StateRole::kMasters));
    const bool shared = plan.on_gpu() && !plan.in_files();
    const double on_host = shared ? static_cast<double>(offloaded_elements(plan)) : held;
    const double on_device = shared ? (held - on_host) / meter_.gpu_memory_bytes() : 0;
    return kTouched * std::max(on_host / meter_.memory_bytes(), on_device);
  }

  // Forward, twice as much backward, and what is computed again.
  double compute_seconds(const PlanContext& plan, const Choice& choice) {
    const int64_t length = std::max<int64_t>(plan.length(), 1);
    const double tokens = static_cast<double>(plan.config.batch.micro_batch *
                                              plan.config.batch.accumulation * length);
    const RateMeter::Flops token = forward_flops(plan);
    const double again =
        choice.checkpoint_every == 0 ? 0 : 1 / static_cast<double>(choice.checkpoint_every);
    const double teacher = plan.model.teacher ? teacher_flops(*plan.model.teacher) : 0;
    const double flops =
        tokens * (3 * (token.blocks + token.rest) + again * token.blocks + teacher);
    return flops / meter_.pass_flops(plan, choice.micro_batch, token);
  }

  // Of a token, of experts those that it goes to.
  static RateMeter::Flops forward_flops(const PlanContext& plan) {
    const models::Architecture* const architecture = plan.model.architecture;
    double blocks = 0, head = 0, width = 1;
    for (nn::ParamId id = 0; id < plan.model.parameters->size(); ++id) {
      const nn::Parameter& p = (*plan.model.parameters)[id];
      if (!p.projection && architecture != nullptr) continue;
      auto elements = static_cast<double>(p.shape.elements());
      if (p.split.experts > 0) {
        elements *= static_cast<double>(architecture->info().experts_per_token) /
                    static_cast<double>(p.split.experts);
      } else if (p.projection) {
        width = static_cast<double>(std::min(p.shape[0], p.shape[1]));
      }
      blocks += elements;
    }
    if (architecture != nullptr) {
      const models::ArchitectureInfo& info = architecture->info();
      if (info.output != nn::kNoParam) {
        head = static_cast<double>((*plan.model.parameters)[info.output].shape.elements());
      }
      // Queries with keys, and probabilities with values, of half the pairs.
      blocks += static_cast<double>(info.layers) * width *
                static_cast<double>(std::max<int64_t>(plan.length(), 1));
    }
    return {2 * blocks, 2 * head};
  }

  // The disk is one: what is read and what is written take their turns.
  double file_seconds(const PlanContext& plan, const Choice& choice) {
    const auto stored = static_cast<double>(offloaded_elements(plan));
    const auto passes = static_cast<double>(plan.config.batch.accumulation);
    constexpr double kState = 4 + 8;  // masters and moments
    const auto gradient = static_cast<double>(dtype_size(plan.gradient_type()));
    // The norm reads the gradients, too, before the update does.
    double read = stored * (kState + 2 * gradient), written = stored * kState;
    // Gradients are written by the first pass, and read and written by every other one.
    written += stored * gradient * passes;
    read += stored * gradient * (passes - 1);
    if (choice.placement == Placement::kAllInFiles) {
      // In fp32 the masters are the weights.
      const auto held = static_cast<double>(plan.layout->held(zero::StateRole::kMasters));
      const double weights =
          (plan.type == DType::kFloat32 ? stored : held) * static_cast<double>(plan.item());
      const double uses = choice.checkpoint_every == 0 ? 2 : 3;
      read += weights * uses * passes;
      if (plan.type != DType::kFloat32) written += weights;
    }
    return read / meter_.read_bytes() + written / meter_.write_bytes();
  }

  Json describe(const Candidate& chosen, const PlanContext& plan, int64_t tried) {
    PlanRates rates;
    rates.product_flops =
        meter_.product_flops(plan, chosen.choice.micro_batch * std::max<int64_t>(plan.length(), 1));
    rates.pass_flops = meter_.pass_flops(plan, chosen.choice.micro_batch, forward_flops(plan));
    rates.memory_bytes = meter_.memory_bytes();
    if (plan.on_gpu()) rates.gpu_memory_bytes = meter_.gpu_memory_bytes();
    rates.read_bytes = meter_.read_bytes();
    rates.write_bytes = meter_.write_bytes();
    if (plan.world > 1) {
      rates.near_bytes = meter_.near_bytes();
      rates.far_bytes = meter_.far_bytes();
    }
    return {{"config", plan.config.given()},
            {"changes", chosen.changes},
            {"seconds_per_step",
             {{"total", chosen.time.total()},
              {"compute", chosen.time.compute},
              {"update", chosen.time.update},
              {"files", chosen.time.files},
              {"collectives", chosen.time.collectives}}},
            {"rates", rates.to_json()},
            {"tried", tried}};
  }

  const PlanModel& model_;
  const Json& given_;
  const FitOptions& options_;
  ThreadPool& pool_;
  const PlanContext base_;
  RateMeter meter_;
};

}  // namespace

Json fit_plan(const PlanModel& model, const Json& given, const FitOptions& options,
              ThreadPool& pool) {
  return Fitter(model, given, options, pool).run();
}

}  // namespace ds
