// The registry behind every handle of ds.h, one of the two documented process-wide registries.
//
// A handle is a number in the form of a pointer: kind, slot and generation packed into 64 bits. It
// is looked up and never dereferenced, so NULL, garbage, a handle of another kind and one already
// destroyed are distinguished and refused. A slot's generation grows each time it is given out and
// a slot whose generations are used up is retired: a number is never reused.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/forks.h"

namespace ds::capi {

enum class HandleKind : uint8_t {
  kTensor = 1,
  kComm,
  kTokenizer,
  kDataset,
  kModel,
  kEngine,
  kOptimizer,
  kWork,
  kGenerator,
  kScope,
  kIo,
};
inline constexpr int kHandleKinds = 11;
std::string_view handle_kind_name(HandleKind kind) noexcept;  // "tensor"

// What a handle stands for. Calls that must not overlap enter it; entering never waits.
class HandleObject {
 public:
  HandleObject() = default;
  virtual ~HandleObject() = default;
  HandleObject(const HandleObject&) = delete;
  HandleObject& operator=(const HandleObject&) = delete;

  // False when a call is inside: any call for an exclusive entry, an exclusive one for a shared
  // entry.
  bool try_enter(bool exclusive) noexcept;
  void leave(bool exclusive) noexcept;
  // True when the exclusive call inside runs on this thread, which then is a callback's.
  bool entered_by_this_thread() const noexcept;
  // Whether it was made before this process was forked off.
  bool from_parent() const noexcept { return fork_count() != forks_; }

 private:
  const uint32_t forks_ = fork_count();
  std::atomic<int32_t> users_{0};  // -1: one exclusive call; otherwise the number of shared ones
  std::atomic<const void*> owner_{nullptr};  // identity of the thread of the exclusive call
};

class HandleTable {
 public:
  // Never destroyed: finalizers of other languages may run while the process ends.
  static HandleTable& instance();

  // Gives the object a handle; throws when memory is exhausted.
  uint64_t insert(HandleKind kind, std::shared_ptr<HandleObject> object);

  // The object of a live handle of this kind; throws kInvalidArgument that names the parameter.
  std::shared_ptr<HandleObject> find(uint64_t handle, HandleKind kind, const char* parameter) const;

  // Ends a handle and passes its object on, to be released outside all locks. Null when `handle` is
  // not a live handle of this kind. In a forked child the objects of its parent are kept for ever:
  // ending them would wait for threads that are not there, end what the parent writes, or talk to
  // its peers.
  std::shared_ptr<HandleObject> remove(uint64_t handle, HandleKind kind) noexcept;

  // The text of the last call that failed on a live handle of any kind; none: nothing is kept.
  // Where memory for it is missing the older text stays.
  void set_message(uint64_t handle, const char* text) noexcept;
  // Throws kInvalidArgument when there is no such handle.
  std::string message(uint64_t handle) const;

  // Live handles of a kind, for tests of leaks.
  int64_t live(HandleKind kind) const;

 private:
  static constexpr uint32_t kNoSlot = UINT32_MAX;
  static constexpr uint32_t kShards = 16;

  struct Slot {
    std::shared_ptr<HandleObject> object;  // null: free
    uint32_t generation = 0;               // of the live handle, or of the last one
    uint32_t next_free = kNoSlot;
    HandleKind kind = HandleKind::kTensor;
    std::unique_ptr<std::string> message;  // of the last failure
  };
  struct alignas(64) Shard {
    mutable std::shared_mutex mutex;
    std::vector<Slot> slots;
    uint32_t first_free = kNoSlot;
  };

  std::array<Shard, kShards> shards_;
  std::atomic<uint32_t> next_shard_{0};
};

}  // namespace ds::capi
