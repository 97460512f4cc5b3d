// Misuse of every function: each handle parameter gets NULL, garbage, every other kind and a
// destroyed handle; each pointer that must be given is left out. The call must fail, say which
// parameter is wrong, and leave its outputs alone.
#include <gmock/gmock.h>

#include <fstream>
#include <random>
#include <set>

#include "base/text.h"
#include "capi/calls.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

void expect_refused(const Call& call, const PreparedCall& prepared, const Param& param,
                    const std::string& how, const std::string& text) {
  SCOPED_TRACE(ds::str_cat(call.name, ": ", param.name, " is ", how));
  EXPECT_EQ(prepared.invoke(), DS_ERR_INVALID_ARGUMENT) << ds_last_error_message();
  EXPECT_THAT(ds_last_error_message(), StartsWith(std::string(call.name) + ": "));
  EXPECT_THAT(ds_last_error_message(), HasSubstr(param.name));
  EXPECT_THAT(ds_last_error_message(), HasSubstr(text));
  EXPECT_TRUE(prepared.outputs_untouched());
}

TEST(Misuse, TableHasEveryStatusFunction) {
  std::ifstream file(std::string(DS_TEST_SOURCE) + "/tests/abi/ds.symbols");
  std::set<std::string> expected;
  for (std::string name; file >> name;) expected.insert(name);
  ASSERT_GT(expected.size(), 80u);
  for (const char* other : {"ds_abi_version", "ds_version", "ds_status_name",
                            "ds_last_error_message", "ds_string_free", "ds_engine_optimizer"}) {
    EXPECT_EQ(expected.erase(other), 1u) << other;
  }
  std::erase_if(expected, [](const std::string& name) { return name.ends_with("_destroy"); });
  std::set<std::string> found;
  for (const Call& call : all_calls()) {
    EXPECT_TRUE(found.insert(call.name).second) << call.name << " twice";
  }
  EXPECT_EQ(found, expected);
}

TEST(Misuse, GoodArgumentsSucceed) {
  for (const Call& call : all_calls()) {
    SCOPED_TRACE(call.name);
    World world;
    PreparedCall prepared(call, world);
    EXPECT_EQ(prepared.invoke(), DS_OK) << ds_last_error_message();
    if (!HasFailure()) prepared.release_outputs();
  }
}

TEST(Misuse, BadHandles) {
  const World world;
  std::random_device device;
  const uint32_t seed = device();
  std::mt19937_64 random(seed);
  SCOPED_TRACE(ds::str_cat("seed ", seed));
  for (const Call& call : all_calls()) {
    for (size_t i = 0; i < call.params.size(); ++i) {
      const Param& param = call.params[i];
      const bool optional = param.kind == ParamKind::kOptionalHandle;
      if (param.kind != ParamKind::kHandle && !optional) continue;
      World fresh;  // preparation may change it
      PreparedCall prepared(call, fresh);
      const std::string needed(ds::capi::handle_kind_name(param.handle));
      if (!optional) {
        prepared.arguments[i] = nullptr;
        expect_refused(call, prepared, param, "NULL", "NULL");
      }
      for (const HandleKind kind : kAllKinds) {
        if (kind == param.handle) continue;
        prepared.arguments[i] = world.handle(kind);
        const std::string given(ds::capi::handle_kind_name(kind));
        expect_refused(call, prepared, param, "a " + given, ds::str_cat("of kind ", given, "; a"));
        EXPECT_THAT(ds_last_error_message(), HasSubstr(needed + " handle is needed"));
      }
      // Real addresses, numbers near real handles, and noise.
      static int some_object;
      auto* const good = static_cast<char*>(world.handle(param.handle));
      std::vector<void*> garbage = {&some_object, reinterpret_cast<void*>(1),
                                    reinterpret_cast<void*>(UINTPTR_MAX), good + 0x1000000000,
                                    good + 0x100000};
      for (int n = 0; n < 20; ++n) garbage.push_back(reinterpret_cast<void*>(random()));
      for (void* const value : garbage) {
        prepared.arguments[i] = value;
        expect_refused(call, prepared, param, ds::str_cat("garbage ", value), needed);
      }
    }
  }
}

