// From text files to tokens: documents, JSON lines, end-of-document tokens, parallel encoding, and
// the way that `data` names a source.
#include "data/corpus.h"

#include "base/file.h"
#include "base/json.h"
#include "data/indexed_dataset.h"
#include "fresh_seed.h"
#include "test_paths.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

std::vector<int64_t> all_tokens(const TokenSource& source) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < source.sequence_count(); ++i) {
    std::vector<int32_t> part(static_cast<size_t>(source.sequence_size(i)));
    source.read(i, 0, part);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

TEST(Corpus, RunningTextIsOneDocument) {
  const TempFolder folder;
  const auto tokenizer = load_tokenizer(golden("bpe_1000.json"));
  const std::string text = read_bytes(golden("training_text.txt"));
  const auto stats = build_indexed_dataset(golden("training_text.txt"), *tokenizer, folder / "d",
                                           {.append_eod = true});
  auto expected = tokenizer->encode(text);
  expected.push_back(*tokenizer->eos_id());
  EXPECT_EQ(stats.documents, 1);
  EXPECT_EQ(stats.sequences, 1);
  EXPECT_EQ(stats.tokens, static_cast<int64_t>(expected.size()));
  const IndexedDataset data(folder / "d");
  EXPECT_EQ(data.type(), TokenType::kU16);
  EXPECT_EQ(data.read(0), std::vector<int64_t>(expected.begin(), expected.end()));

  // The same tokens in memory, in pieces.
  const auto source =
      load_text_source(golden("training_text.txt"), *tokenizer, 16, {.append_eod = true});
  EXPECT_EQ(all_tokens(*source), data.read(0));
  EXPECT_GT(source->sequence_count(), 10);
}

TEST(Corpus, JsonLines) {
  const TempFolder folder;
  const auto tokenizer = load_tokenizer(golden("bpe_1000.json"));
  write_bytes(folder / "c.jsonl",
              "{\"text\": \"one two\", \"other\": 1}\n"
              "\n"
              "{\"text\": \"\"}\r\n"
              "{\"text\": [\"first.\", \"\", \"second \\u00e9\\n\"]}\n"
              "{\"text\": \"last\"}");
  const auto stats =
      build_indexed_dataset(folder / "c.jsonl", *tokenizer, folder / "d", {.append_eod = true});
  EXPECT_EQ(stats.documents, 3);
  EXPECT_EQ(stats.sequences, 4);
  const IndexedDataset data(folder / "d");
  EXPECT_EQ(data.document_begin(1), 1);
  EXPECT_EQ(data.document_begin(2), 3);
  const auto decoded = [&](int64_t i) {
    const auto tokens = data.read(i);
    return tokenizer->decode(std::vector<int32_t>(tokens.begin(), tokens.end()));
  };
  // One end-of-document token per document, counted in its last sequence.
  EXPECT_EQ(decoded(0), "one two<|endoftext|>");
  EXPECT_EQ(decoded(1), "first.");
  EXPECT_EQ(decoded(2), "second \u00e9\n<|endoftext|>");
  EXPECT_EQ(decoded(3), "last<|endoftext|>");

  const auto source = load_text_source(folder / "c.jsonl", *tokenizer, 16, {.append_eod = true});
  EXPECT_EQ(source->sequence_count(), 4);
  EXPECT_EQ(all_tokens(*source), all_tokens(data));
}

TEST(Corpus, ParallelIsTheSame) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (uint32_t n = random() % 100; n > 0; --n) text += "etaoin shrdlu\n"[random() % 14];
    lines += dump_json(Json{{"body", text}}) + "\n";
  }
  write_bytes(folder / "c.json", lines);
  const auto tokenizer = load_tokenizer(golden("bpe_1000.json"));
  ThreadPool pool(4);
  build_indexed_dataset(folder / "c.json", *tokenizer, folder / "one", {.json_key = "body"});
  build_indexed_dataset(folder / "c.json", *tokenizer, folder / "four",
                        {.json_key = "body", .pool = &pool});
  EXPECT_EQ(read_bytes(folder / "one.bin"), read_bytes(folder / "four.bin"));
  EXPECT_EQ(read_bytes(folder / "one.idx"), read_bytes(folder / "four.idx"));
}

