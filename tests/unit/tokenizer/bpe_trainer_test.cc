// Training a BPE: against a reference that recounts all pairs before every merge, determinism,
// limits.
#include "tokenizer/bpe_trainer.h"

#include <chrono>
#include <map>

#include "base/json.h"
#include "fresh_seed.h"
#include "tokenizer/byte_alphabet.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

std::vector<std::string> merges_of(const Tokenizer& tokenizer) {
  const Json document = parse_json(tokenizer.to_json(), "trained", Code::kInternal);
  return document["model"]["merges"].get<std::vector<std::string>>();
}

// Words as the splitting pattern cuts letters and blanks: "ab cd" -> "ab", " cd".
std::vector<std::string> reference_train(const std::vector<std::string>& words, size_t merges,
                                         int64_t min_frequency,
                                         const std::map<std::string, int>& byte_ids) {
  std::vector<std::vector<std::string>> split;
  std::map<std::string, int> ids = byte_ids;
  for (const std::string& word : words) {
    auto& parts = split.emplace_back();
    for (const char c : word) parts.push_back(bytes_to_alphabet(std::string(1, c)));
  }
  std::vector<std::string> out;
  while (out.size() < merges) {
    std::map<std::pair<int, int>, int64_t> counts;
    std::map<std::pair<int, int>, std::pair<std::string, std::string>> names;
    for (const auto& parts : split) {
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const std::pair key(ids.at(parts[i]), ids.at(parts[i + 1]));
        ++counts[key];
        names[key] = {parts[i], parts[i + 1]};
      }
    }
    int64_t best = 0;
    std::pair<int, int> chosen;
    for (const auto& [pair, count] : counts) {  // ascending pairs: the first of equals stays
      if (count > best) {
        best = count;
        chosen = pair;
      }
    }
    if (best < std::max<int64_t>(min_frequency, 1)) break;
    const auto [a, b] = names.at(chosen);
    out.push_back(a + " " + b);
    ids.emplace(a + b, static_cast<int>(ids.size()));
    for (auto& parts : split) {
      std::vector<std::string> merged;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (i + 1 < parts.size() && parts[i] == a && parts[i + 1] == b) {
          merged.push_back(a + b);
          ++i;
        } else {
          merged.push_back(parts[i]);
        }
      }
      parts = std::move(merged);
    }
  }
  return out;
}

TEST(BpeTrainer, MatchesRecountingReference) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 8; ++round) {
    // Distinct letters within a word, so that no token has two spellings (there the incremental
    // counts, like the original's, keep history that a recount does not see).
    std::vector<std::string> words;
    std::string text;
    for (int w = 0; w < 60; ++w) {
      std::string word;
      for (char c = 'a'; c <= 'h'; ++c) {
        if (random() % 3 != 0) word.push_back(c);
      }
      if (word.empty()) continue;
      if (!text.empty()) word.insert(0, " ");
      text += word;
      words.push_back(word);
    }
    const BpeTrainerOptions options{.vocab_size = 256 + 1 + 40, .min_frequency = 3};
    BpeTrainer trainer(options);
    trainer.add_text(text);
    const auto tokenizer = trainer.train();
    std::map<std::string, int> byte_ids;
    for (int32_t id = 0; id < 257; ++id) byte_ids.emplace(*tokenizer->token(id), id);
    // Merging ambiguity (ab+c = a+bc) ends the comparison's validity; cut there.
    const auto got = merges_of(*tokenizer);
    const auto expected = reference_train(words, 40, 3, byte_ids);
    std::map<std::string, int> products;
    for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
      std::string product = expected[i];
      product.erase(product.find(' '), 1);
      if (!products.emplace(product, 1).second) break;
      ASSERT_EQ(got[i], expected[i]) << "merge " << i << " of text: " << text;
    }
    ASSERT_GT(products.size(), 5u);
  }
}

TEST(BpeTrainer, OrderOfTextDoesNotMatter) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (int n = 0; n < 40; ++n) text += "aabcd efg\n"[random() % 10];
    texts.push_back(text);
  }
  std::string first;
  for (int round = 0; round < 3; ++round) {
    BpeTrainer trainer({.vocab_size = 600});
    for (const std::string& text : texts) trainer.add_text(text);
    const std::string json = trainer.train()->to_json();
    EXPECT_EQ(trainer.train()->to_json(), json);
    if (round == 0) first = json;
    EXPECT_EQ(json, first);
    std::shuffle(texts.begin(), texts.end(), random);
  }
}

TEST(BpeTrainer, Limits) {
  EXPECT_THROW(BpeTrainer({.vocab_size = 256}), Error);
  EXPECT_NO_THROW(BpeTrainer({.vocab_size = 257}));
  EXPECT_THROW(BpeTrainer({.vocab_size = 300, .special_tokens = {""}}), Error);
  EXPECT_THROW(BpeTrainer({.vocab_size = 300, .special_tokens = {"é"}}), Error);
  EXPECT_THROW(BpeTrainer({.vocab_size = 300, .special_tokens = {"<a>", "<a>"}}), Error);
  EXPECT_THROW(BpeTrainer({.vocab_size = 300, .min_frequency = -1}), Error);

  BpeTrainer empty({.vocab_size = 300});
  EXPECT_EQ(empty.train()->vocab_size(), 257);

  BpeTrainer trainer({.vocab_size = 1000, .special_tokens = {"<bos>", "<eos>"}});
  trainer.add_text("<bos>tea tea tea<eos> once");
  const auto tokenizer = trainer.train();
  EXPECT_EQ(tokenizer->id("<bos>"), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->encode("<bos>tea<eos>").size(), 3u);
  // "once" occurs once, and special tokens are not trained on.
  EXPECT_EQ(merges_of(*tokenizer), (std::vector<std::string>{"e a", "t ea", "\u0120 tea"}));
}

TEST(BpeTrainer, MegabytesInSeconds) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < 1'000'000) {
    std::string word;
    for (uint32_t n = 2 + random() % 6; n > 0; --n) word += "etaoinshrdlucmfw"[random() % 16];
    text += word + ' ';
  }
  text += std::string(300'000, 'q');  // and one endless word
  BpeTrainer trainer({.vocab_size = 4000});
  const auto start = std::chrono::steady_clock::now();
  trainer.add_text(text);
  const auto tokenizer = trainer.train();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(tokenizer->vocab_size(), 4000);
  EXPECT_LT(took.count(), 60.0);  // a second or so; the bound is for sanitizers
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

}  // namespace
}  // namespace ds
