// Ids and merges against those that Hugging Face's `tokenizers` gave (gen_tokenizer_vectors.py).
#include "base/file.h"
#include "base/json.h"
#include "tokenizer/bpe_trainer.h"
#include "tokenizer/tokenizer.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

Json read_json(const std::string& name) {
  return parse_json(read_text_file(golden(name)), name, Code::kCorrupt);
}

void check_cases(const Tokenizer& tokenizer, const Json& cases, bool lossless) {
  for (const Json& item : cases) {
    const auto text = item[0].get<std::string>();
    const auto expected = item[1].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(text), expected) << "text: " << item[0];
    EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = true}),
              item[2].get<std::vector<int32_t>>())
        << "text: " << item[0];
    if (lossless) {
      EXPECT_EQ(tokenizer.decode(expected), text);
    }
  }
}

TEST(TokenizerGolden, ByteLevelBpe) {
  const auto tokenizer = load_tokenizer(golden("bpe_1000.json"));
  const Json cases = read_json("bpe_1000.ids");
  ASSERT_GE(cases.size(), 150u);
  check_cases(*tokenizer, cases, true);
  EXPECT_EQ(tokenizer->eos_id(), 0);
}

TEST(TokenizerGolden, OtherStages) {
  const Json variants = read_json("variants.json");
  ASSERT_GE(variants.size(), 20u);
  for (const Json& variant : variants) {
    const auto name = variant["name"].get<std::string>();
    SCOPED_TRACE(name);
    const auto tokenizer = parse_tokenizer_json(dump_json(variant["tokenizer"]), name);
    check_cases(*tokenizer, variant["cases"], false);
    // What we write means the same to us.
    const auto again = parse_tokenizer_json(tokenizer->to_json(), name);
    check_cases(*again, variant["cases"], false);
    EXPECT_EQ(again->to_json(), tokenizer->to_json());
  }
}

// Everything that the file says is in what we write: other readers find the same tokenizer.
TEST(TokenizerGolden, WritesWhatItRead) {
  const Json variants = read_json("variants.json");
  for (const Json& variant : variants) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    Json expected = variant["tokenizer"];
    const auto tokenizer = parse_tokenizer_json(dump_json(expected), "variant");
    Json written = parse_json(tokenizer->to_json(), "written", Code::kInternal);
    for (Json* document : {&expected, &written}) {
      for (Json& merge : (*document)["model"]["merges"]) {
        if (merge.is_array()) {
          merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
        }
      }
    }
    // Compare without order of keys.
    EXPECT_EQ(nlohmann::json(expected), nlohmann::json(written));
  }
}

TEST(TokenizerGolden, TrainerFindsTheSameMerges) {
  const std::string text = read_text_file(golden("training_text.txt"));
  BpeTrainer trainer({.vocab_size = 1000});
  trainer.add_text(text);
  const auto tokenizer = trainer.train();
  const Json ours = parse_json(tokenizer->to_json(), "ours", Code::kInternal);
  const Json theirs = read_json("bpe_1000.json");
  EXPECT_EQ(nlohmann::json(ours["model"]["vocab"]), nlohmann::json(theirs["model"]["vocab"]));
  ASSERT_EQ(ours["model"]["merges"].size(), theirs["model"]["merges"].size());
  for (size_t i = 0; i < ours["model"]["merges"].size(); ++i) {
    const Json& merge = theirs["model"]["merges"][i];
    EXPECT_EQ(ours["model"]["merges"][i].get<std::string>(),
              merge[0].get<std::string>() + " " + merge[1].get<std::string>())
        << "merge " << i;
  }
  EXPECT_EQ(ours["added_tokens"], theirs["added_tokens"]);
}

}  // namespace
}  // namespace ds
