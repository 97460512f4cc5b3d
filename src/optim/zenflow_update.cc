// How a step of ZenFlow updates the elements of each run, now or beside the next steps.
#include <algorithm>
#include <utility>

#include "kernels/optimizer/columns.h"
#include "ops/split_master.h"
#include "optim/zenflow_step.h"

namespace ds::optim {
namespace {

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

}  // namespace

void ZenFlow::update_everything(const StepWork& work) {
  put_kept_back();
  update_runs(work.ctx, moments(), work.tensors, Writes::kBoth,
              [&](const OpContext&, const StateRun& run, ops::UpdateTensors& part) {
                ops::optimizer_update(work.ctx, kZenFlowRule, run.work(work.chosen), part);
              });
  moments().flush();
  intervals_.end_step(/*all=*/true);
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
  ops::optimizer_update(work.ctx, kZenFlowRule, of, own);
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
  ops::optimizer_update(work.ctx, kZenFlowRule, run.work(work.others), mapped.part);
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
  ops::optimizer_update(ctx, kZenFlowRule, run.work(constants), part);
  if (tensors.low_halves) {
    ops::join_masters(ctx, part.weight, part.low, weights);
  } else {
    ops::cast(ctx, part.master, weights);
  }
  kernels::clear_elements(places, weights.data<float>(), pool);
  mapped.close();
  next.close();
}

// ---- what is kept between steps goes back ----

// It is read from the arrays again when a step needs it.
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

}  // namespace ds::optim
