// The kernels behind quantized_matmul.h, as kernels/matmul/kernel.h describes kernels. Their
// operands are structs rather than rows, and a group of theirs is a piece: the codes of a row or
// column and what its sums are scaled by.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "kernels/matmul/blocked.h"
#include "kernels/quantize/quantize.h"

namespace ds::kernels {

// Elements of x that share a scale, the longest first.
inline constexpr int64_t kCodePieces[] = {256, 64, 32};

// A table's entry for each of them: make(std::integral_constant<int64_t, piece>()).
template <class Make>
constexpr auto for_code_pieces(const Make& make) {
  return std::array{make(std::integral_constant<int64_t, kCodePieces[0]>()),
                    make(std::integral_constant<int64_t, kCodePieces[1]>()),
                    make(std::integral_constant<int64_t, kCodePieces[2]>())};
}
constexpr size_t code_piece_index(int64_t piece) {
  return static_cast<size_t>(std::ranges::find(kCodePieces, piece) - std::begin(kCodePieces));
}

// Rows of x as codes. Of every eight codes those of elements 0, 4, 1, 5 come first, then 2, 6, 3,
// 7: the order in which words of 4-bit codes come apart.
struct RowCodes {
  int64_t rows = 0, pieces = 0;  // of a row
  int64_t piece = 64;            // elements that share a scale: one of kCodePieces
  int8_t* codes = nullptr;       // [rows, pieces * piece], zero beyond k
  float* scales = nullptr;       // [rows, pieces]
  int32_t* sums = nullptr;       // of a piece's codes, [rows, pieces]
  int32_t excess = 0;            // of the codes of w as they are packed
};

// `x` [rows, k] dense, rows [begin, end).
void encode_rows(FloatType type, const void* x, int64_t k, const RowCodes& to, int64_t begin,
                 int64_t end);

inline constexpr int64_t kMostFewCodeRows = 8;

// Few rows of codes times the 16 of a panel of w, which is read as it lies.
struct FewCodeRows {
  const RowCodes* rows = nullptr;
  const QuantizedMatrix* w = nullptr;
  gemm::DepthCut cut;  // of the blocked product, whose bits the sums have
  int64_t panel = 0;
  float* sums = nullptr;  // [rows, kPanelRows]
};
using MultiplyFewCodeRows = void (*)(const FewCodeRows&);
void vnni_few_rows(const FewCodeRows& call);
void avx2_few_rows(const FewCodeRows& call);

// A way to multiply codes.
struct CodeKernel {
  int64_t piece = 64;
  int32_t excess_of_8 = 0, excess_of_4 = 0;  // what packing adds to codes without minima
  int64_t few_rows = 0;  // up to so many, at most kMostFewCodeRows, multiply_few is faster
  MultiplyFewCodeRows multiply_few = nullptr;
  // Packs A from RowCodes and B from a QuantizedMatrix: Operand::data.
  gemm::Kernel product;
};

// For weights with and without minima.
const CodeKernel& amx_code_kernel(int64_t piece, bool minima);
const CodeKernel& vnni_code_kernel(int64_t piece, bool minima);
const CodeKernel& avx2_code_kernel(int bits, int64_t piece, bool minima);

}  // namespace ds::kernels
