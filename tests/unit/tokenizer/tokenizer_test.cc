// Tokenizers: round trips of any bytes, the merging order against a plain reference, long inputs,
// the kinds of files, errors by name, use by many threads.
#include "tokenizer/tokenizer.h"

#include <map>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "data/text_reader.h"
#include "fresh_seed.h"
#include "full_run.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/bpe_trainer.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pattern_syntax.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"
#include "unit/base/heard_log.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

Json golden_json() {
  return parse_json(read_text_file(golden("bpe_1000.json")), "bpe_1000.json", Code::kCorrupt);
}

TEST(ByteTokenizer, IdsAreBytes) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->encode("A\xff\n"), (std::vector<int32_t>{65, 255, 10}));
  EXPECT_EQ(tokenizer->eos_id(), std::nullopt);
  EXPECT_EQ(tokenizer->token(32), "\u0120");
  EXPECT_EQ(tokenizer->id("\u0120"), 32);
  EXPECT_EQ(tokenizer->token(256), std::nullopt);
  expect_error(Code::kInvalidArgument, {"256"}, [&] { tokenizer->decode(std::vector{256}); });

  const auto as_bpe = parse_tokenizer_json(tokenizer->to_json(), "bytes");
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  EXPECT_EQ(as_bpe->encode(all), tokenizer->encode(all));
  EXPECT_EQ(as_bpe->vocab_size(), 256);
}

TEST(ByteAlphabet, IsGpt2s) {
  EXPECT_EQ(byte_alphabet()[0], 0x100);
  EXPECT_EQ(byte_alphabet()[32], 0x120);
  EXPECT_EQ(byte_alphabet()[33], 33);
  EXPECT_EQ(byte_alphabet()[127], 0x121);
  EXPECT_EQ(byte_alphabet()[160], 0x142);
  EXPECT_EQ(byte_alphabet()[173], 0x143);
  EXPECT_EQ(byte_alphabet()[255], 255);
  EXPECT_EQ(alphabet_to_bytes("\u4e00"), std::nullopt);
  EXPECT_EQ(alphabet_to_bytes(" "), std::nullopt);
}

TEST(BpeTokenizer, AnyBytesComeBack) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  const auto bpe = load_tokenizer(golden("bpe_1000.json"));
  const auto bytes = make_byte_tokenizer();
  for (int round = 0; round < 300; ++round) {
    std::string text = random_bytes(random, random() % 200);
    // Mostly text, so that patterns and merges take part.
    if (round % 3 != 0) {
      for (char& c : text) {
        if (random() % 8 != 0) c = "etaoin shrdlu\n 's12"[random() % 19];
      }
    }
    ASSERT_EQ(bpe->decode(bpe->encode(text)), text);
    ASSERT_EQ(bytes->decode(bytes->encode(text)), text);
    const std::string repaired = bpe->decode_text(bpe->encode(text));
    ASSERT_TRUE(is_valid_utf8(repaired));
    if (is_valid_utf8(text)) {
      ASSERT_EQ(repaired, text);
    }
  }
}

// Merges the leftmost pair of the lowest rank until there is none, on strings.
std::vector<std::string> reference_merge(
    const std::string& word, const std::map<std::pair<std::string, std::string>, int>& ranks) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (;;) {
    int best = INT32_MAX;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == INT32_MAX) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(BpeModel, MergesByRankShortAndLong) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  for (int model_round = 0; model_round < 20; ++model_round) {
    BpeModelSpec spec;
    std::map<std::pair<std::string, std::string>, int> ranks;
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::map<std::string, int32_t> ids;
    for (const std::string& token : tokens) ids.emplace(token, static_cast<int32_t>(ids.size()));
    // Any pair may be merged at any rank: also products of later merges, and one product twice.
    for (int rank = 0; rank < 40; ++rank) {
      const std::string a = tokens[random() % tokens.size()], b = tokens[random() % tokens.size()];
      if (!ranks.emplace(std::pair(a, b), rank).second || (a + b).size() > 12) {
        ranks[{a, b}] = rank;
      }
      spec.merges.emplace_back(a, b);
      if (ids.emplace(a + b, static_cast<int32_t>(ids.size())).second) tokens.push_back(a + b);
    }
    ranks.clear();
    for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
      ranks[spec.merges[rank]] = static_cast<int>(rank);
    }
    for (const auto& [token, id] : ids) spec.vocab.emplace_back(token, id);
    const BpeModel model(spec, "random model");
    for (const size_t length : {1u, 2u, 7u, 30u, 48u, 49u, 64u, 65u, 200u}) {
      std::string word;
      for (size_t i = 0; i < length; ++i) word.push_back("aabc"[random() % 4]);
      std::vector<int32_t> expected;
      for (const std::string& part : reference_merge(word, ranks)) expected.push_back(ids.at(part));
      for (int repeat = 0; repeat < 2; ++repeat) {  // the second time from the cache
        std::vector<int32_t> got;
        model.encode_piece(word, got);
        ASSERT_EQ(got, expected) << word;
      }
    }
  }
}

