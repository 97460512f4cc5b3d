// safetensors: the file format in which Hugging Face folders hold weights. Reading checks
// everything the format lets one check, and takes the bytes of tensors from the file when they are
// asked for; writing gives what Transformers expects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tensor/dtype.h"

namespace ds {

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as in the file: "BF16"
  std::optional<DType> dtype;  // none for a type that the engine does not have
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // of the bytes, in the file
  uint64_t size = 0;   // of the bytes
  std::shared_ptr<const File> file = nullptr;

  // A part of the bytes. Throws kCorrupt when the file has been cut short since it was opened.
  void read(uint64_t offset, std::span<std::byte> out) const;
  std::vector<std::byte> bytes() const;  // all of them
};

std::string_view safetensors_dtype_name(DType dtype) noexcept;

// One file, which stays open as long as one of its entries is there.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<SafetensorsEntry>& entries() const noexcept { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  const std::filesystem::path& path() const noexcept { return file_->path(); }

 private:
  std::shared_ptr<const File> file_;
  std::vector<SafetensorsEntry> entries_;  // in the order of their bytes
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

// The weights of a model: one file, or a folder with model.safetensors, or with
// model.safetensors.index.json and its shards.
class SafetensorsModel {
 public:
  explicit SafetensorsModel(const std::filesystem::path& file_or_folder);

  std::vector<const SafetensorsEntry*> entries() const;
  const SafetensorsEntry* find(std::string_view name) const;
  // The tensor with a dtype the engine has; kNotFound (with the nearest name) or kUnsupported.
  const SafetensorsEntry& require(std::string_view name) const;
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const noexcept { return files_; }

 private:
  void open_index(const std::filesystem::path& index);

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

using ByteSink = std::function<void(std::span<const std::byte>)>;

// A tensor to write: its bytes, or a function that hands them over piece by piece when their turn
// comes, so that nobody holds a whole file in memory.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  std::function<void(const ByteSink&)> produce = nullptr;  // instead of bytes
};

// Replaces `path` durably. Tensors are ordered by falling element size and then name; without
// metadata the file says {"format": "pt"}.
void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Writes FOLDER/model.safetensors or, if the tensors take more than `shard_bytes`, numbered shards
// and their index.
void write_safetensors_folder(const std::filesystem::path& folder,
                              const std::vector<SafetensorsTensor>& tensors, int64_t shard_bytes);

// Calls `produce` of every tensor in the order in which that does, and writes nothing: for ranks
// that take part in making the bytes.
void produce_safetensors(const std::vector<SafetensorsTensor>& tensors, int64_t shard_bytes);

}  // namespace ds
