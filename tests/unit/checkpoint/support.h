// What the checkpoint tests share: temporary folders, seeds, and a sample checkpoint whose every
// byte is a function of (seed, step), so that a reader can check it without having seen the writer.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/philox.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "fresh_seed.h"

namespace ds::test {

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "ds-checkpoint-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

#define DS_SEED_TRACE() SCOPED_TRACE("DS_TEST_SEED=" + std::to_string(ds::run_seed()))

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spill(const fs::path& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  ASSERT_TRUE(out.good()) << path;
}

// Changes one byte in place; rewriting whole files thousands of times waits for the disk.
inline void poke(const fs::path& path, size_t offset, char value) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(value);
  file.close();
  ASSERT_TRUE(file.good()) << path;
}

// The error that `fn` throws; fails the test when it throws none.
template <class Fn>
Error error_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return {Code::kOk, ""};
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string random_bytes(uint64_t seed, int64_t step, uint32_t item, size_t n) {
  const RandomStream stream{seed, static_cast<uint32_t>(step), item};
  std::string out(n, '\0');
  for (size_t at = 0; at < n; at += sizeof(uint32_t)) {
    const uint32_t word = stream.bits(at);
    std::memcpy(out.data() + at, &word, std::min(n - at, sizeof(word)));
  }
  return out;
}

struct SampleTensor {
  TensorMeta meta;
  size_t bytes() const {
    size_t n = static_cast<size_t>(dtype_size(meta.dtype));
    for (const int64_t s : meta.shape) n *= static_cast<size_t>(s);
    return n;
  }
};

inline TensorMeta make_meta(std::string name, TensorKind kind, DType dtype,
                            std::vector<int64_t> shape, std::string state = {}) {
  TensorMeta meta;
  meta.name = std::move(name);
  meta.kind = kind;
  meta.state = std::move(state);
  meta.dtype = dtype;
  meta.shape = std::move(shape);
  return meta;
}

inline std::vector<SampleTensor> sample_tensors() {
  std::vector<SampleTensor> out;
  out.push_back({make_meta("wte.weight", TensorKind::kModel, DType::kBFloat16, {13, 8})});
  out.back().meta.aliases = {"lm_head.weight"};
  out.push_back({make_meta("wte.weight", TensorKind::kMaster, DType::kFloat32, {13, 8})});
  out.push_back({make_meta("wte.weight", TensorKind::kExpAvg, DType::kFloat32, {13, 8})});
  out.push_back({make_meta("wte.weight", TensorKind::kExpAvgSq, DType::kFloat32, {13, 8})});
  out.push_back({make_meta("h.0.bias", TensorKind::kModel, DType::kFloat32, {7})});
  out.back().meta.flags = kFrozen;
  out.push_back({make_meta("h.0.bias", TensorKind::kOptimizer, DType::kFloat64, {7}, "momentum")});
  out.push_back({make_meta("steps", TensorKind::kBuffer, DType::kInt64, {})});
  out.back().meta.flags = 0;
  out.push_back({make_meta("cube", TensorKind::kModel, DType::kUInt8, {3, 5, 4})});
  out.back().meta.expert = 2;
  out.push_back({make_meta("none", TensorKind::kModel, DType::kFloat32, {0, 4})});
  return out;
}

// Saves the sample of (seed, step) as `options` say.
inline void save_sample(CheckpointWriterOptions options, uint64_t seed, int64_t step) {
  options.counters.global_steps = step;
  options.counters.global_samples = 4 * step;
  options.topology.zero_stage = 1;
  options.writer = "test 1.0";
  CheckpointWriter writer(options);
  uint32_t item = 0;
  for (const SampleTensor& t : sample_tensors()) {
    const std::string content = random_bytes(seed, step, item++, t.bytes());
    writer.part().add_tensor(t.meta, bytes_of(content));
  }
  writer.part().set_int("seed", static_cast<int64_t>(seed));
  writer.part().set_double("loss_scale", -0.0);
  writer.part().set_text("note", "step " + std::to_string(step));
  writer.part().set_json("config", {{"lr", 0.1}, {"step", step}});
  const std::string blob = random_bytes(seed, step, 100, 70'000);
  writer.part().set_bytes("tokenizer", bytes_of(blob));
  writer.commit();
}

// Checks every bit of a sample against what (seed, its step) must give.
inline void expect_sample(const CheckpointReader& reader, uint64_t seed) {
  const int64_t step = reader.manifest().counters.global_steps;
  SCOPED_TRACE("step " + std::to_string(step));
  EXPECT_TRUE(reader.verify_all().empty());
  uint32_t item = 0;
  for (const SampleTensor& t : sample_tensors()) {
    const TensorRecord& record = reader.tensor(t.meta.name, t.meta.kind, t.meta.state);
    EXPECT_EQ(record.meta, t.meta);
    std::string content(t.bytes(), 'x');
    reader.read(record, std::as_writable_bytes(std::span(content)));
    EXPECT_EQ(content, random_bytes(seed, step, item++, t.bytes())) << t.meta.text();
  }
  EXPECT_EQ(reader.manifest().counters.global_samples, 4 * step);
  EXPECT_EQ(reader.state_int("seed"), static_cast<int64_t>(seed));
  EXPECT_EQ(reader.state_text("note"), "step " + std::to_string(step));
  EXPECT_EQ(reader.state_json("config")["step"], step);
  EXPECT_EQ(reader.state_bytes("tokenizer"), random_bytes(seed, step, 100, 70'000));
}

// Names in a folder that begin with a dot: leftovers of writers.
inline std::vector<std::string> leftovers(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string()[0] == '.') out.push_back(entry.path().filename().string());
  }
  return out;
}

inline void put(std::string* out, size_t at, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) (*out)[at + i] = static_cast<char>(value >> (8 * i));
}

// The manifest's envelope around any body, written from the format's description.
inline std::string seal(const std::string& body) {
  std::string file(
      "\x89"
      "DSM\r\n\x1a\n",
      8);
  file.resize(64, '\0');
  file += body;
  std::string table;
  for (size_t at = 0; at < body.size(); at += 4096) {
    std::string sum(8, '\0');
    put(&sum, 0, xxh3_64(bytes_of(body.substr(at, 4096))), 8);
    table += sum;
  }
  put(&file, 8, 1, 4);
  put(&file, 12, 4096, 4);
  put(&file, 16, body.size(), 8);
  put(&file, 24, xxh3_64(bytes_of(table)), 8);
  put(&file, 56, xxh3_64(bytes_of(file.substr(0, 56))), 8);
  return file + table;
}

}  // namespace ds::test