TEST(BpeTokenizer, LongPiecesAreNotQuadratic) {
  const auto tokenizer = load_tokenizer(golden("bpe_1000.json"));
  for (const std::string unit : {"a", " ", "\n", "7", "\xff", "e\xCC\x81", "the"}) {
    std::string text;
    while (text.size() < (testing::kSanitized ? 200'000 : 1'000'000)) text += unit;
    // Quadratic would be hours, which the time limit of the test ends.
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << printable(unit);
  }
}

TEST(BpeTokenizer, ThreadsShareOne) {
  const auto tokenizer = load_tokenizer(golden("bpe_1000.json"));
  const std::string text = read_text_file(golden("training_text.txt"));
  const auto expected = load_tokenizer(golden("bpe_1000.json"))->encode(text);
  std::vector<std::thread> threads;
  std::array<bool, 4> same{};
  for (size_t t = 0; t < same.size(); ++t) {
    threads.emplace_back([&, t] {
      same[t] = true;
      for (int i = 0; i < 10; ++i) same[t] = same[t] && tokenizer->encode(text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool ok : same) EXPECT_TRUE(ok);
}

TEST(BpeTokenizer, SpecialTokens) {
  const auto tokenizer = load_tokenizer(golden("bpe_1000.json"));
  EXPECT_EQ(tokenizer->encode("<|endoftext|>"), std::vector<int32_t>{0});
  const auto spelled = tokenizer->encode("<|endoftext|>", {.parse_special_tokens = false});
  EXPECT_GT(spelled.size(), 1u);
  EXPECT_EQ(tokenizer->decode(spelled), "<|endoftext|>");
  const std::vector<int32_t> ids = tokenizer->encode("a<|endoftext|>b");
  EXPECT_EQ(tokenizer->decode(ids), "a<|endoftext|>b");
  EXPECT_EQ(tokenizer->decode(ids, {.skip_special_tokens = true}), "ab");
  EXPECT_EQ(tokenizer->id("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer->id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->token(-1), std::nullopt);
  EXPECT_EQ(tokenizer->token(tokenizer->vocab_size()), std::nullopt);
  expect_error(Code::kInvalidArgument, {"cannot decode token 100000"},
               [&] { tokenizer->decode(std::vector{100000}); });
  expect_error(Code::kInvalidArgument, {"-1"}, [&] { tokenizer->decode(std::vector{-1}); });
}

TEST(BpeTokenizer, AddedTokensDecodeToTheirText) {
  Json document = golden_json();
  const int64_t next = static_cast<int64_t>(document["model"]["vocab"].size());
  document["added_tokens"].push_back(
      {{"id", next}, {"content", "été à"}, {"special", false}, {"normalized", false}});
  const auto tokenizer = parse_tokenizer_json(dump_json(document), "added");
  const auto ids = tokenizer->encode("un été à la mer");
  EXPECT_NE(std::find(ids.begin(), ids.end(), next), ids.end());
  EXPECT_EQ(tokenizer->decode(ids), "un été à la mer");
}

TEST(BpeTokenizer, ByteFallbackDecodes) {
  const Json variants =
      parse_json(read_text_file(golden("variants.json")), "variants.json", Code::kCorrupt);
  for (const Json& variant : variants) {
    if (variant["name"] != "byte fallback") continue;
    const auto tokenizer = parse_tokenizer_json(dump_json(variant["tokenizer"]), "fallback");
    for (const std::string text : {"the tin", "Ärger 🙂 the", " two  spaces"}) {
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
    // No byte pieces here: ill-formed input is read as U+FFFD.
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("a\xff")), "a\xEF\xBF\xBD");
    return;
  }
  FAIL() << "no such variant";
}

TEST(TokenizerFiles, Gpt2Pair) {
  const TempFolder folder;
  const Json document = golden_json();
  Json vocab = document["model"]["vocab"];
  std::string merges = "#version: 0.2\r\n";
  for (const Json& merge : document["model"]["merges"]) {
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  }
  write_bytes(folder / "vocab.json", dump_json(vocab));
  write_bytes(folder / "merges.txt", merges);
  const auto tokenizer = load_gpt2_tokenizer(folder / "vocab.json", folder / "merges.txt");
  const auto reference = load_tokenizer(golden("bpe_1000.json"));
  const std::string text = read_text_file(golden("training_text.txt"));
  EXPECT_EQ(tokenizer->encode(text), reference->encode(text));
  EXPECT_EQ(tokenizer->eos_id(), 0);
  // As in GPT-2's own code, a special token in text is text.
  EXPECT_EQ(tokenizer->encode("<|endoftext|>"),
            reference->encode("<|endoftext|>", {.parse_special_tokens = false}));

  write_bytes(folder / "bad.txt", "#version: 0.2\nno-space\n");
  expect_error(Code::kCorrupt, {"bad.txt", "no-space"},
               [&] { load_gpt2_tokenizer(folder / "vocab.json", folder / "bad.txt"); });
}

TEST(TokenizerFiles, FolderWithConfig) {
  const TempFolder folder;
  Json document = golden_json();
  write_bytes(folder / "tokenizer.json", parse_tokenizer_json(dump_json(document), "x")->to_json());
  write_bytes(folder / "tokenizer_config.json", R"({"eos_token": {"content": "!"}})");
  const auto tokenizer = load_tokenizer(folder / "");
  EXPECT_EQ(tokenizer->eos_id(), tokenizer->id("!"));
  EXPECT_EQ(load_tokenizer(folder / "", {.eos_token = "a"})->eos_id(), tokenizer->id("a"));
  write_bytes(folder / "tokenizer_config.json", R"({"eos_token": "nowhere"})");
  expect_error(Code::kNotFound, {"nowhere"}, [&] { load_tokenizer(folder / ""); });
  expect_error(Code::kNotFound, {"absent.json"}, [&] { load_tokenizer(folder / "absent.json"); });
}

TEST(TokenizerFiles, UnsupportedPartsAreNamed) {
  const auto refuse = [](const char* stage, const char* json, std::string_view named) {
    Json document = golden_json();
    Json* place = &document;
    std::string path = stage;
    if (path.starts_with("model.")) {
      place = &document["model"];
      path = path.substr(6);
    }
    (*place)[path] = Json::parse(json);
    expect_error(Code::kUnsupported, {named},
                 [&] { parse_tokenizer_json(dump_json(document), "t"); });
  };
  refuse("model.type", R"("Unigram")", "Unigram");
  refuse("model.dropout", "0.1", "dropout");
  refuse("model.continuing_subword_prefix", R"("##")", "continuing_subword_prefix");
  refuse("model.end_of_word_suffix", R"("</w>")", "end_of_word_suffix");
  refuse("normalizer", R"({"type":"Nmt"})", "Nmt");
  refuse("pre_tokenizer", R"({"type":"UnicodeScripts"})", "UnicodeScripts");
  refuse("pre_tokenizer",
         R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})", "last");
  refuse("pre_tokenizer",
         R"({"type":"Split","pattern":{"Regex":"(unclosed"},"behavior":"Isolated"})", "(unclosed");
  refuse("pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"[a&&b]"},"behavior":"Isolated"})",
         "&&");
  refuse("post_processor", R"({"type":"Mystery"})", "Mystery");
  refuse("decoder", R"({"type":"CTC"})", "CTC");
  refuse("version", R"("2.0")", "2.0");
}

// Replacements that feed each other would fill any memory.
TEST(TokenizerFiles, ReplacementsAreBounded) {
  const Json step = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100, 'a')}};
  Json steps = Json::array();
  for (int i = 0; i < 8; ++i) steps.push_back(step);
  Json document = golden_json();
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const auto normalizing = parse_tokenizer_json(dump_json(document), "t");
  expect_error(Code::kInvalidArgument, {"replacing \"a\""}, [&] { normalizing->encode("a"); });
  EXPECT_FALSE(normalizing->encode("b").empty());
  document = golden_json();
  document["pre_tokenizer"] = nullptr;
  document["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  const auto decoding = parse_tokenizer_json(dump_json(document), "t");
  const int32_t a = *decoding->id("a"), b = *decoding->id("b");
  expect_error(Code::kInvalidArgument, {"replacing"}, [&] { decoding->decode(std::vector{a}); });
  EXPECT_EQ(decoding->decode(std::vector{b}), "b");
}

TEST(TokenizerFiles, BrokenPartsAreLocated) {
  const auto refuse = [](const auto& damage, std::string_view named) {
    Json document = golden_json();
    damage(document);
    expect_error(Code::kCorrupt, {named}, [&] { parse_tokenizer_json(dump_json(document), "t"); });
  };
  refuse([](Json& d) { d.erase("model"); }, "model");
  refuse([](Json& d) { d["model"].erase("vocab"); }, "vocab");
  refuse([](Json& d) { d["model"]["vocab"] = Json::object(); }, "empty");
  refuse([](Json& d) { d["model"]["vocab"]["a"] = -1; }, "\"a\"");
  refuse([](Json& d) { d["model"]["vocab"]["a"] = 2147483647; }, "\"a\"");
  refuse([](Json& d) { d["model"]["vocab"]["a"] = 2000000000; }, "out of proportion");
  refuse([](Json& d) { d["model"]["vocab"]["a"] = "x"; }, "integer");
  refuse([](Json& d) { d["model"]["vocab"]["a"] = d["model"]["vocab"]["b"]; }, "share the id");
  refuse([](Json& d) { d["model"]["merges"][3] = "abc"; }, "merge 3");
  refuse([](Json& d) { d["model"]["merges"][3] = Json::array({"a"}); }, "merge 3");
  refuse([](Json& d) { d["model"]["merges"][3] = Json::array({"a", "never"}); }, "never");
  refuse([](Json& d) { d["model"]["unk_token"] = "<unk>"; }, "<unk>");
  refuse([](Json& d) { d["added_tokens"][0]["content"] = ""; }, "empty");
  refuse([](Json& d) { d["added_tokens"][0]["id"] = 7; }, "<|endoftext|>");
  refuse([](Json& d) { d["added_tokens"].push_back(d["added_tokens"][0]); }, "twice");
  refuse([](Json& d) { d["added_tokens"][0]["lstrip"] = 1; }, "lstrip");
  refuse([](Json& d) { d["pre_tokenizer"] = "ByteLevel"; }, "pre_tokenizer");
}

TEST(TokenizerFiles, RandomDamageNeverCrashes) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  const std::string original = read_text_file(golden("bpe_1000.json"));
  // Most of the file is vocabulary; aim half of the damage at the stages before it.
  const size_t head = original.find("\"vocab\"");
  int loaded = 0, refused = 0;
  for (int round = 0; round < 150; ++round) {
    std::string damaged = original;
    for (uint32_t flips = 1 + random() % 3; flips > 0; --flips) {
      damaged[random() % (round % 2 == 0 ? head : damaged.size())] ^=
          static_cast<char>(1u << (random() % 8));
    }
    if (round % 10 == 0) damaged.resize(random() % damaged.size());
    try {
      const auto tokenizer = parse_tokenizer_json(damaged, "damaged");
      const std::string text = random_bytes(random, 100);
      tokenizer->decode(tokenizer->encode(text));
      ++loaded;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(loaded + refused, 100);
}

// The ids are those of the tokenizers package: what is left out keeps no neighbours apart.
TEST(TokenizerFiles, CharactersWithoutATokenAreLeftOut) {
  const Json document = {{"version", "1.0"},
                         {"added_tokens", Json::array()},
                         {"truncation", {{"max_length", 2}, {"strategy", "LongestFirst"}}},
                         {"model",
                          {{"type", "BPE"},
                           {"unk_token", nullptr},
                           {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}},
                           {"merges", {"a b"}}}}};
  const HeardLog log;
  const auto tokenizer = parse_tokenizer_json(dump_json(document), "tiny");
  EXPECT_NE(log.text().find("\"truncation\" is not applied"), std::string::npos) << log.text();
  EXPECT_EQ(log.text().find("padding"), std::string::npos);
  EXPECT_EQ(tokenizer->encode("abxab"), (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(tokenizer->encode("xyz"), std::vector<int32_t>());
  EXPECT_EQ(tokenizer->encode("axb"), std::vector<int32_t>{2});
  EXPECT_NE(log.text().find("no token for \"x\""), std::string::npos);
  const std::string text = log.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(TokenizerFiles, UnknownBytesAreLeftOut) {
  Json document = golden_json();
  Json vocab = Json::object();
  vocab["a"] = 0;
  document["model"]["vocab"] = vocab;
  document["model"]["merges"] = Json::array();
  document["added_tokens"] = Json::array();
  const auto tokenizer = parse_tokenizer_json(dump_json(document), "tiny");
  EXPECT_EQ(tokenizer->encode("aaa").size(), 3u);
  const HeardLog log;
  EXPECT_EQ(tokenizer->encode("aba").size(), 2u);
  EXPECT_NE(log.text().find("no token for \"b\""), std::string::npos);
}

TEST(Unicode, ReplacesByMaximalSubparts) {
  // Table 3-8 of the Unicode standard.
  EXPECT_EQ(replace_invalid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(lowercase_utf8("ÀİΣ"), "ài\u0307σ");
}

TEST(RegexTest, TranslatesRubyPatterns) {
  EXPECT_EQ(translate_pattern("a[]b]", "t"), "a[\\]b]");
  EXPECT_EQ(translate_pattern("\\h+", "t"), "[0-9a-fA-F]+");
  EXPECT_EQ(translate_pattern("[[:xdigit:]x]", "t"), "[0-9a-fA-Fx]");
  EXPECT_EQ(translate_pattern("[^a\\S]", "t"), "(?:(?![a])[\\t-\\r\\x{85}\\p{Z}])");
  EXPECT_EQ(translate_pattern("(?m:.{,3}+)\\p{^Lu}", "t"), "(?s:(?:.{0,3})+)\\P{Lu}");
  EXPECT_EQ(translate_pattern("\\p{Han}\\u00e9[\\w-]", "t"),
            "\\p{sc:Han}\\x{00e9}[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\-]");
  for (const auto& [pattern, named] :
       std::initializer_list<std::pair<const char*, const char*>>{{"[[:foo:]]", "[:foo:]"},
                                                                  {"\\p{Nothing}", "Nothing"},
                                                                  {"[a-\\w]", "range"},
                                                                  {"(?~ab)", "(?~"},
                                                                  {"(?s)a", "(?s"},
                                                                  {"[a[b]]", "nested"},
                                                                  {"\\u12", "\\u"}}) {
    expect_error(Code::kUnsupported, {named, "pattern"}, [&] { translate_pattern(pattern, "t"); });
  }
  TimeLimit time(3000);
  // U+180E is no blank, U+0085 is one.
  std::vector<MatchRange> found;
  Regex("\\s+", "t").find_all("a\u180e\u0085 b", found, time);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].begin, 4u);
  found.clear();
  Regex("x*", "t").find_all("aéx", found, time);
  ASSERT_EQ(found.size(), 4u);  // before a, before é, x, at the end
  expect_error(Code::kInvalidArgument, {"fails"}, [&] {
    std::vector<MatchRange> out;
    Regex("(?:a+)+[bc]", "t").find_all(std::string(3000, 'a'), out, time);
  });
}

TEST(TextReader, BlocksTokeniseLikeTheWhole) {
  const TempFolder folder;
  const auto tokenizer = load_tokenizer(golden("bpe_1000.json"));
  const std::string text = read_text_file(golden("training_text.txt"));
  const auto expected = tokenizer->encode(text);
  for (const size_t block : {16u, 100u, 1000u, 100000u}) {
    TextBlockReader reader(golden("training_text.txt"), block);
    std::vector<int32_t> ids;
    std::string all;
    for (std::string part = reader.next(); !part.empty(); part = reader.next()) {
      tokenizer->append_encoded(part, {}, ids);
      all += part;
    }
    EXPECT_EQ(all, text);
    EXPECT_EQ(ids, expected) << "blocks of " << block;
  }
}

TEST(TextReader, Lines) {
  const TempFolder folder;
  const std::string big(3'000'000, 'x');
  write_bytes(folder / "lines", "one\r\n\n" + big + "\nlast");
  LineReader reader(folder / "lines");
  EXPECT_EQ(reader.next(), "one");
  EXPECT_EQ(reader.next(), "");
  EXPECT_EQ(reader.next(), big);
  EXPECT_EQ(reader.next(), "last");
  EXPECT_EQ(reader.line_number(), 4);
  EXPECT_EQ(reader.next(), std::nullopt);
  EXPECT_EQ(reader.next(), std::nullopt);
}

}  // namespace
}  // namespace ds
