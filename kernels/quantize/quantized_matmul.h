// y = x w^T + bias for many rows of x and weights in 8 or 4 bits, by products of 8-bit integers.
//
// Each row of x becomes 8-bit codes as it comes, in pieces of 256, 64 or 32 elements that share a
// scale: the longest that divides a group of w, or 64 if its groups are whole rows and no piece of
// 256 is used. Those are where the last of a row has zeros for an eighth of the row at most. Of a
// piece scale = max |x| / 127, code = round(x / scale), halves to even; its products are summed
// exactly in 32 bits, then scaled and added to an fp32 sum, in the order of k. So results are the
// same bits for any number of threads, and those of a row do not depend on what rows come with it.
// A piece with a NaN or an infinity makes its row NaN; one whose numbers are all below 1e-35 counts
// as zeros.
//
// An element of x is off by half a step at most: |error of y| <= sum over pieces of
// scale / 2 * sum |w|, beside rounding.
#pragma once

#include "base/thread_pool_fwd.h"
#include "kernels/quantize/quantize.h"

namespace ds::kernels {

struct QuantizedMatmul {
  QuantizedMatrix w;
  FloatType type = FloatType::kFloat32;  // of x and bias
  FloatType out = FloatType::kFloat32;   // of y: that of x, or fp32
  int64_t m = 0;
  const void* x = nullptr;     // [m, k]
  const void* bias = nullptr;  // [n] or null
  void* y = nullptr;           // [m, n]
  void* scratch = nullptr;     // quantized_matmul_scratch() bytes, aligned to 64
};

// The instructions that multiply; all give the same bits. kAuto takes the first that this CPU runs,
// and none where floating point is as fast.
enum class CodePath { kAuto, kAmx, kVnni, kAvx2 };

// Whether this CPU has such products and w such groups: multiples of 32, or whole rows.
bool quantized_matmul_runs(const QuantizedShape& w, CodePath path = CodePath::kAuto);
int64_t quantized_matmul_scratch(const QuantizedShape& w, int64_t m,
                                 CodePath path = CodePath::kAuto);
void quantized_matmul(const QuantizedMatmul& call, ThreadPool& pool,
                      CodePath path = CodePath::kAuto);

}  // namespace ds::kernels
