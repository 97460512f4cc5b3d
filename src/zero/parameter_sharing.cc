// The part of ParameterState that spreads it over ranks.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/log.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/split_master.h"
#include "tensor/transfer.h"
#include "zero/comm_shard_group.h"
#include "zero/parameter_state.h"

namespace ds::zero {

std::vector<bool> choose_resident(const nn::ParameterSet& parameters, const ShareOptions& options) {
  std::vector<bool> resident(static_cast<size_t>(parameters.size()));
  int64_t total = 0;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const int64_t n = parameters[id].shape.elements();
    if (n > options.param_persistence_threshold || n > options.model_persistence_threshold - total)
      continue;
    resident[static_cast<size_t>(id)] = true;
    total += n;
  }
  return resident;
}

namespace {

// What is wrong with a gradient, as ranks tell each other.
enum class BadKind : int64_t { kNone, kNan, kInfinity, kMinusInfinity };

BadKind bad_kind(const OpContext& ctx, const Tensor& element) {
  Tensor number = ctx.workspace(DType::kFloat32, {1});
  ops::cast(ctx, element, number);
  const Tensor there = to_host(number, host_memory_of(ctx.device));
  const float value = *there.data<float>();
  if (std::isnan(value)) return BadKind::kNan;
  return value > 0 ? BadKind::kInfinity : BadKind::kMinusInfinity;
}

double value_of(BadKind kind) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (kind) {
    case BadKind::kNan:
      return std::numeric_limits<double>::quiet_NaN();
    case BadKind::kInfinity:
      return kInfinity;
    case BadKind::kMinusInfinity:
      return -kInfinity;
    case BadKind::kNone:
      break;
  }
  return 0;
}

// What travels as it is where much else is quantised: gradients of vectors, of which there are few
// and some of which are delicate, and frozen weights that are not worth it.
std::vector<bool> choose_exact(const nn::ParameterSet& parameters, const ShareOptions& options,
                               int world) {
  constexpr int64_t kMostFrozen = 500'000, kMostFrozenPiece = 2048;
  std::vector<bool> exact(static_cast<size_t>(parameters.size()));
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    const int64_t n = p.shape.elements();
    exact[static_cast<size_t>(id)] =
        p.trainable ? options.quantized_gradients && p.shape.dims() < 2
                    : options.weights.quantized_frozen &&
                          (n <= kMostFrozen || (n + world - 1) / world <= kMostFrozenPiece);
  }
  return exact;
}

}  // namespace

Sharing choose_sharing(const nn::ParameterSet& parameters, const ShareOptions& options, int rank,
                       int world) {
  Sharing sharing;
  // At stage 0 everybody owns everything.
  sharing.rank = options.stage == 0 ? 0 : rank;
  sharing.world = options.stage == 0 ? 1 : world;
  sharing.bucket_elements = options.bucket_elements;
  sharing.fp32 = options.fp32;
  if (options.stage < 2) sharing.sparse = options.sparse;
  if (options.stage < 3) return sharing;
  sharing.resident = choose_resident(parameters, options);
  sharing.exact = choose_exact(parameters, options, world);
  // Gradients that the caller gives are whole.
  if (options.tile_elements == 0 || options.deferred_gradients || options.eager_gradients) {
    return sharing;
  }
  sharing.tile_elements = options.tile_elements;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    sharing.tiled.push_back(parameters[id].may_be_tiled);
  }
  return sharing;
}

Tensor ParameterState::owned(const optim::FlatTensor& flat, nn::ParamId id) const {
  const OwnedPart part = layout_.part(id);
  const int64_t begin = part.count == 0 ? 0 : flat.compact ? part.owned : part.flat;
  return flat.data.slice(0, begin, begin + part.count);
}

Tensor ParameterState::owned(const optim::FlatTensor& flat, const Bucket& bucket) const {
  const int64_t begin = flat.compact ? bucket.owned : layout_.piece(bucket, layout_.rank()).begin;
  return flat.data.slice(0, begin, begin + bucket.piece);
}

