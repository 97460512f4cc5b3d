#include "capi/fence.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/failure_note.h"
#include "capi/handle_table.h"

namespace ds::capi {
namespace {

static_assert(static_cast<int32_t>(Code::kOk) == DS_OK);
static_assert(static_cast<int32_t>(Code::kInvalidArgument) == DS_ERR_INVALID_ARGUMENT);
static_assert(static_cast<int32_t>(Code::kConfig) == DS_ERR_CONFIG);
static_assert(static_cast<int32_t>(Code::kOutOfMemory) == DS_ERR_OUT_OF_MEMORY);
static_assert(static_cast<int32_t>(Code::kDevice) == DS_ERR_DEVICE);
static_assert(static_cast<int32_t>(Code::kComm) == DS_ERR_COMM);
static_assert(static_cast<int32_t>(Code::kIo) == DS_ERR_IO);
static_assert(static_cast<int32_t>(Code::kUnsupported) == DS_ERR_UNSUPPORTED);
static_assert(static_cast<int32_t>(Code::kAborted) == DS_ERR_ABORTED);
static_assert(static_cast<int32_t>(Code::kCallback) == DS_ERR_CALLBACK);
static_assert(static_cast<int32_t>(Code::kInternal) == DS_ERR_INTERNAL);
static_assert(static_cast<int32_t>(Code::kState) == DS_ERR_STATE);
static_assert(static_cast<int32_t>(Code::kCorrupt) == DS_ERR_CORRUPT);
static_assert(static_cast<int32_t>(Code::kNotFound) == DS_ERR_NOT_FOUND);

// The text lives on the heap and is reached through a trivially destructible pointer, so that a
// call from the destructor of another thread-local object still finds something sane. When no
// memory is left for the text, as much as fits stands in `reserve`.
struct LastError {
  std::string* text;
  bool thread_ends;
  bool in_reserve;
  std::array<char, 256> reserve;
};
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
constinit thread_local LastError last_error{};

struct LastErrorOwner {
  ~LastErrorOwner() {
    delete last_error.text;
    last_error.text = nullptr;
    last_error.thread_ends = true;
  }
};

void append(char*& out, const char* end, std::string_view piece) noexcept {
  const size_t n = std::min(piece.size(), static_cast<size_t>(end - out));
  std::memcpy(out, piece.data(), n);
  out += n;
}

void set_last_error(std::string_view function, std::string_view message) noexcept {
  LastError& slot = last_error;
  try {
    if (slot.text == nullptr && !slot.thread_ends) {
      static thread_local LastErrorOwner owner;
      static_cast<void>(&owner);
      slot.text = new std::string;
    }
    if (slot.text != nullptr) {
      // Built aside: the message may be a view of the text that is being replaced.
      std::string text;
      text.reserve(function.size() + 2 + message.size());
      text.append(function).append(": ").append(message);
      *slot.text = std::move(text);
      slot.in_reserve = false;
      return;
    }
  } catch (...) {  // no memory: use the reserve
  }
  char* out = slot.reserve.data();
  const char* const end = out + slot.reserve.size() - 1;
  append(out, end, function);
  append(out, end, ": ");
  append(out, end, message);
  *out = '\0';
  slot.in_reserve = true;
}

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): tests set it
std::atomic<FaultHook> fault_hook{nullptr};

}  // namespace

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
constinit thread_local uint64_t CallHandle::current_ = 0;

void set_fault_hook(FaultHook hook) noexcept { fault_hook.store(hook, std::memory_order_relaxed); }

void run_fault_hook() {
  if (const FaultHook hook = fault_hook.load(std::memory_order_relaxed); hook) [[unlikely]] {
    hook();
  }
}

const char* last_error_text() noexcept {
  const LastError& slot = last_error;
  if (slot.in_reserve) return slot.reserve.data();
  return slot.text != nullptr ? slot.text->c_str() : "";
}

namespace {

ds_status keep_current_exception(const char* function) noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_last_error(function, error.message());
    const auto status = static_cast<ds_status>(error.code());
    return status < 0 ? status : static_cast<ds_status>(DS_ERR_INTERNAL);
  } catch (const std::bad_alloc&) {
    set_last_error(function, "out of memory");
    return DS_ERR_OUT_OF_MEMORY;
  } catch (const std::length_error& error) {
    set_last_error(function, "out of memory: a size exceeds what any memory holds");
    return DS_ERR_OUT_OF_MEMORY;
  } catch (const std::filesystem::filesystem_error& error) {
    set_last_error(function, error.what());
    return DS_ERR_IO;
  } catch (const std::system_error& error) {
    set_last_error(function, error.what());
    return error.code() == std::errc::resource_unavailable_try_again ? DS_ERR_OUT_OF_MEMORY
                                                                     : DS_ERR_INTERNAL;
  } catch (const std::exception& error) {
    set_last_error(function, error.what());
    return DS_ERR_INTERNAL;
  } catch (...) {
    set_last_error(function, "an exception of unknown type");
    return DS_ERR_INTERNAL;
  }
}

}  // namespace

ds_status status_of_current_exception(const char* function) noexcept {
  const ds_status status = keep_current_exception(function);
  HandleTable::instance().set_message(CallHandle::current(), last_error_text());
  note_failure(static_cast<Code>(status));
  return status;
}

}  // namespace ds::capi
