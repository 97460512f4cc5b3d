#include "zero/host_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "ops/elementwise.h"
#include "ops/stored_array.h"
#include "tensor/transfer.h"

namespace ds::zero {
namespace {

constexpr int64_t kChunk = kernels::kUpdateChunk;
// Larger pieces would neither travel faster nor hide more.
constexpr int64_t kMostElements = int64_t{8} << 20;

}  // namespace

HostBuffers::HostBuffers(const OffloadOptions& options, int64_t weight_elements)
    : count(std::max(options.buffers, 2)) {
  // A model that is smaller than a piece needs none so large.
  const int64_t most = std::clamp(weight_elements, kChunk, kMostElements);
  elements = std::clamp(options.sub_group_elements, kChunk, most) / kChunk * kChunk;
}

HostStore::HostStore(const OpContext& ctx, const OffloadOptions& options, optim::FlatTensor weights,
                     bool split)
    : host_{options.host, ctx.pool},
      pinned_(host_memory_of(ctx.device)),
      memory_(options.pinned ? pinned_ : options.host),
      weights_(std::move(weights)),
      rounds_(weights_.dtype() != DType::kFloat32 && !split),
      on_host_(!in_file() && on_host(weights_.memory())),
      stream_(ctx.device) {
  const HostBuffers wanted(options, weights_.elements());
  sub_group_ = wanted.elements;
  buffers_.resize(static_cast<size_t>(wanted.count));
  for (Buffer& buffer : buffers_) {
    buffer.memory =
        Tensor::empty(pinned_, DType::kFloat32, {sub_group_}, MemoryTag::kCommunication);
  }
}

Tensor HostStore::view(size_t buffer, DType type, int64_t elements) const {
  const Tensor& memory = buffers_[buffer].memory;
  return {memory.storage(), 0, type, {elements}};
}

size_t HostStore::take_buffer() {
  const size_t index = next_;
  Buffer& buffer = buffers_[index];
  while (buffer.arriving) finish_arrival();
  if (const std::shared_ptr<Event> copied = std::exchange(buffer.copied, nullptr)) {
    copied->synchronize();
  }
  next_ = (next_ + 1) % buffers_.size();
  return index;
}

// ---- gradients ----

std::shared_ptr<Event> HostStore::receive(const Tensor& from, const Target& to, Arrived arrived) {
  try {
    if (arrived) finish_ready_arrivals();
    const int64_t here =
        std::clamp<int64_t>(to.array.device_elements() - to.begin, 0, from.elements());
    if (here > 0) put_on_device(from.slice(0, 0, here), to);
    stream_.follow();
    if (here < from.elements() || here == 0) {
      return start_arrival(from.slice(0, here, from.elements()),
                           {to.array, to.begin + here, to.add}, std::move(arrived));
    }
    std::shared_ptr<Event> put = stream_.mark();
    if (arrived) direct_.push_back({put, std::move(arrived)});
    return put;
  } catch (...) {
    drop();  // a copy may have begun that nobody knows of
    throw;
  }
}

std::shared_ptr<Event> HostStore::start_arrival(const Tensor& from, const Target& to,
                                                Arrived arrived) {
  const Tensor there = to.array.view(to.begin, to.begin + from.elements());
  const bool straight = !to.add && there && there.dtype() == from.dtype() && reached(there);
  if (straight) {
    stream_.copy(there.raw(), from.raw(), from.bytes());
    received_ = stream_.mark();
    if (arrived) direct_.push_back({received_, std::move(arrived)});
    return received_;
  }
  std::shared_ptr<Event> last;
  for (int64_t at = 0; at < from.elements(); at += sub_group_) {
    const int64_t end = std::min(from.elements(), at + sub_group_);
    const Tensor piece = from.slice(0, at, end);
    const size_t index = take_buffer();
    Buffer& buffer = buffers_[index];
    stream_.copy(buffer.memory.raw(), piece.raw(), piece.bytes());
    buffer.copied = last = stream_.mark();
    buffer.arriving = true;
    arrivals_.push_back({index,
                         from.dtype(),
                         end - at,
                         {to.array, to.begin + at, to.add},
                         // NOLINTNEXTLINE(bugprone-use-after-move): of the last piece alone
                         end == from.elements() ? std::move(arrived) : nullptr});
    prefetch_sums();
  }
  return last;
}

void HostStore::put_on_device(const Tensor& from, const Target& to) const {
  const OpContext gpu{from.storage()->device(), host_.pool};
  Tensor place = to.array.view(to.begin, to.begin + from.elements());
  if (to.add) {
    ops::accumulate(gpu, from, place);
  } else {
    ops::cast(gpu, from, place);
  }
}

void HostStore::finish_arrival() {
  Arrival& arrival = arrivals_.front();
  Buffer& buffer = buffers_[arrival.buffer];
  buffer.copied->synchronize();
  const Tensor piece = view(arrival.buffer, arrival.type, arrival.elements);
  if (arrival.to.add) {
    ops::accumulate_array(host_, piece, arrival.to.array, arrival.to.begin);
  } else {
    ops::write_array(host_, piece, arrival.to.array, arrival.to.begin);
  }
  buffer.arriving = false;
  const Arrived arrived = std::move(arrival.arrived);
  arrivals_.pop_front();
  prefetch_sums();
  if (arrived) arrived();
}

void HostStore::prefetch_sums() const {
  constexpr size_t kAhead = 2;  // more would push each other out (io::FileArrayOptions)
  for (size_t i = 0; i < std::min(kAhead, arrivals_.size()); ++i) {
    const auto& [buffer, type, elements, to, arrived] = arrivals_[i];
    if (!to.add || to.array.in_memory()) continue;
    const int64_t part = std::min(elements, to.array.part_elements());
    to.array.prefetch(to.begin, to.begin + part);
  }
}

void HostStore::finish_ready_arrivals() {
  while (!arrivals_.empty() && buffers_[arrivals_.front().buffer].copied->ready()) finish_arrival();
  for (; !direct_.empty() && direct_.front().copied->ready(); direct_.pop_front()) {
    direct_.front().arrived();
  }
}

void HostStore::finish_arrivals() {
  while (!arrivals_.empty()) finish_arrival();
  if (const std::shared_ptr<Event> received = std::exchange(received_, nullptr)) {
    received->synchronize();
  }
  for (; !direct_.empty(); direct_.pop_front()) direct_.front().arrived();
}

void HostStore::drop() noexcept {
  try {
    stream_.synchronize();
  } catch (const Error&) {  // whoever uses the GPU next gets it too
  }
  for (const Arrival& arrival : arrivals_) buffers_[arrival.buffer].arriving = false;
  arrivals_.clear();
  direct_.clear();
  received_.reset();
}

// ---- weights ----

template <class Body>
void HostStore::try_to_send(const Body& body) {
  try {
    if (!stale()) body();
  } catch (const Error& error) {
    stale_ = error.message();
  }
}

void HostStore::open_update() {
  hold_masters();
  stream_.follow();  // what still computes with the weights of before
}

void HostStore::fetch(const optim::SubGroup& group, ops::UpdateTensors& part, bool weights) {
  if (!weights || !rounds_) return;
  const int64_t at = weights_.compact ? group.begin : group.flat;
  part.model = group.on_device ? weights_room_on_device(at, part.master)
                               : weights_room(at, group.elements());
}

Tensor HostStore::weights_room_on_device(int64_t weights, const Tensor& master) const {
  if (!on_host_ && !in_file()) return weights_at(weights, master.elements());
  return Tensor::empty(master.storage()->device(), weights_.dtype(), {master.elements()},
                       MemoryTag::kWorkspace);
}

Tensor HostStore::weights_room(int64_t weights, int64_t elements) {
  if (on_host_) return weights_at(weights, elements);
  const DType type = weights_.dtype();
  if (elements > sub_group_) return host_.workspace(type, {elements});
  size_t buffer = next_;
  try_to_send([&] { buffer = take_buffer(); });
  return view(buffer, type, elements);
}

void HostStore::flush(const optim::SubGroup& group, const ops::UpdateTensors& part, bool weights) {
  if (!weights) return;
  const int64_t at = weights_.compact ? group.begin : group.flat;
  if (in_file()) return write_part(at, part);  // its errors are the update's
  try_to_send([&] { send_part(at, part); });
}

void HostStore::close_update() {
  try_to_send([&] { stream_.lead(); });
  if (stale()) {
    const std::string to =
        in_file() ? "where they rest" : weights_.memory().storage()->device()->describe();
    log_warning("zero", "weights could not be sent to ", to,
                " after an update, and are sent again before they are used: ", stale_);
  }
}

// Weights that are no rounded masters are what the update has written.
void HostStore::write_part(int64_t weights, const ops::UpdateTensors& part) {
  if (rounds_) ops::write_array(host_, to_host(part.model, host_.device), weights_, weights);
}

// Of the part's arrays, those that hold what the GPU computes with.
void HostStore::send_part(int64_t weights, const ops::UpdateTensors& part) {
  const Tensor& from = part.model ? part.model : part.weight ? part.weight : part.master;
  const Tensor to = weights_at(weights, from.elements());
  if (from.raw() == to.raw()) return;
  if (on_host_ || !on_host(from)) return copy_tensor(from, to);
  if (reached(from)) {
    stream_.copy(to.raw(), from.raw(), from.bytes());
    const std::shared_ptr<Event> copied = stream_.mark();
    const auto lent = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& buffer) {
      return buffer.memory.storage() == from.storage();
    });
    (lent != buffers_.end() ? lent->copied : sent_) = copied;
    return;
  }
  copy_by_buffers(from, to);
}

