// Fine-tuning data: what is learned of each kind of example, chat templates against the text that
// they stand for, packing that loses nothing, and hostile lines.
#include "data/packed_dataset.h"

#include <map>
#include <set>

#include "base/json.h"
#include "data/dataset_spec.h"
#include "fresh_seed.h"
#include "test_paths.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

TokenizerPtr family(const std::string& name) {
  return load_tokenizer(test_data() / "tokenizers" / "families" / (name + ".json"));
}

FinetuneCorpus parse(std::string_view lines, const TokenizerPtr& tokenizer = nullptr,
                     const FinetuneOptions& options = {}) {
  return parse_finetune_corpus(lines, "lines", tokenizer, options);
}

std::vector<int32_t> ids_of(std::span<const int32_t> masked) {
  std::vector<int32_t> ids;
  for (const int32_t token : masked) ids.push_back(token_of(token));
  return ids;
}

// The learned text, with "|" between stretches of it.
std::string learned_text(const Tokenizer& tokenizer, std::span<const int32_t> masked) {
  std::string out;
  bool last = false;
  std::vector<int32_t> run;
  const auto flush = [&] {
    if (!run.empty()) out += (out.empty() ? "" : "|") + tokenizer.decode(run);
    run.clear();
  };
  for (const int32_t token : masked) {
    if (!is_learned(token) && last) flush();
    if (is_learned(token)) run.push_back(token);
    last = is_learned(token);
  }
  flush();
  return out;
}

TEST(Finetune, LearnsCompletionsRepliesAndTexts) {
  const auto bytes = make_byte_tokenizer();
  const FinetuneCorpus corpus = parse(
      "{\"prompt\": \"Q: 1+1? \", \"completion\": \"2\\n\", \"id\": 7}\n"
      "\n"
      "{\"text\": \"plain\"}\r\n"
      "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"},"
      "{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"ho\"},"
      "{\"role\": \"user\", \"content\": \"more\"}, {\"role\": \"assistant\", \"content\": \"no\"},"
      "{\"role\": \"user\", \"content\": \"left\"}]}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"nobody answers\"}]}\n"
      "{\"text\": \"\"}");
  ASSERT_EQ(corpus.example_count(), 3);
  EXPECT_EQ(corpus.stats.lines, 5);
  EXPECT_EQ(corpus.stats.without_labels, 2);
  EXPECT_EQ(bytes->decode(ids_of(corpus.example(0))), "Q: 1+1? 2\n");
  EXPECT_EQ(learned_text(*bytes, corpus.example(0)), "2\n");
  EXPECT_EQ(learned_text(*bytes, corpus.example(1)), "plain");
  EXPECT_EQ(bytes->decode(ids_of(corpus.example(2))),
            "system: S\nuser: hi\nassistant: ho\nuser: more\nassistant: no\n");
  EXPECT_EQ(learned_text(*bytes, corpus.example(2)), "ho\n|no\n");

  const FinetuneCorpus all =
      parse("{\"prompt\": \"ab\", \"completion\": \"c\"}", nullptr, {.learn_prompts = true});
  EXPECT_EQ(learned_text(*bytes, all.example(0)), "abc");
}

// Lines of ShareGPT and Alpaca are the chats that they stand for.
TEST(Finetune, OtherSchemasAreChats) {
  const FinetuneCorpus chats = parse(
      R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"},)"
      R"( {"role": "assistant", "content": "ho"}, {"role": "tool", "content": "t"},)"
      R"( {"role": "assistant", "content": "no"}]})"
      "\n"
      R"({"messages": [{"role": "user", "content": "Add.\n1 and 2"},)"
      R"( {"role": "assistant", "content": "3"}]})"
      "\n"
      R"({"messages": [{"role": "user", "content": "Sing."}, {"role": "assistant", "content": "la"}]})");
  const FinetuneCorpus others =
      parse(R"({"id": "x", "conversations": [{"from": "system", "value": "S"},)"
            R"( {"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"},)"
            R"( {"from": "observation", "value": "t"}, {"from": "gpt", "value": "no"}]})"
            "\n"
            R"({"instruction": "Add.", "input": "1 and 2", "output": "3"})"
            "\n"
            R"({"instruction": "Sing.", "input": "", "output": "la", "text": "Sing. la"})");
  EXPECT_EQ(others.tokens, chats.tokens);
  EXPECT_EQ(others.ends, chats.ends);
  const auto refused = [](const char* line, std::string_view part) {
    expect_error(Code::kCorrupt, {"lines:1", part}, [&] { parse(line); });
  };
  refused(R"({"conversations": [{"from": "dog", "value": "v"}]})",
          "conversations[0].from is \"dog\"");
  refused(R"({"conversations": [{"from": "gpt"}]})", "value");
  refused(R"({"instruction": "Add."})", "output");
  refused(R"({"instruction": "a", "output": "b", "prompt": "c", "completion": "d"})",
          "exactly one");
  refused(R"({"messages": [], "conversations": []})", "exactly one");
}

