// Tokenizers and data sets through the C ABI: good use, and documents and tensors that are wrong.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/text.h"
#include "capi/world.h"

namespace capi_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> read_ids(ds_tensor* tensor) {
  const auto count = info_of(tensor).elements;
  std::vector<int32_t> ids(static_cast<size_t>(count));
  EXPECT_DS_OK(ds_tensor_read(tensor, ids.data(), count * 4));
  ds_tensor_destroy(tensor);
  return ids;
}

TEST(CapiTokenizer, EncodesAnyBytes) {
  World world;
  const auto encode = [&](const char* text, int64_t size) {
    ds_tensor* ids = nullptr;
    EXPECT_DS_OK(ds_tokenizer_encode(world.tokenizer, text, size, 0, &ids));
    return read_ids(ids);
  };
  EXPECT_THAT(encode("ab", -1), ElementsAre('a', 'b'));
  EXPECT_THAT(encode("abc", 2), ElementsAre('a', 'b'));
  EXPECT_THAT(encode("a\0\xFF", 3), ElementsAre('a', 0, 255));
  EXPECT_THAT(encode("", -1), ElementsAre());
  EXPECT_THAT(encode(nullptr, 0), ElementsAre());
  ds_tensor* ids = nullptr;
  EXPECT_EQ(ds_tokenizer_encode(world.tokenizer, "a", -2, 0, &ids), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("size is -2"));
  EXPECT_EQ(ds_tokenizer_encode(world.tokenizer, nullptr, 3, 0, &ids), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ids, nullptr);
}

TEST(CapiTokenizer, DecodesWellFormedText) {
  World world;
  const auto decode = [&](const std::vector<int32_t>& list) {
    ds_tensor* ids = make_list(list);
    char* text = nullptr;
    EXPECT_DS_OK(ds_tokenizer_decode(world.tokenizer, ids, 0, &text));
    ds_tensor_destroy(ids);
    return take(text);
  };
  EXPECT_EQ(decode({'h', 'i'}), "hi");
  EXPECT_EQ(decode({}), "");
  EXPECT_EQ(decode({0xC3, 0xA9}), "\xC3\xA9");
  EXPECT_EQ(decode({'a', 0xC3}), "a\xEF\xBF\xBD");  // half a character
  EXPECT_EQ(decode({'a', 0, 'b'}),
            "a\xEF\xBF\xBD"
            "b");  // a C text cannot hold NUL
}

TEST(CapiTokenizer, DecodeChecksItsTensor) {
  World world;
  char* text = nullptr;
  const int64_t wide[] = {'o', 'k'};
  const int64_t two[] = {2};
  ds_tensor* ids = nullptr;
  ASSERT_DS_OK(ds_tensor_create(DS_INT64, two, 1, &ids));
  ASSERT_DS_OK(ds_tensor_write(ids, wide, sizeof(wide)));
  ASSERT_DS_OK(ds_tokenizer_decode(world.tokenizer, ids, 0, &text));
  EXPECT_EQ(take(text), "ok");
  text = nullptr;
  const int64_t far[] = {'o', int64_t{1} << 40};
  ASSERT_DS_OK(ds_tensor_write(ids, far, sizeof(far)));
  EXPECT_EQ(ds_tokenizer_decode(world.tokenizer, ids, 0, &text), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("ids[1] is 1099511627776"));
  ds_tensor_destroy(ids);
  EXPECT_EQ(ds_tokenizer_decode(world.tokenizer, world.ids, 0, &text), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("[count]"));
  ASSERT_DS_OK(ds_tensor_create(DS_FLOAT32, two, 1, &ids));
  EXPECT_EQ(ds_tokenizer_decode(world.tokenizer, ids, 0, &text), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("float32"));
  ds_tensor_destroy(ids);
  ids = make_list({5, -1});
  EXPECT_NE(ds_tokenizer_decode(world.tokenizer, ids, 0, &text), DS_OK);
  ds_tensor_destroy(ids);
  EXPECT_EQ(text, nullptr);
}

