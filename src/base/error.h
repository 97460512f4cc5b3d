// The one exception type of the engine and the one check macro that throws it.
#pragma once

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/text.h"

namespace ds {

// Values equal ds_status_code in ds.h (asserted in src/capi), so the C fence passes them through.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = -1,
  kConfig = -2,
  kOutOfMemory = -3,
  kDevice = -4,
  kComm = -5,
  kIo = -6,
  kUnsupported = -7,
  kAborted = -8,
  kCallback = -9,
  kInternal = -10,
  kState = -11,
  kCorrupt = -12,
  kNotFound = -13,
};

class Error : public std::exception {
 public:
  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  Code code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Code code_;
  std::string message_;
};

// Throws ds::Error built from pieces: fail(Code::kIo, "cannot open ", path).
[[noreturn]] void fail_with(Code code, std::initializer_list<TextPart> parts);
template <class... Parts>
[[noreturn]] void fail(Code code, const Parts&... parts) {
  fail_with(code, {TextPart(parts)...});
}

}  // namespace ds

// Arguments after the code are only evaluated on failure; that is why this is a macro.
#define DS_CHECK(condition, code, ...) \
  do {                                 \
    if (!(condition)) [[unlikely]]     \
      ::ds::fail((code), __VA_ARGS__); \
  } while (false)
