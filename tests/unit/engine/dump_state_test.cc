// What an engine writes to the log when it is made, with dump_state.
#include "engine_world.h"
#include "log_lines.h"

namespace ds {
namespace {

using namespace engine_test;

TEST(DumpState, WritesTheResolvedConfigurationOnce) {
  LogLines lines;
  log_set_level(LogLevel::kInfo);
  make_engine(base_config());
  EXPECT_TRUE(lines.take("train_micro_batch_size_per_gpu").empty());
  const auto engine = make_engine(with(base_config(), {{"dump_state", true}}));
  const std::vector<std::string> written = lines.take("train_micro_batch_size_per_gpu");
  log_set_level(LogLevel::kWarning);
  ASSERT_EQ(written.size(), 1u);
  const Json document = parse_json(written[0], "the log", Code::kCorrupt);
  EXPECT_EQ(document, engine->config_document());
  // What was given, what follows from it, and what is default.
  EXPECT_EQ(document.at("config").at("train_batch_size"), 8);
  EXPECT_EQ(document.at("origins").at("/train_batch_size"), "derived");
  EXPECT_EQ(document.at("given").at("dump_state"), true);
  EXPECT_EQ(document.at("config").at("fp16").at("enabled"), false);
}

}  // namespace
}  // namespace ds
