#include "checkpoint/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "checkpoint/save_folder.h"

namespace ds {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostManifestBytes = int64_t{1} << 30;

std::string shown(const fs::path& path) { return printable(path.string(), 300); }

Manifest load_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  DS_CHECK(status.type() != fs::file_type::not_found, Code::kCorrupt, shown(path),
           " is missing: not a checkpoint, or one that was never completed");
  DS_CHECK(fs::is_regular_file(status), Code::kCorrupt, shown(path), " is not a regular file");
  const std::string content = read_text_file(path, kMostManifestBytes);
  Manifest manifest = decode_manifest(std::as_bytes(std::span(content)), shown(path));
  check_manifest(manifest, shown(path), Code::kCorrupt, true);
  DS_CHECK(is_plain_name(manifest.tag), Code::kCorrupt, shown(path), ": impossible tag '",
           printable(manifest.tag), "'");
  return manifest;
}

// Tells whether a path still leads to the folder it led to at first. Holding the folder open keeps
// its inode number from being given to another one.
class FolderWatch {
 public:
  explicit FolderWatch(const fs::path& folder)
      : folder_(folder), fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}
  ~FolderWatch() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  bool same() const {
    struct stat held, now;
    return fd_ >= 0 && ::fstat(fd_, &held) == 0 && ::stat(folder_.c_str(), &now) == 0 &&
           held.st_dev == now.st_dev && held.st_ino == now.st_ino;
  }

 private:
  const fs::path& folder_;
  int fd_;
};

Json sizes_json(const std::vector<int64_t>& sizes) { return Json(sizes); }

// Entries of a blob that touch [begin, end), a few of them by name.
std::string contents(const Manifest& manifest, uint32_t blob, uint64_t begin, uint64_t end) {
  std::vector<std::string> names;
  size_t more = 0;
  const auto consider = [&](const BlobRange& range, const auto& label) {
    if (range.blob != blob || range.offset >= end || range.offset + range.length <= begin) return;
    if (names.size() < 4) {
      names.push_back(label());
    } else {
      ++more;
    }
  };
  for (const TensorRecord& tensor : manifest.tensors) {
    for (const TensorSlice& slice : tensor.slices) {
      consider(slice.range, [&] {
        return tensor.slices.size() == 1 ? tensor.meta.text()
                                         : str_cat(tensor.meta.text(), " ", slice.box.text());
      });
    }
  }
  for (const StateRecord& state : manifest.states) {
    if (!state.range) continue;
    consider(*state.range, [&] { return str_cat("state '", printable(state.name), "'"); });
  }
  if (names.empty()) return "padding";
  return str_cat(join(names, ", "), more > 0 ? str_cat(" and ", more, " more") : "");
}

}  // namespace

std::string Damage::text() const {
  return str_cat(shown(file), ": bytes ", begin, "-", end - 1,
                 " do not match their checksum; they hold ", what);
}

CheckpointReader::CheckpointReader(fs::path folder, Manifest manifest)
    : folder_(std::move(folder)), manifest_(std::make_unique<Manifest>(std::move(manifest))) {
  const auto files = std::make_shared<OpenFiles>();
  for (const BlobRecord& blob : manifest_->blobs) {
    blobs_.push_back(std::make_unique<BlobReader>(folder_, blob, files, ahead_));
  }
  for (const TensorRecord& tensor : manifest_->tensors) {
    const TensorMeta& meta = tensor.meta;
    tensors_[{meta.name, meta.kind, meta.state}] = &tensor;
    for (const std::string& alias : meta.aliases)
      tensors_[{alias, meta.kind, meta.state}] = &tensor;
  }
  for (const StateRecord& state : manifest_->states) states_[state.name] = &state;
}

CheckpointReader CheckpointReader::open_folder(const fs::path& folder) {
  return {folder, load_manifest(folder)};
}

CheckpointReader CheckpointReader::open(const fs::path& save_dir, std::string_view tag,
                                        const CheckpointReadOptions& options) {
  const bool by_latest = tag.empty();
  const std::string wanted = by_latest ? read_latest(save_dir) : std::string(tag);
  // A writer may replace the folder while its files are being opened; then all are opened anew.
  constexpr int kAttempts = 20;
  for (int attempt = 1;; ++attempt) {
    fs::path folder;
    try {
      folder = find_tag_folder(save_dir, wanted);
    } catch (const Error& error) {
      if (!by_latest || error.code() != Code::kNotFound) throw;
      fail(Code::kCorrupt, shown(save_dir / kLatestFile),
           " names a checkpoint that does not exist: ", error.message());
    }
    const FolderWatch watch(folder);
    try {
      CheckpointReader reader = open_folder(folder);
      if (watch.same()) return checked_tag(std::move(reader), wanted, options);
    } catch (const Error&) {
      if (watch.same() || attempt == kAttempts) throw;
    }
    DS_CHECK(attempt < kAttempts, Code::kIo, shown(folder), " keeps being replaced while it opens");
  }
}

