// Room for bytes of any size that come and go, in array stores such as files: each place is whole
// pages, and what was given back serves the next.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tensor/array_store.h"

namespace ds {

// One thread at a time uses it, and what is mapped of it.
class StoreRoom {
 public:
  // A store of so many bytes, kUInt8.
  using Make = std::function<std::shared_ptr<ArrayStore>(int64_t bytes)>;
  // Bytes [begin, begin + bytes) of a store.
  struct Place {
    size_t store = 0;
    int64_t begin = 0, bytes = 0;
  };

  // Stores are made where those there are have no room, of at least so many bytes.
  explicit StoreRoom(Make make, int64_t least_bytes = int64_t{64} << 20)
      : make_(std::move(make)), least_bytes_(least_bytes) {}

  // The first place that is large enough. Throws what making a store throws.
  Place take(int64_t bytes);
  void give(const Place& place) noexcept;

  ArrayLease map(const Place& place, Access access) const {
    return stores_[place.store].array.map(place.begin, place.begin + place.bytes, access);
  }
  void prefetch(const Place& place) const {
    stores_[place.store].array.prefetch(place.begin, place.begin + place.bytes);
  }
  // Of all stores: waits until what was written rests, and throws the first error.
  void flush() const;

  int64_t bytes() const;       // of all stores
  int64_t free_bytes() const;  // that nobody has

 private:
  struct Store {
    StoredArray array;
    std::map<int64_t, int64_t> free;  // length by begin; neighbours are joined
  };

  const Make make_;
  const int64_t least_bytes_;
  std::vector<Store> stores_;
};

}  // namespace ds
