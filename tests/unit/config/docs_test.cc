// The committed reference page is the one that the key table gives, and holds every key.
#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "config/config_table.h"
#include "config/docs.h"
#include "test_paths.h"

namespace ds {
namespace {

TEST(Docs, CommittedPageIsCurrent) {
  const std::string committed = read_text_file(test_source().string() + "/docs/configuration.md");
  EXPECT_TRUE(committed == render_config_docs())
      << "docs/configuration.md is stale; build the target config_docs";
}

int expect_documented(const KeyTable& table, const std::string& page, const std::string& path) {
  int keys = 0;
  for (const Key& key : table.keys) {
    const std::string here = path + "/" + key.name;
    ++keys;
    if (key.table) {
      EXPECT_NE(page.find("`" + here), std::string::npos) << here;
      EXPECT_FALSE(key.description.empty() && key.table->keys.empty()) << here;
      keys += expect_documented(*key.table, page, here + (key.free_names ? "/<name>" : ""));
    } else if (!key.variants.empty()) {
      for (const auto& [choice, variant] : key.variants) {
        EXPECT_NE(page.find("`" + here + "` for "), std::string::npos) << here;
        keys += expect_documented(*variant, page, here);
      }
    } else {
      EXPECT_NE(page.find("| `" + key.name + "`"), std::string::npos) << here;
      EXPECT_FALSE(key.description.empty()) << here;
    }
    for (const std::string& alias : key.aliases) {
      EXPECT_NE(page.find(alias + "`"), std::string::npos) << alias;
    }
  }
  return keys;
}

TEST(Docs, EveryKeyIsOnThePage) {
  EXPECT_GT(expect_documented(config_table(), render_config_docs(), ""), 400);
}

}  // namespace
}  // namespace ds