TEST(CapiTokenizer, TrainedOneSurvivesJson) {
  World world;
  const std::string corpus = sample_text(3);
  ds_tokenizer* trained = nullptr;
  ASSERT_DS_OK(ds_tokenizer_train(corpus.data(), static_cast<int64_t>(corpus.size()),
                                  R"({"vocab_size": 300, "special_tokens": ["<|endoftext|>"]})",
                                  &trained));
  ds_tokenizer_info info = DS_TOKENIZER_INFO_INIT;
  ASSERT_DS_OK(ds_tokenizer_describe(trained, &info));
  EXPECT_GT(info.vocab_size, 257);
  EXPECT_LE(info.vocab_size, 300);
  int32_t id = -2;
  ASSERT_DS_OK(ds_tokenizer_token_to_id(trained, "<|endoftext|>", &id));
  EXPECT_EQ(info.end_of_text, id);
  char* json = nullptr;
  ASSERT_DS_OK(ds_tokenizer_to_json(trained, &json));
  ds_tokenizer* again = nullptr;
  ASSERT_DS_OK(ds_tokenizer_from_json(json, -1, &again));
  ds_string_free(json);
  ds_tensor *first = nullptr, *second = nullptr;
  ASSERT_DS_OK(ds_tokenizer_encode(trained, corpus.c_str(), 500, 0, &first));
  ASSERT_DS_OK(ds_tokenizer_encode(again, corpus.c_str(), 500, 0, &second));
  const std::vector<int32_t> ids = read_ids(first);
  EXPECT_EQ(ids, read_ids(second));
  EXPECT_LT(ids.size(), 400u);
  ds_tensor* list = make_list(ids);
  char* text = nullptr;
  ASSERT_DS_OK(ds_tokenizer_decode(again, list, 0, &text));
  EXPECT_EQ(take(text), corpus.substr(0, 500));
  ds_tensor_destroy(list);
  EXPECT_EQ(ds_tokenizer_id_to_token(trained, static_cast<int32_t>(info.vocab_size), &text),
            DS_ERR_NOT_FOUND);
  EXPECT_EQ(ds_tokenizer_id_to_token(trained, -1, &text), DS_ERR_NOT_FOUND);
  EXPECT_EQ(ds_tokenizer_token_to_id(trained, "no such token", &id), DS_ERR_NOT_FOUND);
  ds_tokenizer_destroy(trained);
  ds_tokenizer_destroy(again);
}

TEST(CapiTokenizer, RefusesOddOptionsAndDocuments) {
  const std::pair<const char*, const char*> options[] = {
      {"[]", "an object"},
      {R"({"vocabsize": 300})", "vocab_size"},
      {R"({"vocab_size": 300.5})", "/vocab_size must be a whole number"},
      {R"({"vocab_size": 0})", "/vocab_size"},
      {R"({"vocab_size": 99999999999})", "/vocab_size"},
      {R"({"vocab_size": "300"})", "/vocab_size"},
      {R"({"min_frequency": 0})", "/min_frequency"},
      {R"({"special_tokens": "x"})", "/special_tokens must be a list"},
      {R"({"special_tokens": ["a", 3]})", "/special_tokens/1"},
      {"{", "tokenizer options"},
  };
  ds_tokenizer* out = nullptr;
  for (const auto& [json, text] : options) {
    EXPECT_EQ(ds_tokenizer_train("some text", -1, json, &out), DS_ERR_CONFIG) << json;
    EXPECT_THAT(ds_last_error_message(), HasSubstr(text));
  }
  EXPECT_EQ(ds_tokenizer_from_json("{}", -1, &out), DS_ERR_CORRUPT);
  EXPECT_EQ(ds_tokenizer_from_json("{ \"a\": ", -1, &out), DS_ERR_CORRUPT);
  EXPECT_EQ(ds_tokenizer_open("/no/such/place", &out), DS_ERR_NOT_FOUND);
  EXPECT_EQ(ds_tokenizer_open("", &out), DS_ERR_INVALID_ARGUMENT);
  const TemporaryFolder folder;
  EXPECT_EQ(ds_tokenizer_open(folder.path().c_str(), &out), DS_ERR_NOT_FOUND)
      << ds_last_error_message();
  EXPECT_EQ(out, nullptr);
}

