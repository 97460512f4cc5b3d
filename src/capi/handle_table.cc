#include "capi/handle_table.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "base/error.h"

namespace ds::capi {
namespace {

// Bits of a handle: [kind mark 8][generation 32][slot 20][shard 4]. The mark lies in the top byte
// and makes the number a non-canonical address: no pointer of the process equals a handle, and code
// that dereferences a handle faults at once.
constexpr int kShardBits = 4;
constexpr int kSlotBits = 20;
constexpr uint32_t kMaxSlots = uint32_t{1} << kSlotBits;
constexpr uint64_t kKindMark = 0xD0;

struct Decoded {
  HandleKind kind;
  uint32_t generation;
  uint32_t slot;
  uint32_t shard;
};

uint64_t encode(const Decoded& d) {
  return (kKindMark | static_cast<uint64_t>(d.kind)) << 56 | uint64_t{d.generation} << 24 |
         uint64_t{d.slot} << kShardBits | d.shard;
}

bool decode(uint64_t handle, Decoded& out) {
  const uint64_t mark = handle >> 56;
  if (mark <= kKindMark || mark > kKindMark + kHandleKinds) return false;
  out.kind = static_cast<HandleKind>(mark - kKindMark);
  out.generation = static_cast<uint32_t>(handle >> 24);
  out.slot = static_cast<uint32_t>(handle >> kShardBits) & (kMaxSlots - 1);
  out.shard = static_cast<uint32_t>(handle) & ((1u << kShardBits) - 1);
  return true;
}

// "a tensor", "an engine"
std::string_view name_with_article(HandleKind kind) noexcept {
  static constexpr std::string_view kNames[] = {
      "",          "a tensor",     "a comm", "a tokenizer", "a dataset", "a model",
      "an engine", "an optimizer", "a work", "a generator", "a scope",   "an io"};
  static_assert(std::size(kNames) == kHandleKinds + 1);
  return kNames[static_cast<size_t>(kind)];
}

const void* this_thread_identity() noexcept {
  static thread_local const char mark = 0;
  return &mark;
}

}  // namespace

std::string_view handle_kind_name(HandleKind kind) noexcept {
  static constexpr std::string_view kNames[] = {"",        "tensor",    "comm",   "tokenizer",
                                                "dataset", "model",     "engine", "optimizer",
                                                "work",    "generator", "scope",  "io"};
  static_assert(std::size(kNames) == kHandleKinds + 1);
  return kNames[static_cast<size_t>(kind)];
}

bool HandleObject::try_enter(bool exclusive) noexcept {
  int32_t users = users_.load(std::memory_order_relaxed);
  do {
    if (users < 0 || (exclusive && users != 0) || users == INT32_MAX) return false;
  } while (!users_.compare_exchange_weak(users, exclusive ? -1 : users + 1,
                                         std::memory_order_acquire, std::memory_order_relaxed));
  if (exclusive) owner_.store(this_thread_identity(), std::memory_order_relaxed);
  return true;
}

void HandleObject::leave(bool exclusive) noexcept {
  if (exclusive) {
    owner_.store(nullptr, std::memory_order_relaxed);
    users_.store(0, std::memory_order_release);
  } else {
    users_.fetch_sub(1, std::memory_order_release);
  }
}

bool HandleObject::entered_by_this_thread() const noexcept {
  return owner_.load(std::memory_order_relaxed) == this_thread_identity();
}

HandleTable& HandleTable::instance() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static HandleTable* const table = new HandleTable;
  return *table;
}

uint64_t HandleTable::insert(HandleKind kind, std::shared_ptr<HandleObject> object) {
  const uint32_t shard_index = next_shard_.fetch_add(1, std::memory_order_relaxed) % kShards;
  Shard& shard = shards_[shard_index];
  const std::unique_lock lock(shard.mutex);
  uint32_t index = shard.first_free;
  if (index == kNoSlot) {
    DS_CHECK(shard.slots.size() < kMaxSlots, Code::kOutOfMemory, "more than ",
             int64_t{kMaxSlots} * kShards, " handles; destroy those that are not needed");
    index = static_cast<uint32_t>(shard.slots.size());
    shard.slots.emplace_back();
  } else {
    shard.first_free = shard.slots[index].next_free;
  }
  Slot& slot = shard.slots[index];
  slot.object = std::move(object);
  slot.kind = kind;
  ++slot.generation;
  return encode({kind, slot.generation, index, shard_index});
}

