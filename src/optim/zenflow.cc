#include "optim/zenflow.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/json_fields.h"
#include "kernels/optimizer/columns.h"
#include "ops/elementwise.h"
#include "ops/split_master.h"

namespace ds::optim {
namespace {

constexpr kernels::UpdateRule kRule = kernels::UpdateRule::kAdam;
constexpr const char* kWaitingState = "waiting_gradient";
constexpr const char* kNextState = "next_weight";
// Elements that are worked on at a time, which bounds the memory for packed ones.
constexpr int64_t kMostElements = int64_t{1} << 20;

Tensor gathered(const Tensor& from, const std::vector<int32_t>& places, const Tensor& room,
                ThreadPool& pool) {
  const Tensor out = room.slice(0, 0, std::ssize(places));
  kernels::gather_elements(from.raw(), dtype_size(from.dtype()), places, out.raw(), pool);
  return out;
}

void scatter(const Tensor& from, const std::vector<int32_t>& places, const Tensor& to,
             ThreadPool& pool) {
  if (!from || !to) return;
  kernels::scatter_elements(from.raw(), dtype_size(to.dtype()), places, to.raw(), pool);
}

void copy_others(const Tensor& from, const std::vector<int32_t>& places, const Tensor& to,
                 ThreadPool& pool) {
  kernels::copy_others(from.raw(), dtype_size(to.dtype()), to.elements(), places, to.raw(), pool);
}

Tensor empty(const OpContext& ctx, DType type, int64_t elements) {
  return Tensor::empty(ctx.device, type, {elements}, MemoryTag::kWorkspace);
}

// What masters rest in: they themselves, or their low halves.
const FlatTensor& resting(const FlatTensors& tensors) {
  return tensors.low_halves ? tensors.low_halves : tensors.masters;
}

// Whether masters of chosen elements are kept: they do not lie in memory, and are not what the
// model computes with.
bool keeps_masters(const FlatTensors& tensors) {
  return tensors.model && !resting(tensors).in_memory();
}

// Without masters that are kept.
FlatTensors without_kept(const FlatTensors& tensors) {
  FlatTensors out = tensors;
  if (keeps_masters(tensors)) out.masters = out.low_halves = {};
  return out;
}

// Null before the first choice.
Json columns_of(const Json& saved) {
  const Json* const columns = find_field(saved, "columns", kSavedZenFlow);
  return columns == nullptr ? Json() : *columns;
}

}  // namespace

// Room for the elements of one run, made before a step writes anything.
struct ZenFlow::Scratch {
  Tensor grad, mean;            // fp32
  Tensor masters, weight, low;  // `weight` in the type of the model's copy
  Tensor chosen_grad, chosen_master, chosen_weight, chosen_low;
};

struct ZenFlow::StepWork {
  const OpContext& ctx;
  const UpdateStep& step;
  FlatTensors& tensors;
  std::vector<kernels::UpdateConstants> chosen;  // of an update of chosen elements
  std::vector<kernels::UpdateConstants> others;  // and of others, by the mean of their gradients
  Scratch scratch;

  bool split() const { return static_cast<bool>(tensors.low_halves); }
  // fp32 numbers of a run's gradients.
  Tensor fp32(const Tensor& grad) const {
    if (grad.dtype() == DType::kFloat32) return grad;
    Tensor out = scratch.grad.slice(0, 0, grad.elements());
    ops::cast(ctx, grad, out);
    return out;
  }
};

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
  work.chosen = constants(kRule, step, of_rates);
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
    work.others = constants(kRule, of_mean, of_rates);
    update_some(work, due);
    intervals_.end_step(due);
    extent_->everything = due;
    extent_->chosen = chosen_share();
  }
  extent_->waiting = intervals_.waiting();
  ++steps_;
}

void ZenFlow::update_everything(const StepWork& work) {
  put_kept_back();
  update_runs(work.ctx, moments(), work.tensors, Writes::kBoth,
              [&](const OpContext&, const StateRun& run, ops::UpdateTensors& part) {
                ops::optimizer_update(work.ctx, kRule, run.work(work.chosen), part);
              });
  moments().flush();
  intervals_.end_step(/*all=*/true);
}