TEST(CapiDataset, FromTextAndFromPrefixAreTheSame) {
  World world;
  const std::string prefix = world.folder.file("built");
  ASSERT_DS_OK(
      ds_dataset_build(world.folder.file("text.txt").c_str(), world.tokenizer, 0, prefix.c_str()));
  const auto open = [&](const std::string& path, const ds_tokenizer* tokenizer) {
    const std::string spec =
        ds::str_cat(R"({"path": ")", path, R"(", "sequence_length": 16, "split": "1,0,0"})");
    ds_dataset* out = nullptr;
    EXPECT_DS_OK(ds_dataset_open(spec.c_str(), tokenizer, &out));
    return out;
  };
  ds_dataset* from_text = open(world.folder.file("text.txt"), nullptr);
  ds_dataset* from_prefix = open(prefix, nullptr);
  ds_dataset_info info = DS_DATASET_INFO_INIT;
  ASSERT_DS_OK(ds_dataset_describe(from_text, &info));
  EXPECT_EQ(info.sequence_length, 16);
  EXPECT_NEAR(static_cast<double>(info.samples), 20000.0 / 16, 5);
  std::ifstream file(world.folder.file("text.txt"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (ds_dataset* dataset : {from_text, from_prefix}) {
    for (const int64_t index : {int64_t{0}, int64_t{7}}) {
      ds_tensor* sample = nullptr;
      ASSERT_DS_OK(ds_dataset_sample(dataset, index, &sample));
      const std::vector<int32_t> ids = read_ids(sample);
      ASSERT_EQ(ids.size(), 17u);
      if (dataset == from_prefix) {  // one document, so every sample is a piece of the text
        EXPECT_NE(text.find(std::string(ids.begin(), ids.end())), std::string::npos);
      }
    }
    ds_tensor* sample = nullptr;
    ASSERT_DS_OK(ds_dataset_describe(dataset, &info));
    for (const int64_t index : {int64_t{-1}, info.samples, INT64_MAX, INT64_MIN}) {
      EXPECT_EQ(ds_dataset_sample(dataset, index, &sample), DS_ERR_INVALID_ARGUMENT);
    }
    EXPECT_EQ(sample, nullptr);
  }
  ds_dataset_destroy(from_text);
  ds_dataset_destroy(from_prefix);
}

std::vector<int32_t> field(ds_dataset* dataset, int64_t index, const char* name) {
  ds_tensor* out = nullptr;
  EXPECT_DS_OK(ds_dataset_field(dataset, index, name, &out));
  return out == nullptr ? std::vector<int32_t>() : read_ids(out);
}

// Megatron's options for documents that share a sample.
TEST(CapiDataset, DocumentsAreKeptApart) {
  const World world;
  const std::string spec = ds::str_cat(
      R"({"path": ")", world.folder.file("text.txt"),
      R"(", "sequence_length": 64, "eod_id": 32, "eod_mask_loss": true, "reset_position_ids": true,)",
      R"( "reset_attention_mask": true})");
  ds_dataset* data = nullptr;
  ASSERT_DS_OK(ds_dataset_open(spec.c_str(), nullptr, &data));
  const auto ids = field(data, 0, "ids"), labels = field(data, 0, "labels"),
             segments = field(data, 0, "segments");
  ASSERT_EQ(segments.size(), 64u);
  ASSERT_EQ(segments[0], 0);
  int ends = 0;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    const bool end = ids[t] == ' ';
    ends += end;
    EXPECT_EQ(labels[t], end ? -100 : ids[t + 1]);
    EXPECT_EQ(segments[t + 1], segments[t] + (end ? 1 : 0));
  }
  EXPECT_GT(ends, 2);
  ds_tensor* none = nullptr;
  EXPECT_EQ(ds_dataset_field(data, 0, "sentence_order", &none), DS_ERR_NOT_FOUND);
  ds_dataset_destroy(data);
}

TEST(CapiDataset, MergesPrefixes) {
  const World world;
  const std::string one = world.folder.file("one"), both = world.folder.file("both");
  ASSERT_DS_OK(
      ds_dataset_build(world.folder.file("text.txt").c_str(), world.tokenizer, 0, one.c_str()));
  const std::string twice = ds::str_cat("[\"", one, "\", \"", one, "\"]");
  ASSERT_DS_OK(ds_dataset_merge(twice.c_str(), both.c_str()));
  const auto size = [](const std::string& path) { return std::filesystem::file_size(path); };
  EXPECT_EQ(size(both + ".bin"), 2 * size(one + ".bin"));
  const auto refused = [&](const std::string& inputs, ds_status status, const char* text) {
    EXPECT_EQ(ds_dataset_merge(inputs.c_str(), both.c_str()), status) << inputs;
    EXPECT_THAT(ds_last_error_message(), HasSubstr(text));
  };
  for (const char* const wrong : {"", "[", "{}", "[]", "\"a\"", "[1]", "[\"\"]"}) {
    refused(wrong, DS_ERR_INVALID_ARGUMENT, "inputs_json");
  }
  refused("[\"/no/such\"]", DS_ERR_NOT_FOUND, "/no/such.idx");
  refused(ds::str_cat("[\"", both, "\"]"), DS_ERR_INVALID_ARGUMENT, "cannot be its output");
}

