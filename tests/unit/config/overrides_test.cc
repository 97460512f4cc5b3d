// Values set over a document: where paths lead, and where they do not.
#include "config/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config_table.h"

namespace ds {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Result {
  Json document;
  std::set<std::string> paths;
  std::vector<std::string> problems;
};

Result set(const char* document, const std::vector<std::pair<std::string, Json>>& values) {
  Result out{parse_json(document, "document", Code::kConfig), {}, {}};
  std::vector<ConfigProblem> problems;
  out.paths = apply_overrides(out.document, config_table(), values, problems);
  for (const ConfigProblem& one : problems) out.problems.push_back(one.message());
  return out;
}

TEST(Overrides, SectionsOnTheWayAreMade) {
  for (const char* document : {"{}", R"({"optimizer": null})", R"({"optimizer": {"params": null}})",
                               R"({"optimizer": {"params": {"lr": 1}}})"}) {
    for (const char* path : {"optimizer.params.lr", "/optimizer/params/lr"}) {
      const Result result = set(document, {{path, 0.5}});
      EXPECT_EQ(dump_json(result.document), R"({"optimizer":{"params":{"lr":0.5}}})");
      EXPECT_THAT(result.paths, ElementsAre("/optimizer/params/lr"));
      EXPECT_THAT(result.problems, ElementsAre());
    }
  }
}

TEST(Overrides, AKeyKeepsTheNameThatItHas) {
  const Result result = set(R"({"bfloat16": {"enabled": false}})", {{"bf16.enabled", true}});
  EXPECT_EQ(dump_json(result.document), R"({"bfloat16":{"enabled":true}})");
  EXPECT_THAT(result.paths, ElementsAre("/bf16/enabled"));
  EXPECT_EQ(dump_json(set("{}", {{"bfloat16.enabled", true}}).document),
            R"({"bf16":{"enabled":true}})");
}

TEST(Overrides, ItemsOfListsAreNumbered) {
  const char* document = R"({"a": [1, {"b": 2}]})";
  EXPECT_EQ(dump_json(set(document, {{"a.0", 5}, {"/a/1/b", 6}}).document), R"({"a":[5,{"b":6}]})");
  for (const char* path : {"a.2", "a.1x", "a.x", "a.-1", "a.", "a.0.b", "a.99999999999999999999"}) {
    const Result result = set(document, {{path, 5}});
    EXPECT_EQ(dump_json(result.document), R"({"a":[1,{"b":2}]})") << path;
    EXPECT_THAT(result.paths, ElementsAre()) << path;
    EXPECT_THAT(result.problems, ElementsAre(HasSubstr("cannot be set"))) << path;
  }
}

TEST(Overrides, PointersCanNameKeysWithDotsAndSlashes) {
  EXPECT_EQ(dump_json(set("{}", {{"/a.b/c~1d~0e", 1}}).document), R"({"a.b":{"c/d~e":1}})");
}

// A path that leads nowhere does not stop the ones behind it.
TEST(Overrides, OthersAreStillSet) {
  const Result result = set(R"({"seed": 1})", {{"seed.x", 2}, {"seed", 3}});
  EXPECT_EQ(dump_json(result.document), R"({"seed":3})");
  EXPECT_THAT(result.problems, ElementsAre(HasSubstr("seed.x: cannot be set")));
}

}  // namespace
}  // namespace ds
