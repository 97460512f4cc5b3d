// The progress of an engine's long calls, and their early end.
#include <memory>
#include <utility>

#include "capi/args.h"
#include "capi/engine_object.h"
#include "capi/fence.h"

namespace ds::capi {
namespace {

// The caller's callback and what it keeps; released when the last call lets go of it.
class CallerProgress {
 public:
  CallerProgress(ds_progress_fn fn, void* user_data) : fn_(fn), user_data_(user_data) {}
  ~CallerProgress() {
    try {
      if (release_ != nullptr) release_(user_data_);
    } catch (...) {  // nobody is there to be told
    }
  }
  CallerProgress(const CallerProgress&) = delete;
  CallerProgress& operator=(const CallerProgress&) = delete;

  // From now on it is ours to release: what fails before leaves it with the caller.
  void own(ds_release_fn release) noexcept { release_ = release; }
  bool operator()(const char* call, int64_t done, int64_t total) const {
    return fn_(user_data_, call, done, total) == 0;
  }

 private:
  ds_progress_fn fn_;
  void* user_data_;
  ds_release_fn release_ = nullptr;
};

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_engine_set_progress(ds_engine* engine, ds_progress_fn fn, void* user_data,
                                 ds_release_fn release) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    if (fn == nullptr) return object->engine().control().set_progress({});
    const auto caller = std::make_shared<CallerProgress>(fn, user_data);
    object->engine().control().set_progress(
        [caller](const char* call, int64_t done, int64_t total) {
          return (*caller)(call, done, total);
        });
    caller->own(release);
  });
}

ds_status ds_engine_interrupt(ds_engine* engine) {
  return guard(__func__, [&] { look_up(engine, "engine")->engine().control().interrupt(); });
}

ds_status ds_engine_join(ds_engine* engine) {
  return guard(__func__, [&] { enter_engine(engine)->engine().join(); });
}