// A sample's whole words come from one member, and each member has its share.
TEST(CapiDataset, BlendsDrawByWeight) {
  const World world;
  const std::string digits = world.folder.file("digits.txt");
  std::ofstream(digits) << std::string(20000, '7');
  const std::string spec = ds::str_cat(
      R"({"kind": "blend", "sequence_length": 8, "samples": 100, "split": "1,0,0", "seed": 3,)",
      R"( "weights": [0.25, 0.75], "members": [{"path": ")", world.folder.file("text.txt"),
      R"("}, {"kind": "gpt", "path": ")", digits, R"("}]})");
  ds_dataset* data = nullptr;
  ASSERT_DS_OK(ds_dataset_open(spec.c_str(), nullptr, &data));
  int of_digits = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const std::vector<int32_t> ids = field(data, i, "ids");
    const auto sevens = std::count(ids.begin(), ids.end(), '7');
    EXPECT_TRUE(sevens == 0 || sevens == 8) << i;
    of_digits += sevens == 8;
  }
  EXPECT_NEAR(of_digits, 75, 1);
  ds_dataset_destroy(data);
}

// The answers alone are learned; two short examples share a sample, in segments of their own.
TEST(CapiDataset, PacksExamples) {
  const World world;
  const std::string examples = world.folder.file("examples.jsonl");
  std::ofstream(examples) << R"({"prompt": "ab", "completion": "cd"})"
                          << "\n"
                          << R"({"prompt": "e", "completion": "fg"})"
                          << "\n";
  const auto open = [&](const std::string& more) {
    const std::string spec = ds::str_cat(
        R"({"kind": "packed", "path": ")", examples,
        R"(", "sequence_length": 16, "split": "1,0,0", "append_end": false)", more, "}");
    ds_dataset* out = nullptr;
    EXPECT_DS_OK(ds_dataset_open(spec.c_str(), nullptr, &out));
    return out;
  };
  ds_dataset* packed = open("");
  const auto ids = field(packed, 0, "ids"), labels = field(packed, 0, "labels"),
             segments = field(packed, 0, "segments");
  ASSERT_EQ(ids.size(), 16u);
  int learned = 0;
  for (size_t t = 0; t < labels.size(); ++t) {
    if (labels[t] < 0) continue;
    ++learned;
    EXPECT_NE(std::string("cdfg").find(static_cast<char>(labels[t])), std::string::npos) << t;
  }
  EXPECT_EQ(learned, 4);
  EXPECT_EQ(segments[0], 0);
  EXPECT_GT(*std::max_element(segments.begin(), segments.end()), 0);
  ds_dataset_destroy(packed);
  // Prompts are learned on request, but for the first token of each, which nothing precedes.
  ds_dataset* whole = open(R"(, "learn_prompts": true, "pack": false)");
  ds_dataset_info info = DS_DATASET_INFO_INIT;
  ASSERT_DS_OK(ds_dataset_describe(whole, &info));
  EXPECT_EQ(info.samples, 2);
  for (int64_t i = 0; i < 2; ++i) {
    const auto given = field(whole, i, "labels");
    const auto count = std::count_if(given.begin(), given.end(), [](int32_t l) { return l >= 0; });
    EXPECT_TRUE(count == 2 || count == 3) << count;
  }
  ds_tensor* none = nullptr;
  EXPECT_EQ(ds_dataset_sample(whole, 0, &none), DS_ERR_UNSUPPORTED);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("ds_dataset_field"));
  ds_dataset_destroy(whole);
}

