// Muon: momentum orthogonalised by Newton-Schulz for matrices, Adam for the rest.
//
// A parameter is a matrix when it has two or more dimensions and its name holds neither "embed" nor
// "lm_head" in any case. Three dimensions are a stack of matrices, each orthogonalised by itself;
// four and more are seen as first x rest, and the factor sqrt(max(1, rows / columns)) is that of
// this view (DeepSpeed takes it from the last two dimensions of a 4-D weight).
#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>

#include "ops/elementwise.h"
#include "optim/flat_optimizer.h"
#include "optim/muon_rounds.h"
#include "optim/newton_schulz.h"

namespace ds::optim {
namespace {

int64_t total_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

class Muon : public FlatOptimizer {
 public:
  explicit Muon(Setup setup) : FlatOptimizer(std::move(setup)) {
    need_whole_ungrouped(is_muon_matrix, "Muon needs whole matrices");
    // Two rates per group: of its matrices and of the rest.
    rates_.clear();
    for (size_t i = 0; i < group_count(); ++i) {
      rates_.push_back(group(static_cast<int32_t>(i)).lr);
      rates_.push_back(group(static_cast<int32_t>(i)).adam_lr);
    }
    StateSpace::Options matrices;
    matrices.states = {{"momentum_buffer", true}};
    matrices.member = is_muon_matrix;
    matrices.run_per_tensor = true;
    matrices.key = [this](size_t tensor) { return hyper_key(tensor); };
    StateSpace::Options rest = matrices;
    rest.states = {{"exp_avg", true}, {"exp_avg_sq", false}};
    rest.member = [](const TensorPlace& one) { return !is_muon_matrix(one); };
    rest.run_per_tensor = false;
    add_space(make_space(std::move(matrices)));
    add_space(make_space(std::move(rest)));
    for (const auto& shard_group : shard_groups()) {
      rounds_.push_back(muon_rounds(places(), *shard_group));
    }
    for (const StateRun& run : space(0).runs()) {
      if (!grouped(run.tensors.front())) whole_.push_back(&run);
    }
  }

  void step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) override {
    begin_step(step, tensors);
    for (size_t i = 0; i < rounds_.size(); ++i) {
      for (const MuonRound& round : rounds_[i]) {
        update_round(ctx, step, *shard_groups()[i], round, tensors);
      }
    }
    for (size_t i = 0; i < whole_.size(); ++i) {
      const StateRun* const next = i + 1 < whole_.size() ? whole_[i + 1] : nullptr;
      update_run(ctx, space(0), *whole_[i], next, tensors, Writes::kBoth,
                 [&](const OpContext&, const StateRun& run, ops::UpdateTensors& part) {
                   const Tensor direction = ctx.workspace(DType::kFloat32, {run.end - run.begin});
                   find_direction(ctx, step, run, part, direction);
                   orthogonalise_stack(ctx, place(run.tensors.front()), direction);
                   apply(ctx, step, run, part, direction);
                 });
    }

    const std::vector<kernels::UpdateConstants> adam = constants(
        kernels::UpdateRule::kAdam, step, [&](size_t i) { return step.rates[2 * i + 1]; });
    update_runs(ctx, space(1), tensors, Writes::kBoth,
                [&](const OpContext& there, const StateRun& run, ops::UpdateTensors& part) {
                  ops::optimizer_update(there, kernels::UpdateRule::kAdam, run.work(adam), part);
                });
    end_step();
  }

 private:
  // One rule over a run that has one tensor alone, so that its pieces are alike whatever their key.
  void update(const OpContext& ctx, kernels::UpdateRule rule, const kernels::UpdateHyper& hyper,
              double decay, const StateRun& run, ops::UpdateTensors& arrays) const {
    kernels::UpdateConstants c = kernels::update_constants(rule, hyper);
    c.decoupled_decay = static_cast<float>(decay);
    const std::vector<kernels::UpdateConstants> all(classes().size(), c);
    ops::optimizer_update(ctx, rule, run.work(all), arrays);
  }

  // The momentum of what this rank owns of a matrix, and the direction before it is orthogonalised.
  void find_direction(const OpContext& ctx, const UpdateStep& step, const StateRun& run,
                      const ops::UpdateTensors& part, const Tensor& direction) const {
    ops::UpdateTensors first;
    first.master = direction;
    first.grad = part.grad;
    first.states[0] = part.states[0];
    kernels::UpdateHyper hyper;
    hyper.beta1 = step.beta1.value_or(group(place(run.tensors.front()).group).momentum);
    hyper.grad_scale = step.grad_scale;
    update(ctx, kernels::UpdateRule::kMuonMomentum, hyper, 0, run, first);
  }

  void orthogonalise_stack(const OpContext& ctx, const TensorPlace& one,
                           const Tensor& direction) const {
    const Shape stack = muon_stack(one.shape);
    const Tensor matrices = direction.view(stack);
    for (int64_t i = 0; i < stack[0]; ++i) {
      Tensor matrix = matrices.select(0, i);
      orthogonalise(ctx, matrix, group(one.group).ns_method);
    }
  }