std::shared_ptr<Event> HostStore::copy_by_buffers(const Tensor& from, const Tensor& to) {
  std::shared_ptr<Event> copied;
  const int64_t piece = buffers_.front().memory.bytes() / dtype_size(from.dtype());
  for (int64_t at = 0; at < from.elements(); at += piece) {
    const Tensor bytes = from.slice(0, at, std::min(from.elements(), at + piece));
    Buffer& buffer = buffers_[take_buffer()];
    std::memcpy(buffer.memory.raw(), bytes.raw(), static_cast<size_t>(bytes.bytes()));
    stream_.copy(to.slice(0, at, at + bytes.elements()).raw(), buffer.memory.raw(), bytes.bytes());
    buffer.copied = copied = stream_.mark();
  }
  return copied;
}

std::shared_ptr<Event> HostStore::bring(const Tensor& from, const Tensor& to) {
  stream_.follow();
  if (!reached(from)) return copy_by_buffers(from, to);
  stream_.copy(to.raw(), from.raw(), from.bytes());
  return sent_ = stream_.mark();
}

void HostStore::hold_masters() {
  if (const std::shared_ptr<Event> sent = std::exchange(sent_, nullptr)) sent->synchronize();
}

void HostStore::send(const optim::FlatTensors& flat, FlatRange masters, int64_t weights) {
  if (in_file() && !rounds_) return;  // they are what was written
  try {
    if (on_host_) hold_masters();  // the GPU may still read what is written now
    stream_.follow();
    const optim::FlatTensor& from = flat.low_halves ? flat.model : flat.masters;
    for (int64_t at = masters.begin; at < masters.end; at += sub_group_) {
      const int64_t end = std::min(masters.end, at + sub_group_);
      const int64_t to = weights + at - masters.begin;
      const ArrayLease mapped = from.map(at, end, Access::kRead);
      if (end < masters.end) from.prefetch(end, std::min(masters.end, end + sub_group_));
      ops::UpdateTensors part;
      (flat.low_halves ? part.weight : part.master) = mapped.data();
      if (rounds_) {
        part.model =
            on_host_ ? weights_at(to, end - at) : view(take_buffer(), weights_.dtype(), end - at);
        ops::cast(host_, part.master, part.model);
      }
      in_file() ? write_part(to, part) : send_part(to, part);
    }
    stream_.lead();
  } catch (const Error& error) {
    stale_ = error.message();
    throw;
  }
}

}  // namespace ds::zero
