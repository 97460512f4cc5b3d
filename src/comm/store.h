// Where the ranks of a group meet: a small key-value store, kept by rank 0 or given by the caller.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/transport.h"

namespace ds {

// One rank's access. Keys are short and printable and end in "/" and the number of the rank that
// puts them; values have at most kMostValue bytes; a key is put once.
class Store {
 public:
  static constexpr size_t kMostKey = 256;
  static constexpr size_t kMostValue = size_t{1} << 20;

  virtual ~Store() = default;
  virtual void put(const std::string& key, std::string_view value) = 0;
  // Waits for the key; empty when the time has passed. Throws kComm when the store is lost.
  virtual std::optional<std::string> get(const std::string& key,
                                         std::chrono::milliseconds timeout) = 0;
};
using StorePtr = std::shared_ptr<Store>;

}  // namespace ds

namespace ds::comm {

// Every rank gives a text and gets those of all, over a store. The first key of each round is
// `prefix`, which no other group of the store may use. A rank that does not come is named on every
// rank.
GatherTexts gather_over_store(StorePtr store, std::string prefix, int rank, int size,
                              std::chrono::milliseconds timeout);

}  // namespace ds::comm
