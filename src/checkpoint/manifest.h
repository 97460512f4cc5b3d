// The manifest in memory: what a checkpoint holds and where its bytes lie, and its file form (a
// small checked header, a FlatBuffer, chunk checksums). See docs/checkpoint-format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/box.h"
#include "tensor/dtype.h"

namespace ds {

inline constexpr uint32_t kManifestMajor = 1;
inline constexpr uint32_t kManifestMinor = 1;
inline constexpr const char* kManifestFile = "manifest.dsm";
inline constexpr int64_t kBlobAlignment = 64;
inline constexpr int64_t kLargeBlobAlignment = 4096;  // from kLargeItemBytes: fits direct I/O
inline constexpr int64_t kLargeItemBytes = int64_t{64} << 10;
// A rank that wants a piece of a tensor reads and checks the chunks that the piece lies in; smaller
// ones would not be read in less time.
inline constexpr int64_t kDefaultChunkBytes = int64_t{256} << 10;
inline constexpr int64_t kMinChunkBytes = 64;
inline constexpr int64_t kMaxChunkBytes = int64_t{64} << 20;

enum class TensorKind : int32_t {
  kModel = 1,      // weights in the dtype they compute in
  kMaster = 2,     // fp32 master weights
  kExpAvg = 3,     // first moment
  kExpAvgSq = 4,   // second moment
  kBuffer = 5,     // model state that is not trained
  kOptimizer = 6,  // any other optimizer state, named by `state`
};
bool is_tensor_kind(int32_t code) noexcept;
std::string_view tensor_kind_name(TensorKind kind) noexcept;  // "model", "master", ...

enum TensorFlags : uint32_t { kTrainable = 1, kFrozen = 2 };

// A logical tensor, apart from where its bytes lie. (name, kind, state) identifies it.
struct TensorMeta {
  std::string name;
  TensorKind kind = TensorKind::kModel;
  std::string state;  // kOptimizer only
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<std::string> aliases;  // other names of the same (tied) tensor
  uint32_t flags = kTrainable;
  int32_t expert = -1;  // index of the expert it belongs to, -1 for none

  bool operator==(const TensorMeta&) const = default;
  std::string text() const;  // "model tensor 'wte.weight'"
};

struct BlobRange {
  uint32_t blob = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const BlobRange&) const = default;
};

struct TensorSlice {
  Box box;
  BlobRange range;
  bool operator==(const TensorSlice&) const = default;
};

struct TensorRecord {
  TensorMeta meta;
  std::vector<TensorSlice> slices;
  bool operator==(const TensorRecord&) const = default;
};

struct BlobRecord {
  std::string file;
  uint64_t size = 0;
  uint32_t chunk_bytes = 0;
  std::vector<uint64_t> checksums;  // XXH3-64 per chunk; together they cover every byte
  bool operator==(const BlobRecord&) const = default;
};

enum class StateType : int32_t { kInt = 1, kDouble = 2, kText = 3, kJson = 4, kBytes = 5 };
bool is_state_type(int32_t code) noexcept;
std::string_view state_type_name(StateType type) noexcept;

// What a value of a type may take at most: it is read into memory as a whole.
uint64_t most_state_bytes(StateType type) noexcept;

// A named value. Text, JSON and bytes are in `bytes`, or in a blob when `range` is set.
struct StateRecord {
  std::string name;
  StateType type = StateType::kInt;
  int64_t integer = 0;
  double real = 0;
  std::string bytes;
  std::optional<BlobRange> range;
};

struct StepCounters {
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;
  int64_t micro_steps = 0;
  int64_t global_samples = 0;
  int64_t global_tokens = 0;
  bool operator==(const StepCounters&) const = default;
};

// The ranks that wrote the checkpoint: for people and for choices that need it (say the RNG);
// reading tensors does not.
struct WorldTopology {
  int32_t world = 1;
  int32_t data = 1;
  int32_t tensor = 1;
  int32_t pipeline = 1;
  int32_t sequence = 1;
  int32_t expert = 1;
  int32_t zero_stage = 0;
  bool operator==(const WorldTopology&) const = default;
};

struct Manifest {
  uint32_t major = kManifestMajor;
  uint32_t minor = kManifestMinor;
  std::string writer;
  std::string tag;
  StepCounters counters;
  WorldTopology topology;
  std::vector<TensorRecord> tensors;
  std::vector<BlobRecord> blobs;
  std::vector<StateRecord> states;
  std::string run;  // id of the training run, from 1.1 on; "" where there is none
};

// The content of the manifest file.
std::string encode_manifest(const Manifest& manifest);

// The reverse, for untrusted bytes: checksums, the FlatBuffers verifier, sizes before copies. A
// damaged place is named by its bytes in `what`. Does not check the meaning: see check_manifest.
Manifest decode_manifest(std::span<const std::byte> file, std::string_view what);

// Throws `code` unless everything fits together: names, shapes, ranges, checksum counts, and (with
// `complete`) slices that cover each tensor exactly once.
void check_manifest(const Manifest& manifest, std::string_view what, Code code, bool complete);

// A plain file name: no separator, no dot first, no control characters, at most 200 bytes of
// UTF-8.
bool is_plain_name(std::string_view name);

}  // namespace ds
