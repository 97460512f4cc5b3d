// What a load reads, in parts: so much at a time that a caller can watch and end it, and that the
// disk hardly notices. The first, by which keeping is judged, is small.
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/reader.h"
#include "engine/call_control.h"

namespace ds {

class LoadParts {
 public:
  LoadParts(CallControl& control, std::span<const TensorTarget> targets)
      : rest_(targets), call_(control, "load", bytes_of(targets)) {}

  bool finished() const { return rest_.empty(); }
  std::span<const TensorTarget> rest() const { return rest_; }

  // Asks before the first part: a load that is ended here has changed nothing.
  void begin() {
    if (!finished()) call_.next(0);
  }
  // Asks before a later one; false where there is none.
  bool next() {
    if (finished()) return false;
    if (taken_ > 0) call_.next(taken_);
    return true;
  }
  std::span<const TensorTarget> take() {
    const int64_t most = taken_ == 0 ? kPartBytes / 8 : kPartBytes;
    size_t count = 0;
    for (int64_t part = 0; count < rest_.size() && part < most; ++count) {
      part += bytes_of(rest_.subspan(count, 1));
    }
    const std::span<const TensorTarget> part = rest_.first(count);
    taken_ += bytes_of(part);
    rest_ = rest_.subspan(count);
    return part;
  }

 private:
  static constexpr int64_t kPartBytes = int64_t{1} << 29;
  static int64_t bytes_of(std::span<const TensorTarget> targets) {
    int64_t bytes = 0;
    for (const TensorTarget& target : targets) {
      const TensorMeta& meta = target.tensor->meta;
      const int64_t elements =
          target.range ? target.range->end - target.range->begin : Shape(meta.shape).elements();
      bytes += elements * dtype_size(meta.dtype);
    }
    return bytes;
  }

  std::span<const TensorTarget> rest_;
  int64_t taken_ = 0;
  CallControl::Call call_;
};

}  // namespace ds
