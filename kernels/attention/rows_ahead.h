// Rows that are wanted soon, fetched into the cache a few lines at a time between other work: rows
// of a head lie too far apart for the hardware to see what comes next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ds::kernels {

class RowsAhead {
 public:
  RowsAhead() = default;
  // Rows of `width` elements, `stride` elements apart.
  template <class T>
  RowsAhead(const T* first, int64_t stride, int64_t rows, int64_t width)
      : row_(reinterpret_cast<const char*>(first)),
        stride_(stride * static_cast<int64_t>(sizeof(T))),
        bytes_(width * static_cast<int64_t>(sizeof(T))),
        rows_(rows) {}

  bool done() const { return rows_ <= 0; }

  void fetch_line() {
    __builtin_prefetch(row_ + line_);
    line_ += 64;
    if (line_ < bytes_) return;
    line_ = 0;
    row_ += stride_;
    --rows_;
  }

 private:
  const char* row_ = nullptr;
  int64_t stride_ = 0, bytes_ = 0, rows_ = 0, line_ = 0;
};

// Rows that a block of queries and what comes after it want, in this order.
class Ahead {
 public:
  // What the block writes at its end, and the queries of the next one.
  void of_block(const RowsAhead& out, const RowsAhead& queries) {
    rows_[0] = out;
    rows_[1] = queries;
    at_ = 0;
  }
  // What is packed next.
  void of_stretch(const RowsAhead& keys, const RowsAhead& values) {
    rows_[2] = keys;
    rows_[3] = values;
  }
  void fetch_line() {
    for (; at_ < rows_.size(); ++at_) {
      if (!rows_[at_].done()) return rows_[at_].fetch_line();
    }
  }

 private:
  std::array<RowsAhead, 4> rows_;
  size_t at_ = 0;
};

}  // namespace ds::kernels
