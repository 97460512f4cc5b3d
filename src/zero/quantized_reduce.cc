#include "zero/quantized_reduce.h"

#include "tensor/transfer.h"
#include "zero/piece_blocks.h"

namespace ds::zero {
namespace {

constexpr int kBits = 4;
constexpr int kErrorBits = 8;

}  // namespace

QuantizedReduce::QuantizedReduce(const OpContext& ctx, const FlatLayout& layout,
                                 std::vector<std::shared_ptr<const NodeGroups>> nodes,
                                 const std::optional<Feedback>& feedback)
    : ctx_(ctx),
      layout_(layout),
      nodes_(std::move(nodes)),
      feedback_(feedback),
      errors_(layout.buckets().size()) {
  for (const Bucket& bucket : layout.buckets()) {
    piece_bytes_.push_back(piece_bytes(layout, bucket, kBits));
  }
}

void QuantizedReduce::pack(const Tensor& x, const Begins& begins, std::vector<Tensor>& errors,
                           size_t which, Tensor packed) {
  if (!feedback_) return ops::pack_blocks(ctx_, x, kBits, begins, packed);
  if (errors.size() <= which) errors.resize(which + 1);
  Tensor& error = errors[which];
  if (!error) {
    const int64_t bytes = ops::packed_bytes(kErrorBits, x.elements(), kernels::block_count(begins));
    error = Tensor::zeros(ctx_.device, DType::kUInt8, {bytes}, MemoryTag::kGradients);
  }
  ops::pack_blocks(ctx_, x, kBits, begins, packed, &error, feedback_->beta);
}

QuantizedReduce::Errors& QuantizedReduce::errors_for(size_t bucket) {
  Errors& errors = errors_[bucket];
  if (feedback_ && errors.reductions >= feedback_->reset_after) errors = {};
  return errors;
}

// Messages lie by the place of their receiver within a node, and then by node: so that each
// receiver's are together.
QuantizedReduce::Flight QuantizedReduce::start(size_t index, const Tensor& whole, bool blocking) {
  const Bucket& bucket = layout_.buckets()[index];
  const NodeGroups& groups = *nodes(bucket);
  const int places = groups.node.size, count = groups.across.size;
  if (places == 1) return {};
  const int64_t bytes = piece_bytes_[index];
  std::vector<Tensor>& errors = errors_for(index).first;
  const auto make = [&] {
    return Tensor::zeros(ctx_.device, DType::kUInt8, {int64_t{places} * count * bytes},
                         MemoryTag::kCommunication);
  };
  const Tensor sent = make();
  Flight flight;
  flight.received = make();
  for (int place = 0; place < places; ++place) {
    for (int node = 0; node < count; ++node) {
      const int rank = groups.rank_at(node, place);
      const int64_t at = (place * count + node) * bytes;
      pack(whole.slice(0, rank * bucket.piece, (rank + 1) * bucket.piece),
           piece_blocks(layout_, bucket, rank), errors, static_cast<size_t>(rank),
           sent.slice(0, at, at + bytes));
    }
  }
  flight.work = groups.node->all_to_all(flight.received, sent,
                                        {.label = "gradients in a node", .blocking = blocking});
  return flight;
}

void QuantizedReduce::finish(size_t index, Flight& flight, const Tensor& whole, Tensor& own) {
  const Bucket& bucket = layout_.buckets()[index];
  const int64_t bytes = piece_bytes_[index];
  const NodeGroups& groups = *nodes(bucket);
  const int places = groups.node.size, count = groups.across.size;
  const int place = groups.node.rank;
  if (flight.work) flight.work->wait();
  Errors& errors = errors_for(index);
  const auto make = [&] {
    return Tensor::zeros(ctx_.device, DType::kUInt8, {count * bytes}, MemoryTag::kCommunication);
  };
  const Tensor sent = make(), received = make();
  Tensor sum = ctx_.workspace(DType::kFloat32, {bucket.piece});
  for (int node = 0; node < count; ++node) {
    const int rank = groups.rank_at(node, place);
    const Begins begins = piece_blocks(layout_, bucket, rank);
    for (int peer = 0; flight.work && peer < places; ++peer) {
      const int64_t at = (peer * count + node) * bytes;
      ops::unpack_blocks(ctx_, flight.received.slice(0, at, at + bytes), kBits, begins, 1, peer > 0,
                         sum);
    }
    // A rank alone on its node has the sums already.
    const Tensor partial =
        flight.work ? sum : whole.slice(0, rank * bucket.piece, (rank + 1) * bucket.piece);
    pack(partial, begins, errors.second, static_cast<size_t>(node),
         sent.slice(0, node * bytes, (node + 1) * bytes));
  }
  groups.across
      ->all_to_all(received, sent, {.label = "gradients across nodes", .blocking = on_host(sent)})
      ->wait();
  const float factor = 1.0f / static_cast<float>(places * count);
  const Begins begins = piece_blocks(layout_, bucket, layout_.rank(bucket));
  for (int node = 0; node < count; ++node) {
    ops::unpack_blocks(ctx_, received.slice(0, node * bytes, (node + 1) * bytes), kBits, begins,
                       factor, node > 0, own);
  }
  ++errors.reductions;
  flight = {};
}

void QuantizedReduce::set_loss_scale(double scale) {
  if (scale == loss_scale_) return;
  const auto factor = static_cast<float>(scale / loss_scale_);
  loss_scale_ = scale;
  const auto follow = [&](const Tensor& error, size_t bucket, int rank) {
    if (!error) return;
    const Begins begins = piece_blocks(layout_, layout_.buckets()[bucket], rank);
    ops::scale_packed(ctx_, error, kErrorBits, begins, factor);
  };
  for (size_t i = 0; i < errors_.size(); ++i) {
    for (size_t rank = 0; rank < errors_[i].first.size(); ++rank) {
      follow(errors_[i].first[rank], i, static_cast<int>(rank));
    }
    for (size_t node = 0; node < errors_[i].second.size(); ++node) {
      const NodeGroups& groups = *nodes(layout_.buckets()[i]);
      follow(errors_[i].second[node], i, groups.rank_at(static_cast<int>(node), groups.node.rank));
    }
  }
}

void QuantizedReduce::drop_errors() {
  for (Errors& errors : errors_) errors = {};
}

}  // namespace ds::zero
