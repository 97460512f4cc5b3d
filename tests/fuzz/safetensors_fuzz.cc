// Fuzzes the safetensors reader. The first byte of an input says what the rest is:
//   h  a header, then a zero byte and the data; the length in front is added here
//   i  model.safetensors.index.json of a folder with two shards
//   otherwise the rest is the whole file
#include <algorithm>
#include <limits>
#include <list>
#include <optional>
#include <vector>

#include "checkpoint/safetensors.h"
#include "fuzz/fuzz_support.h"

namespace {

using ds::fuzz::claim;
using ds::fuzz::folder;

std::string with_length(std::string_view header, std::string_view data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return file.append(header).append(data);
}

// The entries lie back to back in the file's data, which they fill.
void check_entries(const ds::SafetensorsFile& file, std::string_view content) {
  uint64_t header = 0;
  for (size_t i = 0; i < 8; ++i) header |= uint64_t{static_cast<uint8_t>(content[i])} << (8 * i);
  claim(header <= content.size() - 8, "the header lies in the file");
  size_t at = 8 + header;
  for (const ds::SafetensorsEntry& entry : file.entries()) {
    claim(entry.begin == at, "entries follow each other", entry.name);
    claim(entry.size <= content.size() - at, "entries lie in the file", entry.name);
    const std::vector<std::byte> bytes = entry.bytes();
    claim(bytes.empty() || std::memcmp(bytes.data(), content.data() + at, bytes.size()) == 0,
          "entries hold the file's bytes", entry.name);
    if (entry.dtype) {
      ds::fuzz::Wide need = ds::dtype_size(*entry.dtype);
      bool empty = false, huge = false;
      for (const int64_t size : entry.shape) {
        claim(size >= 0, "sizes are not negative", entry.name);
        empty = empty || size == 0;
        need *= size == 0 ? 1 : size;
        huge = huge || need > std::numeric_limits<int64_t>::max();
        if (huge) need = 1;  // a later size of 0 still makes it empty
      }
      claim(empty ? bytes.empty() : !huge && need == static_cast<int64_t>(bytes.size()),
            "bytes are shape x element size", entry.name);
    }
    claim(file.find(entry.name) == &entry, "entries are found by name", entry.name);
    at += bytes.size();
  }
  claim(at == content.size(), "no byte of the data is left over");
}

void check_round_trip(const ds::SafetensorsFile& file) {
  std::vector<ds::SafetensorsTensor> tensors;
  std::list<std::vector<std::byte>> contents;
  for (const ds::SafetensorsEntry& entry : file.entries()) {
    if (!entry.dtype) continue;
    contents.push_back(entry.bytes());
    tensors.push_back({entry.name, *entry.dtype, entry.shape, contents.back()});
  }
  const auto path = folder().path() / "again.safetensors";
  // The writer may refuse what a foreign file may hold (say a name it would not write).
  if (!ds::fuzz::accepts([&] { ds::write_safetensors(path, tensors, file.metadata()); })) return;
  ds::fuzz::must_succeed("what was written can be read", [&] {
    const ds::SafetensorsFile again(path);
    claim(again.entries().size() == tensors.size(), "no tensor is lost");
    for (const ds::SafetensorsTensor& tensor : tensors) {
      const ds::SafetensorsEntry* entry = again.find(tensor.name);
      claim(entry != nullptr && entry->dtype == tensor.dtype && entry->shape == tensor.shape,
            "names, types and shapes survive", tensor.name);
      const std::vector<std::byte> bytes = entry->bytes();
      claim(std::equal(bytes.begin(), bytes.end(), tensor.bytes.begin(), tensor.bytes.end()),
            "bytes survive", tensor.name);
    }
  });
}

void try_file(std::string_view content) {
  const auto path = folder().put("one.safetensors", content);
  std::optional<ds::SafetensorsFile> file;
  if (!ds::fuzz::accepts([&] { file.emplace(path); })) return;
  check_entries(*file, content);
  check_round_trip(*file);
  const ds::SafetensorsModel model(path);
  claim(model.entries().size() == file->entries().size(), "a model of one file has its entries");
  ds::fuzz::accepts([&] { model.require("no such tensor"); });
}

void try_index(std::string_view index) {
  static const std::filesystem::path sharded = [] {
    const auto path = folder().path() / "sharded";
    std::filesystem::create_directory(path);
    folder().put("sharded/a.safetensors",
                 with_length(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
                             "12345678abc"));
    folder().put("sharded/b.safetensors",
                 with_length(R"({"v":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})", "xy"));
    // Outside the sharded folder: an index must not reach it.
    folder().put("outside.safetensors",
                 with_length(R"({"o":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "z"));
    return path;
  }();
  folder().put("sharded/model.safetensors.index.json", index);
  std::optional<ds::SafetensorsModel> model;
  if (!ds::fuzz::accepts([&] { model.emplace(sharded); })) return;
  for (const auto& file : model->files()) {
    claim(file->path().parent_path() == sharded, "shards lie in the folder", file->path().string());
  }
  for (const ds::SafetensorsEntry* entry : model->entries()) {
    claim(entry->name != "o", "an index stays in its folder");
    claim(model->find(entry->name) == entry, "tensors of shards are found", entry->name);
    claim(&model->require(entry->name) == entry, "tensors of shards are usable", entry->name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  ds::fuzz::Input input(data, size);
  switch (input.take<char>()) {
    case 'h': {
      const std::string_view header = input.take_until('\0');
      try_file(with_length(header, input.rest()));
      break;
    }
    case 'i':
      try_index(input.rest());
      break;
    default:
      try_file(input.rest());
  }
  return 0;
}
