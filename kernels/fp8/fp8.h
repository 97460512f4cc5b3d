// Numbers of 8 bits with an exponent (Micikevicius et al., arXiv:2209.05433), scaled per tensor,
// and how scales follow from the largest numbers of past steps.
//
// E4M3 has 3 bits of mantissa, 448 as its largest number, NaN and no infinity; E5M2 has 2 bits,
// 57344, infinities and NaN. Scales are powers of two, so that scaling rounds nothing and a code
// times the inverse of its scale is a bf16 number exactly.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/matmul/matmul.h"

namespace ds::kernels {

enum class Fp8Format { kE4M3, kE5M2 };

// Codes of a matrix. Finite numbers beyond the largest become the largest; an infinity stays one
// or, where the format has none, becomes NaN; a NaN stays one: 0x7F. The same bits everywhere.
struct Fp8Cast {
  Fp8Format format = Fp8Format::kE4M3;
  const bfloat16* x = nullptr;  // [rows, columns], rows `stride` elements apart
  int64_t rows = 0, columns = 0, stride = 0;
  // On a GPU what is cast may be made of x meanwhile, with the bits of the function's own kernel,
  // which rounds it to bf16: f(x); with `up` f(x) * up; with `dy` dy * f'(x).
  std::optional<ActivationKind> activation;
  const bfloat16* up = nullptr;  // its rows and those of dy lie `other_stride` apart
  const bfloat16* dy = nullptr;
  int64_t other_stride = 0;
  const float* scale = nullptr;   // codes are of x * scale
  float* amax = nullptr;          // becomes the maximum of itself and of |x|, where x is finite
  uint8_t* codes = nullptr;       // [rows, columns], or null
  uint8_t* transposed = nullptr;  // [columns, rows], or null
  // sums[columns] += those of what is cast, unless null (which is not for f(x) and f(x) * up); with
  // scratch of fp8_sum_parts(rows) * columns numbers.
  float* sums = nullptr;
  float* partials = nullptr;
};
inline constexpr int64_t kFp8SumRows = 64;  // of a part
constexpr int64_t fp8_sum_parts(int64_t rows) { return (rows + kFp8SumRows - 1) / kFp8SumRows; }
void fp8_cast(const Fp8Cast& call, ThreadPool& pool);
void fp8_cast(const Fp8Cast& call, const GpuStream& on);

// The scale of a tensor that has none yet (0), and its inverse, from the tensor itself; nothing
// where there is one.
struct Fp8FirstScale {
  Fp8Format format = Fp8Format::kE4M3;
  const bfloat16* x = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;
  int margin = 0;
  float* scale = nullptr;
  float* inverse = nullptr;
  float* amax = nullptr;  // as in Fp8Cast; the scale is made for what it becomes
};
void fp8_first_scale(const Fp8FirstScale& call, ThreadPool& pool);
void fp8_first_scale(const Fp8FirstScale& call, const GpuStream& on);

// out = code / scale, exactly.
void fp8_widen(Fp8Format format, const uint8_t* codes, int64_t n, const float* inverse,
               bfloat16* out, ThreadPool& pool);
void fp8_widen(Fp8Format format, const uint8_t* codes, int64_t n, const float* inverse,
               bfloat16* out, const GpuStream& on);

// Delayed scaling, at the end of a step: `amax` of every tensor becomes the newest of its history,
// and 0; its scale becomes the largest power of two with which the history's maximum (or its newest
// entry) stays within the format, over 2^margin. Tensors whose maximum is 0 keep their scale.
struct Fp8Update {
  int64_t tensors = 0;
  const Fp8Format* formats = nullptr;  // of kinds of tensors: tensor t is of kind t % kinds
  int64_t kinds = 1;
  int64_t length = 1;        // of a history
  bool most_recent = false;  // rather than the maximum
  int margin = 0;
  float* amax = nullptr;     // [tensors]
  float* history = nullptr;  // [tensors, length], newest first
  float* scale = nullptr;    // [tensors]
  float* inverse = nullptr;  // [tensors], inverse_step apart
  int64_t inverse_step = 1;
};
// With this step every inverse lies at a multiple of 16 bytes, where cuBLASLt reads it.
inline constexpr int64_t kFp8InverseStep = 4;
inline constexpr int64_t kMostFp8Kinds = 4;
void fp8_update(const Fp8Update& call, ThreadPool& pool);
void fp8_update(const Fp8Update& call, const GpuStream& on);

// C[m, n] = A[m, k] B[n, k]^T of codes, each divided by its scale, (+ bias) (+ C), on a GPU. Sums
// are fp32, unless they may be less. Codes are dense; not both are E5M2.
struct Fp8Matmul {
  int64_t m = 0, n = 0, k = 0;
  Fp8Format a_format = Fp8Format::kE4M3, b_format = Fp8Format::kE4M3;
  const uint8_t* a = nullptr;
  const uint8_t* b = nullptr;
  const float* a_inverse = nullptr;
  const float* b_inverse = nullptr;
  MatmulType out = MatmulType::kBFloat16;  // or fp32
  const bfloat16* bias = nullptr;          // [n], for C in bf16, or null
  void* c = nullptr;                       // dense
  bool accumulate = false;
  // Sums may keep less than fp32: Hopper's tensor cores add codes with fewer bits, and without this
  // their sums go to fp32 every few terms (which lose those bits all the same).
  bool fast_accumulation = false;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};
// False when that is not to be had (only cuBLASLt does it, with sizes that are multiples of 16 and
// addresses of 16 bytes, those of the inverses too): then nothing was done.
bool fp8_matmul(const Fp8Matmul& problem, const GpuStream& on);
// Scratch for it.
int64_t fp8_matmul_workspace(const Fp8Matmul& problem, const GpuStream& on);

namespace reference {
// What a code stands for; the code of the nearest number, with even mantissas between two.
double fp8_value(Fp8Format format, uint8_t code);
uint8_t fp8_code(Fp8Format format, double value);
// The scale for a maximum above 0.
double fp8_scale(Fp8Format format, double amax, int margin);
}  // namespace reference

}  // namespace ds::kernels
