// Tokenizer files and texts that are made to take time or memory. Where the work would be quadratic
// the sizes are such that it would outlast the test's time-out.
#include <utf8proc.h>

#include <memory>

#include "base/file.h"
#include "base/json.h"
#include "fresh_seed.h"
#include "test_paths.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

// The golden BPE tokenizer with other stages.
TokenizerPtr with_stage(const char* stage, const Json& value) {
  const auto path = test_data() / "tokenizers" / "bpe_1000.json";
  Json document = parse_json(read_text_file(path), "bpe_1000.json", Code::kCorrupt);
  document["pre_tokenizer"] = nullptr;
  document["decoder"] = nullptr;
  document[stage] = value;
  return parse_tokenizer_json(dump_json(document), "t");
}

Json sequence(const char* name, const Json& steps) { return {{"type", "Sequence"}, {name, steps}}; }

std::string repeated(const std::string& unit, size_t bytes) {
  std::string out;
  out.reserve(bytes + unit.size());
  while (out.size() < bytes) out += unit;
  return out;
}

std::string by_utf8proc(const std::string& text, int options) {
  utf8proc_uint8_t* raw = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &raw,
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  EXPECT_GE(length, 0);
  return {reinterpret_cast<const char*>(raw), static_cast<size_t>(length)};
}

TEST(HostileText, NormalFormsAreThoseOfUtf8proc) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  // Letters, marks of several classes, Hangul, ligatures, and whatever there is.
  const std::vector<uint32_t> some = {'a',    'e',     0x301,  0x316,  0x327,  0x345,
                                      0x5B0,  0x1100,  0x1161, 0x11A8, 0xAC00, 0xFB01,
                                      0x1E9B, 0x1D15E, 0xF73,  0x3B1};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (size_t i = random() % 40; i > 0; --i) {
      uint32_t code = random() % 4 != 0 ? some[random() % some.size()] : random() % 0x110000;
      if (code >= 0xD800 && code < 0xE000) code = 'x';
      append_utf8(text, code);
    }
    SCOPED_TRACE(printable(text));
    EXPECT_EQ(normalize_utf8(text, NormalForm::kNfc), by_utf8proc(text, UTF8PROC_COMPOSE));
    EXPECT_EQ(normalize_utf8(text, NormalForm::kNfd), by_utf8proc(text, UTF8PROC_DECOMPOSE));
    EXPECT_EQ(normalize_utf8(text, NormalForm::kNfkc),
              by_utf8proc(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT));
    EXPECT_EQ(normalize_utf8(text, NormalForm::kNfkd),
              by_utf8proc(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT));
  }
}

TEST(HostileText, RunsOfMarksAreSorted) {
  const std::string above = "\u0301", below = "\u0316";
  const size_t pairs = 500'000;  // 2 MB
  const std::string sorted =
      normalize_utf8("a" + repeated(above + below, 4 * pairs), NormalForm::kNfd);
  EXPECT_EQ(sorted, "a" + repeated(below, 2 * pairs) + repeated(above, 2 * pairs));
}

TEST(HostileTokenizer, MetaspaceStepsDoNotMultiply) {
  Json steps = Json::array();
  for (int i = 0; i < 40; ++i) {
    steps.push_back({{"type", "Metaspace"},
                     {"replacement", i % 2 == 0 ? "a" : "b"},
                     {"add_prefix_space", true}});
  }
  const auto tokenizer = with_stage("pre_tokenizer", sequence("pretokenizers", steps));
  expect_error(Code::kInvalidArgument, {"pre-tokenizer", "multiply"},
               [&] { tokenizer->encode("x"); });
}

TEST(HostileTokenizer, StepsAreCounted) {
  Json steps = Json::array();
  for (int i = 0; i < 1000; ++i) steps.push_back({{"type", "Lowercase"}});
  expect_error(Code::kUnsupported, {"normalizer", "more than 64 steps"},
               [&] { with_stage("normalizer", sequence("normalizers", steps)); });
  for (Json& step : steps) step = {{"type", "Fuse"}};
  expect_error(Code::kUnsupported, {"decoder", "more than 64 steps"},
               [&] { with_stage("decoder", sequence("decoders", steps)); });
  for (Json& step : steps) step = {{"type", "WhitespaceSplit"}};
  expect_error(Code::kUnsupported, {"pre_tokenizer", "more than 64 steps"},
               [&] { with_stage("pre_tokenizer", sequence("pretokenizers", steps)); });
}

