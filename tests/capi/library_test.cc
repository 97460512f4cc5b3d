// The library as a whole: versions, status names, the log sink, the report, struct sizes.
#include <gmock/gmock.h>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "capi/args.h"
#include "capi/world.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;

TEST(Library, Versions) {
  EXPECT_EQ(ds_abi_version(), DS_VERSION_MAJOR * 1000000 + DS_VERSION_MINOR * 1000);
  EXPECT_EQ(ds_version(),
            ds::str_cat(DS_VERSION_MAJOR, ".", DS_VERSION_MINOR, ".", DS_VERSION_PATCH));
}

TEST(Library, StatusNames) {
  std::set<std::string> names;
  for (ds_status status = 0; status >= DS_ERR_NOT_FOUND; --status) {
    const std::string name = ds_status_name(status);
    EXPECT_TRUE(name == "DS_OK" || name.starts_with("DS_ERR_")) << name;
    EXPECT_NE(name, "DS_ERR_UNKNOWN") << status;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  for (const ds_status status : {1, -14, INT32_MIN, INT32_MAX}) {
    EXPECT_STREQ(ds_status_name(status), "DS_ERR_UNKNOWN");
  }
}

TEST(Library, StringFreeTakesNull) { ds_string_free(nullptr); }

struct Seen {
  std::vector<std::string> lines;
  int released = 0;
};
void record(void* user_data, int32_t level, const char* component, const char* text) {
  static_cast<Seen*>(user_data)->lines.push_back(ds::str_cat(level, " ", component, " ", text));
}
void release(void* user_data) { ++static_cast<Seen*>(user_data)->released; }

TEST(Library, LogSink) {
  Seen first, second;
  ASSERT_DS_OK(ds_log_set(record, &first, release));
  ds::log_warning("test", "one");
  ds::log_info("test", "below the level");
  ASSERT_DS_OK(ds_log_set_level(DS_LOG_DEBUG));
  ds::log_info("test", "two");
  ASSERT_DS_OK(ds_log_set_level(DS_LOG_OFF));
  ds::log_warning("test", "off");
  ASSERT_DS_OK(ds_log_set_level(DS_LOG_WARNING));
  EXPECT_THAT(first.lines, ::testing::ElementsAre("2 test one", "1 test two"));
  ASSERT_DS_OK(ds_log_set(record, &second, release));
  EXPECT_EQ(first.released, 1);
  ds::log_warning("test", "three");
  EXPECT_THAT(second.lines, ::testing::ElementsAre("2 test three"));
  ASSERT_DS_OK(ds_log_set(nullptr, &first, release));  // nothing will use the data
  EXPECT_EQ(second.released, 1);
  EXPECT_EQ(first.released, 2);
  for (const int32_t level : {-1, 5, INT32_MIN}) {
    EXPECT_EQ(ds_log_set_level(level), DS_ERR_INVALID_ARGUMENT);
  }
}

TEST(Library, LogSinkThatThrows) {
  ASSERT_DS_OK(ds_log_set([](void*, int32_t, const char*, const char*) { throw 1; }, nullptr,
                          [](void*) { throw 2; }));
  ds::log_warning("test", "thrown at");
  ASSERT_DS_OK(ds_log_set(nullptr, nullptr, nullptr));
}

TEST(Library, LogSinkFromManyThreads) {
  Seen seen;
  ASSERT_DS_OK(ds_log_set([](void*, int32_t, const char*, const char*) {}, &seen, release));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&seen, t] {
      for (int i = 0; i < 500; ++i) {
        ds::log_warning("test", t, " ", i);
        if (i % 50 == 0) {
          EXPECT_DS_OK(
              ds_log_set([](void*, int32_t, const char*, const char*) {}, nullptr, nullptr));
        }
      }
      static_cast<void>(seen);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_DS_OK(ds_log_set(nullptr, nullptr, nullptr));
  EXPECT_EQ(seen.released, 1);
}

TEST(Library, Report) {
  char* text = nullptr;
  ASSERT_DS_OK(ds_report(&text));
  const ds::Json report = ds::parse_json(text, "report", ds::Code::kInternal);
  ds_string_free(text);
  EXPECT_EQ(report.at("version"), ds_version());
  EXPECT_EQ(report.at("abi_version"), ds_abi_version());
  for (const char* library :
       {"Highway", "FlatBuffers", "PCRE2", "utf8proc", "nlohmann-json", "ISA-L", "xxHash"}) {
    EXPECT_THAT(report.at("libraries").at(library).get<std::string>(),
                ::testing::ContainsRegex("^[0-9]+\\.[0-9]+"))
        << library;
  }
  EXPECT_FALSE(report.at("build").at("compiler").get<std::string>().empty());
  EXPECT_FALSE(report.at("cpu").at("model").get<std::string>().empty());
  EXPECT_GE(report.at("cpu").at("allowed").get<int>(), 1);
  EXPECT_GT(report.at("memory").at("total_bytes").get<int64_t>(), 0);
  EXPECT_GT(report.at("memory").at("available_bytes").get<int64_t>(), 0);
#if defined(__x86_64__)
  // The compiler's own detection is the reference.
  const ds::Json& features = report.at("cpu").at("features");
  EXPECT_EQ(features.at("avx2").get<bool>(), __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(features.at("fma").get<bool>(), __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(features.at("avx512f").get<bool>(), __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(features.at("avx512bw").get<bool>(), __builtin_cpu_supports("avx512bw") != 0);
  EXPECT_EQ(features.at("avx512_bf16").get<bool>(), __builtin_cpu_supports("avx512bf16") != 0);
  EXPECT_EQ(features.at("avx512_vnni").get<bool>(), __builtin_cpu_supports("avx512vnni") != 0);
#endif
  EXPECT_NE(report.at("kernels").at("simd_chosen"), "none");
  EXPECT_EQ(report.at("gpu").at("usable").get<bool>(), !report.at("gpu").at("devices").empty());
  EXPECT_FALSE(report.at("gpu").at("reason").get<std::string>().empty());
  EXPECT_TRUE(report.at("gpu").at("devices").is_array());
  ASSERT_GE(report.at("compatibility").size(), 5u);
  for (const ds::Json& entry : report.at("compatibility")) {
    EXPECT_TRUE(entry.at("usable").is_boolean());
    EXPECT_FALSE(entry.at("feature").get<std::string>().empty());
    EXPECT_FALSE(entry.at("reason").get<std::string>().empty());
  }
}

// A struct that grew: what an older caller and a newer one hand in.
struct Grown {
  int64_t struct_size;
  int64_t first;
  int64_t second;
};

TEST(StructArguments, Reading) {
  Grown given = {sizeof(Grown), 1, 2};
  Grown read = ds::capi::struct_param(&given, "given");
  EXPECT_EQ(read.first, 1);
  EXPECT_EQ(read.second, 2);
  given.struct_size = 16;  // an older caller: `second` is not there
  read = ds::capi::struct_param(&given, "given");
  EXPECT_EQ(read.first, 1);
  EXPECT_EQ(read.second, 0);
  struct Newer {
    Grown known;
    int64_t third;
  } newer = {{sizeof(Newer), 1, 2}, 0};
  read = ds::capi::struct_param(&newer.known, "given");
  EXPECT_EQ(read.second, 2);
  newer.third = int64_t{1} << 40;
  try {
    ds::capi::struct_param(&newer.known, "given");
    FAIL();
  } catch (const ds::Error& error) {
    EXPECT_EQ(error.code(), ds::Code::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("given: byte 29 of 32"));
  }
  for (const int64_t size :
       {int64_t{0}, int64_t{-8}, int64_t{8}, int64_t{17}, int64_t{4100}, INT64_MAX, INT64_MIN}) {
    given.struct_size = size;
    EXPECT_THROW(ds::capi::struct_param(&given, "given"), ds::Error) << size;
  }
}

TEST(StructArguments, Writing) {
  const Grown value = {0, 5, 6};
  Grown out = {16, -1, -1};
  ds::capi::write_struct(&out, "out", &value, sizeof(value));
  EXPECT_EQ(out.struct_size, 16);
  EXPECT_EQ(out.first, 5);
  EXPECT_EQ(out.second, -1);
  int64_t newer[5] = {40, -1, -1, -1, -1};
  ds::capi::write_struct(newer, "out", &value, sizeof(value));
  EXPECT_THAT(newer, ::testing::ElementsAre(40, 5, 6, 0, 0));
}

TEST(StructArguments, OfTheAbi) {
  World world;
  ds_tensor* ids = nullptr;
  ds_generate_options options = {};
  EXPECT_EQ(ds_generator_generate(world.generator, world.list, &options, nullptr, nullptr, &ids),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("options: struct_size is 0"));
  options.struct_size = sizeof(options);
  options.max_tokens = -1;
  EXPECT_EQ(ds_generator_generate(world.generator, world.list, &options, nullptr, nullptr, &ids),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("max_tokens"));
  options.max_tokens = 2;
  options.struct_size = 16;  // an older caller knows no temperature
  options.temperature = -5;
  EXPECT_DS_OK(
      ds_generator_generate(world.generator, world.list, &options, nullptr, nullptr, &ids));
  ds_tensor_destroy(ids);

  // A report struct of a wrong size is refused before the step, not after it.
  ds_step_report report = {};
  int64_t step = -1;
  EXPECT_EQ(ds_engine_train_batch(world.engine, &report), DS_ERR_INVALID_ARGUMENT);
  step = info_of(world.engine).step;
  EXPECT_EQ(step, 0);
  report.struct_size = sizeof(report);
  EXPECT_DS_OK(ds_engine_train_batch(world.engine, &report));
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(report.applied, 1);
  EXPECT_EQ(report.struct_size, static_cast<int64_t>(sizeof(report)));
}

}  // namespace
}  // namespace capi_test
