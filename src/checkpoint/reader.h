// Reading checkpoints: any part of any logical tensor, whatever ranks wrote it. Every byte handed
// out was checked against its checksum; nothing in the files is trusted. Large tensors, and tensors
// read in the order they were written in, come at the speed of the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/blob.h"
#include "checkpoint/bulk_read.h"
#include "checkpoint/manifest.h"

namespace ds {

// A damaged place: bytes [begin, end) of a file, and what they hold.
struct Damage {
  std::filesystem::path file;
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string what;
  std::string text() const;
};

struct CheckpointReadOptions {
  // Accept a folder whose name is not the tag it was saved under (a renamed or copied one).
  bool allow_renamed = false;
};

// Elements [begin, end) of a flattened tensor.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// A tensor or a range of it, and where it is wanted: row-major and packed in `out` or, without
// that, handed to `sink` in pieces of whole elements, each element once, in any order. Places are
// counted from the beginning of the range.
struct TensorTarget {
  const TensorRecord* tensor = nullptr;
  std::span<std::byte> out;
  PieceSink sink;
  std::optional<ElementRange> range = {};  // none: the whole tensor
  // Memory of the host that the sink writes, if that is all it writes: for whoever keeps what was
  // there.
  std::vector<std::span<std::byte>> sink_memory = {};
};

// Told of memory that is about to be overwritten.
using OverwriteNotice = std::function<void(std::span<std::byte> memory)>;

class CheckpointReader {
 public:
  // Opens SAVE_DIR/TAG; without a tag, the one that `latest` names. Checks the manifest and the
  // sizes of all files, not the tensor bytes. kNotFound: no such checkpoint; kCorrupt: damaged.
  static CheckpointReader open(const std::filesystem::path& save_dir, std::string_view tag = {},
                               const CheckpointReadOptions& options = {});
  // Opens a checkpoint folder itself.
  static CheckpointReader open_folder(const std::filesystem::path& folder);

  const Manifest& manifest() const noexcept { return *manifest_; }
  const std::filesystem::path& folder() const noexcept { return folder_; }
  const std::string& tag() const noexcept { return manifest_->tag; }

  // By name or alias; null if there is none.
  const TensorRecord* find(std::string_view name, TensorKind kind,
                           std::string_view state = {}) const;
  // The same; kNotFound names the nearest.
  const TensorRecord& tensor(std::string_view name, TensorKind kind,
                             std::string_view state = {}) const;

  // Fills `out`, row-major and packed, with a box, the whole tensor, or the flattened elements
  // [begin, end). After an error `out` holds nothing useful. Safe from several threads.
  void read(const TensorRecord& tensor, const Box& box, std::span<std::byte> out) const;
  void read(const TensorRecord& tensor, std::span<std::byte> out) const;
  void read_range(const TensorRecord& tensor, int64_t begin, int64_t end,
                  std::span<std::byte> out) const;

  // The same of a range beside which nothing is wanted: the chunks that it lies in are read, and
  // not what follows.
  void read_slice(const TensorRecord& tensor, int64_t begin, int64_t end,
                  std::span<std::byte> out) const;

  // All of them in the order of the files, at the speed of the disk: large ones arrive in their
  // places without a copy. After an error the targets hold anything, but only those of which
  // `notice` was told: of every place before it changes, by this thread.
  void read_all(std::span<const TensorTarget> targets, const OverwriteNotice& notice = {}) const;
  // Reads and checks what read_all would read, and hands nothing out.
  void check_all(std::span<const TensorTarget> targets) const;

  // Shares the checking and copying of large reads from now on; `pool` stays as long as this reads.
  void use_threads(ThreadPool* pool) noexcept {
    pool_ = pool;
    ahead_->use_threads(pool);
  }

  // State entries. The typed ones throw kNotFound, or kCorrupt when the type differs.
  bool has_state(std::string_view name) const;
  int64_t state_int(std::string_view name) const;
  double state_double(std::string_view name) const;
  std::string state_text(std::string_view name) const;
  Json state_json(std::string_view name) const;
  std::string state_bytes(std::string_view name) const;

  // Reads every byte of every blob; adjacent damaged chunks are one entry. Empty: undamaged.
  std::vector<Damage> verify_all() const;

  // A description for people and tools: counters, topology, tensors, blobs, state.
  Json inspect() const;

 private:
  CheckpointReader(std::filesystem::path folder, Manifest manifest);
  static CheckpointReader checked_tag(CheckpointReader reader, std::string_view wanted,
                                      const CheckpointReadOptions& options);
  const StateRecord& state(std::string_view name, StateType type) const;
  std::string state_value(std::string_view name, StateType type) const;
  void read_blob(const BlobRange& range, std::span<std::byte> out, std::string_view item,
                 bool ahead = true) const;
  void read_box(const TensorRecord& tensor, const Box& box, std::span<std::byte> out,
                bool ahead) const;
  std::vector<std::vector<BlobPart>> parts_of(std::span<const TensorTarget> targets, bool places,
                                              std::vector<size_t>& scattered) const;
  void read_parts(const BlobReader& blob, std::span<const BlobPart> parts,
                  std::span<const TensorTarget> targets, const PartNotice& notice) const;
  [[noreturn]] void fail_damaged(const BlobReader& blob, uint64_t chunk,
                                 std::string_view item) const;
  Damage damage(const BlobReader& blob, uint64_t first_chunk, uint64_t last_chunk) const;

  std::filesystem::path folder_;
  std::unique_ptr<Manifest> manifest_;  // its address is kept by the maps
  ThreadPool* pool_ = nullptr;
  std::shared_ptr<ReadAhead> ahead_ = std::make_shared<ReadAhead>();
  std::vector<std::unique_ptr<BlobReader>> blobs_;
  std::map<std::tuple<std::string_view, TensorKind, std::string_view>, const TensorRecord*>
      tensors_;
  std::map<std::string_view, const StateRecord*> states_;
};

struct SkippedCheckpoint {
  std::string tag;
  std::string reason;
};

// The checkpoints of a folder, best first: the one that `latest` names, then the others by falling
// number of steps. What cannot be opened is passed over: logged as a warning, and kept for fail().
class CheckpointSearch {
 public:
  explicit CheckpointSearch(std::filesystem::path save_dir) : save_dir_(std::move(save_dir)) {}

  // Nothing when there is no other.
  std::optional<CheckpointReader> next();
  // Tells that the last one was no good.
  void pass_over(const std::string& tag, const std::string& reason);
  std::vector<SkippedCheckpoint>& skipped() noexcept { return skipped_; }
  // kNotFound when there was none, else kCorrupt with the reasons.
  [[noreturn]] void fail() const;

 private:
  void list();
  void mention_newer(const Manifest& taken) const;

  const std::filesystem::path save_dir_;
  std::string named_;  // by `latest`
  bool asked_latest_ = false, listed_ = false;
  std::vector<std::string> rest_;  // tags, the best one last
  std::vector<SkippedCheckpoint> skipped_;
};

struct LatestCheckpoint {
  CheckpointReader reader;
  std::vector<SkippedCheckpoint> skipped;
};

// The first of a CheckpointSearch. `verify_data` reads every byte of a candidate before it is
// taken.
LatestCheckpoint open_latest_valid(const std::filesystem::path& save_dir, bool verify_data = false);

}  // namespace ds
