// Names of the manifest's enumerations and the check that a manifest makes sense.
#include "checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_set>

#include "base/text.h"

namespace ds {
namespace {

constexpr size_t kMaxName = 4096;
constexpr size_t kMaxSlices = 1 << 16;

class Checker {
 public:
  Checker(const Manifest& manifest, std::string_view what, Code code)
      : m_(manifest), what_(what), code_(code) {}

  void name(std::string_view value, std::string_view role) const {
    const bool control = std::any_of(value.begin(), value.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    });
    DS_CHECK(!value.empty() && value.size() <= kMaxName && !control && is_valid_utf8(value), code_,
             what_, ": the ", role, " '", printable(value), "' is empty, longer than ", kMaxName,
             " bytes, or has control characters or invalid UTF-8");
  }

  void blobs() const {
    std::unordered_set<std::string> files;
    for (const BlobRecord& b : m_.blobs) {
      DS_CHECK(is_plain_name(b.file) && b.file != kManifestFile, code_, what_, ": blob file '",
               printable(b.file), "' is not a plain file name");
      DS_CHECK(files.insert(b.file).second, code_, what_, ": blob file '", b.file,
               "' is listed twice");
      DS_CHECK(b.chunk_bytes >= kMinChunkBytes && b.chunk_bytes <= kMaxChunkBytes, code_, what_,
               ": blob file '", b.file, "' has chunks of ", b.chunk_bytes, " bytes; from ",
               kMinChunkBytes, " to ", kMaxChunkBytes, " are allowed");
      const uint64_t chunks = b.size / b.chunk_bytes + (b.size % b.chunk_bytes != 0 ? 1 : 0);
      DS_CHECK(b.size <= static_cast<uint64_t>(INT64_MAX) && b.checksums.size() == chunks, code_,
               what_, ": blob file '", b.file, "' of ", b.size, " bytes has ", b.checksums.size(),
               " checksums");
    }
  }

  void range(const BlobRange& r, std::string_view item) const {
    DS_CHECK(r.blob < m_.blobs.size(), code_, what_, ": ", item, " lies in blob ", r.blob,
             ", but there are ", m_.blobs.size());
    const uint64_t size = m_.blobs[r.blob].size;
    DS_CHECK(r.offset <= size && r.length <= size - r.offset, code_, what_, ": ", item,
             " lies at bytes ", r.offset, "+", r.length, " of '", m_.blobs[r.blob].file,
             "', which has ", size);
    DS_CHECK(r.offset % kBlobAlignment == 0, code_, what_, ": ", item, " begins at byte ", r.offset,
             ", not a multiple of ", kBlobAlignment);
  }

  void tensor(const TensorRecord& t, bool complete) const {
    const TensorMeta& meta = t.meta;
    name(meta.name, "tensor name");
    DS_CHECK((meta.kind == TensorKind::kOptimizer) == !meta.state.empty(), code_, what_, ": ",
             meta.text(),
             meta.state.empty() ? " lacks the name of its state"
                                : " has a state name, which only kind optimizer has");
    if (!meta.state.empty()) name(meta.state, "state name");
    for (const std::string& alias : meta.aliases) name(alias, "alias");
    const std::string label = str_cat(what_, ": ", meta.text());
    const int64_t size = dtype_size(meta.dtype);
    checked_elements(meta.shape, size, code_, label);
    DS_CHECK(t.slices.size() <= kMaxSlices, code_, label, " has ", t.slices.size(),
             " slices; at most ", kMaxSlices, " are allowed");
    std::vector<Box> boxes;
    for (const TensorSlice& s : t.slices) {
      check_box(s.box, meta.shape, code_, label);
      const auto bytes = static_cast<uint64_t>(s.box.elements()) * static_cast<uint64_t>(size);
      DS_CHECK(s.range.length == bytes, code_, label, ": slice ", s.box.text(), " has ",
               s.range.length, " bytes instead of ", bytes);
      range(s.range, meta.text());
      if (complete) boxes.push_back(s.box);
    }
    if (complete) check_tiling(meta.shape, boxes, code_, label);
  }

