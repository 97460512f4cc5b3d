// LAMB (You et al., arXiv:1904.00962) in DeepSpeed's fused form: two passes, the first one for the
// moments and the norms of every tensor, the second one for the update with its trust ratio.
#include "optim/flat_optimizer.h"

namespace ds::optim {
namespace {

class Lamb : public FlatOptimizer {
 public:
  explicit Lamb(Setup setup) : FlatOptimizer(std::move(setup)), ratios_(places().size(), 1.0) {
    for (const TensorPlace& one : places()) {
      if (touched(one)) need_whole(one, "LAMB needs the norm of a whole tensor");
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
    for (const StateRun& run : space(0).runs()) {
      ops::UpdateTensors part = space(0).slices(run, tensors);
      std::vector<double> norms(2 * run.pieces.size());
      ops::optimizer_update(ctx, kernels::UpdateRule::kLambMoments,
                            {all, run.pieces, run.first, norms}, part);
      for (const size_t tensor : set_ratios(step, run, norms)) {
        kernels::UpdateHyper with_ratio = hyper(step, place(tensor));
        with_ratio.lr *= ratios_[tensor];
        all[tensor] = kernels::update_constants(kernels::UpdateRule::kLambApply, with_ratio);
      }
      ops::optimizer_update(ctx, kernels::UpdateRule::kLambApply, {all, run.pieces, run.first},
                            part);
    }
    ++steps_;
  }

 private:
  kernels::UpdateHyper hyper(const UpdateStep& step, const TensorPlace& one) const {
    const auto index = static_cast<size_t>(one.group);
    return hyper_of(step, index, step.rates[index], one.decays);
  }

  // Pieces of a tensor follow each other: their sums are added in that order. Returns the tensors.
  std::vector<size_t> set_ratios(const UpdateStep& step, const StateRun& run,
                                 const std::vector<double>& norms) {
    std::vector<size_t> tensors;
    for (size_t i = 0; i < run.pieces.size();) {
      const auto tensor = static_cast<size_t>(run.pieces[i].hyper);
      double weights = 0, updates = 0;
      for (; i < run.pieces.size() && run.pieces[i].hyper == static_cast<int64_t>(tensor); ++i) {
        weights += norms[2 * i];
        updates += norms[2 * i + 1];
      }
      ratios_[tensor] = kernels::lamb_ratio(hyper(step, place(tensor)), weights, updates);
      tensors.push_back(tensor);
    }
    return tensors;
  }

  std::vector<double> ratios_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(Setup setup) {
  return std::make_unique<Lamb>(std::move(setup));
}

}  // namespace ds::optim