void ParameterState::share(const OpContext& ctx, const ShareOptions& options, DType type,
                           Masters masters) {
  DS_CHECK(open_guards_ == 0 && !comm_ && !lost_, Code::kInternal,
           "parameters are in use, or shared already");
  DS_CHECK(!host_store_, Code::kInternal, "parameters are offloaded");
  reload_masters();
  if (compute_type_ != DType::kFloat32) set_compute_type(ctx, DType::kFloat32);
  const bool by_node = options.quantized_gradients || options.weights.hierarchical;
  groups_ = make_share_groups(device_, options.comm, options.groups, by_node);
  DS_CHECK(groups_.nodes || !options.weights.hierarchical, Code::kConfig,
           "configuration: /zero_optimization/mics_hierarchical_params_gather: a group of ",
           groups_.shard->size(),
           " ranks does not lie on several nodes with as many of them on each; use false, or "
           "another mics_shard_size");
  if (options.quantized_gradients && !groups_.nodes && options.comm->rank() == 0) {
    log_warning("zero",
                "zero_quantized_gradients: the ranks do not lie on several nodes with as many of "
                "them on each; gradients travel in the communication type");
  }
  const FlatLayout layout(parameters_, choose_sharing(parameters_, options, groups_.shard->rank(),
                                                      groups_.shard->size()));
  spread_masters(ctx, layout, options, type, masters);
  comm_ = options.comm;
  stage_ = options.stage;
  allocate_fp32_weights(true);
  deferred_gradients_ = options.deferred_gradients;
  by_micro_batch_ = options.by_micro_batch;
  op_ = options.op;
  compute_type_ = type;
  if (stage_ == 3) {
    std::vector<Tensor> pieces;
    for (const Bucket& bucket : layout_.buckets()) pieces.push_back(weight_piece(bucket));
    gatherer_ = std::make_unique<WeightGatherer>(
        device_, layout_,
        std::make_unique<WeightRoute>(ctx, layout_, groups_, options.weights, std::move(pieces)),
        options.gather);
    std::vector<std::string> names;
    for (const Bucket& bucket : layout_.buckets()) {
      names.push_back(str_cat("weights of ", parameters_[layout_.order()[bucket.first]].name));
      if (bucket.tile >= 0) names.back() += str_cat(", tile ", bucket.tile);
    }
    gatherer_->name_buckets(std::move(names));
  }
  if (!deferred_gradients_) {
    const GradientReducer::Options reduce{.whole = stage_ == 0,
                                          .overlap = options.overlap,
                                          .scatter = options.reduce_scatter,
                                          .op = options.op,
                                          .comm_dtype = options.comm_dtype,
                                          .comm_dtype_for_all = options.comm_dtype_for_all,
                                          .eager = options.eager_gradients};
    std::unique_ptr<QuantizedReduce> quantized;
    if (options.quantized_gradients && groups_.nodes) {
      quantized = std::make_unique<QuantizedReduce>(ctx, layout_, groups_.nodes, options.feedback);
    }
    reducer_ = std::make_unique<GradientReducer>(
        ctx, parameters_, layout_, groups_.shard, reduce,
        [this, ctx](const Bucket& bucket, const Tensor& average) {
          return take_reduced(ctx, bucket, average);
        },
        std::move(quantized));
  }
  masters_changed(ctx);
}

// Ranks that make their weights from the same source make each what it holds.
void ParameterState::fill_masters(const OpContext& ctx, const FlatLayout& layout,
                                  Communicator& comm, const ShareOptions& options,
                                  optim::FlatTensor& masters) const {
  const uint64_t own = loader_ ? loader_->fingerprint() : 0;
  const OpContext host{host_memory_of(device_), ctx.pool};
  const Tensor mine = host.workspace(DType::kInt64, {2});
  const Tensor all = host.workspace(DType::kInt64, {2 * comm.size()});
  mine.data<int64_t>()[0] = loader_ ? 1 : 0;
  mine.data<int64_t>()[1] = static_cast<int64_t>(own);
  comm.all_gather(all, mine, {.label = "sources of weights", .blocking = true})->wait();
  bool alike = true;
  for (int64_t i = 0; i < all.elements(); i += 2) {
    const int64_t* const other = all.data<int64_t>() + i;
    alike = alike && other[0] == 1 && other[1] == static_cast<int64_t>(own);
  }
  if (!alike) return receive_masters(ctx, layout, comm, options, masters);
  options.together([&] {
    for (const nn::ParamId id : layout.order()) {
      const OwnedPart part = layout.part(id);
      const FlatRange range = layout.range(id);
      if (range.elements() == 0 || (masters.compact && part.count == 0)) continue;
      Tensor out = masters.compact ? masters.data.slice(0, part.owned, part.owned + part.count)
                                   : masters.data.slice(0, range.begin, range.end);
      const int64_t first = masters.compact ? part.first : 0;
      if (out.dtype() == DType::kFloat32) {
        fill_weights(*loader_, ctx, id, parameters_[id], first, out);
        continue;
      }
      Tensor wide = ctx.workspace(DType::kFloat32, out.shape());
      fill_weights(*loader_, ctx, id, parameters_[id], first, wide);
      ops::cast(ctx, wide, out);
    }
  });
}

