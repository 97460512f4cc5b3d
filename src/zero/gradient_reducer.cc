#include "zero/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::zero {
namespace {

// More would hold more memory without hiding more.
constexpr size_t kMostUnderWay = 2;

}  // namespace

GradientReducer::GradientReducer(const OpContext& ctx, const nn::ParameterSet& parameters,
                                 const FlatLayout& layout, std::vector<Domain> domains,
                                 const Options& options, Take take,
                                 std::unique_ptr<QuantizedReduce> quantized)
    : ctx_(ctx),
      parameters_(parameters),
      layout_(layout),
      domains_(std::move(domains)),
      options_(options),
      take_(std::move(take)),
      quantized_(std::move(quantized)),
      place_in_bucket_(static_cast<size_t>(parameters.size())),
      open_(layout.buckets().size()) {
  for (const Domain& domain : domains_) {
    rows_.emplace_back(ctx, domain.ranks, options.op, options.comm_dtype);
  }
  for (const Bucket& bucket : layout.buckets()) {
    for (size_t i = bucket.first; i < bucket.last; ++i) {
      place_in_bucket_[static_cast<size_t>(layout.order()[i])] = i - bucket.first;
    }
  }
}

size_t GradientReducer::place(nn::ParamId id) const {
  return place_in_bucket_[static_cast<size_t>(id)];
}

// The smallest free slot that fits; one that is still read only after others, and while there may
// be more of them not at all.
std::vector<int>::iterator GradientReducer::find_slot(const Bucket& bucket) {
  const int64_t elements = bucket.range.elements();
  const auto slot = [&](auto it) -> const Slot& { return slots_[static_cast<size_t>(*it)]; };
  auto best = free_slots_.end();
  for (auto it = free_slots_.begin(); it != free_slots_.end(); ++it) {
    if (slot(it).data.elements() < elements || slot(it).domain != bucket.domain) continue;
    if (slot(it).read && sent_.empty() && slots_.size() <= kMostUnderWay) continue;
    // Of those that are read, the first has been for longest.
    const auto key = [&](auto at) {
      return std::pair(slot(at).read != nullptr, slot(at).read ? 0 : slot(at).data.elements());
    };
    if (best == free_slots_.end() || key(it) < key(best)) best = it;
  }
  return best;
}

// Slots are taken, freed and made at the same points of the same program on every rank, so that a
// bucket has the same slot everywhere; that is what lets the other ranks read it directly.
int GradientReducer::take_slot(const Bucket& bucket) {
  const int64_t needed = bucket.range.elements();
  auto found = find_slot(bucket);
  while (found == free_slots_.end() && !sent_.empty()) {
    receive();
    found = find_slot(bucket);
  }
  if (found != free_slots_.end()) {
    const int index = *found;
    free_slots_.erase(found);
    Slot& slot = slots_[static_cast<size_t>(index)];
    if (slot.read) ctx_.device->default_stream().wait(*slot.read);
    slot.read.reset();
    return index;
  }
  const auto shared = [&](DType type) {
    const RankGroup& among = domain(bucket).ranks;
    if (among.size == 1) {
      return Tensor::empty(ctx_.device, type, {needed}, MemoryTag::kCommunication);
    }
    return among->shared_tensor(ctx_.device, type, {needed}, MemoryTag::kCommunication,
                                {.label = "gradient bucket"});
  };
  Slot slot{shared(DType::kFloat32), {}, {}, bucket.domain};
  if (options_.comm_dtype != DType::kFloat32) slot.rounded = shared(options_.comm_dtype);
  slots_.push_back(std::move(slot));
  return static_cast<int>(slots_.size()) - 1;
}

void GradientReducer::open(size_t index) {
  const Bucket& bucket = layout_.buckets()[index];
  OpenBucket& open = open_[index];
  DS_CHECK(!open.sent || options_.eager, Code::kInternal,
           "a gradient came after its bucket, that of ",
           parameters_[layout_.order()[bucket.first]].name, ", was complete");
  if (open.sent) {
    while (open.data) receive();
    open.sent = false;
  }
  if (open.data) return;
  if (recorded_.open) {
    open.data = recorded_.whole.slice(0, bucket.range.begin, bucket.range.end);
  } else {
    open.slot = take_slot(bucket);
    open.data = slots_[static_cast<size_t>(open.slot)].data.slice(0, 0, bucket.range.elements());
  }
  open.touched.assign(bucket.last - bucket.first, false);
  open.done.assign(bucket.last - bucket.first, false);
  open.done_count = 0;
}

