// The bytes behind a model's parameters: fp32 masters, the copy in the compute type, gradients,
// and memory that the caller lent. All of them lie whole on one device until share() spreads them
// over the ranks of a group; until somebody needs them, masters need not exist at all.
#pragma once

#include "base/exact_sum.h"
#include "nn/fp8.h"
#include "nn/gradient_sink.h"
#include "nn/parameter_reader.h"
#include "ops/context.h"
#include "optim/optimizer.h"
#include "zero/borrowed_memory.h"
#include "zero/flat_layout.h"
#include "zero/gradient_marks.h"
#include "zero/gradient_reducer.h"
#include "zero/host_store.h"
#include "zero/share_groups.h"
#include "zero/weight_gatherer.h"
#include "zero/weight_loader.h"

namespace ds::zero {

// How training state is spread over ranks. What each stage spreads is in DeepSpeed's words: 1 the
// masters and moments, 2 also the gradients, 3 also the weights. (Rajbhandari et al.,
// arXiv:1910.02054. Gradients are spread from stage 1 on, because each micro batch is reduced.)
struct ShareOptions {
  std::shared_ptr<Communicator> comm;
  int stage = 0;
  int64_t bucket_elements = 0;
  DType comm_dtype = DType::kFloat32;  // of gradients
  bool comm_dtype_for_all = true;      // also of those that are computed with in fp32
  std::vector<bool> sparse = {};       // by parameter: gradients travel as rows, at stages 0 and 1
  std::vector<bool> fp32 = {};  // by parameter: which those are, where others compute in less
  bool overlap = true;
  bool reduce_scatter = true;
  ReduceOp op = ReduceOp::kAverage;  // or kSum
  // The caller's gradients: whole, in any order, and reduced when a step is made of them or, with
  // `by_micro_batch`, at the end of each micro batch, as other gradients are.
  bool deferred_gradients = false;
  bool by_micro_batch = false;
  // The caller's gradients, which are reduced as soon as a bucket has all (stage 3).
  bool eager_gradients = false;
  // Stage 3: parameters of fewer elements stay whole, as long as all of them have fewer than
  // `model_persistence_threshold`.
  int64_t param_persistence_threshold = 0;
  int64_t model_persistence_threshold = 0;
  int64_t tile_elements = 0;  // of the weights of linear layers; 0: they are not tiled
  WeightGatherer::Limits gather = {};
  // Runs what may fail on one rank, and lets it fail on all.
  std::function<void(const std::function<void()>&)> together = [](const auto& body) { body(); };
  // Of stage 3, too: ZeRO++ and MiCS.
  GroupSizes groups = {};
  WeightRoute::Options weights = {};
  bool quantized_gradients = false;
  std::optional<QuantizedReduce::Feedback> feedback = {};  // of what their roundings lose
};

// How masters of weights below fp32 are held.
enum class Masters {
  kFp32,    // beside the weights
  kSplit,   // bf16: as what the weights lack of them
  kWeights  // they are the weights: updates round to their type
};

// Stage 3's small parameters that stay whole, by parameter: the first ones as long as there is
// room.
std::vector<bool> choose_resident(const nn::ParameterSet& parameters, const ShareOptions& options);
// The flat space of a rank of a shard group.
Sharing choose_sharing(const nn::ParameterSet& parameters, const ShareOptions& options, int rank,
                       int world);

class ParameterState : public nn::ParameterReader, public nn::GradientSink {
 public:
  // Masters are zero or, with a loader, do not exist before make_whole or share make them from it.
  ParameterState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device,
                 std::shared_ptr<const WeightLoader> loader = nullptr);
  ~ParameterState() override;

  // nn::ParameterReader
  Tensor acquire(nn::ParamId id) override;
  void release(nn::ParamId id) noexcept override;
  // acquire() of several: all are under way before one is waited for. None is held when it throws.
  std::vector<Tensor> acquire_all(std::span<const nn::ParamId> ids);
  const nn::Tiling* tiling(nn::ParamId id) const override;
  Tensor acquire_tile(nn::ParamId id, int64_t tile) override;
  void release_tile(nn::ParamId id, int64_t tile) noexcept override;
  DType compute_type() const override { return compute_type_; }
  bool stays_in_place() const override { return !shared() && !host_store_ && !fp8_; }
  nn::Fp8Linears* fp8() override { return fp8_.get(); }
  // Null ends it.
  void set_fp8(std::unique_ptr<nn::Fp8Linears> fp8) { fp8_ = std::move(fp8); }

  // nn::GradientSink
  Tensor gradient(nn::ParamId id) override;
  nn::GradientTarget gradient_target(nn::ParamId id) override;
  void gradient_complete(nn::ParamId id) override;
  nn::GradientTarget tile_gradient(nn::ParamId id, int64_t tile) override;
  void tile_gradient_complete(nn::ParamId id, int64_t tile) override;

