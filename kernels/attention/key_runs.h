// Keys or values of one head in the pieces in which they lie: rows of a piece are evenly apart.
#pragma once

#include <algorithm>

#include "kernels/attention/attention.h"

namespace ds::kernels {

// for (KeyRuns<T> run(...); run.next();): rows [run.begin, run.end) of the `count` that are asked
// for. Tokens in one piece are one run, those in blocks one for each block.
template <class T>
class KeyRuns {
 public:
  KeyRuns(const HeadView<const T>& view, const TokenBlocks& blocks, int64_t b, int64_t first,
          int64_t count, int64_t head)
      : stride(view.token), blocks_(blocks), b_(b), first_(first), count_(count) {
    if (blocks_) {
      head_ = head * view.head;
    } else {
      rows_ = view.at(b, first, head);
    }
  }

  const int64_t stride;
  const T* rows = nullptr;   // row `begin`
  const T* after = nullptr;  // row `end`, where another run follows
  int64_t begin = 0, end = 0;

  int64_t count() const { return end - begin; }
  bool next() {
    if (end >= count_) return false;
    begin = end;
    if (!blocks_) {
      rows = rows_;
      end = count_;
      return true;
    }
    rows = after != nullptr ? after : row(begin);
    end = std::min(count_, begin + blocks_.tokens - (first_ + begin) % blocks_.tokens);
    after = end < count_ ? row(end) : nullptr;
    return true;
  }

 private:
  const T* row(int64_t i) const {
    return blocks_.template at<const T>(b_, first_ + i, stride) + head_;
  }

  const TokenBlocks blocks_;
  const int64_t b_, first_, count_;
  int64_t head_ = 0;         // of blocks
  const T* rows_ = nullptr;  // of one piece
};

// The rows one by one.
template <class T>
class KeyRows {
 public:
  using Type = T;
  KeyRows(const HeadView<const T>& view, const TokenBlocks& blocks, int64_t b, int64_t first,
          int64_t head)
      : blocks_(blocks), b_(b), first_(first), stride_(view.token), head_(head * view.head) {}
  const T* at(int64_t i) const {
    return blocks_.template at<const T>(b_, first_ + i, stride_) + head_;
  }

 private:
  const TokenBlocks blocks_;
  const int64_t b_, first_, stride_, head_;
};

}  // namespace ds::kernels
