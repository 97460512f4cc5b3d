// Keeps what is logged while it lives, for tests of warnings and notes.
#pragma once

#include <mutex>
#include <string>

#include "base/log.h"

namespace ds {

class HeardLog {
 public:
  explicit HeardLog(LogLevel level = LogLevel::kWarning) {
    log_set_sink(&hear, this, nullptr);
    log_set_level(level);
  }
  ~HeardLog() {
    log_set_sink(nullptr, nullptr, nullptr);
    log_set_level(LogLevel::kWarning);
  }
  HeardLog(const HeardLog&) = delete;
  HeardLog& operator=(const HeardLog&) = delete;

  // A line per message.
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  static void hear(void* self, int32_t, const char*, const char* text) {
    auto& log = *static_cast<HeardLog*>(self);
    const std::lock_guard lock(log.mutex_);
    log.text_.append(text).append("\n");
  }

  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace ds
