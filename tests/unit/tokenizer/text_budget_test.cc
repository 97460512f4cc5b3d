// What a megabyte of any bytes may cost with a tokenizer that is accepted: two seconds of processor
// time, and memory of a hundred times the text. Every tokenizer of tests/data/tokenizers, on texts
// that are chosen to be hard and on random ones.
#include <gtest/gtest.h>
#include <time.h>

#include <fstream>

#include "fresh_seed.h"
#include "full_run.h"
#include "test_paths.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

// Sanitizers multiply both, so that long texts would meet the time limit of patterns.
constexpr bool kMeasures = !ds::testing::kSanitized;
constexpr size_t kBytes = kMeasures ? 1 << 20 : 1 << 12;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The most memory since the last reset_peak(); 0 where the system does not tell.
bool reset_peak() {
  std::ofstream out("/proc/self/clear_refs");
  out << 5 << std::flush;
  return out.good();
}
int64_t kilobytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1));
  }
  return 0;
}

std::string repeated(std::string_view unit) {
  std::string out;
  while (out.size() + unit.size() <= kBytes) out += unit;
  return out;
}

std::vector<std::pair<const char*, std::string>> texts(std::mt19937& random) {
  std::vector<std::pair<const char*, std::string>> out = {
      {"one letter", repeated("a")},
      {"one capital", repeated("A")},
      {"two letters", repeated("ab")},
      {"digits", repeated("7")},
      {"blanks", repeated(" ")},
      {"wide blanks", repeated("\u3000")},
      {"lines", repeated("\n")},
      {"blanks and lines", repeated(" \r\n\t")},
      {"words of one letter", repeated("a ")},
      {"punctuation", repeated("!")},
      {"apostrophes", repeated("'s")},
      {"marks", "a" + repeated("\u0301\u0316").substr(1)},
      {"marks in order", "a" + repeated("\u0316").substr(2)},
      {"long decompositions", repeated("\ufdfa")},
      {"Hangul letters", repeated("\u1100\u1161\u11a8")},
      {"ideographs", repeated("漢")},
      {"emoji", repeated("😀")},
      {"joined emoji", repeated("👩\u200d")},
      {"lower eights", repeated("▁")},
      {"special tokens", repeated("<|endoftext|>")},
      {"nearly special tokens", repeated("<|endoftex")},
      {"nearly special tokens of BERT", repeated("[MAS")},
      {"bytes that begin nothing", repeated("\xFF")},
      {"beginnings alone", repeated("\xE2\x82")},
      {"good and bad bytes", repeated("a\xC3")},
      {"zeros", std::string(kBytes, '\0')},
      {"random bytes", random_bytes(random, kBytes)}};
  std::string characters;
  while (characters.size() < kBytes) {
    const uint32_t code = random() % 0x110000;
    if (code < 0xD800 || code > 0xDFFF) append_utf8(characters, code);
  }
  out.emplace_back("random characters", std::move(characters));
  return out;
}

std::vector<std::string> tokenizers() {
  std::vector<std::string> out;
  const auto folder = test_data() / "tokenizers";
  out.push_back((folder / "bpe_1000.json").string());
  for (const auto& entry : std::filesystem::directory_iterator(folder / "families")) {
    if (entry.path().extension() == ".json" && entry.path().stem() != "texts") {
      out.push_back(entry.path().string());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

class TextBudget : public ::testing::TestWithParam<std::string> {};

TEST_P(TextBudget, AMegabyteTakesTwoSecondsAndAHundredTimesItsMemory) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  const TokenizerPtr tokenizer = load_tokenizer(GetParam());
  double slowest = 0;
  int64_t largest = 0;
  for (const auto& [name, text] : texts(random)) {
    const bool peaks = kMeasures && reset_peak();
    const int64_t before = kilobytes("VmRSS");
    const double start = thread_seconds();
    std::vector<int32_t> ids;
    ASSERT_NO_THROW(ids = tokenizer->encode(text)) << name;
    const double encoded = thread_seconds() - start;
    const std::string back = tokenizer->decode_text(ids);
    const double decoded = thread_seconds() - start - encoded;
    EXPECT_TRUE(is_valid_utf8(back)) << name;
    if (!kMeasures) continue;
    EXPECT_LT(encoded, 2) << name;
    EXPECT_LT(decoded, 2) << name;
    slowest = std::max({slowest, encoded, decoded});
    if (!peaks) continue;
    const int64_t grown = kilobytes("VmHWM") - before;
    EXPECT_LT(grown, 100 * static_cast<int64_t>(kBytes >> 10)) << name;
    largest = std::max(largest, grown);
  }
  RecordProperty("slowest (s)", std::to_string(slowest));
  RecordProperty("most memory (KiB)", std::to_string(largest));
}
INSTANTIATE_TEST_SUITE_P(All, TextBudget, ::testing::ValuesIn(tokenizers()), [](const auto& test) {
  return std::filesystem::path(test.param).stem().string();
});

}  // namespace
}  // namespace ds