TEST(Misuse, DestroyedHandles) {
  World world;
  for (const HandleKind kind : kAllKinds) {
    void* const gone = world.destroyed(kind);
    for (const Call& call : all_calls()) {
      for (size_t i = 0; i < call.params.size(); ++i) {
        const Param& param = call.params[i];
        if (param.kind != ParamKind::kHandle && param.kind != ParamKind::kOptionalHandle) continue;
        if (param.handle != kind) continue;
        World fresh;
        PreparedCall prepared(call, fresh);
        prepared.arguments[i] = gone;
        expect_refused(call, prepared, param, "destroyed", "already destroyed");
      }
    }
  }
}

TEST(Misuse, MissingPointers) {
  for (const Call& call : all_calls()) {
    World world;
    PreparedCall prepared(call, world);
    for (size_t i = 0; i < call.params.size(); ++i) {
      const Param& param = call.params[i];
      if (param.kind != ParamKind::kOut && param.kind != ParamKind::kText &&
          param.kind != ParamKind::kPointer) {
        continue;
      }
      void* const good = prepared.arguments[i];
      prepared.arguments[i] = nullptr;
      expect_refused(call, prepared, param, "NULL", "NULL");
      prepared.arguments[i] = good;
    }
  }
}

TEST(Misuse, DestroyLeavesForeignHandlesAndTheLastErrorAlone) {
  World world;
  ASSERT_EQ(ds_comm_rank(nullptr, nullptr), DS_ERR_INVALID_ARGUMENT);
  const std::string before = ds_last_error_message();
  for (const HandleKind kind : kAllKinds) {
    for (const HandleKind other : kAllKinds) {
      if (kind != other) destroy_handle(kind, world.handle(other));
    }
    destroy_handle(kind, nullptr);
    destroy_handle(kind, reinterpret_cast<void*>(0x1234));
    destroy_handle(kind, world.destroyed(kind));
  }
  EXPECT_EQ(ds_last_error_message(), before);
  int32_t dtype = 0;
  EXPECT_DS_OK(ds_tensor_dtype(world.tensor, &dtype));
  double lr = 0;
  EXPECT_DS_OK(ds_optimizer_lr(world.optimizer, &lr));
  int64_t number = 0;
  EXPECT_DS_OK(ds_dataset_size(world.dataset, &number));
  EXPECT_DS_OK(ds_tokenizer_vocab_size(world.tokenizer, &number));
  EXPECT_DS_OK(ds_model_tensor_count(world.model, &number));
  EXPECT_DS_OK(ds_comm_size(world.comm, &dtype));
  EXPECT_DS_OK(ds_engine_global_step(world.engine, &number));
}

TEST(Misuse, DestroyTwice) {
  ds_tensor* tensor = nullptr;
  ASSERT_DS_OK(ds_tensor_create(DS_INT8, nullptr, 0, &tensor));
  ds_tensor_destroy(tensor);
  ds_tensor* next = nullptr;
  ASSERT_DS_OK(ds_tensor_create(DS_INT8, nullptr, 0, &next));
  EXPECT_NE(next, tensor);  // numbers are not reused
  ds_tensor_destroy(tensor);
  int32_t dtype = 0;
  EXPECT_DS_OK(ds_tensor_dtype(next, &dtype));
  ds_tensor_destroy(next);
}

TEST(Misuse, OptimizerOfNoEngine) {
  EXPECT_EQ(ds_engine_optimizer(nullptr), nullptr);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("engine is NULL"));
  World world;
  EXPECT_EQ(ds_engine_optimizer(reinterpret_cast<ds_engine*>(world.tensor)), nullptr);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("of kind tensor"));
  EXPECT_EQ(ds_engine_optimizer(world.engine), world.optimizer);
  ds_engine_destroy(world.engine);
  EXPECT_EQ(ds_engine_optimizer(world.engine), nullptr);
  int64_t steps = 0;
  EXPECT_EQ(ds_optimizer_step_count(world.optimizer, &steps), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("already destroyed"));
}

}  // namespace
}  // namespace capi_test
