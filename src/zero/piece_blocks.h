// How the pieces of a bucket are cut into blocks of one scale when they travel quantised: no block
// holds elements of two parameters, whose magnitudes may differ.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/block_quantize.h"
#include "zero/flat_layout.h"

namespace ds::zero {

// Calls fn(begin, end) for the part of each parameter, padding included, in a rank's piece, counted
// from the piece's begin.
template <class Fn>
void for_parts(const FlatLayout& layout, const Bucket& bucket, int rank, const Fn& fn) {
  const FlatRange piece = layout.piece(bucket, rank);
  int64_t begin = piece.begin;
  for (size_t i = bucket.first + 1; i <= bucket.last && begin < piece.end; ++i) {
    const int64_t next = i < bucket.last ? layout.range(layout.order()[i]).begin : bucket.range.end;
    const int64_t end = std::clamp(next, begin, piece.end);
    if (end > begin) fn(begin - piece.begin, end - piece.begin);
    begin = end;
  }
}

// Where the blocks of a rank's piece begin; last its end.
inline std::vector<int64_t> piece_blocks(const FlatLayout& layout, const Bucket& bucket, int rank) {
  std::vector<int64_t> begins{0};
  for_parts(layout, bucket, rank, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      at = std::min(at + kernels::kMostBlockElements, end);
      begins.push_back(at);
    }
  });
  return begins;
}

// Bytes of the message of a piece, the same for all pieces of a bucket.
inline int64_t piece_bytes(const FlatLayout& layout, const Bucket& bucket, int bits) {
  constexpr int64_t kBlock = kernels::kMostBlockElements;
  int64_t most = 0;
  for (int rank = 0; rank < layout.world(bucket); ++rank) {
    int64_t blocks = 0;
    for_parts(layout, bucket, rank,
              [&](int64_t begin, int64_t end) { blocks += (end - begin + kBlock - 1) / kBlock; });
    most = std::max(most, blocks);
  }
  return ops::packed_bytes(bits, bucket.piece, most);
}

}  // namespace ds::zero
