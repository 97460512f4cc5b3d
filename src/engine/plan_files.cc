#include "engine/plan_files.h"

#include <algorithm>
#include <utility>

namespace ds {

FileMemory::FileMemory(std::shared_ptr<Device> device, std::shared_ptr<Device> buffers,
                       const io::FileArrayOptions& options, int64_t part_bytes, int64_t stay,
                       Tensor aside)
    : device_(std::move(device)),
      buffers_(std::move(buffers)),
      ahead_(options.read_ahead),
      behind_(options.write_behind),
      kept_(options.kept_bytes),
      stay_(stay),
      aside_(std::move(aside)),
      spare_(std::max(options.part_bytes, part_bytes)) {}

// In the middle of whole pages.
Tensor FileMemory::read(DType type, int64_t elements, int64_t begin) {
  const int64_t item = dtype_size(type), end = begin + elements;
  if (end <= stay_) return {};
  const int64_t from = std::max(begin, stay_), shift = (from - stay_) * item % io::kAlignment;
  const int64_t bytes = shift + (end - from) * item;
  const Tensor buffer = spare_.take(bytes, [this](int64_t size) {
    return Tensor::empty(buffers_, DType::kUInt8, {size}, MemoryTag::kIo);
  });
  const auto give = [self = shared_from_this(), buffer, bytes] {
    self->spare_.give(buffer, bytes);
  };
  const auto lent =
      std::make_shared<Storage>(DeviceKind::kCpu, 0, buffer.raw(), bytes, false, give);
  return {lent, 0, type, {end - from}};
}

Tensor FileMemory::joined(const Tensor& read, DType type, int64_t elements) const {
  if (!read || read.elements() == elements) return {};
  return Tensor::empty(device_, type, {elements}, MemoryTag::kIo);
}

Tensor FileMemory::take(DType type, int64_t elements, int64_t begin) {
  const Tensor there = read(type, elements, begin);
  if (!there) return Tensor(aside_.storage(), 0, type, {elements});
  const Tensor both = joined(there, type, elements);
  if (!both) return there;
  const auto lent = std::make_shared<Storage>(DeviceKind::kCpu, 0, both.raw(), both.bytes(), false,
                                              [there, both] {});
  return {lent, 0, type, {elements}};
}

void MappedArray::open(int64_t elements, int64_t begin) {
  mapped = fetched ? std::exchange(fetched, {}) : files->read(type, elements, begin);
  joined = files->joined(mapped, type, elements);
}

void MappedArray::prefetch(int64_t elements, int64_t begin) {
  if (elements > 0 && files->reads_ahead()) fetched = files->read(type, elements, begin);
}

void MappedArray::close() {
  if (written && mapped) {
    writing = {};
    if (files->writes_behind()) writing = mapped;
  }
  mapped = {};
  joined = {};
}

}  // namespace ds
