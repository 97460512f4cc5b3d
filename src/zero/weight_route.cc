#include "zero/weight_route.h"

#include "ops/elementwise.h"
#include "tensor/transfer.h"
#include "zero/piece_blocks.h"

namespace ds::zero {
namespace {

constexpr int kBits = 8;

}  // namespace

WeightRoute::WeightRoute(const OpContext& ctx, const FlatLayout& layout,
                         std::vector<StateGroups> groups, const Options& options,
                         std::vector<Piece> pieces, Bring bring)
    : ctx_(ctx),
      layout_(layout),
      groups_(std::move(groups)),
      options_(options),
      pieces_(std::move(pieces)),
      bring_(std::move(bring)),
      second_begins_(layout.buckets().size(), -1),
      second_valid_(layout.buckets().size()),
      message_bytes_(layout.buckets().size()),
      frozen_messages_(layout.buckets().size()) {
  std::map<std::pair<int, DType>, int64_t> elements;
  for (size_t i = 0; i < layout.buckets().size(); ++i) {
    const Bucket& bucket = layout.buckets()[i];
    if (quantized(bucket)) message_bytes_[i] = piece_bytes(layout, bucket, kBits);
    const RankGroup& near = this->groups(i).secondary;
    if (!near || bucket.resident) continue;
    int64_t& end = elements[{bucket.domain, dtype(i)}];
    second_begins_[i] = end;
    end += bucket.range.elements() / near.size;
  }
  for (const auto& [of, count] : elements) {
    const RankGroup& near = groups_[static_cast<size_t>(of.first)].secondary;
    second_[of] = near->shared_tensor(ctx_.device, of.second, {count}, MemoryTag::kParameters,
                                      {.label = "second shards"});
  }
}

bool WeightRoute::quantized(const Bucket& bucket) const {
  // Nothing travels of what no other rank holds, beside what ranks cut.
  if (layout_.world(bucket) == 1 && layout_.cut()) return false;
  return options_.quantized || (options_.quantized_frozen && !bucket.trainable && !bucket.exact);
}

Tensor WeightRoute::second(size_t index) const {
  const int64_t begin = second_begins_[index];
  if (begin < 0) return {};
  const Bucket& bucket = layout_.buckets()[index];
  const int64_t size = bucket.range.elements() / groups(index).secondary.size;
  return second_.at({bucket.domain, dtype(index)}).slice(0, begin, begin + size);
}

// Without its own piece no rank can begin to gather, unless it has codes or a second copy.
bool WeightRoute::reads_piece(size_t index) const {
  const bool elsewhere = brings(index) || !pieces_[index].array.in_memory();
  return elsewhere && !second_valid_[index] && !frozen_messages_[index];
}

void WeightRoute::make_room(size_t index, Tensor& whole) const {
  const int64_t elements = layout_.buckets()[index].range.elements();
  whole = Tensor::empty(ctx_.device, dtype(index), {elements}, MemoryTag::kCommunication);
}

Tensor WeightRoute::room_for(const Piece& piece) const {
  return Tensor::empty(ctx_.device, piece.array.dtype(), {piece.range.elements()},
                       MemoryTag::kCommunication);
}

// What was read from a file.
Tensor WeightRoute::brought(size_t index, const Tensor& own) const {
  const Tensor there = room_for(pieces_[index]);
  ctx_.device->default_stream().wait(*bring_(own, there));
  return there;
}

// The own piece in codes.
Tensor WeightRoute::own_message(size_t index, const Tensor& own) {
  const Bucket& bucket = layout_.buckets()[index];
  if (frozen_messages_[index]) return frozen_messages_[index];
  const bool keep = options_.quantized_frozen && !bucket.trainable && !bucket.exact;
  Tensor message = Tensor::zeros(ctx_.device, DType::kUInt8, {message_bytes_[index]},
                                 keep ? MemoryTag::kParameters : MemoryTag::kCommunication);
  ops::pack_blocks(ctx_, own, kBits, piece_blocks(layout_, bucket, layout_.rank(bucket)), message);
  if (keep) frozen_messages_[index] = message;
  return message;
}

WeightRoute::Flight WeightRoute::start(size_t index, Tensor& whole,
                                       const CollectiveOptions& options) {
  const Piece& piece = pieces_[index];
  if (reads_piece(index)) {
    Flight flight;
    flight.reading = true;
    if (!brings(index)) {
      piece.array.prefetch(piece.range.begin, piece.range.end);
      return flight;
    }
    flight.own = room_for(piece);
    flight.arrived = bring_(piece.map().data(), flight.own);
    return flight;
  }
  if (whole_here(layout_.buckets()[index])) {
    whole = piece.map().data();
    return {};
  }
  make_room(index, whole);
  const bool here = piece.array.in_memory() && !brings(index);
  const Tensor own = here ? piece.map().data() : Tensor();
  return gather(index, whole, own, options);
}

// `own` may be none where there are codes or a second copy.
WeightRoute::Flight WeightRoute::gather(size_t index, const Tensor& whole, const Tensor& own,
                                        const CollectiveOptions& options) {
  Flight flight;
  if (second_valid_[index]) {
    flight.near = true;
    flight.work = groups(index).secondary->all_gather(whole, second(index), options);
  } else if (quantized(layout_.buckets()[index])) {
    const int ranks = layout_.world(layout_.buckets()[index]);
    flight.message = Tensor::empty(ctx_.device, DType::kUInt8, {ranks * message_bytes_[index]},
                                   MemoryTag::kCommunication);
    start_gather(index, flight.message, own_message(index, own), options, flight);
  } else {
    start_gather(index, whole, own, options, flight);
  }
  return flight;
}

void WeightRoute::start_gather(size_t index, const Tensor& all, const Tensor& own,
                               const CollectiveOptions& options, Flight& flight) {
  const StateGroups& ranks = groups(index);
  if (!options_.hierarchical || !ranks.nodes) {
    flight.work = ranks.shard->all_gather(all, own, options);
    return;
  }
  const RankGroup& across = ranks.nodes->across;
  flight.column = Tensor::empty(ctx_.device, own.dtype(), {across.size * own.elements()},
                                MemoryTag::kCommunication);
  flight.work = across->all_gather(flight.column, own, options);
}

void WeightRoute::finish_gather(size_t index, Flight& flight, const Tensor& all) {
  flight.work->wait();
  if (!flight.column) return;
  const NodeGroups& nodes = *groups(index).nodes;
  const int places = nodes.node.size, count = nodes.across.size;
  const Tensor columns =
      Tensor::empty(ctx_.device, all.dtype(), all.shape(), MemoryTag::kCommunication);
  nodes.node->all_gather(columns, flight.column, {.label = "weights", .blocking = on_host(columns)})
      ->wait();
  const int64_t piece = all.elements() / (int64_t{places} * count);
  for (int place = 0; place < places; ++place) {
    for (int node = 0; node < count; ++node) {
      const int64_t from = (place * count + node) * piece, to = nodes.rank_at(node, place) * piece;
      const Tensor part = columns.slice(0, from, from + piece);
      ctx_.device->copy(all.slice(0, to, to + piece).raw(), part.raw(), part.bytes(),
                        ctx_.device->default_stream());
    }
  }
}

void WeightRoute::unpack(size_t index, const Tensor& message, Tensor& whole) {
  const Bucket& bucket = layout_.buckets()[index];
  const int64_t bytes = message_bytes_[index];
  for (int rank = 0; rank < layout_.world(bucket); ++rank) {
    Tensor piece = whole.slice(0, rank * bucket.piece, (rank + 1) * bucket.piece);
    ops::unpack_blocks(ctx_, message.slice(0, rank * bytes, (rank + 1) * bytes), kBits,
                       piece_blocks(layout_, bucket, rank), 1, false, piece);
  }
}

// The memory that a piece of one rank was read into is the bucket.
void WeightRoute::finish(size_t index, Flight& flight, Tensor& whole,
                         const CollectiveOptions& options) {
  if (!flight.reading) return complete(index, flight, whole);
  ArrayLease lease;
  Tensor own = flight.own;
  if (flight.arrived) {
    ctx_.device->default_stream().wait(*flight.arrived);
  } else {
    lease = pieces_[index].map();  // where that fails it is still to be read
    own = lease.data();
    if (bring_) own = brought(index, own);
  }
  flight = {};
  if (whole_here(layout_.buckets()[index])) {
    whole = own;
    return;
  }
  make_room(index, whole);
  flight = gather(index, whole, own, options);
  complete(index, flight, whole);
}

void WeightRoute::complete(size_t index, Flight& flight, Tensor& whole) {
  if (flight.message) {
    finish_gather(index, flight, flight.message);
    unpack(index, flight.message, whole);
  } else {
    finish_gather(index, flight, whole);
  }
  if (Tensor own = second(index); own && !flight.near) {
    const int64_t begin = groups(index).secondary.rank * own.elements();
    ops::cast(ctx_, whole.slice(0, begin, begin + own.elements()), own);
    second_valid_[index] = true;
  }
  flight = {};
}

// What ranks have begun they end together: a way in two steps needs both.
void WeightRoute::abandon(size_t index, Flight& flight, Tensor& whole) {
  if (flight.work) complete(index, flight, whole);
  // Whoever gets the memory next writes it after what is on its way there.
  if (flight.arrived) ctx_.device->default_stream().wait(*flight.arrived);
  flight = {};
}

void WeightRoute::pieces_changed(bool frozen_too) {
  for (size_t i = 0; i < second_valid_.size(); ++i) {
    if (!frozen_too && !layout_.buckets()[i].trainable) continue;
    second_valid_[i] = false;
    frozen_messages_[i] = Tensor();
  }
}

}  // namespace ds::zero
