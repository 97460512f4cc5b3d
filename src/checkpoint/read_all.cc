// Reading and checking many tensors at once, in the order in which they lie on the disk.
#include <algorithm>
#include <utility>

#include "checkpoint/reader.h"

namespace ds {
namespace {

// Read at a time of what goes to a sink by ordinary calls; whole elements of every type.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

// Where a box begins in the flattened tensor when its elements are neighbours there.
std::optional<int64_t> contiguous_begin(const Box& box, std::span<const int64_t> shape) {
  int64_t begin = 0, stride = 1;
  bool cut = false;  // a later dimension is not whole
  for (size_t d = shape.size(); d-- > 0;) {
    if (cut && box.extent[d] != 1) return std::nullopt;
    cut = cut || box.extent[d] != shape[d];
    begin += box.offset[d] * stride;
    stride *= shape[d];
  }
  return begin;
}

ElementRange wanted_range(const TensorTarget& target) {
  const TensorMeta& meta = target.tensor->meta;
  const int64_t elements =
      checked_elements(meta.shape, dtype_size(meta.dtype), Code::kInvalidArgument, meta.text());
  if (!target.range) return {0, elements};
  const ElementRange range = *target.range;
  DS_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= elements,
           Code::kInvalidArgument, "reading ", meta.text(), ": elements ", range.begin, " to ",
           range.end, " are not a part of its ", elements);
  return range;
}

void sort_by_place(std::vector<BlobPart>& parts) {
  std::sort(parts.begin(), parts.end(),
            [](const BlobPart& a, const BlobPart& b) { return a.offset < b.offset; });
}

bool overlap(std::span<const BlobPart> parts) {
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].offset < parts[i - 1].end()) return true;
  }
  return false;
}

}  // namespace

// What lies in which blob of the targets whose tensors' slices are ranges of them; the others are
// `scattered`. Without `places` parts are only checked.
std::vector<std::vector<BlobPart>> CheckpointReader::parts_of(
    std::span<const TensorTarget> targets, bool places, std::vector<size_t>& scattered) const {
  std::vector<std::vector<BlobPart>> parts(blobs_.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    const TensorRecord& tensor = *targets[i].tensor;
    const TensorMeta& meta = tensor.meta;
    const auto size = static_cast<uint64_t>(dtype_size(meta.dtype));
    const bool sinks = static_cast<bool>(targets[i].sink);
    const ElementRange wanted = wanted_range(targets[i]);
    DS_CHECK(
        sinks || targets[i].out.size() == static_cast<uint64_t>(wanted.end - wanted.begin) * size,
        Code::kInvalidArgument, "reading ", meta.text(), " into a buffer of ",
        targets[i].out.size(), " bytes, which is not its size");
    const bool ranges =
        std::all_of(tensor.slices.begin(), tensor.slices.end(), [&](const TensorSlice& slice) {
          return contiguous_begin(slice.box, meta.shape).has_value();
        });
    if (!ranges) {
      scattered.push_back(i);
      continue;
    }
    for (const TensorSlice& slice : tensor.slices) {
      // The slice's bytes of the tensor, and those of them that are wanted.
      const auto at = static_cast<uint64_t>(*contiguous_begin(slice.box, meta.shape)) * size;
      const uint64_t from = static_cast<uint64_t>(wanted.begin) * size;
      const uint64_t begin = std::max(at, from);
      const uint64_t end =
          std::min(at + slice.range.length, static_cast<uint64_t>(wanted.end) * size);
      if (begin >= end) continue;
      const bool here = places && !sinks;
      parts[slice.range.blob].push_back({slice.range.offset + begin - at, end - begin,
                                         here ? targets[i].out.data() + (begin - from) : nullptr,
                                         places && sinks ? &targets[i].sink : nullptr, begin - from,
                                         i});
    }
  }
  return parts;
}

void CheckpointReader::read_all(std::span<const TensorTarget> targets,
                                const OverwriteNotice& notice) const {
  std::vector<char> told(targets.size(), 0);  // of what sinks write
  const auto tell_of_sink = [&](size_t item) {
    if (std::exchange(told[item], 1) != 0) return;
    for (const std::span<std::byte> memory : targets[item].sink_memory) notice(memory);
  };
  PartNotice tell;
  if (notice) {
    tell = [&](const BlobPart& part, uint64_t begin, uint64_t end) {
      if (part.target == nullptr) return tell_of_sink(part.item);
      notice({part.target + (begin - part.offset), static_cast<size_t>(end - begin)});
    };
  }
  std::vector<size_t> scattered;
  std::vector<std::vector<BlobPart>> parts = parts_of(targets, true, scattered);
  for (size_t blob = 0; blob < parts.size(); ++blob) {
    sort_by_place(parts[blob]);
    read_parts(*blobs_[blob], parts[blob], targets, tell);
  }
  for (const size_t i : scattered) {
    const TensorTarget& target = targets[i];
    const ElementRange wanted = wanted_range(target);
    if (!target.sink) {
      if (notice) notice(target.out);
      read_range(*target.tensor, wanted.begin, wanted.end, target.out);
      continue;
    }
    if (notice) tell_of_sink(i);
    const int64_t size = dtype_size(target.tensor->meta.dtype);
    const int64_t piece = kPieceBytes / size;
    std::vector<std::byte> bytes;
    for (int64_t begin = wanted.begin, end; begin < wanted.end; begin = end) {
      end = std::min(wanted.end, begin + piece);
      bytes.resize(static_cast<size_t>((end - begin) * size));
      read_range(*target.tensor, begin, end, bytes);
      target.sink(static_cast<uint64_t>((begin - wanted.begin) * size), bytes);
    }
  }
}

