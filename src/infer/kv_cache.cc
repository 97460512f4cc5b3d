#include "infer/kv_cache.h"

#include <algorithm>
#include <utility>

#include "tensor/transfer.h"

namespace ds::infer {

KvCache::KvCache(std::shared_ptr<Device> device, const KvLayout& layout, int64_t batch,
                 int64_t capacity)
    : device_(std::move(device)),
      layout_(layout),
      capacity_(capacity),
      lengths_(static_cast<size_t>(batch)),
      chosen_(lengths_) {
  DS_CHECK(batch > 0 && capacity > 0, Code::kInternal, "a KV cache for ", batch, " sequences of ",
           capacity, " tokens");
}

KvCache::KvCache(const std::shared_ptr<Device>& device, const models::ArchitectureInfo& info,
                 int64_t batch, int64_t capacity, DType dtype)
    : KvCache(device, KvLayout(info, dtype, *device), batch, capacity) {
  for (int i = 0; i < info.layers; ++i) layers_.push_back(layout_.make(device, batch, capacity));
}

KvCache::KvCache(const std::shared_ptr<KvBlockPool>& pool, int64_t batch, int64_t capacity)
    : KvCache(pool->device(), pool->layout(), batch, capacity) {
  blocks_ = std::make_unique<KvBlockTable>(pool, batch);
}

Tensor KvCache::tokens(int layer, int part, int64_t end) const {
  if (blocks_) return blocks_->tokens(layer, part);
  return of_chosen(layout_.part(layers_[static_cast<size_t>(layer)].numbers, part))
      .slice(1, 0, end);
}

Tensor KvCache::scales(int layer, int part, int64_t end) const {
  if (!layout_.coded()) return {};
  if (blocks_) return blocks_->scales(layer, part);
  return of_chosen(layout_.scales(layers_[static_cast<size_t>(layer)], part)).slice(1, 0, end);
}

int64_t KvCache::longest() const { return *std::max_element(chosen_.begin(), chosen_.end()); }

void KvCache::choose(int64_t first, int64_t count) {
  DS_CHECK(first >= 0 && count > 0 && count <= batch() - first && room_ == 0, Code::kInternal,
           count, " sequences from ", first, " on of a KV cache with ", batch());
  if (count != this->count()) past_ = Tensor();
  first_ = first;
  chosen_.resize(static_cast<size_t>(count));
  place_lengths();
}

void KvCache::exchange(int64_t a, int64_t b) {
  DS_CHECK(blocks_ && std::min(a, b) >= 0 && std::max(a, b) < batch(), Code::kInternal,
           "sequences ", a, " and ", b, " of a KV cache with ", batch());
  if (a == b) return;
  blocks_->exchange(a, b);
  std::swap(lengths_[static_cast<size_t>(a)], lengths_[static_cast<size_t>(b)]);
  place_lengths();
}

void KvCache::shorten(int64_t sequence, int64_t length) {
  int64_t& own = lengths_.at(static_cast<size_t>(sequence));
  DS_CHECK(length >= 0 && length <= own, Code::kInternal, "sequence ", sequence, " has ", own,
           " tokens, not ", length);
  own = length;
  if (blocks_) blocks_->cut(sequence, length);
  place_lengths();
}

ops::CacheRows KvCache::append(int layer, int64_t count) {
  DS_CHECK(longest() + count <= capacity(), Code::kInternal, "a KV cache of ", capacity(),
           " tokens per sequence has no room for ", count, " behind ", longest());
  if (blocks_) blocks_->cover(first_, chosen_, count);
  ops::CacheRows rows{tokens(layer, 0, capacity()), tokens(layer, 1, capacity()), chosen_.front(),
                      past_};
  if (blocks_) rows.blocks = blocks_->blocks(layer, longest() + count, first_, this->count());
  rows.key_scales = scales(layer, 0, capacity());
  rows.value_scales = scales(layer, 1, capacity());
  return rows;
}

nn::SeenTokens KvCache::view(int layer, int64_t count) const {
  const int64_t end = room_ > 0 ? room_ : longest() + count;
  nn::SeenTokens seen{tokens(layer, 0, end), tokens(layer, 1, end), {}, past_};
  if (blocks_) seen.blocks = blocks_->blocks(layer, end, first_, this->count());
  seen.key_scales = scales(layer, 0, end);
  seen.value_scales = scales(layer, 1, end);
  return seen;
}

void KvCache::advance(int64_t count) {
  const auto begin = lengths_.begin() + first_;
  std::for_each(begin, begin + this->count(), [count](int64_t& length) { length += count; });
  place_lengths();
}

void KvCache::place_lengths() {
  std::copy_n(lengths_.begin() + first_, count(), chosen_.begin());
  if (room_ > 0) return;  // recorded work reads others
  const auto unequal = [&](int64_t length) { return length != chosen_.front(); };
  if (std::none_of(chosen_.begin(), chosen_.end(), unequal)) {
    past_ = Tensor();
    return;
  }
  const std::vector<int32_t> lengths(chosen_.begin(), chosen_.end());
  if (!past_) {
    past_ = Tensor::empty(device_, DType::kInt32, {static_cast<int64_t>(lengths.size())},
                          MemoryTag::kOther);
  }
  copy_from_host(lengths.data(), past_);
}

void KvCache::read_lengths_from(Tensor past, int64_t room) {
  DS_CHECK(!blocks_ && room > longest() && room <= capacity(), Code::kInternal, "room for ", room,
           " tokens of a cache that holds ", longest(), " of at most ", capacity());
  past_ = std::move(past);
  room_ = room;
}

void KvCache::know_lengths() {
  room_ = 0;
  past_ = Tensor();  // it may be the caller's
  place_lengths();
}

}  // namespace ds::infer