TEST(Finetune, EndAndBeginTokens) {
  const auto llama2 = family("llama2");
  const int32_t bos = *llama2->id("<s>"), eos = *llama2->id("</s>");
  const char* line = R"({"prompt": "the gulls", "completion": " count"})";
  const auto with = parse(line, llama2);
  EXPECT_EQ(with.example(0).front(), ~bos);
  EXPECT_EQ(with.example(0).back(), eos);
  const auto without = parse(line, llama2, {.append_end = false, .add_begin = false});
  EXPECT_EQ(without.example(0).size(), with.example(0).size() - 2);
  // Rendered text may spell special tokens; it need not be trusted to.
  const char* spelled = R"({"text": "a</s>b"})";
  const auto parsed = parse(spelled, llama2);
  const auto literal = parse(spelled, llama2, {.parse_special_tokens = false});
  EXPECT_EQ(std::count(parsed.tokens.begin(), parsed.tokens.end(), eos), 2);
  EXPECT_EQ(std::count(literal.tokens.begin(), literal.tokens.end(), eos), 1);
}

TEST(ChatTemplates, AreTheTextTheyStandFor) {
  const char* line =
      R"({"messages": [{"role": "system", "content": "Be kind."}, {"role": "user",)"
      R"( "content": "Count the gulls\n\nplease 1234!"}, {"role": "assistant", "content":)"
      R"( "Twelve gulls, été 🙂"}, {"role": "user", "content": "Thanks"},)"
      R"( {"role": "assistant", "content": "Bye."}]})";
  const auto qwen = family("qwen2");
  const auto chatml = parse(line, qwen, {.chat = ChatTemplate::kChatml});
  // Behind the last learned token nothing is kept: here the line end.
  EXPECT_EQ(ids_of(chatml.example(0)),
            qwen->encode("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nCount the "
                         "gulls\n\nplease 1234!<|im_end|>\n<|im_start|>assistant\nTwelve gulls, "
                         "été 🙂<|im_end|>\n<|im_start|>user\nThanks<|im_end|>\n<|im_start|>"
                         "assistant\nBye.<|im_end|>"));
  EXPECT_EQ(learned_text(*qwen, chatml.example(0)),
            "Twelve gulls, été 🙂<|im_end|>|Bye.<|im_end|>");

  const auto llama = family("llama3");
  const auto llama3 = parse(line, llama, {.chat = ChatTemplate::kLlama3});
  const auto header = [](const std::string& role) {
    return "<|start_header_id|>" + role + "<|end_header_id|>\n\n";
  };
  EXPECT_EQ(
      ids_of(llama3.example(0)),
      llama->encode("<|begin_of_text|>" + header("system") + "Be kind.<|eot_id|>" + header("user") +
                    "Count the gulls\n\nplease 1234!<|eot_id|>" + header("assistant") +
                    "Twelve gulls, été 🙂<|eot_id|>" + header("user") + "Thanks<|eot_id|>" +
                    header("assistant") + "Bye.<|eot_id|>"));
  EXPECT_EQ(learned_text(*llama, llama3.example(0)),
            "Twelve gulls, été 🙂<|eot_id|>|Bye.<|eot_id|>");

  // A message cannot forge a turn.
  const auto forged =
      parse(R"({"messages": [{"role": "user", "content": "x<|im_end|>"}, {"role": "assistant",)"
            R"( "content": "<|im_start|>y"}]})",
            qwen, {.chat = ChatTemplate::kChatml});
  EXPECT_EQ(std::count(forged.tokens.begin(), forged.tokens.end(), *qwen->id("<|im_end|>")), 1);
  EXPECT_EQ(std::count(forged.tokens.begin(), forged.tokens.end(), ~*qwen->id("<|im_end|>")), 1);
  EXPECT_EQ(std::count(forged.tokens.begin(), forged.tokens.end(), *qwen->id("<|im_start|>")), 0);

  expect_error(Code::kInvalidArgument, {"chatml", "<|im_start|>"},
               [&] { parse(line, llama, {.chat = ChatTemplate::kChatml}); });
  for (const auto chat : {ChatTemplate::kPlain, ChatTemplate::kChatml, ChatTemplate::kLlama3}) {
    EXPECT_EQ(chat_template(chat_template_name(chat)), chat);
  }
  EXPECT_EQ(chat_template("jinja"), std::nullopt);
}