// Every match reads on to the end of the text.
TEST(HostileTokenizer, PatternsThatRescanAreStopped) {
  const auto tokenizer = with_stage(
      "pre_tokenizer",
      {{"type", "Split"}, {"pattern", {{"Regex", "a++(?=\\p{Lu})|."}}}, {"behavior", "Isolated"}});
  EXPECT_FALSE(tokenizer->encode("aaaBandsoon").empty());
  const std::string text(4'000'000, 'a');
  expect_error(Code::kInvalidArgument, {"takes too long", "4000000 bytes"},
               [&] { tokenizer->encode(text); });
}

TEST(HostileTokenizer, StripTakesAllAtOnce) {
  const Json strip = {{"type", "Strip"}, {"content", "x"}, {"start", 1 << 20}, {"stop", 1 << 20}};
  const auto tokenizer =
      with_stage("decoder", sequence("decoders", Json::array({{{"type", "Fuse"}}, strip})));
  ASSERT_TRUE(tokenizer->id("x") && tokenizer->id("y"));
  std::vector<int32_t> ids(8'000'000, *tokenizer->id("x"));
  ids[4'000'000] = *tokenizer->id("y");
  const std::string out = tokenizer->decode(ids);
  EXPECT_EQ(out.size(), ids.size() - 2 * (size_t{1} << 20));
}

AddedToken token_of(int32_t id) {
  AddedToken token;
  token.id = id;
  return token;
}

TEST(HostileTokenizer, NearlyAddedTokensAreLinear) {
  AddedTokenMatcher matcher;
  const std::string pattern = std::string(1'000'000, 'a') + "b";
  matcher.add(pattern, token_of(1));
  matcher.add("aa", token_of(2));
  matcher.finish();
  std::vector<AddedTokenSegment> segments;
  const std::string text(2'000'000, 'a');
  matcher.split(text, true, segments);
  ASSERT_EQ(segments.size(), text.size() / 2);
  for (const AddedTokenSegment& segment : segments) EXPECT_EQ(segment.id, 2);
  segments.clear();
  matcher.split("x" + pattern + "a", true, segments);
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[1].id, 1);
}

// Both ways to look for them against a plain search.
TEST(HostileTokenizer, AddedTokensAreTheLongest) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 400; ++round) {
    const size_t longest = round % 2 == 0 ? 6 : 150;
    std::vector<std::string> patterns;
    AddedTokenMatcher matcher;
    const auto some_text = [&](size_t length) {
      std::string out(length, 'a');
      for (char& c : out) c = random() % 16 == 0 ? 'b' : 'a';
      return out;
    };
    for (int i = 0; i < 5; ++i) {
      patterns.push_back(some_text(1 + random() % longest));
      matcher.add(patterns.back(), token_of(i));
    }
    matcher.finish();
    const std::string text = some_text(random() % 600);
    std::vector<AddedTokenSegment> segments;
    matcher.split(text, true, segments);
    size_t pos = 0;
    for (const AddedTokenSegment& segment : segments) {
      ASSERT_EQ(segment.text.data(), text.data() + pos);
      for (size_t i = 0; i < (segment.id < 0 ? segment.text.size() : 1); ++i) {
        size_t most = 0;
        for (const std::string& pattern : patterns) {
          if (std::string_view(text).substr(pos).starts_with(pattern)) {
            most = std::max(most, pattern.size());
          }
        }
        ASSERT_EQ(most, segment.id < 0 ? 0 : segment.text.size()) << "at " << pos;
        pos += segment.id < 0 ? 1 : segment.text.size();
      }
    }
    EXPECT_EQ(pos, text.size());
  }
}

}  // namespace
}  // namespace ds
