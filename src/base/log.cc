#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

namespace ds {
namespace {

// Owned by shared_ptr, so that release runs only after the last log call that uses it.
struct Sink {
  LogFn fn = nullptr;
  void* user_data = nullptr;
  LogRelease release = nullptr;
  ~Sink() {
    if (release != nullptr) release(user_data);
  }
};

struct Registry {
  std::mutex mutex;
  std::shared_ptr<Sink> sink;
  std::atomic<int32_t> level{static_cast<int32_t>(LogLevel::kWarning)};
};

// Never destroyed: threads may log while the process ends.
Registry& registry() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

void log_set_sink(LogFn fn, void* user_data, LogRelease release) {
  auto next = fn == nullptr ? nullptr : std::make_shared<Sink>(Sink{fn, user_data, nullptr});
  if (next) next->release = release;
  Registry& r = registry();
  std::shared_ptr<Sink> old;
  const std::lock_guard lock(r.mutex);
  old = std::exchange(r.sink, std::move(next));
}

void log_set_level(LogLevel level) {
  registry().level.store(static_cast<int32_t>(level), std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) noexcept {
  return static_cast<int32_t>(level) >= registry().level.load(std::memory_order_relaxed);
}

void log_write(LogLevel level, const char* component, const std::string& text) noexcept {
  if (!log_enabled(level)) return;
  Registry& r = registry();
  std::shared_ptr<Sink> sink;
  {
    const std::lock_guard lock(r.mutex);
    sink = r.sink;
  }
  if (sink) {
    sink->fn(sink->user_data, static_cast<int32_t>(level), component, text.c_str());
  } else {
    static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
    std::fprintf(stderr, "ds: %s: %s: %s\n", kNames[static_cast<int32_t>(level) & 3], component,
                 text.c_str());
  }
}

}  // namespace ds
