// LAMB (You et al., arXiv:1904.00962) in DeepSpeed's fused form: two passes, the first one for the
// moments and the norms of every tensor, the second one for the update with its trust ratio.
#include <algorithm>
#include <cmath>

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
    for (const TensorPlace& one : places()) all.push_back(lamb_constants(at_step(step, one)));
    for (const StateRun& run : space(0).runs()) {
      ops::UpdateTensors part = space(0).slices(run, tensors);
      std::vector<double> norms(2 * run.pieces.size());
      ops::optimizer_update(ctx, kernels::UpdateRule::kLambMoments,
                            {all, run.pieces, run.first, norms}, part);
      set_ratios(run, norms);
      for (const kernels::UpdatePiece& piece : run.pieces) {
        const auto tensor = static_cast<size_t>(piece.hyper);
        all[tensor].step_size =
            static_cast<float>(lamb_rate(at_step(step, place(tensor))) * ratios_[tensor]);
      }
      ops::optimizer_update(ctx, kernels::UpdateRule::kLambApply, {all, run.pieces, run.first},
                            part);
    }
    ++steps_;
  }

 private:
  GroupStep at_step(const UpdateStep& step, const TensorPlace& one) const {
    const auto index = static_cast<size_t>(one.group);
    return group_step(step, index, step.rates[index], one.decays);
  }

  // Pieces of a tensor follow each other: their sums are added in that order.
  void set_ratios(const StateRun& run, const std::vector<double>& norms) {
    for (size_t i = 0; i < run.pieces.size();) {
      const int64_t tensor = run.pieces[i].hyper;
      double weights = 0, updates = 0;
      for (; i < run.pieces.size() && run.pieces[i].hyper == tensor; ++i) {
        weights += norms[2 * i];
        updates += norms[2 * i + 1];
      }
      const OptimizerConfig& config = group(place(static_cast<size_t>(tensor)).group);
      ratios_[static_cast<size_t>(tensor)] =
          weights > 0 && updates > 0
              ? std::clamp(std::sqrt(weights / updates), config.min_coeff, config.max_coeff)
              : 1.0;
    }
  }

  std::vector<double> ratios_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(Setup setup) {
  return std::make_unique<Lamb>(std::move(setup));
}

}  // namespace ds::optim