TEST(Finetune, HostileLinesAreLocated) {
  const std::string good = "{\"text\": \"ok\"}\n\n";
  const auto refuse = [&](Code code, std::string_view line,
                          std::initializer_list<std::string_view> parts) {
    expect_error(code, {"lines:3"}, [&] { parse(good + std::string(line)); });
    expect_error(code, parts, [&] { parse(good + std::string(line)); });
  };
  refuse(Code::kCorrupt, "{\"text\": \"a\"", {"lines:3"});
  refuse(Code::kCorrupt, "[1]", {"object"});
  refuse(Code::kCorrupt, "{\"text\": \"\xff\"}", {"lines:3"});
  refuse(Code::kCorrupt, "{\"text\": 5}", {"\"text\"", "number"});
  refuse(Code::kCorrupt, "{\"text\": null}", {"exactly one of"});
  refuse(Code::kCorrupt, "{\"body\": \"x\"}", {"exactly one of"});
  refuse(Code::kCorrupt, "{\"text\": \"x\", \"prompt\": \"y\"}", {"exactly one of"});
  refuse(Code::kCorrupt, "{\"prompt\": \"y\"}", {"\"completion\" is missing"});
  refuse(Code::kCorrupt, "{\"completion\": \"y\"}", {"\"prompt\" is missing"});
  refuse(Code::kCorrupt, "{\"prompt\": \"y\", \"completion\": [\"z\"]}", {"completion", "array"});
  refuse(Code::kCorrupt, "{\"messages\": {}}", {"messages", "array"});
  refuse(Code::kCorrupt, "{\"messages\": [1]}", {"messages[0]"});
  refuse(Code::kCorrupt, "{\"messages\": [{\"role\": \"user\"}]}", {"messages[0]", "content"});
  refuse(Code::kCorrupt, "{\"messages\": [{\"role\": \"owner\", \"content\": \"\"}]}", {"owner"});
  refuse(Code::kCorrupt, std::string(100, '['), {"lines:3"});
  expect_error(Code::kInvalidArgument, {"lines:1", "20"},
               [] { parse("{\"text\": \"a longer line\"}", nullptr, {.max_line_bytes = 20}); });
  TempFolder folder;
  write_bytes(folder / "long.jsonl", good + "{\"text\": \"" + std::string(3'000'000, 'x') + "\"}");
  expect_error(Code::kInvalidArgument, {"long.jsonl", "line 3"}, [&] {
    load_finetune_corpus(folder / "long.jsonl", nullptr, {.max_line_bytes = 1000});
  });
  EXPECT_EQ(load_finetune_corpus(folder / "long.jsonl", nullptr).example_count(), 2);
}

TEST(Finetune, RandomLinesNeverCrash) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a\u00e9"}, {"role": "assistant",)"
      R"( "content": "b"}], "x": {"y": [1, 2.5e3, null, true]}})";
  int read = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = line;
    for (uint32_t n = 1 + random() % 3; n > 0; --n) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    try {
      parse(damaged);
      ++read;
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == Code::kCorrupt || error.code() == Code::kInvalidArgument)
          << error.message();
    }
  }
  EXPECT_GT(read, 0);
}