  const FlatLayout& layout() const { return layout_; }
  const nn::ParameterSet& parameters() const override { return parameters_; }

  // Masters that do not exist yet, and making them whole; everything but share, read_master and
  // this needs them.
  const std::shared_ptr<const WeightLoader>& loader() const { return loader_; }
  void make_whole(const OpContext& ctx);

  // Collective: spreads the state over a group, which starts with the masters of its rank 0; where
  // all have one loader, each makes its own part. Needs no open guard. From now on calls marked
  // "every rank" are collective too.
  void share(const OpContext& ctx, const ShareOptions& options, DType type, Masters masters);
  // Ends that, without waiting for anybody. Weights that are whole stay, in the precision they were
  // computed with; of weights in pieces nothing usable is left.
  void unshare(const OpContext& ctx);
  bool shared() const { return comm_ != nullptr; }
  ReduceOp gradient_op() const { return op_; }
  // Throws kState after weights were in pieces when sharing ended: there are none.
  void check_not_lost() const;
  // Of the ranks that hold the same piece, this is the first.
  bool first_of_replicas() const { return !groups_.replicas || groups_.replicas->rank() == 0; }
  const std::shared_ptr<Communicator>& comm() const { return comm_; }
  // The ranks that tensors are cut among, for an optimizer of these parameters; null where they are
  // whole. Valid while shared.
  std::shared_ptr<optim::ShardGroup> shard_group(std::vector<nn::ParamId> tensors) const;

  // Keeps masters, gradients and the optimizer's state in the host's memory from now on, and on the
  // GPU the weights in the compute type alone. Everything else goes on as before; flat tensors and
  // their views lie on the host.
  void offload(const OpContext& ctx, const OffloadOptions& options, DType type, bool split);
  // Ends that. The masters come to the GPU when somebody computes with them, or asks for it.
  void end_offload(const OpContext& ctx);
  void reload_masters();
  // For an optimizer of these parameters: where its states belong, and its offload store; null
  // where they simply lie there.
  const std::shared_ptr<Device>& state_memory() const;
  std::shared_ptr<optim::OffloadStore> offload_store() const;
  // To compute with masters, gradients and optimizer state.
  OpContext state_context(const OpContext& ctx) const;
  // Before an update; weights_updated() ends it.
  void open_update();
  // Before masters are written otherwise than by the functions below.
  void hold_masters();

  // Around what uses weights: a forward with its backward, or a forward alone. finish_backward
  // reduces what is left (every rank).
  void begin_pass();
  void finish_backward();
  void end_pass();
  // Without an end: what it gathered goes.
  void drop_pass() noexcept;
  // Gradients of the caller: those of a micro batch that is over, and, when a step is made of them,
  // what is not reduced yet are averaged over the ranks (every rank).
  void finish_external_micro_batch(const OpContext& ctx);
  void reduce_external_gradients();
  // The same for a built-in model, whose own gradients are reduced otherwise: from the first call
  // of hold_external_gradients (every rank) there is room for whole ones of the caller.
  void hold_external_gradients();
  void reduce_held_gradients(const OpContext& ctx);
  // After hold_external_gradients: what backward adds from now on stays whole on this rank too,
  // until the next reduce_held_gradients. Nothing changes where one rank trains.
  void hold_backward() { backward_held_ = micro_ && reducer_; }
  // Adds one; the rest of the gradients keep.
  void add_external_gradient(const OpContext& ctx, nn::ParamId id, const Tensor& value);
  // Where the caller's gradients lie whole until they are reduced.
  Tensor& external_gradients() { return micro_ ? micro_ : flat_.gradients.data; }
  // Reduces those that were given so far (every rank); more may come.
  void reduce_open_gradients();
  // They are added to buckets, and leave in pieces as soon as a bucket is complete.
  bool gradients_leave_early() const { return reducer_ != nullptr; }
  // Gradients that shard groups have averaged each for itself: averages them over these (every
  // rank). Before anybody looks at gradients.
  void reduce_replicas();
  // Gradients are multiplied by this from now on.
  void set_loss_scale(double scale);
  // What their roundings lost does not count any more.
  void drop_rounding_errors();

  // fp32, bf16 or fp16; the lower types keep a rounded copy of fp32 masters, or what `masters`
  // says. `fp32`, by parameter, are computed with in fp32 all the same. Needs no open guard.
  void set_compute_type(const OpContext& ctx, DType type, Masters masters = Masters::kFp32,
                        const std::vector<bool>& fp32 = {});
  // Refreshes the copy in the compute type, and lent memory, after masters were written (every
  // rank, where shared).
  void masters_changed(const OpContext& ctx);
  // The same after an update that wrote masters and copy together.
  void weights_updated(const OpContext& ctx);

