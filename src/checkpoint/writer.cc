#include "checkpoint/writer.h"

#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "checkpoint/retention.h"

namespace ds {
namespace {

// Longer values lie in the blob, so that the manifest stays quick to read.
constexpr size_t kInlineBytes = 64 << 10;

std::filesystem::path prepared_save_dir(const CheckpointWriterOptions& options) {
  check_tag(options.tag);
  DS_CHECK(!options.folder.empty(), Code::kInvalidArgument,
           "a checkpoint needs a folder to be saved in");
  make_folders(options.folder);
  clean_save_folder(options.folder);
  return options.folder;
}

// Moves `from` into `to`: blobs keep their files, ranges get the new blob numbers.
void absorb(Manifest* to, Manifest from) {
  const auto base = static_cast<uint32_t>(to->blobs.size());
  for (BlobRecord& blob : from.blobs) to->blobs.push_back(std::move(blob));
  std::map<std::tuple<std::string, TensorKind, std::string>, size_t> known;
  for (size_t i = 0; i < to->tensors.size(); ++i) {
    const TensorMeta& meta = to->tensors[i].meta;
    known[{meta.name, meta.kind, meta.state}] = i;
  }
  for (TensorRecord& tensor : from.tensors) {
    for (TensorSlice& slice : tensor.slices) slice.range.blob += base;
    const auto [it, fresh] = known.try_emplace(
        {tensor.meta.name, tensor.meta.kind, tensor.meta.state}, to->tensors.size());
    if (fresh) {
      to->tensors.push_back(std::move(tensor));
      continue;
    }
    TensorRecord& mine = to->tensors[it->second];
    DS_CHECK(mine.meta == tensor.meta, Code::kInvalidArgument, "two ranks describe the ",
             tensor.meta.text(), " differently (dtype, shape, aliases or flags)");
    mine.slices.insert(mine.slices.end(), tensor.slices.begin(), tensor.slices.end());
  }
  for (StateRecord& state : from.states) {
    if (state.range) state.range->blob += base;
    to->states.push_back(std::move(state));
  }
}

}  // namespace

PartWriter::PartWriter(std::filesystem::path folder, int rank, const BlobOptions& options)
    : folder_(std::move(folder)), rank_(rank), options_(options) {
  DS_CHECK(rank >= 0, Code::kInvalidArgument, "rank ", rank, " is negative");
  blob_block_bytes(options.chunk_bytes);  // checks it
  manifest_.tag = "part";
}

// Runs one call; a failure leaves a file in an unknown state, so the part is unusable then.
template <class Fn>
void PartWriter::guarded(const Fn& fn) {
  DS_CHECK(!failed_, Code::kState, "an earlier error ended this checkpoint; start a new one");
  DS_CHECK(!finished_, Code::kState, "this checkpoint is already finished");
  failed_ = true;
  fn();
  failed_ = false;
}

BlobWriter& PartWriter::blob() {
  if (blob_ == nullptr) {
    blob_ = std::make_unique<BlobWriter>(folder_, blob_file_name(rank_), options_);
  }
  return *blob_;
}

void PartWriter::begin_tensor(const TensorMeta& meta, const Box& box) {
  guarded([&] {
    DS_CHECK(!open_, Code::kState, "begin_tensor before end_tensor of the tensor before");
    const int64_t size = dtype_size(meta.dtype);
    checked_elements(meta.shape, size, Code::kInvalidArgument, meta.text());
    check_box(box, meta.shape, Code::kInvalidArgument, meta.text());
    const auto [it, fresh] =
        index_.try_emplace({meta.name, meta.kind, meta.state}, manifest_.tensors.size());
    if (fresh) manifest_.tensors.push_back({meta, {}});
    TensorRecord& record = manifest_.tensors[it->second];
    DS_CHECK(record.meta == meta, Code::kInvalidArgument, "the ", meta.text(),
             " was added before with another dtype, shape, aliases or flags");
    open_ = true;
    remaining_ = static_cast<uint64_t>(box.elements() * size);
    if (remaining_ == 0) return;  // an empty tensor has no slices
    record.slices.push_back({box, {0, blob().begin(remaining_), remaining_}});
  });
}

void PartWriter::append(std::span<const std::byte> bytes, Lifetime lifetime) {
  guarded([&] {
    DS_CHECK(open_, Code::kState, "append without begin_tensor");
    DS_CHECK(bytes.size() <= remaining_, Code::kInvalidArgument, "append of ", bytes.size(),
             " bytes to a slice that expects ", remaining_, " more");
    if (bytes.empty()) return;
    if (lifetime == Lifetime::kUntilFinish) {
      blob().write_lasting(bytes);
    } else {
      blob().write(bytes);
    }
    remaining_ -= bytes.size();
  });
}

void PartWriter::end_tensor() {
  guarded([&] {
    DS_CHECK(open_, Code::kState, "end_tensor without begin_tensor");
    DS_CHECK(remaining_ == 0, Code::kInvalidArgument, "end_tensor with ", remaining_,
             " bytes missing");
    open_ = false;
  });
}

void PartWriter::add_tensor(const TensorMeta& meta, const Box& box,
                            std::span<const std::byte> bytes, Lifetime lifetime) {
  check_box(box, meta.shape, Code::kInvalidArgument, meta.text());
  checked_elements(meta.shape, dtype_size(meta.dtype), Code::kInvalidArgument, meta.text());
  const int64_t expected = box.elements() * dtype_size(meta.dtype);
  DS_CHECK(bytes.size() == static_cast<uint64_t>(expected), Code::kInvalidArgument, "the ",
           meta.text(), " slice ", box.text(), " needs ", expected, " bytes, not ", bytes.size());
  begin_tensor(meta, box);
  append(bytes, lifetime);
  end_tensor();
}

void PartWriter::add_tensor(const TensorMeta& meta, std::span<const std::byte> bytes,
                            Lifetime lifetime) {
  add_tensor(meta, full_box(meta.shape), bytes, lifetime);
}

void PartWriter::add_range(const TensorMeta& meta, int64_t begin, int64_t end,
                           std::span<const std::byte> bytes, Lifetime lifetime) {
  const int64_t size = dtype_size(meta.dtype);
  checked_elements(meta.shape, size, Code::kInvalidArgument, meta.text());
  const std::vector<Box> boxes = boxes_of_range(meta.shape, begin, end);
  DS_CHECK(bytes.size() == static_cast<uint64_t>((end - begin) * size), Code::kInvalidArgument,
           "the ", meta.text(), " range ", begin, ":", end, " needs ", (end - begin) * size,
           " bytes, not ", bytes.size());
  for (const Box& box : boxes) {
    const auto n = static_cast<size_t>(box.elements() * size);
    add_tensor(meta, box, bytes.first(n), lifetime);
    bytes = bytes.subspan(n);
  }
}

StateRecord& PartWriter::new_state(const std::string& name, StateType type) {
  DS_CHECK(!open_, Code::kState, "a state entry between begin_tensor and end_tensor");
  StateRecord& state = manifest_.states.emplace_back();
  state.name = name;
  state.type = type;
  return state;
}

void PartWriter::set_int(const std::string& name, int64_t value) {
  guarded([&] { new_state(name, StateType::kInt).integer = value; });
}

void PartWriter::set_double(const std::string& name, double value) {
  guarded([&] { new_state(name, StateType::kDouble).real = value; });
}

void PartWriter::set_blob_value(const std::string& name, StateType type,
                                std::span<const std::byte> value) {
  guarded([&] {
    StateRecord& state = new_state(name, type);
    if (value.size() <= kInlineBytes) {
      state.bytes.assign(reinterpret_cast<const char*>(value.data()), value.size());
      return;
    }
    state.range = BlobRange{0, blob().begin(value.size()), value.size()};
    blob().write(value);
  });
}

void PartWriter::set_text(const std::string& name, std::string_view value) {
  set_blob_value(name, StateType::kText, std::as_bytes(std::span(value)));
}

void PartWriter::set_json(const std::string& name, const Json& value) {
  const std::string text = dump_json(value);
  set_blob_value(name, StateType::kJson, std::as_bytes(std::span(text)));
}

void PartWriter::set_bytes(const std::string& name, std::span<const std::byte> value) {
  set_blob_value(name, StateType::kBytes, value);
}

Manifest PartWriter::finish() {
  guarded([&] {
    DS_CHECK(!open_, Code::kState, "the last tensor was not ended");
    if (blob_ != nullptr) manifest_.blobs.push_back(blob_->finish());
  });
  finished_ = true;
  return std::move(manifest_);
}

CheckpointWriter::CheckpointWriter(CheckpointWriterOptions options)
    : options_(std::move(options)),
      temporary_(prepared_save_dir(options_), options_.tag),
      part_(temporary_.path(), 0, options_.blob) {}

void CheckpointWriter::merge(const Manifest& part) {
  check_manifest(part, "a rank's part of the checkpoint", Code::kInvalidArgument, false);
  merged_.push_back(part);
}

void CheckpointWriter::commit() {
  try {
    Manifest manifest = part_.finish();
    for (Manifest& part : merged_) absorb(&manifest, std::move(part));
    merged_.clear();
    manifest.tag = options_.tag;
    manifest.writer = options_.writer;
    manifest.counters = options_.counters;
    manifest.topology = options_.topology;
    manifest.run = options_.run;
    check_manifest(manifest, str_cat("checkpoint '", options_.tag, "'"), Code::kInvalidArgument,
                   true);
    const std::string content = encode_manifest(manifest);
    File file(temporary_.path() / kManifestFile, File::Mode::kNew);
    file.append(content);
    file.sync();
    file.close();
    temporary_.publish(options_.update_latest, options_.exchange);
  } catch (...) {
    temporary_.discard();
    throw;
  }
  keep_newest(options_.folder, options_.run, options_.tag, options_.keep);
}

}  // namespace ds
