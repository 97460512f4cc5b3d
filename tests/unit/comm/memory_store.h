// A store in memory, for ranks that are threads of one test.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "comm/store.h"

namespace ds::testing {

// Any thread.
class MemoryStore : public Store {
 public:
  void put(const std::string& key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = std::string(value);
    changed_.notify_all();
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) return {};
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

inline StorePtr make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace ds::testing