Tensor GradientReducer::view(const Bucket& bucket, const OpenBucket& open, nn::ParamId id) const {
  const FlatRange range = range_in(bucket, id);
  const Shape& shape = layout_.shape(id);
  return open.data.slice(0, range.begin - bucket.range.begin, range.end - bucket.range.begin)
      .view(bucket.tile >= 0 ? Shape{range.elements() / shape[1], shape[1]} : shape);
}

nn::GradientTarget GradientReducer::target(nn::ParamId id, int64_t tile) {
  const size_t index = layout_.bucket_of(id) + static_cast<size_t>(tile);
  open(index);
  OpenBucket& open = open_[index];
  const bool touched = open.touched[place(id)];
  open.touched[place(id)] = true;
  return {view(layout_.buckets()[index], open, id), touched};
}

void GradientReducer::complete(nn::ParamId id, int64_t tile) {
  const size_t index = layout_.bucket_of(id) + static_cast<size_t>(tile);
  if (layout_.buckets()[index].tile >= 0 && open_[index].sent) return;
  open(index);
  OpenBucket& open = open_[index];
  if (open.done[place(id)]) return;
  open.done[place(id)] = true;
  const Bucket& bucket = layout_.buckets()[index];
  if (++open.done_count == bucket.last - bucket.first) send(index);
}

// What no gradient was written to: parameters without one, and the gaps between parameters.
void GradientReducer::clear_gaps(const Bucket& bucket, const OpenBucket& open) {
  int64_t written = bucket.range.begin;
  const auto clear_to = [&](int64_t end) {
    if (end <= written) return;
    Tensor gap = open.data.slice(0, written - bucket.range.begin, end - bucket.range.begin);
    ops::fill(ctx_, 0.0f, gap);
  };
  for (size_t i = bucket.first; i < bucket.last; ++i) {
    if (!open.touched[i - bucket.first]) continue;
    const FlatRange range = range_in(bucket, layout_.order()[i]);
    clear_to(range.begin);
    written = range.end;
  }
  clear_to(bucket.range.end);
}

void GradientReducer::send(size_t index) {
  const Bucket& bucket = layout_.buckets()[index];
  OpenBucket& open = open_[index];
  clear_gaps(bucket, open);
  open.sent = true;
  if (recorded_.open) {
    recorded_.order.push_back(index);
  } else {
    start(index);
  }
}

void GradientReducer::start(size_t index) {
  const Bucket& bucket = layout_.buckets()[index];
  OpenBucket& open = open_[index];
  if (bucket.sparse && send_rows(index)) return;
  while (sent_.size() >= kMostUnderWay) receive();
  Tensor all = open.data;
  if (travels_quantized(bucket)) {
    sent_.push_back(
        {index, nullptr, quantized_->start(index, all, !options_.overlap && on_host(all))});
    if (!options_.overlap) receive();
    return;
  }
  if (travels_rounded(bucket)) {
    if (open.slot < 0) open.slot = take_slot(bucket);
    Tensor rounded = slots_[static_cast<size_t>(open.slot)].rounded.slice(0, 0, all.elements());
    ops::cast(ctx_, all, rounded);
    all = rounded;
  }
  const CollectiveOptions options{.label = parameters_[layout_.order()[bucket.first]].name,
                                  .blocking = !options_.overlap && on_host(all),
                                  .same_label = options_.eager};
  const int64_t own = layout_.rank(bucket) * bucket.piece;
  const RankGroup& among = domain(bucket).ranks;
  WorkPtr work =
      options_.whole || !options_.scatter
          ? among->all_reduce(all, options_.op, options)
          : among->reduce_scatter(all.slice(0, own, own + bucket.piece), all, options_.op, options);
  sent_.push_back({index, std::move(work), {}});
  if (!options_.overlap) receive();
}

