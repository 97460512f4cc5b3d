// Patterns against what the tokenizers package (Oniguruma) makes of them:
// tests/data/tokenizers/patterns.json, made by tests/parity/gen_pattern_vectors.py.
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "test_paths.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace ds {
namespace {

const Json& vectors() {
  static const Json document = parse_json(read_text_file(test_data() / "tokenizers/patterns.json"),
                                          "patterns", Code::kCorrupt);
  return document;
}

// Calls fn(begin, end, inside) for each run of a list of alternating lengths.
template <class Fn>
void each_run(const Json& lengths, const Fn& fn) {
  size_t begin = 0;
  bool inside = false;
  for (const Json& length : lengths) {
    const size_t end = begin + length.get<size_t>();
    fn(begin, end, inside);
    begin = end;
    inside = !inside;
  }
}

TEST(Patterns, SetsHoldTheCharactersThatOnigurumaHolds) {
  std::vector<uint32_t> codes;
  each_run(vectors().at("assigned"), [&](size_t begin, size_t end, bool inside) {
    for (size_t c = begin; inside && c < end; ++c) codes.push_back(static_cast<uint32_t>(c));
  });
  ASSERT_GT(codes.size(), 280000u);
  std::string text;
  std::vector<size_t> starts;
  for (const uint32_t code : codes) {
    starts.push_back(text.size());
    append_utf8(text, code);
  }
  starts.push_back(text.size());
  for (const auto& [pattern, lengths] : vectors().at("sets").items()) {
    std::vector<bool> expected(codes.size()), actual(codes.size());
    each_run(lengths, [&](size_t begin, size_t end, bool inside) {
      for (size_t i = begin; i < end; ++i) expected.at(i) = inside;
    });
    TimeLimit time(text.size());
    std::vector<MatchRange> matches;
    Regex(pattern, "test").find_all(text, matches, time);
    size_t at = 0;
    for (const MatchRange& match : matches) {
      while (starts[at] < match.begin) ++at;
      ASSERT_EQ(starts[at], match.begin) << pattern;
      ASSERT_EQ(starts[at + 1], match.end) << pattern;
      actual[at] = true;
    }
    size_t wrong = 0;
    std::string which;
    for (size_t i = 0; i < codes.size(); ++i) {
      if (actual[i] == expected[i]) continue;
      if (++wrong <= 20) which += str_cat(" ", std::to_string(codes[i]));
    }
    EXPECT_EQ(wrong, 0u) << pattern << " differs for these code points:" << which;
  }
}

TEST(Patterns, CutTextsWhereOnigurumaCutsThem) {
  const Json& texts = vectors().at("texts");
  for (const auto& [pattern, cuts] : vectors().at("cuts").items()) {
    const PreTokenizer cutter(
        Json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
        "test");
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i].get<std::string>();
      PreTokenizer::Arena arena;
      std::vector<std::string_view> pieces;
      TimeLimit time(text.size());
      cutter.split(text, {true, true}, arena, pieces, time);
      std::vector<size_t> sizes;
      for (const std::string_view piece : pieces) sizes.push_back(piece.size());
      EXPECT_EQ(sizes, cuts[i].get<std::vector<size_t>>()) << pattern << " on " << text;
    }
  }
}

}  // namespace
}  // namespace ds
