#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "tensor/box.h"

namespace ds {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxRank = 64;

struct TypeInfo {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};
// Types without a DType are known by size only, so that their extent can be checked.
constexpr std::array kTypes = {
    TypeInfo{"BOOL", 8, DType::kBool},        TypeInfo{"U8", 8, DType::kUInt8},
    TypeInfo{"I8", 8, DType::kInt8},          TypeInfo{"I16", 16, DType::kInt16},
    TypeInfo{"U16", 16, DType::kUInt16},      TypeInfo{"F16", 16, DType::kFloat16},
    TypeInfo{"BF16", 16, DType::kBFloat16},   TypeInfo{"I32", 32, DType::kInt32},
    TypeInfo{"U32", 32, DType::kUInt32},      TypeInfo{"F32", 32, DType::kFloat32},
    TypeInfo{"F64", 64, DType::kFloat64},     TypeInfo{"I64", 64, DType::kInt64},
    TypeInfo{"U64", 64, DType::kUInt64},      TypeInfo{"F4", 4, std::nullopt},
    TypeInfo{"F6_E2M3", 6, std::nullopt},     TypeInfo{"F6_E3M2", 6, std::nullopt},
    TypeInfo{"F8_E5M2", 8, std::nullopt},     TypeInfo{"F8_E4M3", 8, std::nullopt},
    TypeInfo{"F8_E8M0", 8, std::nullopt},     TypeInfo{"F8_E4M3FNUZ", 8, std::nullopt},
    TypeInfo{"F8_E5M2FNUZ", 8, std::nullopt}, TypeInfo{"C64", 64, std::nullopt}};

const TypeInfo* find_type(std::string_view name) {
  const auto it = std::find_if(kTypes.begin(), kTypes.end(),
                               [&](const TypeInfo& type) { return type.name == name; });
  return it == kTypes.end() ? nullptr : &*it;
}

// The parts of one tensor's header entry, checked on their own.
class EntryParser {
 public:
  EntryParser(std::string_view file, const std::string& name) : file_(file), name_(name) {}

  std::pair<SafetensorsEntry, std::pair<uint64_t, uint64_t>> parse(const Json& json) const {
    check(json.is_object() && json.contains("dtype") && json.contains("shape") &&
              json.contains("data_offsets"),
          "must be an object with dtype, shape and data_offsets");
    SafetensorsEntry entry;
    entry.name = name_;
    check(json["dtype"].is_string(), "dtype is not a string");
    entry.dtype_name = json["dtype"].get<std::string>();
    const Json& shape = json["shape"];
    check(shape.is_array() && shape.size() <= kMaxRank, "shape is not a list of at most 64 sizes");
    for (const Json& size : shape) entry.shape.push_back(static_cast<int64_t>(number(size)));
    const Json& offsets = json["data_offsets"];
    check(offsets.is_array() && offsets.size() == 2, "data_offsets is not a pair");
    const uint64_t begin = number(offsets[0]), end = number(offsets[1]);
    check(begin <= end, "data_offsets end before they begin");
    if (const TypeInfo* type = find_type(entry.dtype_name)) {
      entry.dtype = type->dtype;
      const uint64_t bits = total_bits(entry.shape, static_cast<uint64_t>(type->bits));
      check(bits % 8 == 0 && bits / 8 == end - begin,
            str_cat("has ", end - begin, " bytes, its shape and dtype need ", bits / 8));
    }
    return {entry, {begin, end}};
  }

 private:
  void check(bool ok, std::string_view problem) const {
    DS_CHECK(ok, Code::kCorrupt, file_, ": tensor '", printable(name_), "' ", problem);
  }

  uint64_t number(const Json& value) const {
    check(value.is_number_unsigned(), "has a size or offset that is not a whole number");
    const auto n = value.get<uint64_t>();
    check(n <= static_cast<uint64_t>(INT64_MAX), "has a size or offset beyond 63 bits");
    return n;
  }

  uint64_t total_bits(const std::vector<int64_t>& shape, uint64_t bits) const {
    bool empty = false;
    for (const int64_t size : shape) {
      empty = empty || size == 0;
      const bool overflow =
          size != 0 && __builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits);
      check(!overflow, "has a shape whose product overflows");
    }
    return empty ? 0 : bits;
  }

  std::string_view file_;
  const std::string& name_;
};

uint64_t header_length(const File& opened, uint64_t size, std::string_view file) {
  DS_CHECK(size >= 8, Code::kCorrupt, file, ": ", size,
           " bytes are too few for a safetensors file");
  std::array<std::byte, 8> bytes;
  opened.read_at(0, bytes);
  uint64_t n = 0;
  for (size_t i = 0; i < 8; ++i) n |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  DS_CHECK(n <= kMaxHeader, Code::kCorrupt, file, ": a header of ", n,
           " bytes; the format allows 100000000. Is this a safetensors file?");
  DS_CHECK(n <= size - 8, Code::kCorrupt, file, ": the header of ", n,
           " bytes goes past the end of the file: truncated?");
  return n;
}

}  // namespace