  void apply(const OpContext& ctx, const UpdateStep& step, const StateRun& run,
             ops::UpdateTensors part, const Tensor& direction) const {
    const TensorPlace& one = place(run.tensors.front());
    const Shape stack = muon_stack(one.shape);
    const double lr = step.rates[2 * static_cast<size_t>(one.group)];
    const double shape_factor =
        std::sqrt(std::max(1.0, static_cast<double>(stack[1]) / static_cast<double>(stack[2])));
    kernels::UpdateHyper hyper;
    hyper.lr = lr * shape_factor;
    part.grad = direction;
    update(ctx, kernels::UpdateRule::kSgd, hyper, one.decays ? lr * decay_of(step, one.group) : 0.0,
           run, part);
  }

  // Matrices of a round: each rank gets whole those that it orthogonalises, and gives back to
  // every rank its part of the result.
  void update_round(const OpContext& ctx, const UpdateStep& step, ShardGroup& ranks,
                    const MuonRound& round, FlatTensors& tensors) const {
    const Tensor own = ctx.workspace(DType::kFloat32, {total_of(round.sent)});
    const Tensor gathered = ctx.workspace(DType::kFloat32, {total_of(round.received)});
    std::vector<const StateRun*> run_of(places().size());
    for (const StateRun& run : space(0).runs()) run_of[run.tensors.front()] = &run;
    const auto for_own = [&](const auto& body) {  // in the order in which parts are sent
      int64_t at = 0;
      for (const size_t tensor : round.tensors) {
        const StateRun* const run = run_of[tensor];
        if (run == nullptr) continue;
        const int64_t end = at + run->end - run->begin;
        body(*run, own.slice(0, at, end));
        at = end;
      }
    };
    for_own([&](const StateRun& run, const Tensor& direction) {
      update_run(ctx, space(0), run, nullptr, tensors, Writes::kStates,
                 [&](const OpContext&, const StateRun&, const ops::UpdateTensors& part) {
                   find_direction(ctx, step, run, part, direction);
                 });
    });
    ranks.exchange(gathered, round.received, own, round.sent);
    orthogonalise_own(ctx, ranks, round, gathered);
    ranks.exchange(own, round.sent, gathered, round.received);
    for_own([&](const StateRun& run, const Tensor& direction) {
      update_run(ctx, space(0), run, nullptr, tensors, Writes::kWeights,
                 [&](const OpContext&, const StateRun&, const ops::UpdateTensors& part) {
                   apply(ctx, step, run, part, direction);
                 });
    });
  }

  void orthogonalise_own(const OpContext& ctx, const ShardGroup& ranks, const MuonRound& round,
                         const Tensor& gathered) const {
    std::vector<int64_t> next(round.received.size());  // of each rank's next part
    std::exclusive_scan(round.received.begin(), round.received.end(), next.begin(), int64_t{0});
    for (size_t i = 0; i < round.tensors.size(); ++i) {
      if (round.owners[i] != ranks.rank()) continue;
      const size_t tensor = round.tensors[i];
      Tensor whole = ctx.workspace(DType::kFloat32, {place(tensor).shape.elements()});
      const auto for_parts = [&](const auto& copy) {
        for (int rank = 0; rank < ranks.size(); ++rank) {
          const OwnedRange part = ranks.part(tensor, rank);
          const int64_t from = next[static_cast<size_t>(rank)];
          Tensor inside = whole.slice(0, part.begin, part.end);
          Tensor outside = gathered.slice(0, from, from + part.end - part.begin);
          copy(inside, outside);
        }
      };
      for_parts([&](Tensor& inside, const Tensor& outside) { ops::cast(ctx, outside, inside); });
      orthogonalise_stack(ctx, place(tensor), whole);
      for_parts([&](const Tensor& inside, Tensor& outside) { ops::cast(ctx, inside, outside); });
      for (int rank = 0; rank < ranks.size(); ++rank) {
        const OwnedRange part = ranks.part(tensor, rank);
        next[static_cast<size_t>(rank)] += part.end - part.begin;
      }
    }
  }

  std::vector<std::vector<MuonRound>> rounds_;  // of matrices that are cut, by shard group
  std::vector<const StateRun*> whole_;          // of the others
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(Setup setup) {
  return std::make_unique<Muon>(std::move(setup));
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                          std::vector<TensorPlace> places,
                                          const std::shared_ptr<Device>& device,
                                          ShardGroups shard_groups,
                                          std::shared_ptr<OffloadStore> offload,
                                          std::shared_ptr<ArrayFactory> arrays,
                                          int64_t most_elements) {
  Setup setup{config,
              std::move(places),
              device,
              std::move(shard_groups),
              std::move(offload),
              std::move(arrays),
              most_elements};
  switch (config.type) {
    case OptimizerType::kLamb:
      return make_lamb(std::move(setup));
    case OptimizerType::kMuon:
      return make_muon(std::move(setup));
    default:
      return make_elementwise(std::move(setup));
  }
}

std::vector<TensorPlace> owned_places(std::vector<TensorPlace> whole, int64_t from, int64_t to) {
  for (TensorPlace& place : whole) {
    const int64_t begin = std::clamp(from, place.begin, place.end);
    const int64_t end = std::max(begin, std::min(to, place.end));
    place.first = begin - place.begin;
    place.begin = place.flat = begin;
    place.end = end;
  }
  return whole;
}

}  // namespace ds::optim
