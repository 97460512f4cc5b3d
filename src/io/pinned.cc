#include "io/pinned.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "base/error.h"
#include "io/buffer.h"

namespace ds::io {
namespace {

// Never destroyed: tensors of it may end while the process does.
struct PinnedList {
  std::mutex mutex;
  struct Piece {
    Buffer buffer;
    PinnedFor whom;
  };
  std::map<uintptr_t, Piece> pieces;  // by address
};
// In memory of its own, so that asking cannot fail for want of memory.
PinnedList& pinned_list() noexcept {
  alignas(PinnedList) static std::byte memory[sizeof(PinnedList)];
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const list = new (memory) PinnedList();
  return *list;
}

uintptr_t address_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

std::string lock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return str_cat("; the process may lock ", limit.rlim_cur, " bytes in all (ulimit -l)");
}

}  // namespace

std::byte* allocate_pinned(int64_t bytes, PinnedFor whom) {
  DS_CHECK(bytes > 0, Code::kInvalidArgument, "pinned memory of ", bytes, " bytes");
  DS_CHECK(bytes <= int64_t{1} << 48, Code::kOutOfMemory, "no memory for ", bytes,
           " bytes of pinned memory");
  Buffer buffer(bytes, &process_account(/*gpu=*/false));
  std::byte* const data = buffer.data();
  if (::mlock(data, static_cast<size_t>(buffer.size())) != 0) {
    const int error = errno;
    fail(Code::kOutOfMemory, "cannot lock ", buffer.size(),
         " bytes of memory: ", std::strerror(error), lock_limit());
  }
  PinnedList& list = pinned_list();
  const std::lock_guard lock(list.mutex);
  list.pieces.emplace(address_of(data), PinnedList::Piece{std::move(buffer), whom});
  return data;
}

bool free_pinned(const void* memory, PinnedFor whom) noexcept {
  PinnedList& list = pinned_list();
  Buffer buffer;  // declared first: it is unmapped, which unlocks it, without the lock
  const std::lock_guard lock(list.mutex);
  const auto found = list.pieces.find(address_of(memory));
  if (found == list.pieces.end() || found->second.whom != whom) return false;
  buffer = std::move(found->second.buffer);
  list.pieces.erase(found);
  return true;
}

bool is_pinned(const void* memory, int64_t bytes) noexcept {
  if (memory == nullptr || bytes < 0) return false;
  PinnedList& list = pinned_list();
  const uintptr_t first = address_of(memory);
  const std::lock_guard lock(list.mutex);
  auto piece = list.pieces.upper_bound(first);
  if (piece == list.pieces.begin()) return false;
  --piece;
  const auto offset = static_cast<int64_t>(first - piece->first);
  const int64_t size = piece->second.buffer.size();
  return offset < size && bytes <= size - offset;
}

}  // namespace ds::io
