// Which columns ZenFlow updates in every step, and when the others' turn comes.
#include <cmath>

#include "kernels/optimizer/columns.h"
#include "optim/zenflow_step.h"

namespace ds::optim {

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
      grad = work.empty(DType::kFloat32, range.end - range.begin);
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

}  // namespace ds::optim
