// Ranks through the C ABI: threads that meet in a store of the caller's.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "ds.hpp"

namespace capi_test {

// Where ranks meet.
class MemoryStore : public libds::Store {
 public:
  void put(const std::string& key, const void* value, int64_t size) override {
    const std::lock_guard lock(mutex_);
    values_[key].assign(static_cast<const char*>(value), static_cast<size_t>(size));
    changed_.notify_all();
  }
  std::string get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return values_.contains(key); })) {
      throw std::runtime_error("nobody put " + key);
    }
    return values_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// Runs body(rank's group) on a thread for each rank; what it throws fails the test.
inline void run_ranks(int32_t world, const std::function<void(libds::Comm&)>& body,
                      const std::string& options = R"({"timeout_seconds": 60})") {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        libds::Comm comm(rank, world, options, &store);
        body(comm);
        comm.finalize();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<float> values_of(const libds::Tensor& tensor) {
  return tensor.to_vector<float>();
}

}  // namespace capi_test
