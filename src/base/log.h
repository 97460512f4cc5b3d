// The process-wide log sink, one of the documented registries. Default: warnings and errors to
// standard error. The library prints nowhere else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/text.h"

namespace ds {

enum class LogLevel : int32_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

using LogFn = void (*)(void* user_data, int32_t level, const char* component, const char* text);
using LogRelease = void (*)(void* user_data);

// Replaces the sink; null restores the default. The old sink's release runs once no call uses it.
void log_set_sink(LogFn fn, void* user_data, LogRelease release);
void log_set_level(LogLevel level);
bool log_enabled(LogLevel level) noexcept;
void log_write(LogLevel level, const char* component, const std::string& text) noexcept;

template <class... Parts>
void log_warning(const char* component, const Parts&... parts) {
  if (log_enabled(LogLevel::kWarning)) {
    log_write(LogLevel::kWarning, component, str_cat(parts...));
  }
}
template <class... Parts>
void log_info(const char* component, const Parts&... parts) {
  if (log_enabled(LogLevel::kInfo)) log_write(LogLevel::kInfo, component, str_cat(parts...));
}

}  // namespace ds