std::string_view safetensors_dtype_name(DType dtype) noexcept {
  for (const TypeInfo& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  return "";
}

void SafetensorsEntry::read(uint64_t offset, std::span<std::byte> out) const {
  DS_CHECK(offset <= size && out.size() <= size - offset, Code::kInternal, "a read of ", out.size(),
           " bytes at ", offset, " leaves the tensor ", printable(name));
  file->read_at(static_cast<int64_t>(begin + offset), out);
}

std::vector<std::byte> SafetensorsEntry::bytes() const {
  std::vector<std::byte> out(static_cast<size_t>(size));
  read(0, out);
  return out;
}

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : file_(std::make_shared<const File>(path, File::Mode::kReadRegular)) {
  const std::string file = printable(path.string(), 300);
  const auto total = static_cast<uint64_t>(file_->size());
  const uint64_t length = header_length(*file_, total, file);
  std::string text(static_cast<size_t>(length), '\0');
  file_->read_at(8, std::as_writable_bytes(std::span(text)));
  DS_CHECK(!text.empty() && text[0] == '{', Code::kCorrupt, file,
           ": the header does not begin with '{'");
  const uint64_t data = total - 8 - length;
  Json header = parse_json(text, str_cat(file, " header"), Code::kCorrupt, {.max_depth = 8});
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      DS_CHECK(value.is_object(), Code::kCorrupt, file, ": __metadata__ is not an object");
      for (const auto& [key, item] : value.items()) {
        DS_CHECK(item.is_string(), Code::kCorrupt, file, ": __metadata__ '", printable(key),
                 "' is not a string");
        metadata_[key] = item.get<std::string>();
      }
      continue;
    }
    auto [entry, range] = EntryParser(file, name).parse(value);
    entries_.push_back(std::move(entry));
    ranges.push_back(range);
  }
  std::vector<size_t> order(entries_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ranges[a] < ranges[b]; });
  std::vector<SafetensorsEntry> sorted;
  uint64_t at = 0;
  for (const size_t i : order) {
    const auto [begin, end] = ranges[i];
    DS_CHECK(begin == at, Code::kCorrupt, file, ": tensor '", printable(entries_[i].name),
             "' begins at data byte ", begin, " where ", at,
             " was expected: ", begin > at ? "a hole" : "tensors overlap");
    DS_CHECK(end <= data, Code::kCorrupt, file, ": tensor '", printable(entries_[i].name),
             "' ends at data byte ", end, " of ", data, ": the file is truncated");
    entries_[i].begin = 8 + length + begin;
    entries_[i].size = end - begin;
    entries_[i].file = file_;
    at = end;
    sorted.push_back(std::move(entries_[i]));
  }
  DS_CHECK(at == data, Code::kCorrupt, file, ": ", data - at,
           " bytes at the end belong to no tensor");
  entries_ = std::move(sorted);
  for (size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].name] = i;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &entries_[it->second];
}

SafetensorsModel::SafetensorsModel(const fs::path& file_or_folder) : path_(file_or_folder) {
  std::error_code error;
  if (!fs::is_directory(path_, error)) {
    files_.push_back(std::make_unique<SafetensorsFile>(path_));
    return;
  }
  const fs::path single = path_ / "model.safetensors";
  const fs::path index = path_ / "model.safetensors.index.json";
  if (fs::exists(single, error)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
  } else {
    DS_CHECK(fs::exists(index, error), Code::kNotFound, printable(path_.string(), 300),
             " has neither model.safetensors nor model.safetensors.index.json");
    open_index(index);
  }
}

void SafetensorsModel::open_index(const fs::path& index) {
  const std::string file = printable(index.string(), 300);
  const Json json = parse_json(read_text_file(index, int64_t{1} << 28), file, Code::kCorrupt);
  DS_CHECK(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
           Code::kCorrupt, file, ": there is no object weight_map");
  std::map<std::string, size_t> opened;
  std::set<std::string_view> seen;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    DS_CHECK(shard.is_string() && is_plain_name(shard.get<std::string>()), Code::kCorrupt, file,
             ": the shard of '", printable(tensor), "' is not a plain file name");
    const auto name = shard.get<std::string>();
    const auto [it, fresh] = opened.try_emplace(name, files_.size());
    if (fresh) files_.push_back(std::make_unique<SafetensorsFile>(index.parent_path() / name));
    DS_CHECK(files_[it->second]->find(tensor) != nullptr, Code::kCorrupt, file, ": '",
             printable(tensor), "' is not in ", printable(name));
  }
  for (const auto& shard : files_) {
    for (const SafetensorsEntry& entry : shard->entries()) {
      DS_CHECK(seen.insert(entry.name).second, Code::kCorrupt, file, ": '", printable(entry.name),
               "' is in two shards");
    }
  }
}

std::vector<const SafetensorsEntry*> SafetensorsModel::entries() const {
  std::vector<const SafetensorsEntry*> out;
  for (const auto& file : files_) {
    for (const SafetensorsEntry& entry : file->entries()) out.push_back(&entry);
  }
  return out;
}

const SafetensorsEntry* SafetensorsModel::find(std::string_view name) const {
  for (const auto& file : files_) {
    if (const SafetensorsEntry* entry = file->find(name)) return entry;
  }
  return nullptr;
}

const SafetensorsEntry& SafetensorsModel::require(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const SafetensorsEntry* e : entries()) names.push_back(e->name);
    const std::string nearest = nearest_name(name, names);
    fail(Code::kNotFound, printable(path_.string(), 300), " has no tensor '", printable(name), "'",
         nearest.empty() ? "" : str_cat("; did you mean '", printable(nearest), "'?"));
  }
  DS_CHECK(entry->dtype.has_value(), Code::kUnsupported, printable(path_.string(), 300),
           ": tensor '", printable(name), "' has the dtype ", printable(entry->dtype_name),
           ", which this build cannot use");
  return *entry;
}

}  // namespace ds
