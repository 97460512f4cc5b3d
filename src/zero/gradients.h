// Gradients as backward and the caller give them: added up, over micro batches and, where ranks
// share the arrays, over ranks.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "nn/gradient_sink.h"
#include "zero/gradient_marks.h"
#include "zero/gradient_recording.h"
#include "zero/gradient_reducer.h"
#include "zero/gradient_sums.h"
#include "zero/held_gradients.h"
#include "zero/share_options.h"
#include "zero/state_arrays.h"

namespace ds::zero {

class Gradients : public nn::GradientSink {
 public:
  explicit Gradients(StateArrays& arrays);

  // nn::GradientSink
  Tensor gradient(nn::ParamId id) override;
  nn::GradientTarget gradient_target(nn::ParamId id) override;
  void gradient_complete(nn::ParamId id) override;
  nn::GradientTarget tile_gradient(nn::ParamId id, int64_t tile) override;
  void tile_gradient_complete(nn::ParamId id, int64_t tile) override;

  // Buffers exist only while somebody trains. Types below fp32 sum a micro batch in fp32 and round
  // when it is added, with the threads of `ctx`, which must live until free().
  void allocate(const OpContext& ctx = {}, DType type = DType::kFloat32);
  void free();
  DType accumulation_type() const { return sums_.type(); }
  // Empties the gradients. The memory is cleared later, and only where backward does not write: by
  // materialize, which must come before anybody looks at the numbers.
  void clear(const OpContext& ctx);
  void materialize(const OpContext& ctx);
  // From now on others hold views of the memory: gradients are materialized, and clear() clears the
  // memory right there.
  void expose_views(const OpContext& ctx);
  // Throws kInternal where somebody reads gradients before they are materialized.
  void check_materialized() const;
  // Memory of the host whose contents do not count before somebody writes them: where gradients are
  // empty, and nobody holds a view.
  std::vector<std::span<std::byte>> unused_memory() const;
  // Over the flat space, and one where it lies whole; materialized, in memory.
  const Tensor& all() const;
  Tensor view(nn::ParamId id) const;

  // Which gradients are empty, and which were given.
  GradientMarks& marks() { return marks_; }
  const GradientMarks& marks() const { return marks_; }
  // Of backwards that are recorded: none while gradients of backward are held.
  GradientRecording* recording() { return backward_held_ ? nullptr : &recording_; }

  // As TrainState has arranged the arrays: they are reduced over the ranks that share them, or
  // received by the host; until stop_reducing.
  void reduce_over_ranks(const OpContext& ctx, const ShareOptions& options);
  void send_to_host(const OpContext& ctx);
  void stop_reducing();
  ReduceOp op() const { return op_; }
  // They are added to buckets, and leave in pieces as soon as a bucket is complete.
  bool leave_early() const { return reducer_ != nullptr; }
  // A micro batch's backward is over: what is left is reduced (every rank). The second function
  // reduces the caller's that were given so far; more may come.
  void finish_backward();
  void reduce_open();
  // Gradients that shard groups have averaged each for itself: averages them over these (every
  // rank). Before anybody looks at gradients.
  void reduce_replicas();
  // Until clear(): calls `complete` for every parameter whose gradient, or what this rank owns of
  // it, backward and reduction have finished, as soon as that is known. Of some it never is.
  using Complete = std::function<void(nn::ParamId)>;
  void tell_complete(Complete complete) { complete_ = std::move(complete); }
  // Before others than backward change gradients, or may do so.
  void before_change() { arrays_.before_reading(); }
  // Gradients are multiplied by this from now on.
  void set_loss_scale(double scale);
  // What their roundings lost does not count any more.
  void drop_rounding_errors();

  // The caller's gradients. Adds one, in micro batches of a model without built-in backward.
  void add(const OpContext& ctx, nn::ParamId id, const Tensor& value);
  // What is not reduced when a step is made is (every rank).
  void reduce_deferred();
  // For a model whose own gradients are reduced otherwise: from the first call of hold_whole (every
  // rank) there is room for whole ones of the caller, which reduce_held adds (every rank).
  void hold_whole();
  void reduce_held(const OpContext& ctx);
  HeldGradients& held() { return held_; }
  const HeldGradients& held() const { return held_; }
  // After hold_whole: what backward adds from now on stays whole on this rank too, until the next
  // reduce_held. Nothing changes where one rank trains.
  void hold_backward() { backward_held_ = held_ && reducer_; }
  // Where the caller's gradients lie whole until they are reduced; and to compute with these.
  Tensor given() const { return held_ ? held_.all() : arrays_.flat.gradients.memory(); }
  OpContext given_context(const OpContext& ctx) const {
    return held_ ? ctx : arrays_.state_context(ctx);
  }
  // Averages are made when a step is: before, there is no part of them.
  bool deferred() const { return arrays_.shared() && deferred_; }

  const StateArrays& arrays() const { return arrays_; }

 private:
  // Where whole gradients of backward are held.
  const HeldGradients* holder() const { return backward_held_ ? &held_ : nullptr; }
  bool tells_complete() const { return complete_ && !held_ && !views_exposed_; }
  void tell_complete(const Bucket& bucket) const;
  std::shared_ptr<Event> take_reduced(const OpContext& ctx, const Bucket& bucket,
                                      const Tensor& average);

  StateArrays& arrays_;
  OpContext ctx_;  // of allocate()
  GradientMarks marks_;
  GradientSums sums_;
  bool views_exposed_ = false;
  std::unique_ptr<GradientReducer> reducer_;
  GradientRecording recording_;
  Complete complete_;
  std::vector<bool> empty_buckets_;  // where there is a reducer
  bool replicas_agree_ = true;
  ReduceOp op_ = ReduceOp::kAverage;
  bool deferred_ = false, by_micro_batch_ = false;  // ShareOptions
  HeldGradients held_;
  bool backward_held_ = false;  // there, of this micro batch and earlier ones
};

}  // namespace ds::zero
