// ZenFlow (Lan et al., arXiv:2505.12242) on Adam and AdamW: of each matrix the columns with the
// largest gradients are updated in every step. The gradients of the others add up, and some steps
// update these by their mean, or begin an update that runs beside the next steps and that the
// weights follow when the next one begins. All elements of tensors that are no matrices are updated
// in every step.
//
// An element has one pair of moments, whichever side its column is on. Those of chosen elements are
// kept packed in memory between steps, and with them their masters where those lie elsewhere: so
// most steps touch neither the state arrays nor masters in files. put_back() returns them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/beside_update.h"
#include "optim/column_choice.h"
#include "optim/flat_optimizer.h"
#include "optim/update_intervals.h"

namespace ds::optim {

class ZenFlow final : public FlatOptimizer {
 public:
  ZenFlow(Setup setup, const ZeroConfig::ZenFlow& options);

  void step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) override;

  void read_state_range(size_t tensor, const std::string& state, int64_t begin, int64_t end,
                        float* out) const override;
  void write_state_range(size_t tensor, const std::string& state, int64_t begin, int64_t end,
                         const float* values) override;
  Tensor state_view(size_t tensor, const std::string& state) const override;
  void flush() override;

  std::optional<UpdateExtent> extent() const override { return extent_; }
  void put_back() override { put_kept_back(); }
  bool update_waits() const override { return next_ready_; }
  void begin_load() override;
  Json save() const override;
  void check_saved(const Json& saved) const override;
  void restore(const Json& saved) override;
  bool may_lack(const std::string& state, const Json& saved) const override;

 private:
  // Where states begin and how many of them there are, in the order of add_space.
  enum Space : size_t { kMoments, kWaiting, kNext };
  // The chosen elements of a run, and the pieces of an update of them when they are packed.
  struct Chosen {
    std::vector<int32_t> places;
    std::vector<kernels::UpdatePiece> pieces;
    std::vector<int64_t> first;
  };
  // What is kept of them.
  struct KeptRun {  // NOLINT(bugprone-reserved-identifier,readability-identifier-naming): its copy
    Chosen chosen;
    Tensor masters;     // or low halves; where those do not lie in memory
    Tensor moments[2];  // none: the state arrays have them, and nothing is kept
  };
  struct Scratch;
  struct StepWork;

  const StateSpace& moments() const { return space(kMoments); }
  std::span<const StateRun> runs() const { return moments().runs(); }
  void update_everything(const StepWork& work);
  void update_some(StepWork& work, bool due);
  void update_run_now(StepWork& work, size_t run);
  void update_run_chosen(StepWork& work, size_t run, bool due);
  void start_beside(const StepWork& work);
  void update_run_beside(const OpContext& ctx, const FlatTensors& tensors,
                         std::span<const kernels::UpdateConstants> constants,
                         const StateRun& run) const;

  Chosen chosen_of(const StateRun& run) const;
  void load_kept(const StepWork& work);
  ops::UpdateTensors gather_chosen(const StepWork& work, const Chosen& chosen, const Tensor& grad,
                                   const ops::UpdateTensors& part, const KeptRun& kept) const;
  void update_chosen(const StepWork& work, const Chosen& chosen, ops::UpdateTensors& own) const;
  void put_chosen(const StepWork& work, const Chosen& chosen, const ops::UpdateTensors& own,
                  MappedRun& to) const;
  void take_next(const StepWork& work, const Tensor& next, const Chosen& chosen,
                 MappedRun& to) const;
  void publish_next(StepWork& work);
  void make_room(StepWork& work) const;

  std::vector<int64_t> column_sums(const StepWork& work) const;
  void sum_over_ranks(std::vector<int64_t>& words) const;
  void choose(StepWork& work);
  void rescale(const StepWork& work, const ColumnChoice::Change& change) const;
  std::vector<UpdateIntervals::Magnitudes> magnitudes(const StepWork& work) const;
  void put_kept_back() const;
  double chosen_share() const;

  ZeroConfig::ZenFlow options_;
  ColumnChoice choice_;
  UpdateIntervals intervals_;
  mutable std::vector<KeptRun> kept_;  // by run
  FlatTensors tensors_;                // of the last step
  bool next_ready_ = false;            // an update beside is made, or under way
  std::optional<UpdateExtent> extent_;
  mutable ThreadPool alone_{1};  // of what no step asks for
  mutable BesideUpdate beside_;  // last: it works on what is above
};

}  // namespace ds::optim
