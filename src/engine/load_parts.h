// What a load reads, in parts: so much at a time that a caller can watch and end it, and that the
// disk hardly notices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "checkpoint/reader.h"
#include "engine/call_control.h"
#include "engine/stopwatch.h"
#include "tensor/tensor.h"

namespace ds {

class LoadParts {
 public:
  // Of the bytes in the files, of the first part and while nothing better is known.
  static constexpr int64_t kFirstBytes = int64_t{1} << 26;
  static constexpr int64_t kUsualBytes = int64_t{1} << 29;
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

  LoadParts(CallControl& control, std::span<const TensorTarget> targets)
      : rest_(targets), call_(control, "load", bytes_of(targets)) {}

  bool finished() const { return rest_.empty(); }
  // What is neither read nor checked.
  std::span<const TensorTarget> open() const { return rest_.first(rest_.size() - checked_); }

  // Asks before the first part: a load that is ended here has changed nothing.
  void begin() {
    if (!finished()) call_.next(0);
  }
  // Asks before a later one; false where there is none.
  bool next() {
    if (finished()) return false;
    if (begun_) {
      call_.next(taken_);
    } else {
      watch_ = Stopwatch();
    }
    begun_ = true;
    return true;
  }
  // What moves in half a second at the rate so far. Between parts the disk idles for some ten
  // milliseconds, so they should not be short; a load ends only between them, so not long either.
  int64_t bytes_of_part() const {
    constexpr double kSeconds = 0.5, kMostBytes = int64_t{1} << 32;
    if (moved_ == 0) return kFirstBytes;
    const double rate = static_cast<double>(moved_) / std::max(watch_.seconds(), 1e-3);
    return std::max(kFirstBytes, static_cast<int64_t>(std::min(rate * kSeconds, kMostBytes)));
  }
  // To read: the first ones, those that are open before others, until they have so many bytes.
  std::span<const TensorTarget> take(int64_t bytes) {
    const std::span<const TensorTarget> from = open().empty() ? rest_ : open();
    size_t count = 0;
    for (int64_t part = 0; count < from.size() && part < bytes; ++count) {
      part += bytes_of(from.subspan(count, 1));
    }
    const std::span<const TensorTarget> part = from.first(count);
    taken_ += bytes_of(part);
    moved_ += bytes_of(part);
    rest_ = rest_.subspan(count);
    checked_ = std::min(checked_, rest_.size());
    return part;
  }
  std::span<const TensorTarget> take() { return take(bytes_of_part()); }
  // To check alone: of those that are open the last ones, at most `most` and until they have so
  // many bytes.
  std::span<const TensorTarget> check(size_t most, int64_t bytes) {
    const std::span<const TensorTarget> here = open();
    size_t count = 0;
    for (int64_t part = 0; count < most && part < bytes; ++count) {
      part += bytes_of(here.subspan(here.size() - 1 - count, 1));
    }
    checked_ += count;
    moved_ += bytes_of(here.last(count));
    return here.last(count);
  }

 private:
  std::span<const TensorTarget> rest_;
  size_t checked_ = 0;  // of rest_, the last ones
  int64_t taken_ = 0;   // read, or being read
  int64_t moved_ = 0;   // read or checked, or on the way
  Stopwatch watch_;     // since the first part
  bool begun_ = false;
  CallControl::Call call_;
};

}  // namespace ds
