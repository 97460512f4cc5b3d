// The fence: an exception of any kind inside any function becomes a status and a text, and the
// library works on as before.
#include "capi/fence.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "capi/calls.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Injected {
  const char* name;
  ds::capi::FaultHook hook;
  ds_status status;
  const char* text;
};

const Injected kFaults[] = {
    {"ds::Error", [] { throw ds::Error(ds::Code::kCorrupt, "made up"); }, DS_ERR_CORRUPT,
     "made up"},
    {"ds::Error without failure", [] { throw ds::Error(ds::Code::kOk, "odd"); }, DS_ERR_INTERNAL,
     "odd"},
    {"bad_alloc", [] { throw std::bad_alloc(); }, DS_ERR_OUT_OF_MEMORY, "out of memory"},
    {"length_error", [] { throw std::length_error("x"); }, DS_ERR_OUT_OF_MEMORY, "out of memory"},
    {"logic_error", [] { throw std::logic_error("a defect"); }, DS_ERR_INTERNAL, "a defect"},
    {"filesystem_error",
     [] {
       throw std::filesystem::filesystem_error("reading", "/some/path",
                                               std::make_error_code(std::errc::permission_denied));
     },
     DS_ERR_IO, "/some/path"},
    {"system_error",
     [] {
       throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again),
                               "thread");
     },
     DS_ERR_OUT_OF_MEMORY, "thread"},
    {"int", [] { throw 42; }, DS_ERR_INTERNAL, "unknown type"},
    {"const char*", [] { throw "text"; }, DS_ERR_INTERNAL, "unknown type"},
};

class HookGuard {
 public:
  explicit HookGuard(ds::capi::FaultHook hook) { ds::capi::set_fault_hook(hook); }
  ~HookGuard() { ds::capi::set_fault_hook(nullptr); }
};

TEST(Fence, EveryExceptionInEveryFunction) {
  for (const Call& call : all_calls()) {
    World world;
    PreparedCall prepared(call, world);
    for (const Injected& fault : kFaults) {
      SCOPED_TRACE(ds::str_cat(call.name, " throws ", fault.name));
      {
        const HookGuard guard(fault.hook);
        EXPECT_EQ(prepared.invoke(), fault.status);
      }
      EXPECT_THAT(ds_last_error_message(), StartsWith(std::string(call.name) + ": "));
      EXPECT_THAT(ds_last_error_message(), HasSubstr(fault.text));
      EXPECT_TRUE(prepared.outputs_untouched());
    }
    ASSERT_DS_OK(prepared.invoke()) << " after the exceptions, " << call.name;
    prepared.release_outputs();
  }
}

std::string message_of(const void* handle) {
  char* text = nullptr;
  EXPECT_DS_OK(ds_handle_error_message(handle, &text));
  const std::string out = text == nullptr ? "" : text;
  ds_string_free(text);
  return out;
}

// A failure is kept with the handle too, for programs whose code moves between threads.
TEST(Fence, AHandleKeepsTheTextOfItsLastFailure) {
  World world;
  EXPECT_EQ(message_of(world.model), "");
  ds_tensor* out = nullptr;
  std::thread([&] {
    EXPECT_EQ(ds_model_get_parameter(world.model, 1 << 20, &out), DS_ERR_INVALID_ARGUMENT);
  }).join();
  EXPECT_THAT(message_of(world.model), StartsWith("ds_model_get_parameter: parameter is 1048576"));
  // Others keep theirs, and a success changes nothing.
  EXPECT_EQ(ds_engine_save(world.engine, "", nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(message_of(world.engine), StartsWith("ds_engine_save: "));
  ds_model_info info = DS_MODEL_INFO_INIT;
  EXPECT_DS_OK(ds_model_describe(world.model, &info));
  EXPECT_THAT(message_of(world.model), StartsWith("ds_model_get_parameter: "));
  // It belongs to the first handle of the call, and ends with it.
  EXPECT_EQ(ds_comm_all_reduce(world.comm, world.tensor, 99), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(message_of(world.comm), HasSubstr("op is 99"));
  EXPECT_EQ(message_of(world.tensor), "");
  char* text = nullptr;
  EXPECT_EQ(ds_handle_error_message(nullptr, &text), DS_ERR_INVALID_ARGUMENT);
  void* const gone = world.destroyed(HandleKind::kTensor);
  EXPECT_EQ(ds_handle_error_message(gone, &text), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(text, nullptr);
}

TEST(Fence, LastErrorIsEmptyBeforeTheFirstFailure) {
  std::string text = "?";
  std::thread([&] { text = ds_last_error_message(); }).join();
  EXPECT_EQ(text, "");
}

TEST(Fence, LastErrorIsPerThreadAndOnlyFailuresChangeIt) {
  double number = 0;
  ASSERT_EQ(ds_tensor_item(nullptr, &number), DS_ERR_INVALID_ARGUMENT);
  const std::string mine = ds_last_error_message();
  std::thread([&] {
    ASSERT_EQ(ds_comm_barrier(nullptr), DS_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(ds_last_error_message(), StartsWith("ds_comm_barrier: "));
  }).join();
  EXPECT_EQ(ds_last_error_message(), mine);
  ASSERT_DS_OK(ds_log_set_level(DS_LOG_WARNING));
  EXPECT_EQ(ds_last_error_message(), mine);
  ds_tensor_destroy(nullptr);
  EXPECT_EQ(ds_last_error_message(), mine);
}

TEST(Fence, LastErrorIsNotCut) {
  // A long text comes through whole, and may be made from the text before.
  static std::string long_text;
  long_text.assign(100000, 'x');
  long_text += "the end";
  {
    const HookGuard guard([] { throw ds::Error(ds::Code::kIo, long_text); });
    EXPECT_EQ(ds_log_set_level(DS_LOG_WARNING), DS_ERR_IO);
  }
  EXPECT_EQ(ds_last_error_message(), "ds_log_set_level: " + long_text);
  {
    const HookGuard guard([] { throw ds::Error(ds::Code::kIo, ds_last_error_message()); });
    EXPECT_EQ(ds_log_set_level(DS_LOG_WARNING), DS_ERR_IO);
  }
  EXPECT_EQ(ds_last_error_message(), "ds_log_set_level: ds_log_set_level: " + long_text);
}

// A call from the destructor of a thread-local object may come after the library's own ended.
struct LateCaller {
  ~LateCaller() {
    if (armed) {
      status = ds_tensor_item(nullptr, nullptr);
      text = ds_last_error_message();
    }
  }
  bool armed = false;
  static inline ds_status status = DS_OK;
  static inline std::string text;
};

TEST(Fence, CallsWhileAThreadEnds) {
  std::thread([] {
    static thread_local LateCaller caller;
    caller.armed = true;  // made before the library's thread-local text, so destroyed after it
    EXPECT_EQ(ds_tensor_item(nullptr, nullptr), DS_ERR_INVALID_ARGUMENT);
  }).join();
  EXPECT_EQ(LateCaller::status, DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(LateCaller::text, HasSubstr("ds_tensor_item: tensor is NULL"));
}

}  // namespace
}  // namespace capi_test
