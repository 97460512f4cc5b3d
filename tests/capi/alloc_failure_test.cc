// Memory that runs out at any moment: every function is called with good arguments while the n-th
// allocation fails, for growing n until it succeeds. It must report DS_ERR_OUT_OF_MEMORY, leave its
// outputs alone, lose no handle, and work when memory is back.
//
// This program replaces operator new, so it links the library statically.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/text.h"
#include "capi/calls.h"

namespace {

// Allocations left before one fails; negative: none fails.
std::atomic<int64_t> allocations_left{-1};
std::atomic<int64_t> failures{0};

void* allocate(std::size_t size, std::size_t alignment) {
  if (allocations_left.load(std::memory_order_relaxed) >= 0 &&
      allocations_left.fetch_sub(1, std::memory_order_relaxed) == 0) {
    failures.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  if (size == 0) size = 1;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(size);
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* const pointer = allocate(size, alignment);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

void* operator new(std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new[](std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
// Not inlined: GCC warns where it sees a free beside a new that it does not look into.
[[gnu::noinline]] static void release(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer) noexcept { release(pointer); }
void operator delete[](void* pointer) noexcept { release(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { release(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { release(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { release(pointer); }
void operator delete[](void* pointer, std::align_val_t) noexcept { release(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept { release(pointer); }
void operator delete[](void* pointer, std::size_t, std::align_val_t) noexcept { release(pointer); }

namespace capi_test {
namespace {

int64_t live_handles() {
  int64_t count = 0;
  for (const HandleKind kind : kAllKinds) count += ds::capi::HandleTable::instance().live(kind);
  return count;
}

class AllocationFailure : public ::testing::TestWithParam<size_t> {};

TEST_P(AllocationFailure, AtEveryPoint) {
  const Call& call = all_calls()[GetParam()];
  // Each n up to 40, then every seventh: the later ones repeat the same places.
  int64_t n = 0;
  bool succeeded = false;
  while (!succeeded && n < 100000) {
    SCOPED_TRACE(ds::str_cat(call.name, ", allocation ", n, " fails"));
    World world;  // a failed call may leave a forward open
    PreparedCall prepared(call, world);
    if (HasFailure()) return;
    const int64_t before = live_handles();
    failures = 0;
    allocations_left = n;
    const ds_status status = prepared.invoke();
    allocations_left = -1;
    const bool failed = failures.load() > 0;
    if (status == DS_OK) {
      // A failure that the library could do without (a log line, a cache) is no failure.
      succeeded = !failed;
      prepared.release_outputs();
    } else {
      EXPECT_TRUE(failed) << ds_last_error_message();
      EXPECT_EQ(status, DS_ERR_OUT_OF_MEMORY) << ds_last_error_message();
      EXPECT_THAT(ds_last_error_message(), ::testing::StartsWith(call.name));
      EXPECT_TRUE(prepared.outputs_untouched());
      EXPECT_EQ(live_handles(), before);
    }
    if (HasFailure()) return;
    n += n < 40 ? 1 : 7 + n / 4;
  }
  EXPECT_TRUE(succeeded) << call.name;
}

INSTANTIATE_TEST_SUITE_P(Every, AllocationFailure, ::testing::Range<size_t>(0, all_calls().size()),
                         [](const auto& test) {
                           return std::string(all_calls()[test.param].name);
                         });

}  // namespace
}  // namespace capi_test
