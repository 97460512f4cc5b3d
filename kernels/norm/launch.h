// How rows of a normalisation are shared out, whatever the instruction set.
#pragma once

#include "base/thread_pool.h"
#include "kernels/reduce/reduce.h"

namespace ds::kernels {

// Calls rows(call, begin, end) for chunks of rows.
template <class Call, class Rows>
void launch_norm(const Call& call, ThreadPool& pool, const Rows& rows) {
  if (call.cols <= 0) return;
  constexpr int64_t kElements = 16384;
  const int64_t grain = call.cols >= kElements ? 1 : kElements / call.cols;
  pool.for_range(call.rows, grain, [&](int64_t begin, int64_t end) { rows(call, begin, end); });
}

// Calls rows(call, begin, end, dgamma, dbeta) with every chunk's own sums, and adds those up in
// order. Without kCentred there is no dbeta.
template <class Call, class Rows>
void launch_norm_backward(const Call& call, ThreadPool& pool, const Rows& rows) {
  if (call.rows <= 0 || call.cols <= 0) return;
  const int64_t size = row_chunk_size(call.rows), chunks = row_chunks(call.rows);
  float* const dgamma = call.partials;
  float* const dbeta = Call::kCentred ? call.partials + chunks * call.cols : nullptr;
  pool.for_range(call.rows, size, [&](int64_t begin, int64_t end) {
    const int64_t at = begin / size * call.cols;
    rows(call, begin, end, dgamma + at, dbeta != nullptr ? dbeta + at : nullptr);
  });
  add_partial_sums(dgamma, chunks, call.cols, call.dgamma, pool);
  if constexpr (Call::kCentred) add_partial_sums(dbeta, chunks, call.cols, call.dbeta, pool);
}

}  // namespace ds::kernels
