// The fence between C++ and C: every exported function that returns a status runs its body inside
// guard(), which lets no exception out and keeps the thread's last error text.
#pragma once

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

template <class Body>
ds_status guard(const char* function, Body&& body) noexcept {
  try {
    run_fault_hook();
    body();
    return DS_OK;
  } catch (...) {
    return status_of_current_exception(function);
  }
}

// For functions that return a borrowed pointer: null and a last error text on failure.
template <class Pointer, class Body>
Pointer guard_pointer(const char* function, Body&& body) noexcept {
  try {
    run_fault_hook();
    return body();
  } catch (...) {
    status_of_current_exception(function);
    return nullptr;
  }
}

}  // namespace ds::capi
