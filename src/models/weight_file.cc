#include "models/weight_file.h"

#include <cstring>

#include "io/file_array.h"

namespace ds::models {
namespace {

// Where tensors begin in an entry, and entries in the file.
constexpr int64_t kPartAlign = 64, kEntryAlign = io::kAlignment;
// Weights that are read ahead at a time; more push the oldest out.
constexpr size_t kMostAhead = 32;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

WeightFile::WeightFile(const WeightFileOptions& options, std::shared_ptr<Device> device,
                       int64_t bytes)
    : elements_ahead_(options.elements_ahead) {
  io::FileArrayOptions files;
  files.folder = options.folder;
  files.setting = "offload_param.nvme_path of a generator";
  files.ranges_ahead = kMostAhead;
  files.queue = {.depth = 16, .block_bytes = int64_t{8} << 20, .threads = 4};
  array_ = std::make_shared<io::FileArrays>(files, std::move(device))
               ->make("weights", DType::kUInt8, round_up(bytes, kEntryAlign));
}

int64_t WeightFile::bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes = round_up(bytes, kPartAlign) + tensor.bytes();
  return round_up(bytes, kEntryAlign);
}

WeightFile::Entry WeightFile::put(const std::vector<Tensor>& tensors) {
  Stored entry{};
  entry.begin = end_;
  entry.end = end_ + bytes_of(tensors);
  entry.elements = tensors.front().elements();
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
  if (stored.users == 0) {
    ArrayLease lease = array_.map(stored.begin, stored.end, Access::kRead);
    const Tensor& bytes = lease.data();
    const int64_t begin = static_cast<const std::byte*>(bytes.raw()) -
                          static_cast<const std::byte*>(bytes.storage()->data());
    for (const Part& part : stored.parts) {
      stored.tensors.emplace_back(bytes.storage(), begin + part.offset, part.dtype, part.shape);
    }
    stored.lease = std::move(lease);
  }
  ++stored.users;
  next_[used_] = entry;
  used_ = {used_.last, entry};
  read_ahead();
  return stored.tensors;
}

void WeightFile::release(Entry entry) noexcept {
  Stored& stored = stored_[entry];
  if (--stored.users > 0) return;
  stored.tensors.clear();
  stored.lease = {};
}

// Along what followed the last times, round to where it begins again.
void WeightFile::read_ahead() {
  int64_t elements = 0;
  Pair at = used_;
  for (size_t count = 0; count < kMostAhead; ++count) {
    const auto next = next_.find(at);
    if (next == next_.end()) return;
    const Stored& stored = stored_[next->second];
    elements += stored.elements;
    if (elements > elements_ahead_ || next->second == used_.last) return;
    if (stored.users == 0) array_.prefetch(stored.begin, stored.end);
    at = {at.last, next->second};
  }
}

}  // namespace ds::models
