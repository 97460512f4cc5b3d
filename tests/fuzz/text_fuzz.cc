// Fuzzes the paths that text takes through tokenizers: three bytes of the input choose steps that
// published tokenizers have, the rest, repeated, is the text. Work must stay in proportion to it.
#include <time.h>

#include <array>
#include <map>

#include "base/json.h"
#include "fuzz/fuzz_support.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace {

using ds::Json;
using ds::fuzz::accepts;
using ds::fuzz::claim;

// Short inputs become texts that are long enough to tell linear work from quadratic.
constexpr size_t kTextBytes = 32 << 10;
// Ten times what an ordinary build may take for a megabyte, because sanitizers multiply it.
constexpr double kSecondsPerText = 0.25, kSecondsPerByte = 20e-6;

Json steps(const char* name, const Json& list) { return {{"type", "Sequence"}, {name, list}}; }
Json split(const char* pattern, const char* behavior) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}};
}

const std::vector<Json>& normalizers() {
  static const std::vector<Json> all = {
      nullptr,
      {{"type", "NFC"}},
      {{"type", "NFKC"}},
      steps("normalizers",
            {{{"type", "NFD"}}, {{"type", "StripAccents"}}, {{"type", "Lowercase"}}}),
      steps("normalizers", {{{"type", "NFKD"}}, {{"type", "Strip"}}}),
      {{"type", "BertNormalizer"}, {"clean_text", true}, {"lowercase", true}},
      steps("normalizers",
            {{{"type", "Prepend"}, {"prepend", "\u2581"}},
             {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}),
      {{"type", "Replace"}, {"pattern", {{"Regex", "\\s+"}}}, {"content", " "}}};
  return all;
}

const std::vector<Json>& pre_tokenizers() {
  static const std::vector<Json> all = {
      {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}},
      steps("pretokenizers",
            {split("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                   "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                   "Isolated"),
             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}),
      nullptr,
      {{"type", "BertPreTokenizer"}},
      {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}},
      steps("pretokenizers", {{{"type", "Whitespace"}}, {{"type", "Punctuation"}}}),
      steps("pretokenizers",
            {{{"type", "Digits"}, {"individual_digits", true}}, {{"type", "WhitespaceSplit"}}}),
      split("\\b\\w+\\b|[[:punct:]]", "MergedWithNext"),
      split("\\p{Han}|[^\\S\\n]+", "Contiguous")};
  return all;
}

const std::vector<Json>& decoders() {
  static const std::vector<Json> all = {
      nullptr,
      {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}},
      {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}},
      steps("decoders",
            {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
             {{"type", "ByteFallback"}},
             {{"type", "Fuse"}},
             {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})};
  return all;
}

// A byte-level BPE, one with byte tokens, or a WordPiece; small, but with merges of what repeats.
Json model(size_t which, bool byte_level) {
  Json vocab = Json::object();
  int id = 0;
  const auto add = [&](const std::string& token) {
    if (!vocab.contains(token)) vocab[token] = id++;
  };
  if (!byte_level && which % 3 == 1) {
    for (const char* token : {"[UNK]", "a", "##a", "##aa", "b", "##b", "!", "\u0301", "##\u0301"}) {
      add(token);
    }
    return {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", vocab}};
  }
  const auto bytes = ds::make_byte_tokenizer();
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(b));
    add(byte_level ? *bytes->token(b) : name);
  }
  for (const char* token : {"a", "b", "aa", "aaaa", "ab", "abab", "!", "!!"}) add(token);
  return {{"type", "BPE"},
          {"unk_token", nullptr},
          {"byte_fallback", !byte_level},
          {"vocab", vocab},
          {"merges", {"a a", "aa aa", "a b", "ab ab", "! !"}}};
}

ds::TokenizerPtr tokenizer_of(size_t normalizer, size_t pre_tokenizer, size_t rest) {
  static std::map<std::array<size_t, 3>, ds::TokenizerPtr> known;
  ds::TokenizerPtr& tokenizer = known[{normalizer, pre_tokenizer, rest}];
  if (tokenizer) return tokenizer;
  const bool byte_level = pre_tokenizer < 2;
  const Json decoder = byte_level ? Json{{"type", "ByteLevel"}} : decoders()[rest % 4];
  const Json document = {{"version", "1.0"},
                         {"added_tokens", Json::array({{{"id", 1000},
                                                        {"content", "<|end|>"},
                                                        {"special", true},
                                                        {"lstrip", rest % 2 == 1},
                                                        {"rstrip", rest % 2 == 1}}})},
                         {"normalizer", normalizers()[normalizer]},
                         {"pre_tokenizer", pre_tokenizers()[pre_tokenizer]},
                         {"post_processor", nullptr},
                         {"decoder", decoder},
                         {"model", model(rest / 4, byte_level)}};
  ds::fuzz::must_succeed("published steps are accepted", [&] {
    tokenizer = ds::parse_tokenizer_json(ds::dump_json(document), "steps");
  });
  return tokenizer;
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Fn>
void within_budget(size_t bytes, const char* what, const Fn& fn) {
  const double start = thread_seconds();
  fn();
  const double taken = thread_seconds() - start;
  claim(taken < kSecondsPerText + kSecondsPerByte * static_cast<double>(bytes),
        "work is in proportion to the text", ds::str_cat(what, " took ", taken, " s for ", bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  ds::fuzz::Input input(data, size);
  const size_t normalizer = input.take<uint8_t>() % normalizers().size();
  const size_t pre_tokenizer = input.take<uint8_t>() % pre_tokenizers().size();
  const ds::TokenizerPtr tokenizer =
      tokenizer_of(normalizer, pre_tokenizer, input.take<uint8_t>() % 12);
  const std::string_view unit = input.rest().substr(0, kTextBytes);
  std::string text(unit);
  while (!unit.empty() && text.size() + unit.size() <= kTextBytes) text += unit;
  std::vector<int32_t> ids;
  // A pattern may give up on a text, which is an error like any other.
  bool encoded = false;
  within_budget(text.size(), "encoding",
                [&] { encoded = accepts([&] { ids = tokenizer->encode(text); }); });
  if (!encoded) return 0;
  for (const int32_t id : ids) claim(tokenizer->token(id).has_value(), "ids have tokens");
  std::string out;
  within_budget(text.size() + ids.size(), "decoding", [&] {
    ds::fuzz::must_succeed("ids decode", [&] { out = tokenizer->decode_text(ids); });
  });
  claim(ds::is_valid_utf8(out), "decoded text is UTF-8");
  if (pre_tokenizer == 1 && normalizer == 0) {
    claim(tokenizer->decode(ids, {.skip_special_tokens = false}) == text,
          "a byte-level tokenizer gives every byte back");
  }
  return 0;
}
