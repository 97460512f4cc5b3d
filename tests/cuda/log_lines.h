// The lines that are logged while an object of this lives.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"

namespace ds::testing {

class LogLines {
 public:
  LogLines() {
    log_set_sink(
        [](void* self, int32_t level, const char* component, const char* text) {
          auto& lines = *static_cast<LogLines*>(self);
          const std::lock_guard lock(lines.mutex_);
          if (level != static_cast<int32_t>(LogLevel::kWarning)) return;
          lines.warnings_.push_back(std::string(component) + ": " + text);
        },
        this, nullptr);
  }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  ~LogLines() { log_set_sink(nullptr, nullptr, nullptr); }

  std::vector<std::string> warnings() const {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> warnings_;
};

}  // namespace ds::testing