  // Memory of the caller that receives each new value of a parameter, in its own type.
  BorrowedMemory& borrowed() { return borrowed_; }
  const BorrowedMemory& borrowed() const { return borrowed_; }

  // Gradient buffers exist only while somebody trains. Types below fp32 sum a micro batch in fp32
  // and round when it is added, with the threads of `ctx`, which must live until free_gradients.
  void allocate_gradients();  // fp32
  void allocate_gradients(const OpContext& ctx, DType type);
  void free_gradients();
  // Empties the gradients. The memory is cleared later, and only where backward does not write: by
  // materialize_gradients, which must come before anybody looks at the flat gradients. Once
  // `clear_gradients_at_once` was called, because others hold views, clearing is done right here.
  void clear_gradients(const OpContext& ctx);
  void materialize_gradients(const OpContext& ctx);
  void clear_gradients_at_once(const OpContext& ctx);
  // All gradients: a flat tensor like the present one.
  void replace_gradients(Tensor gradients);
  DType accumulation_type() const { return accumulation_type_; }

  // Flat views. `masters` is empty while they are split; `model` is empty where the masters are the
  // model. Some are compact where shared: see optim::FlatTensor.
  Tensor& masters() { return flat_.masters.data; }
  const Tensor& gradients() const;
  optim::FlatTensors& flat() { return flat_; }
  const optim::FlatTensors& flat() const { return flat_; }

  // Which gradients are empty, and which were given.
  GradientMarks& marks() { return marks_; }
  const GradientMarks& marks() const { return marks_; }
  // Sets what a backward that was recorded and is replayed left.
  void restore_marks(const GradientMarks::Snapshot& left);
  // Throws kState where whole weights differ between ranks, or are not the masters (every rank).
  void check_weights(const OpContext& ctx) const;

  // Squares of all gradients (every rank).
  ExactSum gradient_squares(const OpContext& ctx) const;
  // The first element, as parameters were registered, of a gradient that is not finite; none with
  // kNoParam (every rank).
  struct BadGradient {
    nn::ParamId id = nn::kNoParam;
    int64_t element = -1;  // row-major in the parameter
    double value = 0;      // NaN or an infinity
  };
  BadGradient first_bad_gradient(const OpContext& ctx) const;

  // Whole tensors by parameter, as views, where they lie whole; `master` only while masters are
  // not split.
  Tensor master(nn::ParamId id) const { return view(flat_.masters.data, id); }
  Tensor gradient_view(nn::ParamId id) const;
  Tensor model_view(nn::ParamId id) const;
  // Where it lies whole: the master, or else the weight.
  Tensor current_value(nn::ParamId id) const {
    return whole_masters() ? master(id) : model_view(id);
  }
  // That is the master itself, and written as one.
  bool computes_with_master(nn::ParamId id) const {
    return flat_.masters && !host_store_ &&
           (!flat_.model || (in_fp32(bucket(id)) && !fp32_weights_));
  }
  Tensor view(const Tensor& flat, nn::ParamId id) const;
  bool whole_weights() const { return !weights().compact && !lost_; }
  bool whole_masters() const { return flat_.masters && !flat_.masters.compact; }
  // They lie as fp32 somewhere: what this rank owns is read and written there.
  bool masters_in_place() const {
    return flat_.masters && flat_.masters.data.dtype() == DType::kFloat32;
  }

  // The fp32 master, a view or, while masters are split or shared, a copy (every rank).
  Tensor read_master(const OpContext& ctx, nn::ParamId id) const;
  // Sets a master (fp32, packed) and everything that follows from it; every rank, with one value.
  void write_master(const OpContext& ctx, nn::ParamId id, const Tensor& value);
  // The fp32 master of what this rank owns, flat: a view or, while masters are split, a copy.
  Tensor read_owned_master(const OpContext& ctx, nn::ParamId id) const;
  // Sets elements [at, at + value's) of that, fp32; masters_changed must follow.
  void write_owned_master(const OpContext& ctx, nn::ParamId id, int64_t at, const Tensor& value);
  // Weights follow from what was written of the owned master (every rank).
  void owned_master_written(const OpContext& ctx, nn::ParamId id);
  // What this rank owns of a gradient, flat.
  Tensor owned_gradient(nn::ParamId id) const { return owned(flat_.gradients, id); }
  // The gradient as fp32 in the parameter's shape (every rank), and setting it, with one value.
  // Of the caller's, what is not reduced yet is this rank's.
  Tensor read_gradient(const OpContext& ctx, nn::ParamId id) const;
  void write_gradient(const OpContext& ctx, nn::ParamId id, const Tensor& value);
  // What this rank owns of a gradient, as fp32 and flat, and setting it.
  void read_owned_gradient(const OpContext& ctx, nn::ParamId id, Tensor& out) const;
  void write_owned_gradient(const OpContext& ctx, nn::ParamId id, const Tensor& values);
  // Whole from what each rank owns of it, flat fp32 (every rank).
  Tensor gather_parts(const OpContext& ctx, nn::ParamId id, const Tensor& own) const;
  // Replaces all masters: a flat fp32 tensor over the whole space.
  void replace_masters(const OpContext& ctx, Tensor masters);