struct Packed {
  std::vector<int32_t> ids, labels, segments;
  std::vector<uint8_t> mask;
};
Packed read(const Dataset& dataset, int64_t index) {
  const auto length = static_cast<size_t>(dataset.sequence_length());
  Packed out{std::vector<int32_t>(length), std::vector<int32_t>(length),
             std::vector<int32_t>(length), std::vector<uint8_t>(length)};
  dataset.sample(
      index, {.ids = out.ids, .labels = out.labels, .segments = out.segments, .mask = out.mask});
  return out;
}

using Piece = std::pair<std::vector<int32_t>, std::vector<int32_t>>;  // ids, labels

FinetuneCorpus random_corpus(std::mt19937& random, int examples, uint32_t longest) {
  FinetuneCorpus corpus;
  for (int i = 0; i < examples; ++i) {
    const uint32_t length = 2 + random() % (longest - 1);
    for (uint32_t t = 0; t + 1 < length; ++t) {
      const auto id = static_cast<int32_t>(random() % 1000);
      corpus.tokens.push_back(random() % 2 == 0 ? id : ~id);
    }
    corpus.tokens.push_back(static_cast<int32_t>(random() % 1000));
    corpus.ends.push_back(static_cast<int64_t>(corpus.tokens.size()));
  }
  return corpus;
}

// What must come out of an example, or nothing when it has to be left out.
std::optional<Piece> expected_piece(std::span<const int32_t> example, int64_t length,
                                    TooLong rule) {
  Piece piece;
  bool labels = false;
  if (static_cast<int64_t>(example.size()) - 1 > length && rule == TooLong::kSkip) {
    return std::nullopt;
  }
  for (size_t t = 0; t + 1 < example.size() && static_cast<int64_t>(t) < length; ++t) {
    piece.first.push_back(token_of(example[t]));
    piece.second.push_back(is_learned(example[t + 1]) ? example[t + 1] : kNoLabel);
    labels = labels || is_learned(example[t + 1]);
  }
  if (!labels) return std::nullopt;
  return piece;
}

TEST(Packing, KeepsEveryToken) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const int64_t length = 1 + static_cast<int64_t>(random() % 40);
    const auto corpus = std::make_shared<const FinetuneCorpus>(
        random_corpus(random, 1 + static_cast<int>(random() % 80), 2 + random() % 50));
    PackingOptions options{.sequence_length = length, .pad_id = 5555, .seed = 0};
    options.seed = static_cast<uint32_t>(random());
    options.too_long = random() % 2 == 0 ? TooLong::kCut : TooLong::kSkip;
    options.pack = random() % 4 != 0;
    std::multiset<Piece> wanted, found;
    for (int64_t i = 0; i < corpus->example_count(); ++i) {
      if (auto piece = expected_piece(corpus->example(i), length, options.too_long)) {
        wanted.insert(std::move(*piece));
      }
    }
    const auto make = [&] {
      return PackedDataset(corpus, {0, corpus->example_count()}, options, "packed");
    };
    if (wanted.empty()) {
      expect_error(Code::kInvalidArgument, {"no example to learn from"}, make);
      continue;
    }
    const PackedDataset dataset = make();
    int64_t filled = 0;
    for (int64_t i = 0; i < dataset.sample_count(); ++i) {
      const Packed sample = read(dataset, i);
      std::map<int32_t, Piece> pieces;
      int32_t last = 0;
      for (size_t t = 0; t < sample.ids.size(); ++t) {
        ASSERT_GE(sample.segments[t], last);
        ASSERT_LE(sample.segments[t], last + 1);
        last = sample.segments[t];
        if (sample.mask[t] == 0) {
          ASSERT_EQ(sample.ids[t], 5555);
          ASSERT_EQ(sample.labels[t], kNoLabel);
          ASSERT_EQ(pieces.count(sample.segments[t]), 0u);
          continue;
        }
        ++filled;
        pieces[sample.segments[t]].first.push_back(sample.ids[t]);
        pieces[sample.segments[t]].second.push_back(sample.labels[t]);
      }
      if (!options.pack) {
        ASSERT_EQ(pieces.size(), 1u);
      }
      for (auto& [segment, piece] : pieces) found.insert(std::move(piece));
    }
    ASSERT_EQ(found, wanted);
    ASSERT_EQ(filled, dataset.stats().positions);
    ASSERT_EQ(dataset.stats().examples, static_cast<int64_t>(wanted.size()));
    ASSERT_EQ(dataset.stats().examples + dataset.stats().skipped + dataset.stats().without_labels,
              corpus->example_count());
  }
}