// Rank 0's masters, as many at a time as a buffer holds; each rank keeps what it is to hold.
void ParameterState::receive_masters(const OpContext& ctx, const FlatLayout& layout,
                                     Communicator& comm, const ShareOptions& options,
                                     optim::FlatTensor& masters) const {
  constexpr int64_t kBuffer = int64_t{4} << 20;  // elements
  struct Piece {
    nn::ParamId id;
    int64_t begin, end;
  };
  const Tensor buffer = Tensor::empty(device_, DType::kFloat32,
                                      {std::min(kBuffer, std::max<int64_t>(layout.elements(), 1))},
                                      MemoryTag::kCommunication);
  std::vector<Piece> pieces;
  int64_t used = 0;
  const auto pass_on = [&] {
    if (used == 0) return;
    options.together([&] {
      int64_t to = 0;
      for (const Piece& piece : pieces) {
        if (comm.rank() != 0) return;
        const int64_t n = piece.end - piece.begin;
        Tensor out = buffer.slice(0, to, to + n);
        to += n;
        if (loader_) {
          fill_weights(*loader_, ctx, piece.id, parameters_[piece.id], piece.begin, out);
        } else {
          const Tensor flat = master(piece.id).view({parameters_[piece.id].shape.elements()});
          ops::cast(ctx, flat.slice(0, piece.begin, piece.end), out);
        }
      }
    });
    comm.broadcast(buffer.slice(0, 0, used), 0, {.label = "initial weights"})->wait();
    int64_t at = 0;
    for (const Piece& piece : pieces) {
      const OwnedPart part = layout.part(piece.id);
      const int64_t first = masters.compact ? part.first : 0;
      const int64_t last =
          masters.compact ? part.first + part.count : parameters_[piece.id].shape.elements();
      const int64_t begin = std::max(piece.begin, first), end = std::min(piece.end, last);
      if (begin < end) {
        const int64_t to =
            (masters.compact ? part.owned : layout.range(piece.id).begin) + begin - first;
        Tensor target = masters.data.slice(0, to, to + end - begin);
        ops::cast(ctx, buffer.slice(0, at + begin - piece.begin, at + end - piece.begin), target);
      }
      at += piece.end - piece.begin;
    }
    pieces.clear();
    used = 0;
  };
  for (const nn::ParamId id : layout.order()) {
    const int64_t n = parameters_[id].shape.elements();
    for (int64_t begin = 0; begin < n;) {
      if (used == buffer.elements()) pass_on();
      const int64_t end = std::min(n, begin + buffer.elements() - used);
      pieces.push_back({id, begin, end});
      used += end - begin;
      begin = end;
    }
  }
  pass_on();
}

