// LAMB (You et al., arXiv:1904.00962) in DeepSpeed's fused form: two passes, the first one for the
// moments and the norms of every tensor, the second one for the update with its trust ratio.
//
// There may be very many tensors. What is per tensor is therefore small: constants are worked out
// once per group, and norms travel for those tensors alone that ranks share.
#include <algorithm>
#include <optional>

#include "optim/flat_optimizer.h"

namespace ds::optim {
namespace {

class Lamb : public FlatOptimizer {
 public:
  explicit Lamb(Setup setup) : FlatOptimizer(std::move(setup)), ratios_(places().size(), 1.0) {
    need_whole_ungrouped([](const TensorPlace&) { return true; },
                         "LAMB needs the norm of a whole tensor");
    StateSpace::Options options;
    options.states = {{"exp_avg", true}, {"exp_avg_sq", false}};
    add_space(make_space(std::move(options)));
    for (const auto& shard_group : shard_groups()) {
      for (const size_t tensor : shard_group->tensors()) {
        if (is_cut(*shard_group, tensor)) cut_.push_back(tensor);
      }
      cut_ends_.push_back(cut_.size());
    }
    DS_CHECK(std::is_sorted(cut_.begin(), cut_.end()), Code::kInternal,
             "tensors of shard groups are out of order");
    words_.resize(cut_.size() * kTensorWords);
  }

  std::span<const double> trust_ratios() const override { return ratios_; }

  void step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) override {
    begin_step(step, tensors);
    const std::vector<kernels::UpdateConstants> moments =
        constants(kernels::UpdateRule::kLambMoments, step, rate_of(step));
    std::fill(words_.begin(), words_.end(), 0);
    begun_ = {};
    update_runs(ctx, space(0), tensors, Writes::kStates,
                [&](const OpContext& there, const StateRun& run, ops::UpdateTensors& part) {
                  constants_.clear();
                  for (const size_t tensor : run.tensors) {
                    constants_.push_back(moments[static_cast<size_t>(hyper_key(tensor))]);
                  }
                  find_moments(there, run, part);
                });
    share_norms();
    const std::vector<kernels::LambConstants> apply = apply_constants(step);
    update_runs(ctx, space(0), tensors, Writes::kWeights,
                [&](const OpContext& there, const StateRun& run, ops::UpdateTensors& part) {
                  constants_.clear();
                  for (const size_t tensor : run.tensors) {
                    const auto& common = apply[static_cast<size_t>(hyper_key(tensor))];
                    constants_.push_back(common.with(ratios_[tensor]));
                  }
                  ops::optimizer_update(there, kernels::UpdateRule::kLambApply,
                                        run.work(constants_), part);
                });
    end_step();
  }

 private:
  static constexpr size_t kTensorWords = size_t{2} * ExactSum::kWords;

  static std::function<double(size_t)> rate_of(const UpdateStep& step) {
    return [&step](size_t group) { return step.rates[group]; };
  }

  void find_moments(const OpContext& ctx, const StateRun& run, ops::UpdateTensors& part) {
    norms_.assign(2 * run.pieces.size(), ExactSum());
    const std::span<ExactSum> norms(norms_);
    ops::optimizer_update(ctx, kernels::UpdateRule::kLambMoments, run.work(constants_, norms),
                          part);
    take_norms(run, norms);
  }

  // By class.
  std::vector<kernels::LambConstants> apply_constants(const UpdateStep& step) const {
    std::vector<kernels::LambConstants> out;
    for (const HyperClass& of : classes()) {
      out.emplace_back(hyper_of(step, of, step.rates[static_cast<size_t>(of.group)]));
    }
    return out;
  }

  // The norms of a run's pieces, two each: ratios of what this rank owns wholly, and words of the
  // rest.
  void take_norms(const StateRun& run, std::span<ExactSum> norms) {
    for (size_t i = 0; i < run.pieces.size();) {
      const int64_t number = run.pieces[i].hyper;
      ExactSum &weights = norms[2 * i], &updates = norms[2 * i + 1];
      for (++i; i < run.pieces.size() && run.pieces[i].hyper == number; ++i) {
        weights.add(norms[2 * i]);
        updates.add(norms[2 * i + 1]);
      }
      const size_t tensor = run.tensors[static_cast<size_t>(number)];
      if (begun_.tensor == tensor) {
        weights.add(begun_.weights);
        updates.add(begun_.updates);
        begun_ = {};
      }
      if (place(tensor).end > run.end) {
        begun_ = {tensor, weights, updates};
        continue;
      }
      if (wholly_owned(place(tensor))) {
        find_ratio(tensor, weights, updates);
        continue;
      }
      const auto found = std::lower_bound(cut_.begin(), cut_.end(), tensor) - cut_.begin();
      auto to = words_.begin() + found * std::ptrdiff_t{kTensorWords};
      to = std::copy(weights.words().begin(), weights.words().end(), to);
      std::copy(updates.words().begin(), updates.words().end(), to);
    }
  }

  // Sums are exact, so that ratios do not depend on how tensors are cut.
  void share_norms() {
    size_t begin = 0;
    for (size_t i = 0; i < cut_ends_.size(); ++i) {
      const size_t count = cut_ends_[i] - begin;
      const auto words = std::span(words_).subspan(begin * kTensorWords, count * kTensorWords);
      if (count > 0) shard_groups()[i]->sum(words);
      begin = cut_ends_[i];
    }
    auto from = words_.begin();
    const auto next = [&] {
      ExactSum sum;
      std::copy_n(from, ExactSum::kWords, sum.words().begin());
      from += ExactSum::kWords;
      return sum;
    };
    for (const size_t tensor : cut_) {
      const ExactSum weights = next(), updates = next();
      find_ratio(tensor, weights, updates);
    }
  }

  void find_ratio(size_t tensor, const ExactSum& weights, const ExactSum& updates) {
    const OptimizerConfig& config = group(place(tensor).group);
    ratios_[tensor] =
        kernels::lamb_ratio({.min_coeff = config.min_coeff, .max_coeff = config.max_coeff},
                            weights.value(), updates.value());
  }

  std::vector<double> ratios_;    // by tensor
  std::vector<size_t> cut_;       // tensors that several ranks share, in their order
  std::vector<size_t> cut_ends_;  // of those of each shard group among them
  std::vector<int64_t> words_;    // two sums of each of them
  std::vector<ExactSum> norms_;   // of a run
  // Of the last tensor of a run, when it goes on in the next one.
  struct Begun {
    std::optional<size_t> tensor;
    ExactSum weights, updates;
  } begun_;
  std::vector<kernels::UpdateConstants> constants_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(Setup setup) {
  return std::make_unique<Lamb>(std::move(setup));
}

}  // namespace ds::optim
