// What a program may do about a call of an engine that takes long: see how far it is, and end it
// early, from a callback or from another thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/error.h"

namespace ds {

class CallControl {
 public:
  // Called between the parts of a call; false ends it.
  using Progress = std::function<bool(const char* call, int64_t done, int64_t total)>;
  void set_progress(Progress progress) { progress_ = std::move(progress); }

  // From any thread: the call that runs now ends at its next part. Without one nothing happens.
  void interrupt() noexcept { interrupted_.store(true, std::memory_order_relaxed); }

  // One call, which consists of `total` parts.
  class Call {
   public:
    Call(CallControl& control, const char* name, int64_t total)
        : control_(control), name_(name), total_(total) {
      control_.interrupted_.store(false, std::memory_order_relaxed);
    }

    // Before the next part: throws kAborted after an interrupt, kCallback when the callback ends
    // the call.
    void next(int64_t done) {
      if (control_.interrupted_.load(std::memory_order_relaxed)) {
        fail(Code::kAborted, name_, " was interrupted after ", done, " of ", total_, " parts");
      }
      if (control_.progress_ && !control_.progress_(name_, done, total_)) {
        fail(Code::kCallback, "the progress callback ended ", name_, " after ", done, " of ",
             total_, " parts");
      }
    }

   private:
    CallControl& control_;
    const char* const name_;
    const int64_t total_;
  };

 private:
  std::atomic<bool> interrupted_{false};
  Progress progress_;
};

}  // namespace ds