  void tensors(bool complete) const {
    std::set<std::tuple<std::string_view, int32_t, std::string_view>> seen;
    for (const TensorRecord& t : m_.tensors) {
      tensor(t, complete);
      const auto claim = [&](const std::string& n) {
        DS_CHECK(seen.insert({n, static_cast<int32_t>(t.meta.kind), t.meta.state}).second, code_,
                 what_, ": the name '", printable(n), "' occurs twice among the ",
                 tensor_kind_name(t.meta.kind), " tensors");
      };
      claim(t.meta.name);
      for (const std::string& alias : t.meta.aliases) claim(alias);
    }
  }

  // Of checkpoints that this build did not write too, so nothing but a bound.
  void run() const {
    DS_CHECK(m_.run.empty() || (m_.run.size() <= 128 && is_plain_name(m_.run)), code_, what_,
             ": the run's id '", printable(m_.run, 140), "' is longer than 128 bytes or no name");
  }

  void states() const {
    std::unordered_set<std::string_view> seen;
    for (const StateRecord& s : m_.states) {
      name(s.name, "state entry");
      DS_CHECK(seen.insert(s.name).second, code_, what_, ": the state entry '", printable(s.name),
               "' occurs twice");
      if (!s.range) continue;
      DS_CHECK(s.type != StateType::kInt && s.type != StateType::kDouble && s.bytes.empty(), code_,
               what_, ": the state entry '", printable(s.name), "' has two values");
      range(*s.range, str_cat("state '", printable(s.name), "'"));
      DS_CHECK(s.range->length <= most_state_bytes(s.type), code_, what_, ": the state entry '",
               printable(s.name), "' has ", s.range->length, " bytes; of type ",
               state_type_name(s.type), " at most ", most_state_bytes(s.type), " are allowed");
    }
  }

 private:
  const Manifest& m_;
  std::string_view what_;
  Code code_;
};

}  // namespace

bool is_tensor_kind(int32_t code) noexcept { return code >= 1 && code <= 6; }

std::string_view tensor_kind_name(TensorKind kind) noexcept {
  switch (kind) {
    case TensorKind::kModel:
      return "model";
    case TensorKind::kMaster:
      return "master";
    case TensorKind::kExpAvg:
      return "exp_avg";
    case TensorKind::kExpAvgSq:
      return "exp_avg_sq";
    case TensorKind::kBuffer:
      return "buffer";
    case TensorKind::kOptimizer:
      return "optimizer";
  }
  return "unknown";
}

bool is_state_type(int32_t code) noexcept { return code >= 1 && code <= 5; }

std::string_view state_type_name(StateType type) noexcept {
  switch (type) {
    case StateType::kInt:
      return "int";
    case StateType::kDouble:
      return "double";
    case StateType::kText:
      return "text";
    case StateType::kJson:
      return "json";
    case StateType::kBytes:
      return "bytes";
  }
  return "unknown";
}

uint64_t most_state_bytes(StateType type) noexcept {
  switch (type) {
    case StateType::kJson:
      return uint64_t{64} << 20;
    case StateType::kText:  // a tokenizer
    case StateType::kBytes:
      return uint64_t{256} << 20;
    default:
      return 8;
  }
}

std::string TensorMeta::text() const {
  return str_cat(tensor_kind_name(kind), state.empty() ? "" : ":", printable(state), " tensor '",
                 printable(name), "'");
}

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.size() > 200 || name[0] == '.' || !is_valid_utf8(name)) return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
}

void check_manifest(const Manifest& manifest, std::string_view what, Code code, bool complete) {
  const Checker checker(manifest, what, code);
  const StepCounters& c = manifest.counters;
  DS_CHECK(c.global_steps >= 0 && c.skipped_steps >= 0 && c.micro_steps >= 0 &&
               c.global_samples >= 0 && c.global_tokens >= 0,
           code, what, ": a step counter is negative");
  const WorldTopology& w = manifest.topology;
  DS_CHECK(w.world > 0 && w.data > 0 && w.tensor > 0 && w.pipeline > 0 && w.sequence > 0 &&
               w.expert > 0 && w.zero_stage >= 0 && w.zero_stage <= 3,
           code, what, ": the topology has an impossible size");
  checker.blobs();
  checker.tensors(complete);
  checker.states();
  checker.run();
}

}  // namespace ds
