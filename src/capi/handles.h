// Typed access to handles: which object stands behind each handle type of ds.h, looking one up,
// entering it for the length of a call, publishing and ending it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/error.h"
#include "capi/fence.h"
#include "capi/handle_table.h"
#include "ds.h"

namespace ds::capi {

// Specialised beside each object: `Object` and `kind`.
template <class Handle>
struct HandleTraits;

template <class Handle>
using ObjectOf = typename HandleTraits<Handle>::Object;

static_assert(sizeof(void*) == sizeof(uint64_t), "handles need 64-bit pointers");

template <class Handle>
uint64_t handle_number(const Handle* handle) noexcept {
  return reinterpret_cast<uint64_t>(handle);
}

// The object, for functions that any number of threads may call at once.
template <class Handle>
std::shared_ptr<ObjectOf<Handle>> look_up(const Handle* handle, const char* parameter) {
  CallHandle::note(handle_number(handle));
  return std::static_pointer_cast<ObjectOf<Handle>>(
      HandleTable::instance().find(handle_number(handle), HandleTraits<Handle>::kind, parameter));
}

enum class Entry { kExclusive, kShared };

// Keeps an object alive and entered. Shared entries are for inputs that a call only reads: several
// calls may read one tensor, none may change it meanwhile.
template <class Object>
class Entered {
 public:
  Entered(std::shared_ptr<Object> object, Entry entry, const char* parameter)
      : object_(std::move(object)), exclusive_(entry == Entry::kExclusive) {
    if (object_->try_enter(exclusive_)) return;
    CallHandle::forget();
    const char* const who = object_->entered_by_this_thread()
                                ? " is in use by this thread: a callback must not use the handle "
                                  "whose call invoked it"
                                : " is in use by another thread: one call at a time";
    fail(Code::kState, parameter, who);
  }
  ~Entered() { object_->leave(exclusive_); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

  Object* operator->() const noexcept { return object_.get(); }
  Object& operator*() const noexcept { return *object_; }
  const std::shared_ptr<Object>& shared() const noexcept { return object_; }

 private:
  std::shared_ptr<Object> object_;
  bool exclusive_;
};

template <class Handle>
Entered<ObjectOf<Handle>> enter(const Handle* handle, const char* parameter,
                                Entry entry = Entry::kExclusive) {
  return {look_up(handle, parameter), entry, parameter};
}

// Gives an object its handle. Nothing that throws may follow between this and the assignment to the
// out-parameter.
template <class Handle>
Handle* publish(std::shared_ptr<ObjectOf<Handle>> object) {
  return reinterpret_cast<Handle*>(
      HandleTable::instance().insert(HandleTraits<Handle>::kind, std::move(object)));
}

// Ends a handle; NULL and anything that is no live handle of this kind are left alone. The object
// dies when the last call inside it returns.
template <class Handle>
void end_handle(Handle* handle) noexcept {
  HandleTable::instance().remove(handle_number(handle), HandleTraits<Handle>::kind);
}

}  // namespace ds::capi
