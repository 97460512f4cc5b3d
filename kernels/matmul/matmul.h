// Matrix products: C[m,n] = f(alpha op(A)[m,k] op(B)[k,n] (+ bias[n]) (+ C)).
//
// Who serves what on the CPU:
//   * matmul() here: every size, operand layout and type. Blocks of packed operands are multiplied
//     by the best of several kernels that this CPU runs (matmul.cc lists them); with up to
//     kDirectRows rows it multiplies B where it lies, at the speed of memory, without packing, and
//     with some dozens by dot products (few_rows.h), where they are faster and `any_order` is set.
//   * kernels/gemv: a few rows times weights that are stored in 8 or 4 bits (decoding).
//
// Sums are fp32; blocked kernels add in the order of k. Results are the same bits for any number of
// threads. Another kernel, and another m on either side of such a bound, may round differently.
//
// On a GPU, products of
//   * any form are served by kernels of our own (matmul_cuda.cu): 16-bit operands on tensor cores;
//   * most forms by cuBLASLt where it is there (matmul_cublaslt.h) and has an algorithm: not those
//     with k = 0, sizes above 2^31 - 1, or a bias of another type than C or not at a multiple of 16
//     bytes. Of activations it applies GELU by its tanh form, and its derivative, to results of 16
//     bits where there is a `pre`, at multiples of 16 bytes and 8 elements; the others are a kernel
//     of our own after its product. For some sizes it rounds a product to 16 bits before it adds
//     the bias.
//     DS_CUBLASLT_LIBRARY=off excludes it, another value is the file to open.
// Both sum in fp32 and multiply fp32 without rounding it to TF32, which GpuPolicy::tf32 allows to
// cuBLASLt; our own kernels never do. The same problem has the same bits on equal GPUs with the
// same cuBLASLt, aligned alike, unless algorithms are timed (product_choices.h); the two round
// differently.
//
// Each thread that multiplies keeps scratch of about 3 MiB until it ends, and the calling thread
// 4 MiB more where k is taken in rounds (sums that wait). A warm call allocates nothing.
#pragma once

#include <cstdint>
#include <optional>

#include "base/thread_pool_fwd.h"
#include "kernels/activation/activation.h"
#include "kernels/cuda/gpu_stream.h"

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
  float alpha = 1;
  const void* bias = nullptr;  // [n], or null
  void* c = nullptr;           // overlaps no input
  int64_t c_stride = 0;
  bool accumulate = false;  // add to C
  // f; its argument is rounded to the type of C first (cuBLASLt takes the sum itself). `pre`,
  // unless null, receives the argument (type of C, rows pre_stride apart), where backward starts.
  std::optional<ActivationKind> activation;
  void* pre = nullptr;
  int64_t pre_stride = 0;
  // The sums of some dozens of rows (matmul_dot_rows) may be in another order than those of more
  // rows, where that is faster.
  bool any_order = false;
  // On a GPU: scratch, of matmul_workspace() bytes for the best speed; less is enough for any
  // product, none too. Aligned to 256 bytes.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// The implementations, best first. kAuto takes the first that this CPU runs and that multiplies the
// type; those for fp32 multiply 16-bit types too, widened while they are packed. Tests choose one.
enum class MatmulPath {
  kAuto,
  kAmxBFloat16,
  kAmxFloat32,  // fp32 as three exact parts: see amx_float32.cc for its bounds
  kAvx512BFloat16,
  kAvx512,
  kAvx2,
  kPortable,
  kDirect,
  kFewRows  // A along k as it lies, B too
};

inline constexpr int64_t kDirectRows = 4;

void matmul(const Matmul& problem, ThreadPool& pool, MatmulPath path = MatmulPath::kAuto);

// On a GPU.
void matmul(const Matmul& problem, const GpuStream& on);
// The same and, in one pass, sums[m] of the rows of op(A). False when that is not to be had (only
// cuBLASLt does it, for C in fp32 without bias and activation): then nothing was done.
bool matmul_with_sums(const Matmul& problem, float* sums, const GpuStream& on);
// In one pass, C = alpha op(A) op(B) f'(pre), where f is the activation and `pre` is read: the
// gradient of f's argument. False when that is not to be had: then nothing was done.
bool matmul_times_derivative(const Matmul& problem, const GpuStream& on);
// What a call does beside the product; matmul_workspace() differs.
enum class MatmulExtra { kNone, kSums, kSlope };
// For matmul_with_sums() `sums` is where they will go.
int64_t matmul_workspace(const Matmul& problem, const GpuStream& on,
                         MatmulExtra extra = MatmulExtra::kNone, const float* sums = nullptr);

// Whether this CPU runs `path` for operands of the type; kAuto, kDirect and kFewRows always.
bool matmul_path_runs(MatmulPath path, MatmulType type);

// The most rows that kAuto multiplies by dot products where `any_order` is set and both operands
// lie along k; 0: none.
int64_t matmul_dot_rows(MatmulType type);

// What kAuto means for large products: "amx_bf16", "avx512" and so on.
const char* matmul_kernel_name(MatmulType type);

// ---- reference (matmul_ref.cc): scalar, double precision, dense row-major operands ----
// c = op(a) op(b) + bias (may be null) + (accumulate ? c : 0). `magnitude`, unless null, receives
// the same sum over absolute values, the scale of rounding errors.
struct MatmulReference {
  int64_t m = 0, n = 0, k = 0;
  const double* a = nullptr;
  bool a_transposed = false;
  const double* b = nullptr;
  bool b_transposed = false;
  const double* bias = nullptr;
  bool accumulate = false;
  double* c = nullptr;
  double* magnitude = nullptr;
};
void matmul_ref(const MatmulReference& call);

}  // namespace ds::kernels
