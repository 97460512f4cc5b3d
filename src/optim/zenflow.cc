#include "optim/zenflow.h"

#include <algorithm>
#include <utility>

#include "base/json_fields.h"
#include "optim/zenflow_step.h"

namespace ds::optim {
namespace {

constexpr const char* kWaitingState = "waiting_gradient";
constexpr const char* kNextState = "next_weight";
// Elements that are worked on at a time, which bounds the memory for packed ones.
constexpr int64_t kMostElements = int64_t{1} << 20;

// Null before the first choice.
Json columns_of(const Json& saved) {
  const Json* const columns = find_field(saved, "columns", kSavedZenFlow);
  return columns == nullptr ? Json() : *columns;
}

}  // namespace

ZenFlow::ZenFlow(Setup setup, const ZeroConfig::ZenFlow& options)
    : FlatOptimizer(std::move(setup)),
      options_(options),
      choice_(places(), options.topk_ratio),
      intervals_(options, static_cast<size_t>(std::count_if(places().begin(), places().end(),
                                                            ColumnChoice::is_matrix))),
      beside_(options.overlap_step
                  ? threads_beside(ThreadPool::available_cpus(), options.pt_reserved_cores_perc)
                  : 1) {
  const OptimizerConfig& config = whole_config();
  DS_CHECK((config.type == OptimizerType::kAdam || config.type == OptimizerType::kAdamW) &&
               !config.amsgrad && config.state_dtype != OptimizerStateType::kInt8,
           Code::kUnsupported,
           "zenflow updates Adam and AdamW without amsgrad, with states in fp32 or bf16");
  const auto space_of = [&](std::vector<NamedState> states,
                            std::optional<OptimizerStateType> type) {
    StateSpace::Options space;
    space.states = std::move(states);
    space.most_elements = kMostElements;
    space.key = [this](size_t tensor) { return hyper_key(tensor); };
    add_space(make_space(std::move(space), type));
  };
  space_of({{"exp_avg", true}, {"exp_avg_sq", false}}, {});
  space_of({{kWaitingState, true}}, OptimizerStateType::kFp32);
  if (options_.overlap_step) space_of({{kNextState, true}}, OptimizerStateType::kFp32);
  kept_.resize(runs().size());
}

// ---- a step ----

void ZenFlow::step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) {
  begin_step(step, tensors);
  beside_.wait();  // of an update that failed
  tensors_ = tensors;
  StepWork work{ctx, step, tensors, {}, {}, {}};
  const auto of_rates = [&](size_t group) { return step.rates[group]; };
  work.chosen = constants(kZenFlowRule, step, of_rates);
  extent_ = UpdateExtent{};
  if (steps_ < options_.full_warm_up_rounds) {
    update_everything(work);
  } else {
    make_room(work);
    if (intervals_.chooses(choice_.made(), step.epoch_steps)) choose(work);
    if (intervals_.by_gradients()) intervals_.add_gradients(magnitudes(work));
    const bool due = intervals_.due();
    UpdateStep of_mean = step;
    of_mean.updates = intervals_.updates() + 1;
    if (intervals_.waiting() > 0 || options_.overlap_step) of_mean.grad_scale = 1;
    work.others = constants(kZenFlowRule, of_mean, of_rates);
    update_some(work, due);
    intervals_.end_step(due);
    extent_->everything = due;
    extent_->chosen = chosen_share();
  }
  extent_->waiting = intervals_.waiting();
  ++steps_;
}

void ZenFlow::make_room(StepWork& work) const {
  int64_t most = 0;
  for (const StateRun& run : runs()) most = std::max(most, run.end - run.begin);
  const FlatTensors& tensors = work.tensors;
  const DType master = tensors.masters ? tensors.masters.dtype() : DType::kFloat32;
  const DType model = tensors.model ? tensors.model.dtype() : DType::kBFloat16;
  const auto room = [&](DType type) { return work.empty(type, most); };
  Scratch& scratch = work.scratch;
  scratch.grad = room(DType::kFloat32);
  scratch.mean = room(DType::kFloat32);
  scratch.masters = room(master);
  scratch.weight = room(model);
  scratch.low = room(DType::kUInt16);
  scratch.chosen_grad = room(DType::kFloat32);
  scratch.chosen_master = room(master);
  scratch.chosen_weight = room(model);
  scratch.chosen_low = room(DType::kUInt16);
}