void ZenFlow::make_room(StepWork& work) const {
  int64_t most = 0;
  for (const StateRun& run : runs()) most = std::max(most, run.end - run.begin);
  const FlatTensors& tensors = work.tensors;
  const DType master = tensors.masters ? tensors.masters.dtype() : DType::kFloat32;
  const DType model = tensors.model ? tensors.model.dtype() : DType::kBFloat16;
  const auto room = [&](DType type) { return empty(work.ctx, type, most); };
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

void ZenFlow::update_some(StepWork& work, bool due) {
  const FlatTensors& tensors = work.tensors;
  load_kept(work);
  const bool beside = due && options_.overlap_step;
  for (size_t i = 0; i < runs().size(); ++i) {
    if (due && !beside) {
      update_run_now(work, i);
    } else {
      update_run_chosen(work, i, due);
    }
  }
  space(kWaiting).flush();
  if (due && !beside) moments().flush();
  if (!beside) return;
  resting(tensors).flush();
  space(kNext).flush();
  start_beside(work);
}

ZenFlow::Chosen ZenFlow::chosen_of(const StateRun& run) const {
  Chosen out;
  ColumnChoice::Elements elements = choice_.elements(run);
  out.places = std::move(elements.places);
  std::vector<kernels::UpdatePiece> segments;
  int64_t at = 0;
  for (size_t i = 0; i < run.tensors.size(); ++i) {
    const int64_t end = at + elements.counts[i], key = hyper_key(run.tensors[i]);
    if (end == at) continue;
    if (!segments.empty() && segments.back().hyper == key) {
      segments.back().end = end;
    } else {
      segments.push_back({at, end, key});
    }
    at = end;
  }
  cut_pieces(at, segments, out.pieces, out.first);
  return out;
}

// Nothing runs beside where anything is missing: put_back() has waited for it.
void ZenFlow::load_kept(const StepWork& work) {
  ThreadPool& pool = *work.ctx.pool;
  for (size_t i = 0; i < runs().size(); ++i) {
    KeptRun& kept = kept_[i];
    if (kept.moments[0]) continue;
    const StateRun& run = runs()[i];
    KeptRun loaded;
    loaded.chosen = chosen_of(run);
    const std::vector<int32_t>& places = loaded.chosen.places;
    const auto keep = [&](const Tensor& from) {
      const Tensor room =
          Tensor::empty(work.ctx.device, from.dtype(), {std::ssize(places)}, MemoryTag::kOptimizer);
      return gathered(from, places, room, pool);
    };
    if (keeps_masters(work.tensors)) {
      const RunRange range = range_of(resting(work.tensors), run);
      loaded.masters =
          keep(resting(work.tensors).map(range.begin, range.end, Access::kRead).data());
    }
    const MappedRun mapped = moments().map_states(run, Access::kRead);
    for (size_t k = 0; k < 2; ++k) loaded.moments[k] = keep(mapped.part.states[k].data);
    kept = std::move(loaded);
  }
}

ops::UpdateTensors ZenFlow::gather_chosen(const StepWork& work, const Chosen& chosen,
                                          const Tensor& grad, const ops::UpdateTensors& part,
                                          const KeptRun& kept) const {
  ThreadPool& pool = *work.ctx.pool;
  const Scratch& room = work.scratch;
  const std::vector<int32_t>& places = chosen.places;
  ops::UpdateTensors own;
  own.grad = gathered(grad, places, room.chosen_grad, pool);
  if (work.split()) {
    const Tensor& weight = part.weight ? part.weight : part.model;
    own.weight = gathered(weight, places, room.chosen_weight, pool);
    own.low = kept.masters ? kept.masters : gathered(part.low, places, room.chosen_low, pool);
  } else {
    own.master =
        kept.masters ? kept.masters : gathered(part.master, places, room.chosen_master, pool);
    // fp32 copies are made of the masters.
    if (work.tensors.model && work.tensors.model.dtype() != DType::kFloat32) {
      own.model = room.chosen_weight.slice(0, 0, std::ssize(places));
    }
  }
  for (size_t k = 0; k < 2; ++k) own.states[k].data = kept.moments[k];
  return own;
}

void ZenFlow::update_chosen(const StepWork& work, const Chosen& chosen,
                            ops::UpdateTensors& own) const {
  if (chosen.places.empty()) return;
  const ops::UpdateWork of{work.chosen, chosen.pieces, chosen.first, {}, nullptr, {}};
  ops::optimizer_update(work.ctx, kRule, of, own);
}

// What was updated goes to all arrays of it that are mapped.
void ZenFlow::put_chosen(const StepWork& work, const Chosen& chosen, const ops::UpdateTensors& own,
                         MappedRun& to) const {
  ThreadPool& pool = *work.ctx.pool;
  ops::UpdateTensors& part = to.part;
  scatter(own.master, chosen.places, part.master, pool);
  scatter(own.master, chosen.places, to.copy, pool);
  scatter(own.model, chosen.places, part.model, pool);
  scatter(own.weight, chosen.places, part.weight ? part.weight : part.model, pool);
  scatter(own.low, chosen.places, part.low, pool);
  for (size_t k = 0; k < 2; ++k) {
    scatter(own.states[k].data, chosen.places, part.states[k].data, pool);
  }
}

// The chosen elements and the others, in one pass.
void ZenFlow::update_run_now(StepWork& work, size_t index) {
  const StateRun& run = runs()[index];
  const FlatTensors& tensors = work.tensors;
  MappedRun mapped = moments().map(run, tensors, Writes::kBoth);
  const bool sum = intervals_.waiting() > 0;
  MappedRun summed;
  if (sum) summed = space(kWaiting).map_states(run, Access::kRead);
  if (index + 1 < runs().size()) {
    moments().prefetch(runs()[index + 1], tensors);
    if (sum) space(kWaiting).prefetch(runs()[index + 1], {});
  }
  const SubGroup group{run.begin, run.end, run.flat};
  if (offload() != nullptr) offload()->fetch(group, mapped.part, /*weights=*/true);
  const Chosen& chosen = kept_[index].chosen;
  const Tensor grad = work.fp32(mapped.part.grad);
  ops::UpdateTensors own = gather_chosen(work, chosen, grad, mapped.part, kept_[index]);
  if (sum) {
    mapped.part.grad = work.scratch.mean.slice(0, 0, grad.elements());
    kernels::mean_of(grad.elements(), grad.data<float>(), work.step.grad_scale,
                     summed.part.states[0].data.data<float>(), intervals_.waiting() + 1,
                     mapped.part.grad.data<float>(), *work.ctx.pool);
  }
  ops::optimizer_update(work.ctx, kRule, run.work(work.others), mapped.part);
  if (mapped.copy) ops::cast(work.ctx, mapped.part.master, mapped.copy);
  update_chosen(work, chosen, own);
  put_chosen(work, chosen, own, mapped);
  // The offload store's copy for the device is not one of the arrays.
  if (mapped.part.model && !tensors.model) {
    ops::cast(work.ctx, mapped.part.master, mapped.part.model);
  }
  if (offload() != nullptr) offload()->flush(group, mapped.part, /*weights=*/true);
  mapped.close();
}

// The chosen elements; the gradients of the others wait or, where they are due, go to an update
// beside, whose predecessor's weights are taken.
void ZenFlow::update_run_chosen(StepWork& work, size_t index, bool due) {
  const StateRun& run = runs()[index];
  const FlatTensors& tensors = work.tensors;
  const RunRange range = range_of(tensors.gradients, run);
  const ArrayLease gradients = tensors.gradients.map(range.begin, range.end, Access::kRead);
  const bool sum = intervals_.waiting() > 0;
  MappedRun waiting;
  if (!due || sum) {
    waiting = space(kWaiting).map_states(run, due   ? Access::kRead
                                              : sum ? Access::kReadWrite
                                                    : Access::kWrite);
  }
  MappedRun next;
  if (due) next = space(kNext).map_states(run, next_ready_ ? Access::kReadWrite : Access::kWrite);
  const bool takes = due && next_ready_;
  MappedRun mapped =
      moments().map_weights(run, takes ? tensors : without_kept(tensors), Access::kReadWrite);
  if (index + 1 < runs().size()) {
    const StateRun& following = runs()[index + 1];
    const RunRange ahead = range_of(tensors.gradients, following);
    tensors.gradients.prefetch(ahead.begin, ahead.end);
    if (sum) space(kWaiting).prefetch(following, {});
    if (takes) space(kNext).prefetch(following, {});
  }
  const SubGroup group{run.begin, run.end, run.flat};
  if (offload() != nullptr) offload()->fetch(group, mapped.part, /*weights=*/true);

  ThreadPool& pool = *work.ctx.pool;
  const Chosen& chosen = kept_[index].chosen;
  const Tensor grad = work.fp32(gradients.data());
  ops::UpdateTensors own = gather_chosen(work, chosen, grad, mapped.part, kept_[index]);
  update_chosen(work, chosen, own);
  if (takes) take_next(work, next.part.states[0].data, chosen, mapped);
  put_chosen(work, chosen, own, mapped);
  if (mapped.part.model && !tensors.model) {
    ops::cast(work.ctx, mapped.part.master, mapped.part.model);
  }
  if (offload() != nullptr) offload()->flush(group, mapped.part, /*weights=*/true);
  mapped.close();

  if (due) {
    kernels::mean_of(grad.elements(), grad.data<float>(), work.step.grad_scale,
                     sum ? waiting.part.states[0].data.data<float>() : nullptr,
                     intervals_.waiting() + 1, next.part.states[0].data.data<float>(), pool);
    next.close();
    return;
  }
  float* const sums = waiting.part.states[0].data.data<float>();
  kernels::add_scaled(grad.elements(), grad.data<float>(), work.step.grad_scale, sum, sums, pool);
  kernels::clear_elements(chosen.places, sums, pool);
  waiting.close();
}

// The weights of an update that was made beside, of all but chosen elements.
void ZenFlow::take_next(const StepWork& work, const Tensor& next, const Chosen& chosen,
                        MappedRun& to) const {
  const OpContext& ctx = work.ctx;
  ThreadPool& pool = *ctx.pool;
  const int64_t n = next.elements();
  const ops::UpdateTensors& part = to.part;
  if (work.split()) {
    Tensor weight = work.scratch.weight.slice(0, 0, n);
    Tensor low = work.scratch.low.slice(0, 0, n);
    ops::split_masters(ctx, next, weight, low);
    copy_others(weight, chosen.places, part.weight, pool);
    copy_others(low, chosen.places, part.low, pool);
    return;
  }
  Tensor master = next;
  if (part.master.dtype() != DType::kFloat32) {
    master = work.scratch.masters.slice(0, 0, n);
    ops::cast(ctx, next, master);
  }
  copy_others(master, chosen.places, part.master, pool);
  if (to.copy) copy_others(next, chosen.places, to.copy, pool);
  if (!part.model || !work.tensors.model) return;
  Tensor model = work.scratch.weight.slice(0, 0, n);
  ops::cast(ctx, next, model);
  copy_others(model, chosen.places, part.model, pool);
}

// ---- beside the next steps ----

void ZenFlow::start_beside(const StepWork& work) {
  FlatTensors tensors = work.tensors;
  tensors.gradients = {};
  next_ready_ = true;
  beside_.start(
      [this, tensors, constants = work.others, device = work.ctx.device](ThreadPool& pool) {
        const OpContext ctx{device, &pool};
        FlatTensors ahead = tensors;
        ahead.model = {};
        for (size_t i = 0; i < runs().size(); ++i) {
          if (i + 1 < runs().size()) {
            moments().prefetch(runs()[i + 1], ahead);
            space(kNext).prefetch(runs()[i + 1], {});
          }
          update_run_beside(ctx, tensors, constants, runs()[i]);
        }
        moments().flush();
        space(kNext).flush();
      });
}

// Reads no chosen element of masters and weights, which steps write meanwhile.
void ZenFlow::update_run_beside(const OpContext& ctx, const FlatTensors& tensors,
                                std::span<const kernels::UpdateConstants> constants,
                                const StateRun& run) const {
  ThreadPool& pool = *ctx.pool;
  const std::vector<int32_t> places = choice_.elements(run).places;
  const int64_t n = run.end - run.begin;
  MappedRun mapped = moments().map_states(run, Access::kReadWrite);
  MappedRun next = space(kNext).map_states(run, Access::kReadWrite);
  const auto others = [&](const FlatTensor& from) {
    const Tensor out = Tensor::zeros(ctx.device, from.dtype(), {n}, MemoryTag::kWorkspace);
    const RunRange range = range_of(from, run);
    ArrayLease lease = from.map(range.begin, range.end, Access::kRead);
    copy_others(lease.data(), places, out, pool);
    return out;
  };
  ops::UpdateTensors& part = mapped.part;
  if (tensors.low_halves) {
    part.weight = others(tensors.model);
    part.low = others(tensors.low_halves);
  } else {
    part.master = others(tensors.masters);
  }
  Tensor& weights = next.part.states[0].data;
  part.grad = weights;
  ops::optimizer_update(ctx, kRule, run.work(constants), part);
  if (tensors.low_halves) {
    ops::join_masters(ctx, part.weight, part.low, weights);
  } else {
    ops::cast(ctx, part.master, weights);
  }
  kernels::clear_elements(places, weights.data<float>(), pool);
  mapped.close();
  next.close();
}

// ---- which columns ----

// In units that follow from the norm, which all ranks know.
std::vector<int64_t> ZenFlow::column_sums(const StepWork& work) const {
  std::vector<int64_t> sums(static_cast<size_t>(choice_.all_columns()));
  int exponent = 0;
  if (!std::isfinite(work.step.norm)) {
    exponent = 128;
  } else if (work.step.norm > 0) {
    static_cast<void>(std::frexp(work.step.norm, &exponent));
  }
  const double unit = std::ldexp(static_cast<double>(kernels::kMostUnits), -exponent);
  const FlatTensor& gradients = work.tensors.gradients;
  for (const StateRun& run : runs()) {
    const RunRange range = range_of(gradients, run);
    const ArrayLease lease = gradients.map(range.begin, range.end, Access::kRead);
    Tensor grad = lease.data();
    if (grad.dtype() != DType::kFloat32) {
      grad = empty(work.ctx, DType::kFloat32, range.end - range.begin);
      ops::cast(work.ctx, lease.data(), grad);
    }
    for (const size_t tensor : run.tensors) {
      if (choice_.columns(tensor) == 0) continue;
      const ColumnChoice::Part part = choice_.part(run, tensor);
      kernels::add_column_sums(part.end - part.begin, grad.data<float>() + part.begin, part.first,
                               choice_.columns(tensor), unit,
                               sums.data() + choice_.first_column(tensor), *work.ctx.pool);
    }
  }
  return sums;
}

// Which columns are chosen, and when, follows from all matrices of the model.
void ZenFlow::sum_over_ranks(std::vector<int64_t>& words) const {
  const ShardGroups& groups = shard_groups();
  DS_CHECK(groups.size() <= 1, Code::kInternal,
           "zenflow does not decide for tensors that different ranks have");
  if (!groups.empty()) groups.front()->sum(words);
}

void ZenFlow::choose(StepWork& work) {
  if (next_ready_) publish_next(work);
  put_kept_back();
  const bool before = choice_.made();
  std::vector<int64_t> sums = column_sums(work);
  sum_over_ranks(sums);
  const ColumnChoice::Change change = choice_.choose(sums);
  intervals_.choose();
  if (before) rescale(work, change);
  extent_->chosen_anew = true;
}

// Takes the weights of an update beside before its time: its columns are about to change sides.
void ZenFlow::publish_next(StepWork& work) {
  const FlatTensors& tensors = work.tensors;
  for (const StateRun& run : runs()) {
    MappedRun next = space(kNext).map_states(run, Access::kRead);
    MappedRun mapped = moments().map_weights(run, tensors, Access::kReadWrite);
    const SubGroup group{run.begin, run.end, run.flat};
    if (offload() != nullptr) offload()->fetch(group, mapped.part, /*weights=*/true);
    take_next(work, next.part.states[0].data, chosen_of(run), mapped);
    if (mapped.part.model && !tensors.model) {
      ops::cast(work.ctx, mapped.part.master, mapped.part.model);
    }
    if (offload() != nullptr) offload()->flush(group, mapped.part, /*weights=*/true);
    mapped.close();
  }
  next_ready_ = false;
}

// Moments are divided by 1 - beta^t, and t differs between the sides: what they stand for stays.
void ZenFlow::rescale(const StepWork& work, const ColumnChoice::Change& change) const {
  if (steps_ == intervals_.updates()) return;
  const auto factor = [&](size_t tensor, size_t moment, bool enters) {
    const HyperClass& of = classes()[static_cast<size_t>(hyper_key(tensor))];
    kernels::UpdateHyper hyper = hyper_of(work.step, of, 0);
    const double beta = moment == 0 ? hyper.beta1 : hyper.beta2;
    const auto correction = [&](int64_t updates) {
      hyper.step = updates;
      return updates == 0 ? 1.0 : kernels::bias_correction(hyper, beta);
    };
    const double ratio = correction(steps_) / correction(intervals_.updates());
    return static_cast<float>(enters ? ratio : 1 / ratio);
  };
  const auto scale = [&](const StateRun& run, const std::vector<std::vector<int32_t>>& columns,
                         bool enters, std::vector<float>* values) {
    for (const size_t tensor : run.tensors) {
      if (choice_.columns(tensor) == 0) continue;
      StateRun alone = run;
      alone.tensors = {tensor};
      for (size_t k = 0; k < 2; ++k) {
        const float by = factor(tensor, k, enters);
        for (const int32_t at : choice_.elements(alone, columns)) {
          values[k][static_cast<size_t>(at)] *= by;
        }
      }
    }
  };
  for (const StateRun& run : runs()) {
    if (choice_.elements(run, change.entered).empty() &&
        choice_.elements(run, change.left).empty()) {
      continue;
    }
    const int64_t n = run.end - run.begin;
    MappedRun mapped = moments().map_states(run, Access::kReadWrite);
    std::vector<float> values[2];
    for (size_t k = 0; k < 2; ++k) {
      values[k].resize(static_cast<size_t>(n));
      ops::read_state(mapped.part.states[k], 0, n, values[k].data());
    }
    scale(run, change.entered, true, values);
    scale(run, change.left, false, values);
    for (size_t k = 0; k < 2; ++k) {
      ops::write_state(mapped.part.states[k], 0, n, values[k].data());
    }
    mapped.close();
  }
}

std::vector<UpdateIntervals::Magnitudes> ZenFlow::magnitudes(const StepWork& work) const {
  std::vector<int64_t> words;  // of each matrix, of chosen columns and of all
  const std::vector<int64_t> sums = column_sums(work);
  const bool finite = std::isfinite(work.step.norm);
  for (size_t tensor = 0; tensor < places().size(); ++tensor) {
    if (!ColumnChoice::is_matrix(place(tensor))) continue;
    const auto own = std::span(sums).subspan(static_cast<size_t>(choice_.first_column(tensor)),
                                             static_cast<size_t>(choice_.columns(tensor)));
    int64_t chosen = 0, all = 0;
    for (const int32_t column : choice_.chosen(tensor)) {
      chosen += finite ? own[static_cast<size_t>(column)] : 0;
    }
    for (const int64_t sum : own) all += finite ? sum : 0;
    words.push_back(chosen);
    words.push_back(all);
  }
  sum_over_ranks(words);
  int exponent = 0;
  if (finite && work.step.norm > 0) static_cast<void>(std::frexp(work.step.norm, &exponent));
  const double size = std::ldexp(static_cast<double>(work.step.grad_scale), exponent) /
                      static_cast<double>(kernels::kMostUnits);
  std::vector<UpdateIntervals::Magnitudes> out;
  for (size_t tensor = 0; tensor < places().size(); ++tensor) {
    if (!ColumnChoice::is_matrix(place(tensor))) continue;
    const auto chosen = static_cast<int64_t>(choice_.chosen(tensor).size());
    const int64_t others = choice_.columns(tensor) - chosen;
    const auto mean = [&](int64_t sum, int64_t columns) {
      return columns == 0 ? -1.0 : static_cast<double>(sum) * size / static_cast<double>(columns);
    };
    const size_t at = 2 * out.size();
    out.push_back({mean(words[at], chosen), mean(words[at + 1] - words[at], others)});
  }
  return out;
}

// ---- as others see it ----

// What is kept goes to the arrays, and is read from there again when a step needs it.
void ZenFlow::put_kept_back() const {
  beside_.wait();
  for (size_t i = 0; i < runs().size(); ++i) {
    KeptRun& kept = kept_[i];
    if (!kept.moments[0]) continue;
    const StateRun& run = runs()[i];
    const std::vector<int32_t>& places = kept.chosen.places;
    if (kept.masters) {
      const FlatTensor& array = resting(tensors_);
      const RunRange range = range_of(array, run);
      ArrayLease lease = array.map(range.begin, range.end, Access::kReadWrite);
      scatter(kept.masters, places, lease.data(), alone_);
      lease.close();
    }
    MappedRun mapped = moments().map_states(run, Access::kReadWrite);
    for (size_t k = 0; k < 2; ++k) {
      scatter(kept.moments[k], places, mapped.part.states[k].data, alone_);
    }
    mapped.close();
    kept = {};
  }
}

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
