// safetensors: known vectors, every rejection the format asks for, shards, random damage.
#include "checkpoint/safetensors.h"

#include "fresh_seed.h"
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

std::string with_header(const std::string& json, const std::string& data = "") {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i));
  return out + json + data;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  fs::path path(const char* name = "model.safetensors") const { return folder_.path() / name; }
  SafetensorsFile open(const std::string& content) {
    spill(path(), content);
    return SafetensorsFile(path());
  }
  TempFolder folder_;
};

TEST_F(SafetensorsTest, NoTensorsIsTheKnownVector) {
  write_safetensors(path(), {}, {});
  EXPECT_EQ(slurp(path()), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_TRUE(SafetensorsFile(path()).entries().empty());
}

TEST_F(SafetensorsTest, OneTensorIsTheKnownVector) {
  const float values[] = {1.0f, -2.0f};
  write_safetensors(path(), {{"x", DType::kFloat32, {2, 1}, std::as_bytes(std::span(values))}});
  std::string json =
      R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
  json.append((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(slurp(path()), with_header(json, std::string("\0\0\x80\x3f\0\0\0\xc0", 8)));
}

TEST_F(SafetensorsTest, AFileThatIsCutShortWhileItIsOpenIsAnError) {
  const std::string content(100000, 'x');
  write_safetensors(path(), {{"a", DType::kUInt8, {60000}, bytes_of(content).first(60000)},
                             {"b", DType::kUInt8, {40000}, bytes_of(content).first(40000)}});
  const SafetensorsFile file(path());
  const uintmax_t whole = fs::file_size(path());
  fs::resize_file(path(), whole - 1);
  EXPECT_EQ(file.find("a")->bytes().size(), 60000u);
  const Error error = error_of([&] { file.find("b")->bytes(); });
  EXPECT_EQ(error.code(), Code::kCorrupt);
  for (const std::string& part : {std::string("model.safetensors"), std::to_string(whole - 1),
                                  std::string("40000 bytes at"), std::string("truncated")}) {
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
  // Replaced by another one, as writers do it: the opened file stays what it was.
  write_safetensors(path(), {});
  EXPECT_EQ(file.find("a")->bytes().size(), 60000u);
}

TEST_F(SafetensorsTest, TensorsAreOrderedByTypeAndThenName) {
  const std::string zeros(64, '\0');
  const auto bytes = [&](size_t n) { return bytes_of(zeros).first(n); };
  write_safetensors(path(), {{"b", DType::kUInt8, {3}, bytes(3)},
                             {"d", DType::kBFloat16, {1}, bytes(2)},
                             {"a", DType::kUInt8, {1}, bytes(1)},
                             {"z", DType::kInt64, {}, bytes(8)},
                             {"y", DType::kFloat32, {0, 5}, bytes(0)},
                             {"c", DType::kFloat32, {2}, bytes(8)}});
  const SafetensorsFile file(path());
  std::vector<std::string> names;
  uint64_t at = 0;
  for (const SafetensorsEntry& e : file.entries()) {
    names.push_back(e.name);
    EXPECT_EQ(e.begin - file.entries()[0].begin, at);
    at += e.size;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"z", "c", "y", "d", "a", "b"}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  // Every tensor lies aligned to its element size.
  for (const SafetensorsEntry& e : file.entries()) {
    EXPECT_EQ(e.begin % static_cast<uint64_t>(dtype_size(*e.dtype)), 0u);
  }
}

TEST_F(SafetensorsTest, EveryTypeComesBackBitForBit) {
  DS_SEED_TRACE();
  std::vector<SafetensorsTensor> tensors;
  std::vector<std::string> contents;
  for (int code = 1; code <= 13; ++code) {
    contents.push_back(random_bytes(ds::run_seed(), 0, static_cast<uint32_t>(code),
                                    6 * static_cast<size_t>(dtype_size(static_cast<DType>(code)))));
  }
  for (int code = 1; code <= 13; ++code) {
    tensors.push_back({"layer." + std::to_string(code) + ".\"quoted\" Größe",
                       static_cast<DType>(code),
                       {2, 3},
                       bytes_of(contents[static_cast<size_t>(code - 1)])});
  }
  write_safetensors(path(), tensors, {{"format", "pt"}, {"note", "x\ny"}});
  const SafetensorsModel model(path());
  EXPECT_EQ(model.entries().size(), 13u);
  for (const SafetensorsTensor& t : tensors) {
    const SafetensorsEntry& e = model.require(t.name);
    EXPECT_EQ(e.dtype, t.dtype);
    EXPECT_EQ(e.shape, t.shape);
    const auto bytes = e.bytes();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), t.bytes.begin(), t.bytes.end()));
  }
  EXPECT_EQ(model.files()[0]->metadata().at("note"), "x\ny");
}

TEST_F(SafetensorsTest, HostileFilesAreRefused) {
  const std::string a = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"too few", ""},
      {"too few", "1234567"},
      {"100000000", std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)},
      {"100000000", std::string(16, '\xff')},
      {"past the end", std::string("\x09\0\0\0\0\0\0\0{}      ", 16)},
      {"begin with", with_header("")},
      {"begin with", with_header(" {}")},
      {"begin with", with_header("[]")},
      {"header", with_header("{")},
      {"header", with_header("{}x")},
      {"header", with_header("{\"\xff\":{}}")},
      {"duplicate", with_header(a + "," + a.substr(1) + "}", "1234")},
      {"duplicate", with_header(R"({"__metadata__":{},"__metadata__":{}})")},
      {"a hole", with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", "12345")},
      {"a hole",
       with_header(a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})", "123456")},
      {"overlap",
       with_header(a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", "1234567")},
      {"overlap",
       with_header(a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "1234")},
      {"belong to no tensor", with_header(a + "}", "12345")},
      {"belong to no tensor", with_header("{}", "1")},
      {"truncated", with_header(a + "}", "123")},
      {"need 4", with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,3]}})", "123")},
      {"need 8", with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234")},
      {"need 1", with_header(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "12")},
      {"overflows",
       with_header(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})")},
      {"overflows",
       with_header(R"({"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,0]}})")},
      {"beyond 63",
       with_header(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]}})")},
      {"overflows",
       with_header(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})")},
      {"end before",
       with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", "1234")},
      {"whole number",
       with_header(R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", "1234")},
      {"whole number",
       with_header(R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", "1234")},
      {"whole number",
       with_header(R"({"a":{"dtype":"U8","shape":["4"],"data_offsets":[0,4]}})", "1234")},
      {"whole number",
       with_header(R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4]}})",
                   "1234")},
      {"63 bits",
       with_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615]}})",
                   "1")},
      {"not a pair",
       with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})", "1234")},
      {"shape is not",
       with_header(R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", "1234")},
      {"dtype is not",
       with_header(R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", "1234")},
      {"must be an object", with_header(R"({"a":{"dtype":"U8","shape":[4]}})", "1234")},
      {"must be an object", with_header(R"({"a":[1]})", "1234")},
      {"not a string", with_header(R"({"__metadata__":{"a":1}})")},
      {"not an object", with_header(R"({"__metadata__":[]})")},
      {"header", with_header("{\"a\":" + std::string(100'000, '['))},
  };
  for (const auto& [text, content] : cases) {
    const Error error = error_of([&] { open(content); });
    EXPECT_EQ(error.code(), Code::kCorrupt) << text;
    EXPECT_NE(error.message().find(text), std::string::npos) << text << ": " << error.message();
    EXPECT_NE(error.message().find("model.safetensors"), std::string::npos) << error.message();
  }
}

TEST_F(SafetensorsTest, LegalOddities) {
  // Rank 0, empty tensors in the middle, NaN, trailing spaces, unknown and small types.
  const SafetensorsFile file =
      open(with_header(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                       R"("e":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]},)"
                       R"("q":{"dtype":"F4","shape":[4],"data_offsets":[4,6]},)"
                       R"("n":{"dtype":"ZZ9","shape":[7],"data_offsets":[6,9]},)"
                       R"("h":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[9,10],"extra":1}}   )",
                       std::string("\0\0\xc0\x7f", 4) + "123456"));
  EXPECT_EQ(file.entries().size(), 5u);
  EXPECT_EQ(file.find("s")->size, 4u);
  EXPECT_EQ(file.find("e")->size, 0u);
  EXPECT_EQ(file.find("n")->size, 3u);
  EXPECT_EQ(file.find("nothing"), nullptr);
  const SafetensorsModel model(path());
  EXPECT_EQ(error_of([&] { model.require("n"); }).code(), Code::kUnsupported);
  EXPECT_EQ(error_of([&] { model.require("h"); }).code(), Code::kUnsupported);
  EXPECT_EQ(error_of([&] { model.require("ss"); }).code(), Code::kNotFound);
}

TEST_F(SafetensorsTest, RandomDamageNeverCrashes) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const std::string data = random_bytes(ds::run_seed(), 0, 0, 24);
  write_safetensors(path(), {{"weight", DType::kFloat32, {2, 3}, bytes_of(data)},
                             {"half", DType::kBFloat16, {3}, bytes_of(data).first(6)}});
  const std::string original = slurp(path());
  const size_t header = original.size() - 30;
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string changed = original;
    for (uint64_t i = 0; i <= rng() % 3; ++i) {
      changed[rng() % header] =
          rng() % 2 == 0 ? static_cast<char>(rng()) : R"({}[],:"0123456789)"[rng() % 17];
    }
    // A new name each time: rewriting one file would wait for the disk.
    const fs::path mutant = folder_.path() / std::to_string(round);
    spill(mutant, changed);
    try {
      const SafetensorsFile file(mutant);
      size_t sum = 0;
      for (const SafetensorsEntry& e : file.entries()) {
        for (const std::byte b : e.bytes()) sum += static_cast<size_t>(b);
      }
      EXPECT_LE(sum, 30u * 255u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kCorrupt) << error.message();
      ++refused;
    }
    fs::remove(mutant);
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(SafetensorsTest, ShardsAndTheirIndex) {
  DS_SEED_TRACE();
  std::vector<std::string> contents;
  for (uint32_t i = 0; i < 5; ++i) contents.push_back(random_bytes(ds::run_seed(), 0, i, 100));
  std::vector<SafetensorsTensor> tensors;
  for (size_t i = 0; i < 5; ++i) {
    tensors.push_back({"t" + std::to_string(i), DType::kUInt8, {100}, bytes_of(contents[i])});
  }
  const fs::path out = folder_.path() / "export";
  write_safetensors_folder(out, tensors, 1000);
  EXPECT_TRUE(fs::exists(out / "model.safetensors"));
  write_safetensors_folder(out, tensors, 250);
  EXPECT_FALSE(fs::exists(out / "model.safetensors"));  // the index is the only answer now
  EXPECT_TRUE(fs::exists(out / "model-00001-of-00003.safetensors"));
  const Json index =
      parse_json(slurp(out / "model.safetensors.index.json"), "index", Code::kCorrupt);
  EXPECT_EQ(index["metadata"]["total_size"], 500);
  EXPECT_EQ(index["weight_map"]["t4"], "model-00003-of-00003.safetensors");
  const SafetensorsModel model(out);
  EXPECT_EQ(model.files().size(), 3u);
  EXPECT_EQ(model.entries().size(), 5u);
  for (const SafetensorsTensor& t : tensors) {
    const SafetensorsEntry& e = model.require(t.name);
    const auto bytes = e.bytes();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), t.bytes.begin(), t.bytes.end()));
  }
  const auto index_refused = [&](const std::string& text, std::string_view part) {
    spill(out / "model.safetensors.index.json", text);
    const Error error = error_of([&] { const SafetensorsModel broken(out); });
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  };
  index_refused("[]", "weight_map");
  index_refused(R"({"weight_map":{"t0":"../../etc/passwd"}})", "plain file name");
  index_refused(R"({"weight_map":{"t0":"model-00009-of-00003.safetensors"}})", "cannot open");
  index_refused(R"({"weight_map":{"t4":"model-00001-of-00003.safetensors"}})", "is not in");
  fs::copy_file(out / "model-00001-of-00003.safetensors", out / "copy.safetensors");
  index_refused(
      R"({"weight_map":{"t0":"model-00001-of-00003.safetensors","t1":"copy.safetensors"}})",
      "two shards");
  fs::remove(out / "model.safetensors.index.json");
  EXPECT_EQ(error_of([&] { const SafetensorsModel none(out); }).code(), Code::kNotFound);
}

// Tensors that come piece by piece, beside others that are there: the same file, whether one or
// several.
TEST_F(SafetensorsTest, PiecesMakeTheFileThatWholeTensorsMake) {
  DS_SEED_TRACE();
  std::vector<std::string> contents;
  for (uint32_t i = 0; i < 4; ++i) contents.push_back(random_bytes(ds::run_seed(), 0, i, 120));
  const auto tensors_of = [&](const auto& comes_in_pieces) {
    std::vector<SafetensorsTensor> out;
    for (size_t i = 0; i < contents.size(); ++i) {
      const std::span<const std::byte> bytes = bytes_of(contents[i]);
      out.push_back({"t" + std::to_string(i), DType::kInt16, {4, 15}, bytes});
      if (!comes_in_pieces(i)) continue;
      out.back().bytes = {};
      out.back().produce = [bytes, i](const ByteSink& sink) {
        for (size_t at = 0; at < bytes.size(); at += 7 + i) {
          sink(bytes.subspan(at, std::min(7 + i, bytes.size() - at)));
        }
      };
    }
    return out;
  };
  const auto whole = tensors_of([](size_t) { return false; });
  const auto mixed = tensors_of([](size_t i) { return i != 2; });
  write_safetensors(path(), whole);
  const std::string expected = slurp(path());
  write_safetensors(path(), mixed);
  EXPECT_TRUE(slurp(path()) == expected);
  write_safetensors_folder(folder_.path() / "whole", whole, 250);
  write_safetensors_folder(folder_.path() / "mixed", mixed, 250);
  for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "model.safetensors.index.json"}) {
    EXPECT_TRUE(slurp(folder_.path() / "whole" / name) == slurp(folder_.path() / "mixed" / name))
        << name;
  }
}

