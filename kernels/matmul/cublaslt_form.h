// What cuBLASLt sees of a matrix product: its form, which decides on algorithms, and its operands.
//
// A row-major matrix is the transpose of a column-major one, so C = op(A) op(B) becomes
// C^T = op(B)^T op(A)^T: cuBLASLt's first operand is our B, its rows are our columns, and its bias,
// one number for each of its rows, is ours. Here names are ours; plans exchange a and b.
#pragma once

#include <cublasLt.h>

#include <array>
#include <limits>
#include <optional>
#include <string>

#include "kernels/fp8/fp8.h"
#include "kernels/matmul/matmul.h"

namespace ds::kernels::cublaslt {

// What cuBLASLt recommends for Hopper; most algorithms need little of it or none.
inline constexpr int64_t kMostWorkspace = int64_t{32} << 20;

// All that a choice of algorithms may depend on.
struct Key {
  cudaDataType a{}, b{}, out{};
  bool a_transposed = false, b_transposed = false, accumulate = false;
  bool tf32 = false;               // operands of fp32 are rounded
  bool fast_accumulation = false;  // sums of codes may keep less than fp32
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride = 0, b_stride = 0, before_stride = 0, to_stride = 0, aux_stride = 0;
  std::array<uint32_t, 6> alignment{};  // of a, b, before, to, vector, aux
  int64_t workspace = 0;                // at most
  int gpu = 0;
  bool operator==(const Key&) const = default;

  // All but the GPU, in numbers that another process may read.
  using Numbers = std::array<int64_t, 24>;
  Numbers numbers() const;
  // Nothing when no product here has such a key.
  static std::optional<Key> from(const Numbers& numbers, int gpu);

  bool of_codes() const { return a == CUDA_R_8F_E4M3 || a == CUDA_R_8F_E5M2; }
  bool has_vector() const;
  bool has_aux() const;
  // "the product of bf16 [8, 16] and bf16 [16, 4] (transposed) to fp32, added to what is there".
  std::string text() const;
};
struct KeyHash {
  size_t operator()(const Key& key) const;
};

// A problem, but for the exchange of a and b.
struct Form {
  Key key;
  float alpha = 1;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* before = nullptr;  // what to add; `to` when there is nothing
  void* to = nullptr;
  const void* vector = nullptr;  // the bias, or where sums go
  void* aux = nullptr;           // the arguments of the activation, written or read
  // What codes of 8 bits are multiplied with, on the GPU.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
};

int64_t bytes_of(cudaDataType type);

// The largest power of two up to 256 that divides the address.
inline uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

template <class Problem>
bool sizes_fit(const Problem& p) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return p.k > 0 && p.m <= kMost && p.n <= kMost && p.k <= kMost;
}

// A bias has the type of C there, and not every kernel reads one that lies anywhere.
bool bias_fits(const Matmul& p);
// GELU by its tanh form is the only activation that is ours: ReLU there hides NaN. Its tanh is no
// better than 2^-17 (cuBLASLt 13.1 on an H200), too little for results in fp32. Without `pre` it
// would be another form with other algorithms, so that passes which keep `pre` and passes which do
// not would differ in bits.
bool activation_fits(const Matmul& p);
// Sums over k of the second operand, in the type of C.
bool sums_fit(const Matmul& p, const float* sums);
// Its aux is what the forward product wrote, by the same rules.
bool slope_fits(const Matmul& p);
// On Hopper codes of 8 bits are multiplied in one layout, by rows of k, in multiples of 16. Scales
// that do not lie at 16 bytes are refused with the product itself (cuBLASLt 13.1).
bool codes_fit(const Fp8Matmul& p);

// `activate`: in the product, else its argument is left where it is wanted.
Form form_of(const Matmul& p, bool activate, const GpuStream& on);
Form form_times_slope(const Matmul& p, const GpuStream& on);
Form form_with_sums(const Matmul& p, const float* sums, const GpuStream& on);
Form form_of(const Fp8Matmul& p, const GpuStream& on);

}  // namespace ds::kernels::cublaslt