// Whether the bucket travelled as rows; it is taken then.
bool GradientReducer::send_rows(size_t index) {
  while (!sent_.empty()) receive();
  const Bucket& bucket = layout_.buckets()[index];
  const nn::ParamId id = layout_.order()[bucket.first];
  Tensor table = view(bucket, open_[index], id);
  if (!rows_[static_cast<size_t>(bucket.domain)].reduce(table, parameters_[id].name)) return false;
  const FlatRange part = kept(bucket);
  Tensor result = open_[index].data.slice(0, part.begin, part.end);
  scale_to_mean(bucket, result);
  take(index, result);
  return true;
}

void GradientReducer::scale_to_mean(const Bucket& bucket, Tensor& result) const {
  const float share = domain(bucket).share_of_mean;
  if (options_.op == ReduceOp::kAverage && share != 1) ops::scale(ctx_, result, share, result);
}

void GradientReducer::take(size_t index, const Tensor& result) {
  OpenBucket& open = open_[index];
  std::shared_ptr<Event> read = take_(layout_.buckets()[index], result);
  const bool in_slot = open.slot >= 0 &&
                       open.data.storage() == slots_[static_cast<size_t>(open.slot)].data.storage();
  if (in_slot) {
    slots_[static_cast<size_t>(open.slot)].read = std::move(read);
  } else if (read) {
    recorded_.read = std::move(read);  // comes after those of the buckets before
  }
  close(open);
}

void GradientReducer::close(OpenBucket& open) {
  if (open.slot >= 0) free_slots_.push_back(open.slot);
  open.slot = -1;
  open.data = Tensor();
}

void GradientReducer::receive() {
  Sent sent = std::move(sent_.front());
  sent_.pop_front();
  if (sent.work) sent.work->wait();
  const Bucket& bucket = layout_.buckets()[sent.bucket];
  OpenBucket& open = open_[sent.bucket];
  const auto [begin, end] = kept(bucket);
  Tensor result = open.data.slice(0, begin, end);
  if (travels_quantized(bucket)) {
    quantized_->finish(sent.bucket, sent.flight, open.data, result);
  } else if (travels_rounded(bucket)) {
    const Slot& slot = slots_[static_cast<size_t>(open.slot)];
    ops::cast(ctx_, slot.rounded.slice(0, begin, end), result);
  }
  scale_to_mean(bucket, result);
  take(sent.bucket, result);
}

void GradientReducer::finish() {
  for (size_t i = 0; i < open_.size(); ++i) {
    if (!layout_.buckets()[i].trainable || open_[i].sent) continue;
    open(i);
    send(i);
  }
  while (!sent_.empty()) receive();
  for (OpenBucket& bucket : open_) {
    if (recorded_.open) close(bucket);
    bucket.sent = false;
  }
}

// ---- recorded ----

// Nothing of an earlier micro batch is open.
void GradientReducer::begin_recording() {
  if (!recorded_.whole) {
    recorded_.whole = Tensor::empty(ctx_.device, DType::kFloat32, {layout_.trainable_elements()},
                                    MemoryTag::kGradients);
  }
  recorded_.order.clear();
  recorded_.open = true;
}

std::vector<size_t> GradientReducer::end_recording() {
  recorded_.open = false;
  for (OpenBucket& bucket : open_) {
    close(bucket);
    bucket.sent = false;
  }
  return std::exchange(recorded_.order, {});
}

void GradientReducer::await_recorded() {
  if (recorded_.read) ctx_.device->default_stream().wait(*recorded_.read);
  recorded_.read.reset();
}

void GradientReducer::send_recorded(std::span<const size_t> buckets) {
  for (const size_t index : buckets) {
    const FlatRange range = layout_.buckets()[index].range;
    open_[index].data = recorded_.whole.slice(0, range.begin, range.end);
    open_[index].sent = true;
    start(index);
  }
  finish();
}

void GradientReducer::drop() {
  // What is under way belongs to a collective that other ranks take part in: it is waited for.
  while (!sent_.empty()) {
    Sent sent = std::move(sent_.front());
    sent_.pop_front();
    try {
      if (sent.work) {
        sent.work->wait();
      } else {
        const Bucket& bucket = layout_.buckets()[sent.bucket];
        Tensor own = ctx_.workspace(DType::kFloat32, {bucket.piece});
        quantized_->finish(sent.bucket, sent.flight, open_[sent.bucket].data, own);
      }
    } catch (const Error&) {
    }
  }
  for (OpenBucket& open : open_) {
    close(open);
    open.sent = false;
  }
  recorded_.open = false;
}

}  // namespace ds::zero