void CheckpointReader::check_all(std::span<const TensorTarget> targets) const {
  std::vector<size_t> scattered;
  std::vector<std::vector<BlobPart>> parts = parts_of(targets, false, scattered);
  for (const size_t i : scattered) {
    for (const TensorSlice& slice : targets[i].tensor->slices) {
      parts[slice.range.blob].push_back(
          {slice.range.offset, slice.range.length, nullptr, nullptr, 0, i});
    }
  }
  for (size_t blob = 0; blob < parts.size(); ++blob) {
    std::vector<BlobPart>& list = parts[blob];
    sort_by_place(list);
    // What lies in two of them is checked once.
    uint64_t done = 0;
    for (BlobPart& part : list) {
      const uint64_t end = std::max(part.end(), done);
      part.offset = std::max(part.offset, done);
      part.bytes = end - part.offset;
      done = end;
    }
    std::erase_if(list, [](const BlobPart& part) { return part.bytes == 0; });
    read_parts(*blobs_[blob], list, targets, {});
  }
}

// `parts` rise by offset.
void CheckpointReader::read_parts(const BlobReader& blob, std::span<const BlobPart> parts,
                                  std::span<const TensorTarget> targets,
                                  const PartNotice& notice) const {
  const auto name = [&](const BlobPart& part) { return targets[part.item].tensor->meta.text(); };
  const BlobRecord& record = blob.record();
  const bool sinks = std::any_of(parts.begin(), parts.end(),
                                 [](const BlobPart& part) { return part.sink != nullptr; });
  // Chunks of other sizes would cut elements.
  const bool whole_elements = record.chunk_bytes % sizeof(uint64_t) == 0;
  if (parts.empty()) return;
  if (record.size >= BulkRead::kLeastBytes && (whole_elements || !sinks) && !overlap(parts)) {
    std::optional<uint64_t> damaged;
    const auto on_damage = [&](uint64_t chunk) {
      damaged = chunk;
      return false;
    };
    BulkRead(blob.path(), record, pool_).run(parts, on_damage, notice);
    if (!damaged) return;
    const auto part = std::partition_point(parts.begin(), parts.end(), [&](const BlobPart& p) {
      return p.end() <= blob.chunk_begin(*damaged);
    });
    fail_damaged(blob, *damaged, name(*part));
  }
  const auto index = static_cast<uint32_t>(&record - manifest_->blobs.data());
  std::vector<std::byte> scratch;
  for (const BlobPart& part : parts) {
    if (notice) notice(part, part.offset, part.end());
    if (part.target != nullptr) {
      read_blob({index, part.offset, part.bytes}, {part.target, static_cast<size_t>(part.bytes)},
                name(part));
      continue;
    }
    for (uint64_t done = 0, bytes; done < part.bytes; done += bytes) {
      bytes = std::min<uint64_t>(part.bytes - done, kPieceBytes);
      scratch.resize(static_cast<size_t>(bytes));
      read_blob({index, part.offset + done, bytes}, scratch, name(part));
      if (part.sink != nullptr) (*part.sink)(part.at + done, scratch);
    }
  }
}

std::vector<Damage> CheckpointReader::verify_all() const {
  std::vector<Damage> out;
  std::vector<std::byte> scratch;
  ahead_->reset();
  for (const auto& blob : blobs_) {
    const BlobRecord& record = blob->record();
    std::vector<uint64_t> damaged;
    if (record.size >= BulkRead::kLeastBytes) {
      const BlobPart whole{0, record.size};
      BulkRead(blob->path(), record, pool_).run({&whole, 1}, [&](uint64_t chunk) {
        damaged.push_back(chunk);
        return true;
      });
    } else {
      for (uint64_t i = 0; i < record.checksums.size(); ++i) {
        if (!blob->read_chunk(i, &scratch)) damaged.push_back(i);
      }
    }
    for (size_t i = 0; i < damaged.size();) {
      const uint64_t first = damaged[i];
      uint64_t last = first;
      while (++i < damaged.size() && damaged[i] == last + 1) ++last;
      out.push_back(damage(*blob, first, last));
    }
  }
  return out;
}

}  // namespace ds
