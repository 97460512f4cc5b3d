// What the library logs while a test runs.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"

namespace ds::engine_test {

class LogLines {
 public:
  LogLines() {
    log_set_sink(
        [](void* self, int32_t, const char*, const char* text) {
          auto* const lines = static_cast<LogLines*>(self);
          const std::lock_guard lock(lines->mutex_);
          lines->lines_.emplace_back(text);
        },
        this, nullptr);
  }
  ~LogLines() { log_set_sink(nullptr, nullptr, nullptr); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  // The lines that hold a text, and forgets all.
  std::vector<std::string> take(const std::string& part) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    for (std::string& line : lines_) {
      if (line.find(part) != std::string::npos) out.push_back(std::move(line));
    }
    lines_.clear();
    return out;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace ds::engine_test
