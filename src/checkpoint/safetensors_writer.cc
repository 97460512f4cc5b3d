#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/json.h"
#include "base/replacement_file.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "tensor/box.h"

namespace ds {
namespace {

namespace fs = std::filesystem;

// The reference writer's order of types, rising; it sorts files by this, falling, then by name.
int type_rank(DType dtype) {
  constexpr std::array kOrder = {DType::kBool,   DType::kUInt8,   DType::kInt8,     DType::kInt16,
                                 DType::kUInt16, DType::kFloat16, DType::kBFloat16, DType::kInt32,
                                 DType::kUInt32, DType::kFloat32, DType::kFloat64,  DType::kInt64,
                                 DType::kUInt64};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), dtype) - kOrder.begin());
}

uint64_t byte_count(const SafetensorsTensor& t) {
  int64_t n = dtype_size(t.dtype);
  for (const int64_t size : t.shape) n *= size;
  return static_cast<uint64_t>(n);
}

void append_tensor(File& file, const SafetensorsTensor& t) {
  if (!t.produce) return file.append(t.bytes);
  const uint64_t expected = byte_count(t);
  uint64_t given = 0;
  t.produce([&](std::span<const std::byte> piece) {
    given += piece.size();
    DS_CHECK(given <= expected, Code::kInternal, "tensor '", printable(t.name),
             "' gave more than its ", expected, " bytes");
    file.append(piece);
  });
  DS_CHECK(given == expected, Code::kInternal, "tensor '", printable(t.name), "' gave ", given,
           " of its ", expected, " bytes");
}

void check_tensors(const std::vector<SafetensorsTensor>& tensors) {
  std::set<std::string_view> names;
  for (const SafetensorsTensor& t : tensors) {
    const std::string label = str_cat("tensor '", printable(t.name), "'");
    DS_CHECK(!t.name.empty() && t.name != "__metadata__" && is_valid_utf8(t.name),
             Code::kInvalidArgument, label, ": not a name that safetensors can hold");
    DS_CHECK(names.insert(t.name).second, Code::kInvalidArgument, label, " is given twice");
    const int64_t size = dtype_size(t.dtype);
    const int64_t n = checked_elements(t.shape, size, Code::kInvalidArgument, label);
    DS_CHECK(t.produce || t.bytes.size() == static_cast<uint64_t>(n * size), Code::kInvalidArgument,
             label, " has ", t.bytes.size(), " bytes, its shape and dtype need ", n * size);
  }
}

std::string header_text(const std::vector<SafetensorsTensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const SafetensorsTensor& t : tensors) {
    // Whole before it goes in: where memory runs out, a null that was to become an object inside a
    // document cannot be destroyed.
    Json entry = Json::object();
    entry["dtype"] = safetensors_dtype_name(t.dtype);
    entry["shape"] = t.shape;
    entry["data_offsets"] = {at, at + byte_count(t)};
    header[t.name] = std::move(entry);
    at += byte_count(t);
  }
  std::string text = dump_json(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  DS_CHECK(text.size() <= 100'000'000, Code::kUnsupported, "a safetensors header of ", text.size(),
           " bytes; the format allows 100000000: write more, smaller shards");
  return text;
}

std::string shard_name(size_t index, size_t count) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return text.data();
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  DS_CHECK(!error, Code::kIo, "cannot remove ", printable(path.string(), 300), ": ",
           error.message());
}

void sort_for_file(std::vector<SafetensorsTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              const int left = type_rank(a.dtype), right = type_rank(b.dtype);
              return left != right ? left > right : a.name < b.name;
            });
}

// Consecutive tensors of at most so many bytes; a larger tensor is alone.
std::vector<std::vector<SafetensorsTensor>> cut_into_shards(
    const std::vector<SafetensorsTensor>& tensors, int64_t shard_bytes) {
  std::vector<std::vector<SafetensorsTensor>> shards(1);
  uint64_t used = 0;
  for (const SafetensorsTensor& t : tensors) {
    const uint64_t bytes = byte_count(t);
    if (!shards.back().empty() && used + bytes > static_cast<uint64_t>(shard_bytes)) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(t);
    used += bytes;
  }
  return shards;
}

}  // namespace

void write_safetensors(const fs::path& path, std::vector<SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_tensors(tensors);
  sort_for_file(tensors);
  const std::string header = header_text(tensors, metadata);
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(header.size() >> (8 * i));
  ReplacementFile file(path);
  file->append(length);
  file->append(header);
  for (const SafetensorsTensor& t : tensors) append_tensor(file.file(), t);
  file.commit();
}

void write_safetensors_folder(const fs::path& folder, const std::vector<SafetensorsTensor>& tensors,
                              int64_t shard_bytes) {
  DS_CHECK(shard_bytes > 0, Code::kInvalidArgument, "a shard limit of ", shard_bytes, " bytes");
  check_tensors(tensors);
  make_folders(folder);
  std::vector<std::vector<SafetensorsTensor>> shards = cut_into_shards(tensors, shard_bytes);
  uint64_t total = 0;
  for (const SafetensorsTensor& t : tensors) total += byte_count(t);
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  if (shards.size() == 1) {
    write_safetensors(single, std::move(shards[0]));
    remove_file(index);  // readers must not find two answers
    return;
  }
  Json weight_map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    for (const SafetensorsTensor& t : shards[i]) weight_map[t.name] = name;
    write_safetensors(folder / name, std::move(shards[i]));
  }
  Json document;
  document["metadata"]["total_size"] = total;
  document["weight_map"] = std::move(weight_map);
  write_file_durably(index, dump_json(document, 2) + "\n");
  remove_file(single);
}

void produce_safetensors(const std::vector<SafetensorsTensor>& tensors, int64_t shard_bytes) {
  for (std::vector<SafetensorsTensor>& shard : cut_into_shards(tensors, shard_bytes)) {
    sort_for_file(shard);
    for (const SafetensorsTensor& t : shard) {
      if (t.produce) t.produce([](std::span<const std::byte>) {});
    }
  }
}

}  // namespace ds