std::shared_ptr<HandleObject> HandleTable::find(uint64_t handle, HandleKind kind,
                                                const char* parameter) const {
  const std::string_view needed = name_with_article(kind);
  DS_CHECK(handle != 0, Code::kInvalidArgument, parameter, " is NULL; ", needed,
           " handle is needed");
  Decoded d;
  bool known = decode(handle, d);
  bool alive = false;
  if (known) {
    const Shard& shard = shards_[d.shard];
    const std::shared_lock lock(shard.mutex);
    known = d.slot < shard.slots.size() && d.generation != 0 &&
            d.generation <= shard.slots[d.slot].generation;
    if (known) {
      const Slot& slot = shard.slots[d.slot];
      alive = d.generation == slot.generation && slot.object != nullptr;
      // A number with the right generation and a foreign kind was made up, not handed out.
      known = !alive || slot.kind == d.kind;
      if (known && alive && d.kind == kind) return slot.object;
    }
  }
  DS_CHECK(known, Code::kInvalidArgument, parameter, " (", reinterpret_cast<const void*>(handle),
           ") is not a handle of this library; ", needed, " handle is needed");
  DS_CHECK(d.kind == kind, Code::kInvalidArgument, parameter, " is a handle of kind ",
           handle_kind_name(d.kind), alive ? "" : " (already destroyed)", "; ", needed,
           " handle is needed");
  fail(Code::kInvalidArgument, parameter, " is ", needed, " handle that was already destroyed");
}

std::shared_ptr<HandleObject> HandleTable::remove(uint64_t handle, HandleKind kind) noexcept {
  Decoded d;
  if (!decode(handle, d) || d.kind != kind) return nullptr;
  Shard& shard = shards_[d.shard];
  const std::unique_lock lock(shard.mutex);
  if (d.slot >= shard.slots.size()) return nullptr;
  Slot& slot = shard.slots[d.slot];
  if (slot.generation != d.generation || slot.kind != kind || !slot.object) return nullptr;
  std::shared_ptr<HandleObject> object = std::exchange(slot.object, nullptr);
  slot.message.reset();
  if (slot.generation != UINT32_MAX) {  // otherwise the slot is retired
    slot.next_free = shard.first_free;
    shard.first_free = d.slot;
  }
  if (object->from_parent()) {
    static_cast<void>(new (std::nothrow) std::shared_ptr<HandleObject>(object));
  }
  return object;
}

void HandleTable::set_message(uint64_t handle, const char* text) noexcept {
  Decoded d;
  if (!decode(handle, d)) return;
  Shard& shard = shards_[d.shard];
  try {
    auto message = std::make_unique<std::string>(text);
    const std::unique_lock lock(shard.mutex);
    if (d.slot >= shard.slots.size()) return;
    Slot& slot = shard.slots[d.slot];
    if (slot.generation == d.generation && slot.kind == d.kind && slot.object) {
      slot.message = std::move(message);
    }
  } catch (...) {  // no memory: the older text stays
  }
}

std::string HandleTable::message(uint64_t handle) const {
  Decoded d;
  if (decode(handle, d)) {
    const Shard& shard = shards_[d.shard];
    const std::shared_lock lock(shard.mutex);
    if (d.slot < shard.slots.size()) {
      const Slot& slot = shard.slots[d.slot];
      if (slot.generation == d.generation && slot.kind == d.kind && slot.object) {
        return slot.message ? *slot.message : std::string();
      }
    }
  }
  fail(Code::kInvalidArgument, "handle (", reinterpret_cast<const void*>(handle),
       ") is no live handle of this library");
}

int64_t HandleTable::live(HandleKind kind) const {
  int64_t count = 0;
  for (const Shard& shard : shards_) {
    const std::shared_lock lock(shard.mutex);
    count += std::ranges::count_if(
        shard.slots, [&](const Slot& slot) { return slot.object && slot.kind == kind; });
  }
  return count;
}

}  // namespace ds::capi
