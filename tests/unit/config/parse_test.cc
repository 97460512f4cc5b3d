// The strict reader with a small table of its own, as other layers use it.
#include "config/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

KeyTable sampling_table() {
  using namespace keys;
  Key stop = any_text();
  return table(
      "How tokens are chosen.",
      {
          number("temperature", 1.0, "").above(0).at_most(100),
          integer("top_k", 0, "").at_least(0).also({"k"}),
          list("stop", stop, "[]", "").items(0, 2).without_repeats().or_one_string(),
          choice("mode", {"greedy|argmax", "sample"}, "sample", "").in_any_case(),
          integer("even", 2, "").even(),
          flag("old_greedy", false, "").replaced_by("mode", "greedy"),
          optional_section(
              "beam", table("", {integer("width", std::nullopt, "").must_be_given().at_least(1)})),
      });
}

ParsedObject parse(const std::string& text) {
  static const KeyTable table = sampling_table();
  return parse_object(table, parse_json(text, "generation options", Code::kInvalidArgument),
                      {"generation options", Code::kInvalidArgument});
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.message();
  }
  return "accepted";
}

TEST(Parse, DefaultsInTableOrder) {
  const ParsedObject parsed = parse("{}");
  EXPECT_EQ(dump_json(parsed.values),
            R"({"temperature":1.0,"top_k":0,"stop":[],"mode":"sample","even":2,"beam":null})");
}

TEST(Parse, ValuesAreNormalised) {
  const ParsedObject parsed =
      parse(R"({"k": 5e1, "temperature": 2, "mode": "ArgMax", "stop": "x", "beam": {"width": 3}})");
  EXPECT_EQ(dump_json(parsed.values),
            R"({"temperature":2.0,"top_k":50,"stop":["x"],"mode":"greedy","even":2,)"
            R"("beam":{"width":3}})");
  EXPECT_EQ(parsed.origins.at("/top_k"), "given");
  EXPECT_EQ(parsed.origins.at("/even"), "default");
  EXPECT_EQ(parsed.at("/beam/width"), 3);
  EXPECT_TRUE(parsed.at("/beam/nothing").is_null());
}

TEST(Parse, ErrorsNameCallerPathAndReason) {
  EXPECT_EQ(error_of("3"), "generation options: expected an object, got 3");
  EXPECT_EQ(error_of(R"({"topk": 1})"),
            "generation options: /topk: unknown key; did you mean \"top_k\"?");
  EXPECT_EQ(error_of(R"({"width": 1})"),
            "generation options: /width: unknown key; it belongs at /beam/width");
  EXPECT_EQ(error_of(R"({"zzzzzzzz": 1})"),
            "generation options: /zzzzzzzz: unknown key; the keys here are beam, even, k, mode, "
            "stop, temperature, top_k");
  EXPECT_EQ(error_of(R"({"top_k": 1, "k": 1})"),
            "generation options: /k: another name of /top_k, which is given too; keep one");
  EXPECT_EQ(error_of(R"({"temperature": 0})"),
            "generation options: /temperature: 0 is out of range; it must be above 0 and at "
            "most 100");
  EXPECT_EQ(error_of(R"({"even": 3})"), "generation options: /even: 3 must be a multiple of 2");
  EXPECT_EQ(error_of(R"({"beam": {}})"),
            "generation options: /beam/width: missing; give an integer");
  EXPECT_EQ(error_of(R"({"stop": ["a", 1]})"),
            "generation options: /stop/1: expected a string, got 1");
  EXPECT_EQ(error_of(R"({"stop": ["a", "b", "c"]})"),
            "generation options: /stop: expected at most 2 items, got 3");
  EXPECT_EQ(error_of(R"({"mode": "gready"})"),
            "generation options: /mode: expected one of \"greedy\", \"sample\", got \"gready\"; "
            "did you mean \"greedy\"?");
}

TEST(Parse, AsManyAsSixteenKeysAreListed) {
  for (const size_t count : {16u, 17u}) {
    std::vector<Key> all;
    for (size_t i = 0; i < count; ++i) {
      all.push_back(keys::integer(("k" + std::to_string(i)).c_str(), 1, ""));
    }
    const KeyTable wide = keys::table("", std::move(all));
    try {
      parse_object(wide, parse_json(R"({"zzzzzzzz": 1})", "test", Code::kInvalidArgument),
                   {"test", Code::kInvalidArgument});
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr(count == 16 ? "the keys here are k0, k1, k10, k11"
                                                         : "no key here is similar"));
    }
  }
}

TEST(Parse, DeprecatedKeysForward) {
  const ParsedObject parsed = parse(R"({"old_greedy": true})");
  EXPECT_EQ(parsed.at("/mode"), "greedy");
  EXPECT_EQ(parsed.origins.at("/mode"), "deprecated:/old_greedy");
  EXPECT_THAT(parsed.warnings,
              ElementsAre("generation options: /old_greedy: deprecated; use /mode"));
  EXPECT_THAT(error_of(R"({"old_greedy": true, "mode": "sample"})"),
              HasSubstr("/old_greedy: deprecated form of /mode, which is given too"));
  EXPECT_THAT(error_of(R"({"mode": "sample", "old_greedy": true})"),
              HasSubstr("/old_greedy: deprecated form of /mode, which is given too"));
}

TEST(Parse, IntegersKeepAll64Bits) {
  EXPECT_EQ(parse(R"({"top_k": 9223372036854775807})").at("/top_k"), INT64_MAX);
  EXPECT_THAT(error_of(R"({"top_k": 9223372036854775808})"), HasSubstr("does not fit 64 bits"));
  EXPECT_THAT(error_of(R"({"top_k": 9.3e18})"), HasSubstr("does not fit 64 bits"));
  EXPECT_THAT(error_of(R"({"top_k": 1.5})"), HasSubstr("expected an integer, got 1.5"));
}

TEST(Parse, HostileNamesAreMadePrintable) {
  const std::string message = error_of("{\"\\u0007" + std::string(5000, 'x') + "\": 1}");
  EXPECT_LT(message.size(), 600u);
  EXPECT_EQ(message.find('\a'), std::string::npos);
}

}  // namespace
}  // namespace ds
