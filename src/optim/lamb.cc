// LAMB (You et al., arXiv:1904.00962) in DeepSpeed's fused form: two passes, the first one for the
// moments and the norms of every tensor, the second one for the update with its trust ratio.
#include <algorithm>

#include "optim/flat_optimizer.h"

namespace ds::optim {
namespace {

class Lamb : public FlatOptimizer {
 public:
  explicit Lamb(Setup setup) : FlatOptimizer(std::move(setup)), ratios_(places().size(), 1.0) {
    for (const TensorPlace& one : places()) {
      if (!peers() && touched(one)) need_whole(one, "LAMB needs the norm of a whole tensor");
    }
    StateSpace::Options options;
    options.states = {{"exp_avg", true}, {"exp_avg_sq", false}};
    options.key = [](size_t tensor) { return static_cast<int64_t>(tensor); };
    options.joins = false;
    add_space(make_space(std::move(options)));
  }

  std::span<const double> trust_ratios() const override { return ratios_; }

  void step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) override {
    begin_step(step, tensors);
    std::vector<kernels::UpdateConstants> all;
    for (const TensorPlace& one : places()) {
      all.push_back(kernels::update_constants(kernels::UpdateRule::kLambMoments, hyper(step, one)));
    }
    std::vector<ExactSum> squares(2 * places().size());  // of weights and updates, by tensor
    for (const StateRun& run : space(0).runs()) {
      ops::UpdateTensors part = space(0).slices(run, tensors);
      std::vector<ExactSum> norms(2 * run.pieces.size());
      ops::optimizer_update(ctx, kernels::UpdateRule::kLambMoments, run.work(all, norms), part);
      for (size_t i = 0; i < norms.size(); ++i) {
        squares[2 * static_cast<size_t>(run.pieces[i / 2].hyper) + i % 2].add(norms[i]);
      }
    }
    sum_over_ranks(squares);
    for (size_t tensor = 0; tensor < places().size(); ++tensor) {
      kernels::UpdateHyper with_ratio = hyper(step, place(tensor));
      ratios_[tensor] = kernels::lamb_ratio(with_ratio, squares[2 * tensor].value(),
                                            squares[2 * tensor + 1].value());
      with_ratio.lr *= ratios_[tensor];
      all[tensor] = kernels::update_constants(kernels::UpdateRule::kLambApply, with_ratio);
    }
    for (const StateRun& run : space(0).runs()) {
      ops::UpdateTensors part = space(0).slices(run, tensors);
      ops::optimizer_update(ctx, kernels::UpdateRule::kLambApply, run.work(all), part);
    }
    ++steps_;
  }

 private:
  kernels::UpdateHyper hyper(const UpdateStep& step, const TensorPlace& one) const {
    const auto index = static_cast<size_t>(one.group);
    return hyper_of(step, index, step.rates[index], one.decays);
  }

  // Sums are exact, so that the ratios do not depend on how tensors are cut.
  void sum_over_ranks(std::vector<ExactSum>& sums) const {
    if (!peers()) return;
    std::vector<int64_t> words;
    words.reserve(sums.size() * ExactSum::kWords);
    for (const ExactSum& sum : sums) {
      words.insert(words.end(), sum.words().begin(), sum.words().end());
    }
    peers()->sum(words);
    auto from = words.begin();
    for (ExactSum& sum : sums) {
      std::copy_n(from, ExactSum::kWords, sum.words().begin());
      from += ExactSum::kWords;
    }
  }

  std::vector<double> ratios_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(Setup setup) {
  return std::make_unique<Lamb>(std::move(setup));
}

}  // namespace ds::optim
