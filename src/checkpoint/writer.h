// Writing checkpoints: tensors are streamed to blobs with bounded memory, or gathered in memory as
// a snapshot; commit() makes the checkpoint appear all at once, or not at all.
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

#include "base/json.h"
#include "checkpoint/blob.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save_folder.h"

namespace ds {

// How long the bytes that a part is given stay as they are: what lasts may be written from where it
// lies.
enum class Lifetime { kCall, kUntilFinish };

// What one rank contributes: one blob and the entries for it. Rank 0's part lives inside
// CheckpointWriter; another rank makes its own on the same temporary folder, sends
// encode_manifest(finish()) to rank 0, and rank 0 merges it. After an error the part refuses
// further calls.
class PartWriter {
 public:
  PartWriter(std::filesystem::path folder, int rank, const BlobOptions& options = {});

  // One slice, its bytes row-major and packed. Slices of one tensor may come in any order and from
  // any rank, but every call must describe the same tensor.
  void add_tensor(const TensorMeta& meta, const Box& box, std::span<const std::byte> bytes,
                  Lifetime lifetime = Lifetime::kCall);
  // The whole tensor.
  void add_tensor(const TensorMeta& meta, std::span<const std::byte> bytes,
                  Lifetime lifetime = Lifetime::kCall);
  // The elements [begin, end) of the flattened tensor: what a flat (ZeRO) partition holds.
  void add_range(const TensorMeta& meta, int64_t begin, int64_t end,
                 std::span<const std::byte> bytes, Lifetime lifetime = Lifetime::kCall);
  // The same in pieces, for tensors that never lie in host memory at once.
  void begin_tensor(const TensorMeta& meta, const Box& box);
  void append(std::span<const std::byte> bytes, Lifetime lifetime = Lifetime::kCall);
  void end_tensor();

  void set_int(const std::string& name, int64_t value);
  void set_double(const std::string& name, double value);
  void set_text(const std::string& name, std::string_view value);
  void set_json(const std::string& name, const Json& value);
  void set_bytes(const std::string& name, std::span<const std::byte> value);

  // Syncs the blob and returns what this part holds. The last call.
  Manifest finish();

 private:
  template <class Fn>
  void guarded(const Fn& fn);
  BlobWriter& blob();
  uint64_t place(uint64_t length);
  StateRecord& new_state(const std::string& name, StateType type);
  void set_blob_value(const std::string& name, StateType type, std::span<const std::byte> value);

  std::filesystem::path folder_;
  int rank_;
  BlobOptions options_;
  std::unique_ptr<BlobWriter> blob_;
  Manifest manifest_;
  std::map<std::tuple<std::string, TensorKind, std::string>, size_t> index_;
  uint64_t remaining_ = 0;  // bytes that the open tensor still expects
  bool open_ = false;
  bool failed_ = false;
  bool finished_ = false;
};

struct CheckpointWriterOptions {
  std::filesystem::path folder;  // SAVE_DIR, created if missing
  std::string tag;
  StepCounters counters;
  WorldTopology topology;
  std::string writer;  // the program's version, for people
  std::string run;     // id of the training run, see make_run_id; "" for none
  int64_t keep = 0;    // checkpoints of this run that stay, see keep_newest; 0: all
  // How rank 0's tensors are written. With `hold` the writer keeps a snapshot of what it was given,
  // and commit(), which does all the writing, may run in another thread: see BackgroundSave.
  BlobOptions blob;
  bool update_latest = true;
  bool exchange = true;  // swap folders atomically where the file system can; see TemporaryFolder
};

// A save in progress. Nothing under SAVE_DIR/TAG or `latest` changes before commit(); an error, or
// destruction without commit, removes the temporary folder.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointWriterOptions options);

  // Tensors and state of rank 0.
  PartWriter& part() { return part_; }
  // Where other ranks make their PartWriter.
  const std::filesystem::path& temporary() const noexcept { return temporary_.path(); }
  // Adds what another rank wrote. Its bytes are not checked here; verify_all() does that.
  void merge(const Manifest& part);

  // Checks that every tensor is complete, writes the manifest, makes everything durable and
  // visible, removes a checkpoint of the same tag and then those that `keep` leaves no room for.
  void commit();

 private:
  CheckpointWriterOptions options_;
  TemporaryFolder temporary_;
  PartWriter part_;
  std::vector<Manifest> merged_;
};

}  // namespace ds
