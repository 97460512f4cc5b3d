// ds/base.hpp - Errors as exceptions, handles that end themselves, the version and the log. Part of
// ds.hpp.
#ifndef DS_BASE_HPP
#define DS_BASE_HPP

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base.h"

namespace libds {

// A failed call: what() is ds_last_error_message(), status() a ds_status_code.
class Error : public std::runtime_error {
 public:
  Error(ds_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  ds_status status() const noexcept { return status_; }
  const char* status_name() const noexcept { return ds_status_name(status_); }

 private:
  ds_status status_;
};

// Throws when `status` is a failure. Use it around calls of ds.h made by hand.
inline void check(ds_status status) {
  if (status < 0) throw Error(status, ds_last_error_message());
}

namespace detail {

// Takes a text that arrived through an out-parameter.
inline std::string take(char* text) {
  const std::unique_ptr<char, decltype(&ds_string_free)> owner(text, &ds_string_free);
  return text == nullptr ? std::string() : std::string(text);
}

// Never NULL, also for an empty view.
inline const char* pointer(std::string_view text) { return text.data() ? text.data() : ""; }

inline const char* or_null(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}

// A JSON string literal.
inline std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

template <class T, void (*Destroy)(T*)>
class Handle {
 public:
  Handle() noexcept = default;
  explicit Handle(T* handle) noexcept : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) reset(std::exchange(other.handle_, nullptr));
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { Destroy(handle_); }

  T* get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  // Gives the handle away; the caller ends it.
  T* release() noexcept { return std::exchange(handle_, nullptr); }
  void reset(T* handle = nullptr) noexcept { Destroy(std::exchange(handle_, handle)); }

 private:
  T* handle_ = nullptr;
};

template <class To, class From>
To bits_as(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace detail

inline std::string version() { return ds_version(); }
inline int32_t abi_version() noexcept { return ds_abi_version(); }
inline std::string status_name(ds_status status) { return ds_status_name(status); }
// The build and the machine as JSON.
inline std::string report() {
  char* json = nullptr;
  check(ds_report(&json));
  return detail::take(json);
}

// Receives log messages, possibly from several threads at once. It must not call the library;
// exceptions that it throws are dropped.
using LogFunction =
    std::function<void(int32_t level, std::string_view component, std::string_view text)>;

// Sets the process-wide log sink; an empty function restores the default (standard error).
inline void set_log(LogFunction function) {
  if (!function) return check(ds_log_set(nullptr, nullptr, nullptr));
  auto holder = std::make_unique<LogFunction>(std::move(function));
  check(ds_log_set(
      [](void* user_data, int32_t level, const char* component, const char* text) {
        try {
          (*static_cast<LogFunction*>(user_data))(level, component, text);
        } catch (...) {  // a sink must not unwind through C
        }
      },
      holder.get(), [](void* user_data) { delete static_cast<LogFunction*>(user_data); }));
  holder.release();
}
inline void set_log_level(int32_t level) { check(ds_log_set_level(level)); }

}  // namespace libds

#endif  // DS_BASE_HPP
