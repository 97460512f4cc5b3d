// Misuse of every function: each handle parameter gets NULL, garbage, every other kind and a
// destroyed handle; each pointer that must be given is left out. The call must fail, say which
// parameter is wrong, and leave its outputs alone.
#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <random>
#include <set>

#include "base/json.h"
#include "base/text.h"
#include "capi/calls.h"
#include "fresh_seed.h"
#include "test_paths.h"

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
  std::ifstream file(ds::test_source().string() + "/tests/abi/ds.symbols");
  std::set<std::string> expected;
  for (std::string name; file >> name;) expected.insert(name);
  ASSERT_GT(expected.size(), 80u);
  for (const char* other : {"ds_abi_version", "ds_version", "ds_status_name",
                            "ds_last_error_message", "ds_string_free"}) {
    EXPECT_EQ(expected.erase(other), 1u) << other;
  }
  std::erase_if(expected, [](const std::string& name) { return name.ends_with("_destroy"); });
  std::set<std::string> found;
  for (const Call& call : all_calls()) {
    EXPECT_TRUE(found.insert(call.name).second) << call.name << " twice";
  }
  EXPECT_EQ(found, expected);
}

// The handles and out-parameters that the headers mark DS_NULLABLE are those that may be NULL,
// which the tests below try.
TEST(Misuse, TheDescriptionSaysWhatMayBeNull) {
  std::ifstream file(ds::test_source().string() + "/docs/api/ds_api.json");
  const ds::Json api = ds::Json::parse(file);
  std::map<std::string, std::map<std::string, bool>> nullable;
  for (const ds::Json& function : api.at("functions")) {
    for (const ds::Json& parameter : function.at("parameters")) {
      nullable[function.at("name")][parameter.at("name")] = parameter.at("nullable").get<bool>();
    }
  }
  for (const Call& call : all_calls()) {
    for (const Param& param : call.params) {
      const auto& of = nullable.at(call.name);
      const auto found = of.find(param.name);
      if (found == of.end()) continue;  // a member of a struct
      // Some texts and pointers may be NULL in other cases than the table's.
      const bool other_cases = param.kind == ParamKind::kText || param.kind == ParamKind::kPointer;
      if (!other_cases) {
        EXPECT_EQ(found->second, param.kind == ParamKind::kOptionalHandle)
            << call.name << ": " << param.name;
      }
    }
  }
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
  const uint64_t seed = ds::fresh_seed();
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
  ASSERT_EQ(ds_comm_barrier(nullptr), DS_ERR_INVALID_ARGUMENT);
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
  for (const Call& call : all_calls()) {
    if (std::string(call.name).ends_with("_describe")) {
      PreparedCall prepared(call, world);
      EXPECT_EQ(prepared.invoke(), DS_OK) << call.name;
    }
  }
}

TEST(Misuse, DestroyTwice) {
  ds_tensor* tensor = nullptr;
  ASSERT_DS_OK(ds_tensor_create(DS_INT8, nullptr, 0, &tensor));
  ds_tensor_destroy(tensor);
  ds_tensor* next = nullptr;
  ASSERT_DS_OK(ds_tensor_create(DS_INT8, nullptr, 0, &next));
  EXPECT_NE(next, tensor);  // numbers are not reused
  ds_tensor_destroy(tensor);
  EXPECT_EQ(info_of(next).dtype, DS_INT8);
  ds_tensor_destroy(next);
}

TEST(Misuse, OptimizerOfNoEngine) {
  World world;
  ds_engine_destroy(world.engine);
  ds_optimizer_info info = DS_OPTIMIZER_INFO_INIT;
  EXPECT_EQ(ds_optimizer_describe(world.optimizer, &info), DS_ERR_STATE);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("engine was destroyed"));
  EXPECT_EQ(ds_scope_close(world.scope), DS_OK);  // it ended before
}

// Structs that a call fills: none, without a size, of an absurd size, of older and newer callers.
TEST(Misuse, InfosNeedTheirSize) {
  World world;
  EXPECT_EQ(ds_tensor_describe(world.tensor, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("out_info is NULL"));
  for (const int64_t size : {int64_t{0}, int64_t{-8}, int64_t{4}, int64_t{1} << 40}) {
    ds_tensor_info info = {};
    info.struct_size = size;
    EXPECT_EQ(ds_tensor_describe(world.tensor, &info), DS_ERR_INVALID_ARGUMENT) << size;
    EXPECT_THAT(ds_last_error_message(), HasSubstr("out_info"));
  }
  ds_tensor_info older = {};
  older.struct_size = 24;  // knew address and elements
  older.bytes = -7;
  EXPECT_DS_OK(ds_tensor_describe(world.tensor, &older));
  EXPECT_EQ(older.elements, 6);
  EXPECT_EQ(older.bytes, -7);
  struct {
    ds_tensor_info known;
    int64_t added;
  } newer = {};
  newer.known.struct_size = sizeof newer;
  newer.added = -1;
  EXPECT_DS_OK(ds_tensor_describe(world.tensor, &newer.known));
  EXPECT_EQ(newer.known.ndim, 2);
  EXPECT_EQ(newer.added, 0);
}

}  // namespace
}  // namespace capi_test