// Lays the masters out anew: whole or what this rank owns of them.
void ParameterState::spread_masters(const OpContext& ctx, const FlatLayout& layout,
                                    const ShareOptions& options, DType type, Masters form) {
  const bool compact_weights = options.stage == 3;
  const auto make = [&](DType dtype, bool compact, bool moves) {
    const Shape shape{compact ? layout.owned_elements() : layout.elements()};
    return optim::FlatTensor(
        moves && options.stage > 0
            ? groups_.shard->shared_tensor(device_, dtype, shape, MemoryTag::kParameters,
                                           {.label = "weights"})
            : Tensor::zeros(device_, dtype, shape, MemoryTag::kParameters),
        compact);
  };
  const bool own_model = type != DType::kFloat32 && form != Masters::kWeights;
  // Weights move between ranks; masters do only where they are the weights.
  optim::FlatTensor masters = make(form == Masters::kWeights ? type : DType::kFloat32,
                                   own_model ? options.stage > 0 : compact_weights, !own_model);
  fill_masters(ctx, layout, *options.comm, options, masters);
  loader_.reset();
  layout_ = layout;
  flat_.masters = std::move(masters);
  if (!own_model) return;
  flat_.model = make(type, compact_weights, true);
  if (form != Masters::kSplit) return;
  flat_.low_halves = {
      Tensor::zeros(device_, DType::kUInt16, flat_.masters.data.shape(), MemoryTag::kParameters),
      flat_.masters.compact};
  for (const Bucket& bucket : layout_.buckets()) {
    Tensor weights = owned(flat_.model, bucket), low = owned(flat_.low_halves, bucket);
    ops::split_masters(ctx, owned(flat_.masters, bucket), weights, low);
  }
  flat_.masters = {};
}

void ParameterState::unshare(const OpContext& ctx) {
  if (!comm_) return;
  reducer_.reset();
  gatherer_.reset();
  empty_buckets_.clear();
  lost_ = weights().compact;
  const FlatLayout after(parameters_);
  optim::FlatTensor masters;
  if (!lost_) {
    masters.data =
        Tensor::zeros(device_, DType::kFloat32, {after.elements()}, MemoryTag::kParameters);
  }
  for (nn::ParamId id = 0; !lost_ && id < parameters_.size(); ++id) {
    const FlatRange to = after.range(id);
    Tensor target = masters.data.slice(0, to.begin, to.end).view(parameters_[id].shape);
    ops::cast(ctx, model_view(id), target);
  }
  layout_ = after;
  flat_ = {};
  fp32_weights_ = Tensor();
  flat_.masters = std::move(masters);
  compute_type_ = DType::kFloat32;
  comm_.reset();
  groups_ = {};
  stage_ = 0;
}

std::shared_ptr<optim::ShardGroup> ParameterState::shard_group(
    std::vector<nn::ParamId> tensors) const {
  if (layout_.world() == 1) return nullptr;
  return std::make_shared<CommShardGroup>(layout_, std::move(tensors), groups_.shard, device_);
}

void ParameterState::begin_pass() {
  if (gatherer_) gatherer_->begin_pass();
}

void ParameterState::end_pass() {
  if (gatherer_) gatherer_->end_pass();
}

void ParameterState::drop_pass() noexcept {
  if (gatherer_) gatherer_->drop_pass();
}

void ParameterState::finish_backward() {
  if (reducer_ && !backward_held_) reducer_->finish();
  end_pass();
}

Tensor ParameterState::kept_gradients(const Bucket& bucket) const {
  if (flat_.gradients.compact) {
    return flat_.gradients.data.slice(0, bucket.owned, bucket.owned + bucket.piece);
  }
  return flat_.gradients.data.slice(0, bucket.range.begin, bucket.range.end);
}

std::shared_ptr<Event> ParameterState::take_reduced(const OpContext& ctx, const Bucket& bucket,
                                                    const Tensor& average) {
  Tensor target = kept_gradients(bucket);
  const auto index = static_cast<size_t>(&bucket - layout_.buckets().data());
  const bool add = !empty_buckets_[index];
  empty_buckets_[index] = false;
  replicas_agree_ = false;
  if (host_store_) return host_store_->receive(average, target, add);
  if (add) {
    ops::accumulate(ctx, average, target);
  } else {
    ops::cast(ctx, average, target);
  }
  return nullptr;
}

void ParameterState::reduce_replicas() {
  if (!groups_.replicas || replicas_agree_) return;
  groups_.replicas
      ->all_reduce(flat_.gradients.data, ReduceOp::kAverage, {.label = "gradients of replicas"})
      ->wait();
  replicas_agree_ = true;
}

void ParameterState::set_loss_scale(double scale) {
  if (reducer_ && reducer_->quantized()) reducer_->quantized()->set_loss_scale(scale);
}

void ParameterState::drop_rounding_errors() {
  if (reducer_ && reducer_->quantized()) reducer_->quantized()->drop_errors();
}