TEST(Corpus, BadInput) {
  const TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const auto refuse = [&](std::string_view content, Code code,
                          std::initializer_list<std::string_view> parts) {
    write_bytes(folder / "c.jsonl", content);
    expect_error(code, parts,
                 [&] { build_indexed_dataset(folder / "c.jsonl", *tokenizer, folder / "out"); });
    EXPECT_FALSE(std::filesystem::exists(folder / "out.bin"));
    EXPECT_FALSE(std::filesystem::exists(folder / "out.idx"));
  };
  refuse("{\"text\": \"x\"}\n{\"txt\": 1}\n", Code::kCorrupt, {"c.jsonl:2", "\"text\""});
  refuse("{\"text\": 5}\n", Code::kCorrupt, {"c.jsonl:1", "number"});
  refuse("{\"text\": [5]}\n", Code::kCorrupt, {"c.jsonl:1", "number"});
  refuse("\n\n[1]\n", Code::kCorrupt, {"c.jsonl:3", "object"});
  refuse("{\"text\": \"x\"\n", Code::kCorrupt, {"c.jsonl:1"});
  refuse("", Code::kInvalidArgument, {"holds no text"});
  refuse("{\"text\": \"\"}\n", Code::kInvalidArgument, {"holds no text"});
  write_bytes(folder / "t.txt", "text");
  expect_error(Code::kInvalidArgument, {"end-of-document"}, [&] {
    build_indexed_dataset(folder / "t.txt", *tokenizer, folder / "out", {.append_eod = true});
  });
  expect_error(Code::kNotFound, {"none.txt"},
               [&] { build_indexed_dataset(folder / "none.txt", *tokenizer, folder / "out"); });
}

TEST(Corpus, DataNamesASource) {
  const TempFolder folder;
  write_bytes(folder / "t.txt", std::string(1000, 'x'));
  const auto tokenizer = make_byte_tokenizer();
  build_indexed_dataset(folder / "t.txt", *tokenizer, folder / "p.v1");
  for (const char* name : {"p.v1", "p.v1.bin", "p.v1.idx"}) {
    EXPECT_EQ(open_token_source(folder / name, nullptr, 8)->sequence_count(), 1) << name;
  }
  const auto text = open_token_source(folder / "t.txt", nullptr, 8);
  EXPECT_EQ(tokens_of(*text), 1000);
  EXPECT_GT(text->sequence_count(), 1);
  expect_error(Code::kNotFound, {"nothing"},
               [&] { open_token_source(folder / "nothing", nullptr, 8); });
  std::filesystem::remove(folder / "p.v1.idx");
  expect_error(Code::kNotFound, {"p.v1"}, [&] { open_token_source(folder / "p.v1", nullptr, 8); });
  write_bytes(folder / "empty.txt", "");
  expect_error(Code::kInvalidArgument, {"holds no text"},
               [&] { open_token_source(folder / "empty.txt", nullptr, 8); });
}

// Text that is read in blocks has the tokens of the whole text, whatever the tokenizer puts before
// a text.
TEST(Corpus, BlocksAreSeamless) {
  const std::filesystem::path families = test_data() / "tokenizers" / "families";
  std::string text = "The keeper";
  std::mt19937 random(3);
  while (text.size() < 1'100'000) {
    text += " ";
    for (uint32_t n = 1 + random() % 9; n > 0; --n) text += static_cast<char>('a' + random() % 26);
  }
  TempFolder folder;
  write_bytes(folder / "text.txt", text);
  for (const char* name : {"gpt2", "llama2", "mistral"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(families / (std::string(name) + ".json"));
    const auto source = load_text_source(folder / "text.txt", *tokenizer, 1 << 20);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < source->sequence_count(); ++i) {
      std::vector<int32_t> part(static_cast<size_t>(source->sequence_size(i)));
      source->read(i, 0, part);
      tokens.insert(tokens.end(), part.begin(), part.end());
    }
    EXPECT_EQ(tokens, tokenizer->encode(text));
  }
}

}  // namespace
}  // namespace ds
