#include "models/weight_file.h"

#include <algorithm>
#include <cstring>

#include "io/file_array.h"

namespace ds::models {
namespace {

// Where tensors begin in an entry, and entries in the file.
constexpr int64_t kPartAlign = 64, kEntryAlign = io::kAlignment;
// Weights that are read ahead at a time; more push the oldest out.
constexpr size_t kMostAhead = 32;  // in order, and as many that are expected

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

WeightFile::WeightFile(const WeightFileOptions& options, std::shared_ptr<Device> device,
                       int64_t bytes)
    : elements_ahead_(options.elements_ahead) {
  io::FileArrayOptions files;
  files.folder = options.folder;
  files.setting = "offload_param.nvme_path of a generator";
  files.ranges_ahead = 2 * kMostAhead;
  files.queue = {.depth = 16, .block_bytes = int64_t{8} << 20, .threads = 4};
  array_ = std::make_shared<io::FileArrays>(files, std::move(device))
               ->make("weights", DType::kUInt8, round_up(bytes, kEntryAlign));
}

int64_t WeightFile::bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes = round_up(bytes, kPartAlign) + tensor.bytes();
  return round_up(bytes, kEntryAlign);
}

void WeightFile::keep_recent(const std::vector<int64_t>& elements) {
  for (const int64_t room : elements) recent_.push_back({room});
  if (!recent_.empty()) elements_ahead_ /= 2;
}

WeightFile::Entry WeightFile::put(const std::vector<Tensor>& tensors, int64_t elements,
                                  std::optional<size_t> group) {
  Stored entry{};
  entry.group = group;
  entry.begin = end_;
  entry.end = end_ + bytes_of(tensors);
  entry.elements = elements;
  DS_CHECK(entry.end <= array_.elements(), Code::kInternal, "a file of weights is too small");
  ArrayLease lease = array_.map(entry.begin, entry.end, Access::kWrite);
  auto* const to = static_cast<std::byte*>(lease.data().raw());
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t from = round_up(at, kPartAlign);
    std::memset(to + at, 0, static_cast<size_t>(from - at));
    std::memcpy(to + from, tensor.raw(), static_cast<size_t>(tensor.bytes()));
    entry.parts.push_back({from, tensor.dtype(), tensor.shape()});
    at = from + tensor.bytes();
  }
  std::memset(to + at, 0, static_cast<size_t>(entry.end - entry.begin - at));
  lease.close();
  end_ = entry.end;
  stored_.push_back(std::move(entry));
  return stored_.size() - 1;
}

const std::vector<Tensor>& WeightFile::hold(Entry entry) {
  Stored& stored = stored_[entry];
  const bool there = static_cast<bool>(stored.lease);
  if (!there) {
    if (!stored.fetched) reads_.bytes += stored.end - stored.begin;
    ArrayLease lease = array_.map(stored.begin, stored.end, Access::kRead);
    const Tensor& bytes = lease.data();
    const int64_t begin = static_cast<const std::byte*>(bytes.raw()) -
                          static_cast<const std::byte*>(bytes.storage()->data());
    for (const Part& part : stored.parts) {
      stored.tensors.emplace_back(bytes.storage(), begin + part.offset, part.dtype, part.shape);
    }
    stored.lease = std::move(lease);
  }
  const bool fetched = std::exchange(stored.fetched, false);
  if (++stored.users == 1 && there) {
    Recent& recent = recent_[*stored.group];
    recent.entries.remove(entry);
    recent.elements -= stored.elements;
  }
  if (stored.group) {
    ++reads_.expert_uses;
    if (there) ++reads_.expert_hits;
    if (const auto it = std::find(expected_.begin(), expected_.end(), entry);
        it != expected_.end()) {
      expected_.erase(it);
      if (fetched) expected_ahead_ -= stored.elements;
    }
    read_expected();
  } else {
    next_[used_] = entry;
    used_ = {used_.last, entry};
    read_ahead();
  }
  return stored.tensors;
}

void WeightFile::free(Stored& stored) noexcept {
  stored.tensors.clear();
  stored.lease = {};
}

void WeightFile::release(Entry entry) noexcept {
  Stored& stored = stored_[entry];
  if (--stored.users > 0) return;
  if (!stored.group || recent_[*stored.group].room < stored.elements) return free(stored);
  Recent& recent = recent_[*stored.group];
  try {
    recent.entries.push_front(entry);
  } catch (const std::bad_alloc&) {
    return free(stored);
  }
  recent.elements += stored.elements;
  while (recent.elements > recent.room) {
    Stored& oldest = stored_[recent.entries.back()];
    recent.entries.pop_back();
    recent.elements -= oldest.elements;
    free(oldest);
  }
}

void WeightFile::fetch(Stored& stored) {
  if (stored.lease || stored.fetched) return;
  array_.prefetch(stored.begin, stored.end);
  stored.fetched = true;
  reads_.bytes += stored.end - stored.begin;
}

void WeightFile::expect(std::span<const Entry> entries) {
  for (const Entry entry : expected_) stored_[entry].fetched = false;  // of a pass that failed
  expected_ahead_ = 0;
  expected_.assign(entries.begin(), entries.end());
  read_expected();
}

void WeightFile::read_expected() {
  size_t count = 0;
  for (const Entry entry : expected_) {
    Stored& stored = stored_[entry];
    if (stored.lease) continue;
    if (++count > kMostAhead) return;
    if (stored.fetched) continue;
    if (expected_ahead_ + stored.elements > elements_ahead_) return;
    fetch(stored);
    expected_ahead_ += stored.elements;
  }
}

// Along what followed the last times, round to where it begins again.
void WeightFile::read_ahead() {
  int64_t elements = 0;
  Pair at = used_;
  for (size_t count = 0; count < kMostAhead; ++count) {
    const auto next = next_.find(at);
    if (next == next_.end()) return;
    Stored& stored = stored_[next->second];
    elements += stored.elements;
    if (elements > elements_ahead_ || next->second == used_.last) return;
    fetch(stored);
    at = {at.last, next->second};
  }
}

}  // namespace ds::models
