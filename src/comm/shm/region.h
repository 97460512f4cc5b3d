// The shared tensors of one rank: which addresses are shared, and where peers' buffers lie here.
// Groups that are split from one another use one table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/record.h"
#include "comm/shm/segment.h"

namespace ds::comm {

// Ranks are called by their number in the first group, which all groups of the table are part of.
// Any thread.
class RegionTable {
 public:
  explicit RegionTable(int self) : self_(self) {}
  int self() const noexcept { return self_; }

  // A segment of one slice for each member, after one page of administration. Returns the own
  // slice.
  struct Slice {
    uint64_t region;
    std::byte* data;
  };
  static size_t slice_stride(size_t bytes);
  static size_t segment_bytes(size_t bytes, size_t members);
  Slice add(std::shared_ptr<Segment> segment, size_t bytes, std::vector<int> members);
  // The own slice is not used any more: gives its memory back to the system.
  void release(uint64_t region) noexcept;

  // The place of memory in an own slice that all `ranks` map, else of none.
  Place locate(const void* data, size_t bytes, const std::vector<int>& ranks) const;
  // Throws kInternal for a place that was never told.
  std::byte* resolve(const Place& place, int rank) const;

 private:
  struct Region;
  void sweep();  // with the mutex held

  const int self_;
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Region>> regions_;
  std::map<uintptr_t, uint64_t> own_;  // beginnings of own slices in use
};

}  // namespace ds::comm
