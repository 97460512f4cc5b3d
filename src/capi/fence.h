// The fence between C++ and C: every exported function that returns a status runs its body inside
// guard(), which lets no exception out and keeps the thread's last error text.
#pragma once

#include <cstdint>

#include "ds.h"

namespace ds::capi {

// Called within every guarded body before anything else; tests set it to throw. Not exported.
using FaultHook = void (*)();
void set_fault_hook(FaultHook hook) noexcept;
void run_fault_hook();

// Turns the exception being handled into a status, and its text, which begins with the function's
// name, into this thread's last error.
ds_status status_of_current_exception(const char* function) noexcept;

// This thread's last error text; never null.
const char* last_error_text() noexcept;

// The handle that the running call of this thread was given first: the text of its failure is kept
// with that handle too. Calls nest where a callback calls the library.
class CallHandle {
 public:
  CallHandle() noexcept : outer_(current_) { current_ = 0; }
  ~CallHandle() { current_ = outer_; }
  CallHandle(const CallHandle&) = delete;
  CallHandle& operator=(const CallHandle&) = delete;

  static void note(uint64_t handle) noexcept {
    if (current_ == 0) current_ = handle;
  }
  // The failure is not the handle's: another call is inside it.
  static void forget() noexcept { current_ = 0; }
  static uint64_t current() noexcept { return current_; }

 private:
  // NOLINTNEXTLINE: of the thread; a private member is named so, static or not
  static thread_local constinit uint64_t current_;
  const uint64_t outer_;
};

template <class Body>
ds_status guard(const char* function, Body&& body) noexcept {
  const CallHandle handle;
  try {
    run_fault_hook();
    body();
    return DS_OK;
  } catch (...) {
    return status_of_current_exception(function);
  }
}

}  // namespace ds::capi