TEST(Packing, FillsSequencesWell) {
  std::mt19937 random(7);
  const auto corpus = std::make_shared<const FinetuneCorpus>(random_corpus(random, 20000, 200));
  const PackedDataset dataset(corpus, {0, 20000}, {.sequence_length = 512}, "packed");
  const auto room = static_cast<double>(dataset.stats().sequences * 512);
  EXPECT_GT(static_cast<double>(dataset.stats().positions) / room, 0.98);
}

TEST(Packing, SeedsAndPasses) {
  std::mt19937 random(11);
  const auto corpus = std::make_shared<const FinetuneCorpus>(random_corpus(random, 200, 30));
  const auto first_ids = [&](const PackingOptions& options) {
    const PackedDataset dataset(corpus, {0, 200}, options, "packed");
    std::vector<std::vector<int32_t>> out;
    for (int64_t i = 0; i < dataset.sample_count(); ++i) out.push_back(read(dataset, i).ids);
    return out;
  };
  PackingOptions options{.sequence_length = 64, .seed = 1};
  const auto once = first_ids(options);
  EXPECT_EQ(once, first_ids(options));
  options.seed = 2;
  EXPECT_NE(once, first_ids(options));
  options.seed = 1;
  options.samples = static_cast<int64_t>(2 * once.size() + 3);
  const auto passes = first_ids(options);
  ASSERT_EQ(passes.size(), 2 * once.size() + 3);
  const auto n = static_cast<std::ptrdiff_t>(once.size());
  EXPECT_TRUE(std::equal(once.begin(), once.end(), passes.begin()));
  EXPECT_FALSE(std::equal(once.begin(), once.end(), passes.begin() + n));
  EXPECT_TRUE(std::is_permutation(once.begin(), once.end(), passes.begin() + n));
}

TEST(Packing, OpensFromASpecification) {
  TempFolder folder;
  std::string lines;
  for (int i = 0; i < 100; ++i) {
    lines += "{\"prompt\": \"number " + std::to_string(i) + "\", \"completion\": \" is even\"}\n";
  }
  write_bytes(folder / "data.jsonl", lines);
  DatasetSpec spec;
  spec.kind = DatasetKind::kPacked;
  spec.path = folder / "data.jsonl";
  spec.sequence_length = 64;
  spec.split = "80,20,0";
  const DatasetPtr train = open_dataset(spec, family("gpt2"));
  EXPECT_TRUE(train->fields().segments);
  EXPECT_TRUE(train->fields().mask);
  EXPECT_FALSE(train->fields().token_types);
  EXPECT_EQ(dynamic_cast<const PackedDataset&>(*train).stats().examples, 80);
  spec.part = Split::kValid;
  EXPECT_EQ(dynamic_cast<const PackedDataset&>(*open_dataset(spec, nullptr)).stats().examples, 20);
  spec.part = Split::kTest;
  expect_error(Code::kConfig, {"/split", "100 examples"}, [&] { open_dataset(spec, nullptr); });
  spec.part = Split::kTrain;
  spec.pad_id = 300;
  expect_error(Code::kConfig, {"/pad_id", "256"}, [&] { open_dataset(spec, nullptr); });
  spec.pad_id = 0;
  // In a blend, running text gets the fields of its neighbour.
  write_bytes(folder / "text.txt", std::string(20000, 'a'));
  DatasetSpec blend;
  blend.kind = DatasetKind::kBlend;
  blend.sequence_length = 64;
  blend.samples = 50;
  blend.split = "80,20,0";
  blend.weights = {1, 1};
  blend.members = {spec, {.path = folder / "text.txt"}};
  const DatasetPtr both = open_dataset(blend, nullptr);
  EXPECT_TRUE(both->fields().segments);
  for (int64_t i = 0; i < both->sample_count(); ++i) {
    const Packed sample = read(*both, i);
    if (sample.ids[0] == 'a') {
      EXPECT_EQ(sample.mask, std::vector<uint8_t>(64, 1));
      EXPECT_EQ(sample.segments, std::vector<int32_t>(64, 0));
    }
  }
}

}  // namespace
}  // namespace ds