// After an update every rank has new values of its pieces.
void ParameterState::gather_weights(bool frozen_too) {
  if (gatherer_) return gatherer_->pieces_changed(frozen_too);
  if (stage_ == 0) return;
  std::vector<WorkPtr> works;
  for (const Bucket& bucket : layout_.buckets()) {
    if (!bucket.trainable && !frozen_too) continue;
    works.push_back(
        comm_->all_gather(whole_weights(bucket), weight_piece(bucket), {.label = "weights"}));
  }
  for (const WorkPtr& work : works) work->wait();
}

ExactSum ParameterState::gradient_squares(const OpContext& ctx) const {
  if (flat_.gradients.compact || !comm_ || stage_ == 0) {
    ExactSum sum = ops::exact_squares(state_context(ctx), gradients());
    if (!flat_.gradients.compact) return sum;
    return sum_over_ranks(std::move(sum));
  }
  ExactSum sum;
  for (const Bucket& bucket : layout_.buckets()) {
    if (bucket.trainable) sum.add(ops::exact_squares(ctx, owned(flat_.gradients, bucket)));
  }
  return sum_over_ranks(std::move(sum));
}

ExactSum ParameterState::sum_over_ranks(ExactSum sum) const {
  const Tensor words = Tensor::empty(host_memory_of(device_), DType::kInt64, {ExactSum::kWords},
                                     MemoryTag::kCommunication);
  std::copy(sum.words().begin(), sum.words().end(), words.data<int64_t>());
  groups_.shard->all_reduce(words, ReduceOp::kSum, {.label = "gradient norm", .blocking = true})
      ->wait();
  std::copy_n(words.data<int64_t>(), ExactSum::kWords, sum.words().begin());
  return sum;
}

// Ranks compare places in the order of the parameters, each of which begins where the one before
// ended; the kind of value is known to the rank that holds the first place.
ParameterState::BadGradient ParameterState::first_bad_gradient(const OpContext& ctx) const {
  const OpContext there = state_context(ctx);
  const int64_t none = parameters_.elements();
  int64_t place = none, begin = 0;
  BadKind kind = BadKind::kNone;
  for (nn::ParamId id = 0; id < parameters_.size() && place == none; ++id) {
    const int64_t here = begin;
    begin += parameters_[id].shape.elements();
    if (!parameters_[id].trainable) continue;
    const Tensor own = owned(flat_.gradients, id);
    const int64_t at = own.elements() > 0 ? ops::first_non_finite(there, own) : -1;
    if (at < 0) continue;
    place = here + layout_.part(id).first + at;
    kind = bad_kind(there, own.slice(0, at, at + 1));
  }
  if (comm_ && stage_ > 0) {
    const int64_t own_place = place;
    place = agreed(place, ReduceOp::kMin);
    const BadKind own_kind = own_place == place ? kind : BadKind::kNone;
    kind = static_cast<BadKind>(agreed(static_cast<int64_t>(own_kind), ReduceOp::kMax));
  }
  if (place == none) return {};
  BadGradient bad{0, place, value_of(kind)};
  while (bad.element >= parameters_[bad.id].shape.elements()) {
    bad.element -= parameters_[bad.id++].shape.elements();
  }
  return bad;
}

// One number of the ranks that share the gradients.
int64_t ParameterState::agreed(int64_t number, ReduceOp op) const {
  const Tensor one =
      Tensor::empty(host_memory_of(device_), DType::kInt64, {1}, MemoryTag::kCommunication);
  *one.data<int64_t>() = number;
  groups_.shard->all_reduce(one, op, {.label = "bad gradient", .blocking = true})->wait();
  return *one.data<int64_t>();
}

Tensor ParameterState::gather_parts(const OpContext& ctx, nn::ParamId id, const Tensor& own) const {
  const Tensor whole = ctx.workspace(DType::kFloat32, {parameters_[id].shape.elements()});
  std::vector<int64_t> counts;
  for (int rank = 0; rank < layout_.world(); ++rank) {
    counts.push_back(layout_.part(id, rank).count);
  }
  groups_.shard->all_gather_v(whole, own, counts, {.label = parameters_[id].name})->wait();
  return whole.view(parameters_[id].shape);
}

}  // namespace ds::zero
