// JSON: hostile documents are refused with a position, good ones survive a round trip.
#include "base/json.h"

#include <gtest/gtest.h>

#include <limits>

#include "unit/base/expect_error.h"

namespace ds {
namespace {

using testing::expect_error;

Json parse(std::string_view text, const JsonLimits& limits = {}) {
  return parse_json(text, "config.json", Code::kConfig, limits);
}

TEST(Json, KeepsOrderAndTypes) {
  const Json doc = parse(R"({"z": 1, "a": [true, null, -2, 2.5, "\u00e4"], "m": {}})");
  EXPECT_EQ(dump_json(doc), R"({"z":1,"a":[true,null,-2,2.5,"ä"],"m":{}})");
  EXPECT_TRUE(doc["z"].is_number_unsigned());
  EXPECT_TRUE(doc["a"][2].is_number_integer());
  EXPECT_TRUE(doc["a"][3].is_number_float());
  EXPECT_EQ(parse(dump_json(doc, 2)), doc);
}

TEST(Json, ScalarsAreDocuments) {
  EXPECT_EQ(parse(" 7 "), 7);
  EXPECT_EQ(parse("\"x\""), "x");
  EXPECT_EQ(parse("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parse("-9223372036854775808"), std::numeric_limits<int64_t>::min());
}

TEST(Json, DuplicateKeysAreNamedByPath) {
  expect_error(Code::kConfig, {"config.json", "duplicate key /a"},
               [] { parse(R"({"a": 1, "b": 2, "a": 1})"); });
  expect_error(Code::kConfig, {"duplicate key /list/2/x/y"},
               [] { parse(R"({"list": [0, {}, {"x": {"y": 1, "y": 2}}]})"); });
  // The same key in different objects is fine.
  EXPECT_EQ(parse(R"([{"a": 1}, {"a": {"a": 2}}])").size(), 2u);
  // Escapes that spell the same key.
  expect_error(Code::kConfig, {"duplicate key /a"}, [] { parse(R"({"a": 1, "\u0061": 2})"); });
}

TEST(Json, SyntaxErrorsCarryLineAndColumn) {
  expect_error(Code::kConfig, {"config.json", "line 3", "column"},
               [] { parse("{\n  \"a\": 1,\n  oops\n}"); });
  expect_error(Code::kConfig, {"line 1, column 9"}, [] { parse(R"({"a": 1,})"); });
  for (const char* bad : {"", " ", "{", "[1, 2", "{\"a\"}", "{\"a\": 1} x", "nul", "01", "1.",
                          "'a'", "[1,]", "\"\x01\"", "\"\\x\"", "\"\\ud800\"", "NaN", "Infinity"}) {
    expect_error(Code::kConfig, {"config.json"}, [&] { parse(bad); });
  }
}

TEST(Json, MessagesStayOneSafeLine) {
  std::string text = "{\"a\": \"";
  text += '\x1b';
  text += "[31m\n";
  try {
    parse(text);
    FAIL();
  } catch (const Error& error) {
    for (const char c : error.message())
      EXPECT_GE(static_cast<unsigned char>(c), 0x20) << error.message();
    EXPECT_LT(error.message().size(), 500u);
  }
  expect_error(Code::kConfig, {"duplicate key /a\\x0ab"},
               [] { parse("{\"a\\nb\": 1, \"a\\nb\": 2}"); });
}

TEST(Json, DepthIsLimited) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse(nested(64)));
  expect_error(Code::kConfig, {"nested deeper than 64"}, [&] { parse(nested(65)); });
  expect_error(Code::kConfig, {"nested deeper than 64"},
               [] { parse(std::string(1000000, '[')); });  // and no stack overflow
  std::string objects;
  for (int i = 0; i < 100; ++i) objects += "{\"k\":";
  expect_error(Code::kConfig, {"nested deeper than 64"}, [&] { parse(objects); });
  EXPECT_NO_THROW(parse(nested(3), {.max_depth = 3}));
  expect_error(Code::kConfig, {"deeper than 3"}, [&] { parse(nested(4), {.max_depth = 3}); });
}

TEST(Json, InvalidUtf8IsRefusedAndNeverWritten) {
  expect_error(Code::kConfig, {"config.json"}, [] { parse("\"\xC3\x28\""); });
  expect_error(Code::kConfig, {"config.json"}, [] { parse("{\"\xFF\": 1}"); });
  EXPECT_EQ(dump_json(Json(std::string("a\xFF"))), "\"a\xEF\xBF\xBD\"");
}

TEST(Json, CommentsOnlyWhereAllowed) {
  const char* text = "{ // note\n \"a\": /* inline */ 1}";
  expect_error(Code::kConfig, {"line 1"}, [&] { parse(text); });
  EXPECT_EQ(parse(text, {.allow_comments = true})["a"], 1);
}

TEST(Json, CodeIsTheCallers) {
  expect_error(Code::kCorrupt, {"manifest"}, [] { parse_json("{", "manifest", Code::kCorrupt); });
}

}  // namespace
}  // namespace ds