TEST_F(SafetensorsTest, ShardsAreAsLargeAsTheLimitAllows) {
  const std::string content(40, 'x');
  std::vector<SafetensorsTensor> tensors;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    tensors.push_back({name, DType::kUInt8, {40}, bytes_of(content)});
  }
  write_safetensors_folder(folder_.path() / "model", tensors, 80);  // every shard, not the first
  EXPECT_EQ(entry_names(folder_.path() / "model").size(), 3u + 1u);
}

TEST_F(SafetensorsTest, PiecesOfAnotherSizeThanTheTensorAreRefused) {
  const std::string data(9, 'x');
  for (const size_t given : {size_t{0}, size_t{7}, size_t{9}}) {
    SafetensorsTensor tensor{"a", DType::kInt8, {8}, {}};
    tensor.produce = [&](const ByteSink& sink) { sink(bytes_of(data).first(given)); };
    const Error error = error_of([&] { write_safetensors(path(), {tensor}); });
    EXPECT_EQ(error.code(), Code::kInternal);
    EXPECT_NE(error.message().find("'a'"), std::string::npos) << error.message();
    EXPECT_FALSE(fs::exists(path()));
  }
}

TEST_F(SafetensorsTest, TheWriterRefusesNonsense) {
  const std::string data(8, 'x');
  const auto refused = [&](std::vector<SafetensorsTensor> tensors) {
    return error_of([&] { write_safetensors(path(), std::move(tensors)); }).code() ==
           Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused({{"a", DType::kFloat32, {3}, bytes_of(data)}}));
  EXPECT_TRUE(refused({{"a", DType::kFloat32, {-2}, bytes_of(data)}}));
  EXPECT_TRUE(refused({{"", DType::kFloat32, {2}, bytes_of(data)}}));
  EXPECT_TRUE(refused({{"__metadata__", DType::kFloat32, {2}, bytes_of(data)}}));
  EXPECT_TRUE(refused({{"\xff", DType::kFloat32, {2}, bytes_of(data)}}));
  EXPECT_TRUE(refused(
      {{"a", DType::kFloat32, {2}, bytes_of(data)}, {"a", DType::kFloat32, {2}, bytes_of(data)}}));
  EXPECT_FALSE(fs::exists(path()));
  EXPECT_EQ(error_of([&] { write_safetensors(folder_.path() / "no/such/x", {}); }).code(),
            Code::kNotFound);
}

}  // namespace
}  // namespace ds::test