// ---- as others see it ----

void ZenFlow::begin_load() {
  try {
    put_kept_back();
  } catch (const Error&) {  // what is loaded takes the place of what is lost
    beside_.forget();
    kept_.assign(runs().size(), {});
  }
  next_ready_ = false;
}

void ZenFlow::read_state_range(size_t tensor, const std::string& state, int64_t begin, int64_t end,
                               float* out) const {
  const bool empty = (state == kWaitingState && intervals_.waiting() == 0) ||
                     (state == kNextState && !next_ready_);
  put_kept_back();
  FlatOptimizer::read_state_range(tensor, state, begin, end, out);
  if (empty) std::fill_n(out, end - begin, 0.0f);
}

void ZenFlow::write_state_range(size_t tensor, const std::string& state, int64_t begin, int64_t end,
                                const float* values) {
  put_kept_back();
  FlatOptimizer::write_state_range(tensor, state, begin, end, values);
}

Tensor ZenFlow::state_view(size_t tensor, const std::string& state) const {
  if (state == kWaitingState || state == kNextState) return {};
  put_kept_back();
  return FlatOptimizer::state_view(tensor, state);
}

void ZenFlow::flush() {
  beside_.wait();
  FlatOptimizer::flush();
}

Json ZenFlow::save() const {
  Json out = intervals_.save();
  out["next_ready"] = next_ready_;
  out["columns"] = choice_.save();
  return out;
}

void ZenFlow::check_saved(const Json& saved) const {
  if (saved.is_null()) return;
  static_cast<void>(intervals_.read(saved));
  const bool ready = bool_field(saved, "next_ready", false, kSavedZenFlow);
  DS_CHECK(!ready || options_.overlap_step, Code::kConfig,
           "the checkpoint holds an update of zenflow.overlap_step that waits to be taken; load "
           "it with overlap_step true");
  static_cast<void>(choice_.read(columns_of(saved)));
}

void ZenFlow::restore(const Json& saved) {
  begin_load();
  extent_.reset();
  if (saved.is_null()) {
    choice_.clear();
    intervals_.restart(steps_);
    return;
  }
  intervals_ = intervals_.read(saved);
  choice_ = choice_.read(columns_of(saved));
  next_ready_ = bool_field(saved, "next_ready", false, kSavedZenFlow);
}

bool ZenFlow::may_lack(const std::string& state, const Json& saved) const {
  if (state == kNextState)
    return saved.is_null() || !bool_field(saved, "next_ready", false, kSavedZenFlow);
  return state == kWaitingState && (saved.is_null() || intervals_.read(saved).waiting() == 0);
}

// As all ranks have it.
double ZenFlow::chosen_share() const {
  double chosen = 0, all = 0;
  for (size_t tensor = 0; tensor < places().size(); ++tensor) {
    const auto elements = static_cast<double>(place(tensor).shape.elements());
    const auto columns = static_cast<double>(choice_.columns(tensor));
    const auto part = static_cast<double>(choice_.chosen(tensor).size());
    chosen += columns > 0 ? elements * part / columns : elements;
    all += elements;
  }
  return all > 0 ? chosen / all : 1;
}

std::unique_ptr<Optimizer> make_zenflow(const OptimizerConfig& config,
                                        const ZeroConfig::ZenFlow& options,
                                        std::vector<TensorPlace> places,
                                        const std::shared_ptr<Device>& device,
                                        ShardGroups shard_groups,
                                        std::shared_ptr<OffloadStore> offload,
                                        std::shared_ptr<ArrayFactory> arrays) {
  Setup setup{config,
              std::move(places),
              device,
              std::move(shard_groups),
              std::move(offload),
              std::move(arrays),
              0};
  return std::make_unique<ZenFlow>(std::move(setup), options);
}

}  // namespace ds::optim
