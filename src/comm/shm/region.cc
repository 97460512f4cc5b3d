#include "comm/shm/region.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"

namespace ds::comm {
namespace {

constexpr size_t kPage = 4096;

// The first page of a segment.
struct RegionHeader {
  uint64_t nonce;
  std::atomic<uint32_t> released;  // members that do not use their slice any more
};
static_assert(sizeof(RegionHeader) <= kPage);

}  // namespace

struct RegionTable::Region {
  std::shared_ptr<Segment> segment;
  size_t bytes;
  size_t stride;
  std::vector<int> members;

  RegionHeader* header() const { return reinterpret_cast<RegionHeader*>(segment->data()); }
  // -1: not a member
  int index_of(int rank) const {
    const auto found = std::ranges::find(members, rank);
    return found == members.end() ? -1 : static_cast<int>(found - members.begin());
  }
  std::byte* slice(int index) const {
    return segment->data() + kPage + stride * static_cast<size_t>(index);
  }
};

size_t RegionTable::slice_stride(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

size_t RegionTable::segment_bytes(size_t bytes, size_t members) {
  return kPage + slice_stride(bytes) * members;
}

RegionTable::Slice RegionTable::add(std::shared_ptr<Segment> segment, size_t bytes,
                                    std::vector<int> members) {
  uint64_t id = 0;
  std::memcpy(&id, segment->data(), sizeof(id));
  auto region = std::make_shared<Region>(
      Region{std::move(segment), bytes, slice_stride(bytes), std::move(members)});
  std::byte* const data = region->slice(region->index_of(self_));
  const std::lock_guard lock(mutex_);
  sweep();
  regions_[id] = std::move(region);
  own_[reinterpret_cast<uintptr_t>(data)] = id;
  return {id, data};
}

void RegionTable::release(uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return;
  Region& region = *found->second;
  std::byte* const data = region.slice(region.index_of(self_));
  own_.erase(reinterpret_cast<uintptr_t>(data));
  ::madvise(data, region.stride, MADV_REMOVE);
  region.header()->released.fetch_add(1);
  sweep();
}

// A mapping goes when no member uses its slice: until then peers may tell places in it.
void RegionTable::sweep() {
  std::erase_if(regions_, [](const auto& entry) {
    const Region& region = *entry.second;
    return region.header()->released.load() >= region.members.size();
  });
}

Place RegionTable::locate(const void* data, size_t bytes, const std::vector<int>& ranks) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(mutex_);
  auto after = own_.upper_bound(at);
  if (after == own_.begin()) return {};
  const auto& [begin, id] = *--after;
  const Region& region = *regions_.at(id);
  if (at - begin > region.bytes || bytes > region.bytes - (at - begin)) return {};
  for (const int rank : ranks) {
    if (region.index_of(rank) < 0) return {};
  }
  return {id, at - begin};
}

std::byte* RegionTable::resolve(const Place& place, int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(place.region);
  const int index = found == regions_.end() ? -1 : found->second->index_of(rank);
  DS_CHECK(index >= 0 && place.offset <= found->second->bytes, Code::kInternal, "rank ", rank,
           " of the first group names shared memory that is not known here");
  return found->second->slice(index) + place.offset;
}

}  // namespace ds::comm
