// Matrix products on the CPU: C[m,n] = op(A)[m,k] op(B)[k,n] (+ bias[n]) (+ C).
//
// The one place that calls the matrix library (oneDNN). C is cut into tiles by the problem's size
// alone, and each tile is one single-threaded library call on a thread of the pool, so results are
// the same bits for any number of threads. The library's own OpenMP threads are never used, and the
// calling thread's OpenMP settings are restored.
//
// Besides the pool's threads' stacks, each thread that multiplies bf16 or fp16 keeps one scratch
// buffer of a few MiB until it ends (the library's scratchpad; see onednn.h and widen.h).
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace ds::kernels {

enum class MatmulType { kFloat32, kBFloat16, kFloat16 };

// A row-major operand, rows `stride` elements apart (at least the row length). When transposed, the
// stored matrix is the transpose of the operand: A [k,m] or B [n,k].
struct MatmulInput {
  const void* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

struct Matmul {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  MatmulType in = MatmulType::kFloat32;   // of A, B and bias
  MatmulType out = MatmulType::kFloat32;  // of C: that of the inputs, or fp32
  MatmulInput a;
  MatmulInput b;
  const void* bias = nullptr;  // [n], or null
  void* c = nullptr;           // overlaps no input
  int64_t c_stride = 0;
  bool accumulate = false;  // add to C
};

// How 16-bit operands are multiplied. kAuto asks the library for bf16, and widens tiles to fp32
// where it has no code for this CPU; fp16 tiles are always widened, because what the library makes
// of them differs (none, or sums in fp16). Tests choose a path.
enum class MatmulPath { kAuto, kWiden };

// Throws Error(kOutOfMemory) or Error(kInternal) naming the sizes when the library fails.
void matmul(const Matmul& problem, ThreadPool& pool, MatmulPath path = MatmulPath::kAuto);

// True when the library multiplies bf16 on this CPU itself.
bool matmul_has_bf16();

// What one task computes, and how many there are; a function of the problem alone.
struct MatmulTiles {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;  // k is summed in pieces of this length
};
MatmulTiles matmul_tiles(const Matmul& problem);

// ---- reference (matmul_ref.cc): scalar, double precision, dense row-major operands ----
// c = op(a) op(b) + bias (may be null) + (accumulate ? c : 0). `magnitude`, unless null, receives
// the same sum over absolute values, the scale of rounding errors.
void matmul_ref(int64_t m, int64_t n, int64_t k, const double* a, bool a_transposed,
                const double* b, bool b_transposed, const double* bias, bool accumulate, double* c,
                double* magnitude);

}  // namespace ds::kernels