CheckpointReader CheckpointReader::checked_tag(CheckpointReader reader, std::string_view wanted,
                                               const CheckpointReadOptions& options) {
  DS_CHECK(options.allow_renamed || reader.tag() == wanted, Code::kCorrupt, shown(reader.folder()),
           " holds the checkpoint '", printable(reader.tag()),
           "', not the one its name says; rename the folder, or allow renamed checkpoints");
  return reader;
}

const TensorRecord* CheckpointReader::find(std::string_view name, TensorKind kind,
                                           std::string_view state) const {
  const auto it = tensors_.find({name, kind, state});
  return it == tensors_.end() ? nullptr : it->second;
}

const TensorRecord& CheckpointReader::tensor(std::string_view name, TensorKind kind,
                                             std::string_view state) const {
  if (const TensorRecord* found = find(name, kind, state)) return *found;
  TensorMeta wanted;
  wanted.name = name;
  wanted.kind = kind;
  wanted.state = state;
  std::vector<std::string> names;
  for (const auto& [key, record] : tensors_) {
    if (std::get<1>(key) == kind && std::get<2>(key) == state) names.emplace_back(std::get<0>(key));
  }
  const std::string nearest = nearest_name(name, names);
  fail(Code::kNotFound, "checkpoint ", shown(folder_), " has no ", wanted.text(),
       nearest.empty() ? "" : str_cat("; did you mean '", printable(nearest), "'?"));
}

void CheckpointReader::read(const TensorRecord& tensor, const Box& box,
                            std::span<std::byte> out) const {
  read_box(tensor, box, out, true);
}

void CheckpointReader::read_box(const TensorRecord& tensor, const Box& box,
                                std::span<std::byte> out, bool ahead) const {
  const TensorMeta& meta = tensor.meta;
  check_box(box, meta.shape, Code::kInvalidArgument, meta.text());
  const int64_t size = dtype_size(meta.dtype);
  const int64_t expected = box.elements() * size;
  DS_CHECK(out.size() == static_cast<uint64_t>(expected), Code::kInvalidArgument, "reading ",
           meta.text(), " ", box.text(), " needs a buffer of ", expected, " bytes, not ",
           out.size());
  if (expected == 0) return;
  for (const TensorSlice& slice : tensor.slices) {
    const auto part = intersect(slice.box, box);
    if (!part) continue;
    for_each_run(slice.box, box, *part, [&](int64_t from, int64_t to, int64_t count) {
      const BlobRange range{slice.range.blob,
                            slice.range.offset + static_cast<uint64_t>(from * size),
                            static_cast<uint64_t>(count * size)};
      read_blob(range, out.subspan(static_cast<size_t>(to * size), range.length), meta.text(),
                ahead);
    });
  }
}

void CheckpointReader::read(const TensorRecord& tensor, std::span<std::byte> out) const {
  read(tensor, full_box(tensor.meta.shape), out);
}

void CheckpointReader::read_range(const TensorRecord& tensor, int64_t begin, int64_t end,
                                  std::span<std::byte> out) const {
  const int64_t size = dtype_size(tensor.meta.dtype);
  const std::vector<Box> boxes = boxes_of_range(tensor.meta.shape, begin, end);
  DS_CHECK(out.size() == static_cast<uint64_t>((end - begin) * size), Code::kInvalidArgument,
           "reading ", tensor.meta.text(), " ", begin, ":", end, " needs a buffer of ",
           (end - begin) * size, " bytes, not ", out.size());
  for (const Box& box : boxes) {
    const auto n = static_cast<size_t>(box.elements() * size);
    read(tensor, box, out.first(n));
    out = out.subspan(n);
  }
}

// Large ones past the page cache, as many tensors are read.
void CheckpointReader::read_slice(const TensorRecord& tensor, int64_t begin, int64_t end,
                                  std::span<std::byte> out) const {
  if (out.size() >= BulkRead::kLeastBytes) {
    const TensorTarget target{&tensor, out, {}, ElementRange{begin, end}};
    return read_all({&target, 1});
  }
  const int64_t size = dtype_size(tensor.meta.dtype);
  for (const Box& box : boxes_of_range(tensor.meta.shape, begin, end)) {
    const auto n = static_cast<size_t>(box.elements() * size);
    read_box(tensor, box, out.first(n), false);
    out = out.subspan(n);
  }
}

void CheckpointReader::read_blob(const BlobRange& range, std::span<std::byte> out,
                                 std::string_view item, bool ahead) const {
  const BlobReader& blob = *blobs_[range.blob];
  if (const auto bad = blob.read(range.offset, out, ahead)) fail_damaged(blob, *bad, item);
}

void CheckpointReader::fail_damaged(const BlobReader& blob, uint64_t chunk,
                                    std::string_view item) const {
  fail(Code::kCorrupt, "cannot read ", item, ": chunk ", chunk, " of ",
       damage(blob, chunk, chunk).text(),
       ": the checkpoint is damaged; load another one or restore this file");
}

