// The golden file of broken configurations: each one's exact message.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "config/config.h"
#include "config/config_table.h"
#include "test_paths.h"

namespace ds {
namespace {

const std::string kPath = test_data().string() + "/config/broken.golden";

std::string message_of(std::string line) {
  ConfigEnvironment environment;
  if (line.rfind("[dp=", 0) == 0) {
    const size_t end = line.find("] ");
    environment.data_parallel_size = std::stoll(line.substr(4, end - 4));
    environment.world_size = environment.data_parallel_size;
    line = line.substr(end + 2);
  }
  try {
    load_config(line, environment);
  } catch (const Error& error) {
    return error.code() == Code::kConfig ? error.message() : "WRONG CODE " + error.message();
  }
  return "ACCEPTED";
}

TEST(Golden, BrokenConfigurationsHaveTheirMessages) {
  std::istringstream file(read_text_file(kPath));
  std::string rewritten, input;
  std::set<std::string> sections;
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("=> ", 0) != 0) {
      rewritten += line + "\n";
      if (!line.empty() && line[0] != '#') input = line;
      continue;
    }
    ASSERT_FALSE(input.empty()) << "a message without input: " << line;
    const std::string message = message_of(input);
    rewritten += "=> " + message + "\n";
    ++cases;
    for (const Key& key : config_table().keys) {
      if (input.find('"' + key.name + '"') != std::string::npos) sections.insert(key.name);
    }
    if (std::getenv("DS_UPDATE_GOLDEN") == nullptr) {
      EXPECT_EQ(message, line.substr(3)) << input;
    }
    EXPECT_NE(message, "ACCEPTED") << input;
    EXPECT_NE(message.rfind("WRONG CODE", 0), 0u) << input << "\n" << message;
    input.clear();
  }
  EXPECT_GE(cases, 120);
  for (const Key& key : config_table().keys) {
    if (key.types & kObject) {
      EXPECT_TRUE(sections.count(key.name)) << "no case for " << key.name;
    }
  }
  if (std::getenv("DS_UPDATE_GOLDEN") != nullptr) write_file_durably(kPath, rewritten);
}

}  // namespace
}  // namespace ds
