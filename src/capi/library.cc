// The library itself: versions, status names, the last error, text, the log sink, the report.
#include <cstdlib>
#include <memory>

#include "base/log.h"
#include "capi/args.h"
#include "capi/fence.h"
#include "capi/handle_table.h"
#include "capi/report.h"

namespace ds::capi {

static_assert(static_cast<int32_t>(LogLevel::kDebug) == DS_LOG_DEBUG);
static_assert(static_cast<int32_t>(LogLevel::kInfo) == DS_LOG_INFO);
static_assert(static_cast<int32_t>(LogLevel::kWarning) == DS_LOG_WARNING);
static_assert(static_cast<int32_t>(LogLevel::kError) == DS_LOG_ERROR);
static_assert(static_cast<int32_t>(LogLevel::kOff) == DS_LOG_OFF);

namespace {

#define DS_TEXT_OF(x) #x
#define DS_TEXT(x) DS_TEXT_OF(x)
constexpr char kVersion[] =
    DS_TEXT(DS_VERSION_MAJOR) "." DS_TEXT(DS_VERSION_MINOR) "." DS_TEXT(DS_VERSION_PATCH);

// The caller's sink, fenced: an exception that it lets out must not unwind through the engine.
struct CallerSink {
  ds_log_fn fn;
  void* user_data;
  ds_release_fn release;
};

void call_sink(void* sink, int32_t level, const char* component, const char* text) {
  const auto* const caller = static_cast<const CallerSink*>(sink);
  try {
    caller->fn(caller->user_data, level, component, text);
  } catch (...) {  // a sink has nobody to report to
  }
}

void release_sink(void* sink) {
  const std::unique_ptr<CallerSink> caller(static_cast<CallerSink*>(sink));
  try {
    if (caller->release != nullptr) caller->release(caller->user_data);
  } catch (...) {  // nor has its release
  }
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

int32_t ds_abi_version(void) {
  return DS_VERSION_MAJOR * 1000000 + DS_VERSION_MINOR * 1000 + DS_VERSION_PATCH;
}

const char* ds_version(void) { return kVersion; }

const char* ds_status_name(ds_status status) {
  switch (status) {
    case DS_OK:
      return "DS_OK";
    case DS_ERR_INVALID_ARGUMENT:
      return "DS_ERR_INVALID_ARGUMENT";
    case DS_ERR_CONFIG:
      return "DS_ERR_CONFIG";
    case DS_ERR_OUT_OF_MEMORY:
      return "DS_ERR_OUT_OF_MEMORY";
    case DS_ERR_DEVICE:
      return "DS_ERR_DEVICE";
    case DS_ERR_COMM:
      return "DS_ERR_COMM";
    case DS_ERR_IO:
      return "DS_ERR_IO";
    case DS_ERR_UNSUPPORTED:
      return "DS_ERR_UNSUPPORTED";
    case DS_ERR_ABORTED:
      return "DS_ERR_ABORTED";
    case DS_ERR_CALLBACK:
      return "DS_ERR_CALLBACK";
    case DS_ERR_INTERNAL:
      return "DS_ERR_INTERNAL";
    case DS_ERR_STATE:
      return "DS_ERR_STATE";
    case DS_ERR_CORRUPT:
      return "DS_ERR_CORRUPT";
    case DS_ERR_NOT_FOUND:
      return "DS_ERR_NOT_FOUND";
    default:
      return "DS_ERR_UNKNOWN";
  }
}

const char* ds_last_error_message(void) { return last_error_text(); }

ds_status ds_handle_error_message(const void* handle, char** out_message) {
  return guard(__func__, [&] {
    char*& out = out_param(out_message, "out_message");
    DS_CHECK(handle != nullptr, Code::kInvalidArgument, "handle is NULL");
    out = make_c_string(HandleTable::instance().message(reinterpret_cast<uint64_t>(handle)));
  });
}

void ds_string_free(char* text) { std::free(text); }

ds_status ds_log_set(ds_log_fn fn, void* user_data, ds_release_fn release) {
  return guard(__func__, [&] {
    auto sink = std::make_unique<CallerSink>(CallerSink{fn, user_data, release});
    if (fn == nullptr) {
      log_set_sink(nullptr, nullptr, nullptr);
      release_sink(sink.release());  // there is no sink that could use the data
    } else {
      log_set_sink(call_sink, sink.get(), release_sink);
      static_cast<void>(sink.release());
    }
  });
}

ds_status ds_log_set_level(int32_t level) {
  return guard(__func__, [&] {
    DS_CHECK(level >= DS_LOG_DEBUG && level <= DS_LOG_OFF, Code::kInvalidArgument, "level is ",
             level, "; DS_LOG_DEBUG (0) to DS_LOG_OFF (4) are needed");
    log_set_level(static_cast<LogLevel>(level));
  });
}

ds_status ds_report(char** out_json) {
  return guard(__func__, [&] {
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(report_json());
  });
}