Damage CheckpointReader::damage(const BlobReader& blob, uint64_t first, uint64_t last) const {
  const auto index = static_cast<uint32_t>(&blob.record() - manifest_->blobs.data());
  const uint64_t begin = blob.chunk_begin(first), end = blob.chunk_end(last);
  return {folder_ / blob.record().file, begin, end, contents(*manifest_, index, begin, end)};
}

bool CheckpointReader::has_state(std::string_view name) const { return states_.contains(name); }

const StateRecord& CheckpointReader::state(std::string_view name, StateType type) const {
  const auto it = states_.find(name);
  DS_CHECK(it != states_.end(), Code::kNotFound, "checkpoint ", shown(folder_),
           " has no state entry '", printable(name), "'");
  DS_CHECK(it->second->type == type, Code::kCorrupt, "checkpoint ", shown(folder_),
           ": the state entry '", printable(name), "' is of type ",
           state_type_name(it->second->type), ", not ", state_type_name(type));
  return *it->second;
}

std::string CheckpointReader::state_value(std::string_view name, StateType type) const {
  const StateRecord& entry = state(name, type);
  if (!entry.range) return entry.bytes;
  std::string out(static_cast<size_t>(entry.range->length), '\0');
  read_blob(*entry.range, std::as_writable_bytes(std::span(out)),
            str_cat("state '", printable(name), "'"));
  return out;
}

int64_t CheckpointReader::state_int(std::string_view name) const {
  return state(name, StateType::kInt).integer;
}
double CheckpointReader::state_double(std::string_view name) const {
  return state(name, StateType::kDouble).real;
}
std::string CheckpointReader::state_text(std::string_view name) const {
  return state_value(name, StateType::kText);
}
Json CheckpointReader::state_json(std::string_view name) const {
  return parse_json(state_value(name, StateType::kJson),
                    str_cat("state '", printable(name), "' of ", shown(folder_)), Code::kCorrupt);
}
std::string CheckpointReader::state_bytes(std::string_view name) const {
  return state_value(name, StateType::kBytes);
}

Json CheckpointReader::inspect() const {
  const Manifest& m = *manifest_;
  Json out;
  out["folder"] = folder_.string();
  out["tag"] = m.tag;
  out["format"] = str_cat(m.major, ".", m.minor);
  out["writer"] = m.writer;
  out["run"] = m.run.empty() ? Json() : Json(m.run);
  out["counters"] = {{"global_steps", m.counters.global_steps},
                     {"skipped_steps", m.counters.skipped_steps},
                     {"micro_steps", m.counters.micro_steps},
                     {"global_samples", m.counters.global_samples},
                     {"global_tokens", m.counters.global_tokens}};
  out["topology"] = {{"world", m.topology.world},          {"data", m.topology.data},
                     {"tensor", m.topology.tensor},        {"pipeline", m.topology.pipeline},
                     {"sequence", m.topology.sequence},    {"expert", m.topology.expert},
                     {"zero_stage", m.topology.zero_stage}};
  Json& tensors = out["tensors"] = Json::array();
  for (const TensorRecord& t : m.tensors) {
    Json entry = {{"name", t.meta.name}, {"kind", tensor_kind_name(t.meta.kind)}};
    if (!t.meta.state.empty()) entry["state"] = t.meta.state;
    entry["dtype"] = dtype_name(t.meta.dtype);
    entry["shape"] = sizes_json(t.meta.shape);
    if (!t.meta.aliases.empty()) entry["aliases"] = t.meta.aliases;
    if ((t.meta.flags & kTrainable) != 0) entry["trainable"] = true;
    if ((t.meta.flags & kFrozen) != 0) entry["frozen"] = true;
    if (t.meta.expert >= 0) entry["expert"] = t.meta.expert;
    uint64_t bytes = 0;
    Json slices = Json::array();
    for (const TensorSlice& s : t.slices) {
      bytes += s.range.length;
      slices.push_back({{"offset", sizes_json(s.box.offset)},
                        {"extent", sizes_json(s.box.extent)},
                        {"file", m.blobs[s.range.blob].file},
                        {"begin", s.range.offset},
                        {"length", s.range.length}});
    }
    entry["bytes"] = bytes;
    entry["slices"] = std::move(slices);
    tensors.push_back(std::move(entry));
  }
  Json& blobs = out["blobs"] = Json::array();
  for (const BlobRecord& b : m.blobs) {
    blobs.push_back({{"file", b.file},
                     {"size", b.size},
                     {"chunk_bytes", b.chunk_bytes},
                     {"chunks", b.checksums.size()}});
  }
  Json& states = out["state"] = Json::array();
  for (const StateRecord& s : m.states) {
    Json entry = {{"name", s.name}, {"type", state_type_name(s.type)}};
    if (s.type == StateType::kInt) {
      entry["value"] = s.integer;
    } else if (s.type == StateType::kDouble) {
      entry["value"] = s.real;
    } else {
      entry["bytes"] = s.range ? s.range->length : s.bytes.size();
      if (s.type == StateType::kText && !s.range && s.bytes.size() <= 200) entry["value"] = s.bytes;
    }
    states.push_back(std::move(entry));
  }
  return out;
}

}  // namespace ds