TEST(CapiDataset, RefusesOddSpecifications) {
  const World world;
  const std::string path = world.folder.file("text.txt");
  struct Case {
    std::string fields;
    ds_status status;
    const char* text;
  };
  const Case cases[] = {
      {R"("sequence_length": 8)", DS_ERR_CONFIG, "/path is missing"},
      {R"("path": "", "sequence_length": 8)", DS_ERR_CONFIG, "/path is empty"},
      {R"("path": 3, "sequence_length": 8)", DS_ERR_CONFIG, "/path must be a string"},
      {R"("path": "$")", DS_ERR_CONFIG, "/sequence_length is missing"},
      {R"("path": "$", "sequence_length": 0)", DS_ERR_CONFIG, "/sequence_length"},
      {R"("path": "$", "sequence_length": 1e12)", DS_ERR_CONFIG, "/sequence_length"},
      {R"("path": "$", "sequence_length": 8, "samples": -1)", DS_ERR_CONFIG, "/samples"},
      {R"("path": "$", "sequence_length": 8, "seed": -1)", DS_ERR_CONFIG, "/seed"},
      {R"("path": "$", "sequence_length": 8, "split": "a,b")", DS_ERR_CONFIG, "/split"},
      {R"("path": "$", "sequence_length": 8, "split_rounding": "core")", DS_ERR_CONFIG,
       "/split_rounding"},
      {R"("path": "$", "sequence_length": 8, "split": "0,0,1")", DS_ERR_CONFIG,
       "no data for the train part"},
      {R"("path": "$", "sequence_length": 8, "part": "validation")", DS_ERR_CONFIG, "/part"},
      {R"("path": "$", "sequence_lenght": 8)", DS_ERR_CONFIG, "sequence_length"},
      {R"("path": "$", "sequence_length": 8, "reset_position_ids": true)", DS_ERR_CONFIG,
       "go together"},
      {R"("path": "$", "sequence_length": 8, "eod_mask_loss": true)", DS_ERR_CONFIG, "/eod_id"},
      {R"("path": "$", "sequence_length": 8, "eod_id": -1)", DS_ERR_CONFIG, "/eod_id"},
      {R"("path": "/no/such/file", "sequence_length": 8)", DS_ERR_NOT_FOUND, "/no/such/file"},
      {R"("path": "$", "sequence_length": 1000000)", DS_ERR_INVALID_ARGUMENT, "tokens"},
      {R"("kind": "gtp", "path": "$", "sequence_length": 8)", DS_ERR_CONFIG, "/kind must be"},
      {R"("kind": 3, "path": "$", "sequence_length": 8)", DS_ERR_CONFIG, "not 3"},
      {R"("kind": "packed", "path": "$", "sequence_length": 8, "chat_template": "x")",
       DS_ERR_CONFIG, "/chat_template is unknown: \"x\""},
      {R"("kind": "packed", "path": "$", "sequence_length": 8, "too_long": "split")", DS_ERR_CONFIG,
       "/too_long must be \"cut\" or \"skip\""},
      {R"("kind": "packed", "path": "$", "sequence_length": 8, "pack": 1)", DS_ERR_CONFIG, "/pack"},
      {R"("kind": "packed", "path": "$", "sequence_length": 8, "pad_id": -2)", DS_ERR_CONFIG,
       "/pad_id"},
      {R"("kind": "packed", "path": "$", "sequence_length": 8, "pairs": true)", DS_ERR_CONFIG,
       "pairs"},
      {R"("kind": "mlm", "path": "$", "sequence_length": 8, "mask_probability": 1.5)",
       DS_ERR_CONFIG, "/mask_probability"},
      {R"("kind": "mlm", "path": "$", "sequence_length": 8, "pairs": "yes")", DS_ERR_CONFIG,
       "/pairs"},
      {R"("kind": "blend", "sequence_length": 8, "samples": 4)", DS_ERR_CONFIG, "/members"},
      {R"("kind": "blend", "sequence_length": 8, "samples": 4, "members": {})", DS_ERR_CONFIG,
       "/members"},
      {R"("kind": "blend", "sequence_length": 8, "samples": 4, "members": [3])", DS_ERR_CONFIG,
       "/members/0"},
      {R"("kind": "blend", "sequence_length": 8, "samples": 4, "members": [{"kind": "x"}])",
       DS_ERR_CONFIG, "/members/0/kind"},
      {R"("kind": "blend", "sequence_length": 8, "samples": 4,
          "members": [{"path": "$", "seed": 1}])",
       DS_ERR_CONFIG, "seed"},
      {R"("kind": "blend", "sequence_length": 8, "samples": 4, "weights": ["a"],
          "members": [{"path": "$"}])",
       DS_ERR_CONFIG, "/weights"},
  };
  for (const Case& c : cases) {
    std::string fields = c.fields;
    if (const size_t at = fields.find('$'); at != std::string::npos) fields.replace(at, 1, path);
    ds_dataset* out = nullptr;
    EXPECT_EQ(ds_dataset_open(("{" + fields + "}").c_str(), nullptr, &out), c.status)
        << fields << ": " << ds_last_error_message();
    EXPECT_THAT(ds_last_error_message(), HasSubstr(c.text));
    EXPECT_EQ(out, nullptr);
  }
}

}  // namespace
}  // namespace capi_test