 private:
  void zero_gradient(const OpContext& ctx, nn::ParamId id);
  Tensor open_gradient(nn::ParamId id, bool& add);
  const optim::FlatTensor& weights() const {
    return host_store_ ? host_store_->weights() : flat_.model ? flat_.model : flat_.masters;
  }
  const Bucket& bucket(nn::ParamId id) const { return layout_.buckets()[layout_.bucket_of(id)]; }
  // Whose weights are not in weights(), but in fp32_weights_ or the masters.
  bool in_fp32(const Bucket& bucket) const { return bucket.fp32 && flat_.model; }
  void allocate_fp32_weights(bool shared);
  void write_fp32_weights(const OpContext& ctx, const Bucket& bucket);
  void write_fp32_weights(const OpContext& ctx, bool frozen_too);
  Tensor weight_piece(const Bucket& bucket) const;   // this rank's
  Tensor whole_weights(const Bucket& bucket) const;  // where they are
  bool masters_on_host() const;  // masters are on the host, though nothing is offloaded any more
  size_t tile_bucket(nn::ParamId id, int64_t tile) const {
    return layout_.bucket_of(id) + static_cast<size_t>(tile);
  }
  Tensor whole_of_tiles(nn::ParamId id);
  int64_t agreed(int64_t number, ReduceOp op) const;
  Tensor owned(const optim::FlatTensor& flat, nn::ParamId id) const;
  Tensor owned(const optim::FlatTensor& flat, const Bucket& bucket) const;
  std::shared_ptr<Event> take_reduced(const OpContext& ctx, const Bucket& bucket,
                                      const Tensor& average);
  void spread_masters(const OpContext& ctx, const FlatLayout& layout, const ShareOptions& options,
                      DType type, Masters form);
  void fill_masters(const OpContext& ctx, const FlatLayout& layout, Communicator& comm,
                    const ShareOptions& options, optim::FlatTensor& masters) const;
  void receive_masters(const OpContext& ctx, const FlatLayout& layout, Communicator& comm,
                       const ShareOptions& options, optim::FlatTensor& masters) const;
  void gather_weights(bool frozen_too);
  void check_alike(const OpContext& ctx) const;
  ExactSum sum_over_ranks(ExactSum sum) const;
  void weights_changed(const OpContext& ctx);  // lent memory and codes follow
  // Where the gradients of a bucket that this rank keeps are added up.
  Tensor kept_gradients(const Bucket& bucket) const;

  const nn::ParameterSet& parameters_;
  FlatLayout layout_;
  std::shared_ptr<Device> device_;
  DType compute_type_ = DType::kFloat32;
  DType accumulation_type_ = DType::kFloat32;
  optim::FlatTensors flat_;
  // Of parameters that are computed with in fp32 where others are not, by bucket, where the masters
  // do not lie as weights must: split, or in pieces where weights are whole.
  Tensor fp32_weights_;
  std::vector<int64_t> fp32_begins_;    // by bucket
  std::vector<Tensor> open_gradients_;  // fp32 sums of this micro batch, by parameter
  OpContext gradient_ctx_;
  GradientMarks marks_;
  bool clear_at_once_ = false;
  BorrowedMemory borrowed_;
  int open_guards_ = 0;

  std::unique_ptr<nn::Fp8Linears> fp8_;

  std::shared_ptr<Communicator> comm_;  // null unless shared
  ShareGroups groups_;                  // of comm_
  bool replicas_agree_ = true;          // on gradients
  int stage_ = 0;
  bool deferred_gradients_ = false;
  bool by_micro_batch_ = false;
  Tensor micro_;  // the caller's gradients of the open micro batch, where the step's lie elsewhere
  bool backward_held_ = false;  // and those of backward, of this micro batch and earlier ones
  ReduceOp op_ = ReduceOp::kAverage;
  std::shared_ptr<HostStore> host_store_;  // null unless offloaded
  std::shared_ptr<Device> rest_;           // the host's memory; null before anything was offloaded
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<WeightGatherer> gatherer_;
  std::vector<bool> empty_buckets_;  // of gradients, where there is a reducer
  bool lost_ = false;
  std::shared_ptr<const WeightLoader> loader_;  // while the masters do not exist
};

}  // namespace ds::zero
