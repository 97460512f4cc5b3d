// How much arithmetic a training step is worth, by the two rules in use: six operations per
// parameter and token, and Megatron's sum over the matrices of a decoder.
#pragma once

#include <cstdint>

namespace ds {

inline double six_n_flops(int64_t parameters, int64_t tokens) {
  return 6.0 * static_cast<double>(parameters) * static_cast<double>(tokens);
}

// A decoder as Megatron's formula sees it.
struct DecoderShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  bool gated = false;     // SwiGLU: three matrices instead of two
  double recomputed = 0;  // share of the forward pass that activation checkpointing repeats
  // Valid when every size is there.
  explicit operator bool() const {
    return layers > 0 && hidden > 0 && heads > 0 && kv_heads > 0 && ffn > 0 && vocab > 0;
  }
};

// Of `batch` sequences of `length` tokens. Megatron counts the key and value projections of grouped
// queries by 2 div (heads / kv_heads), a whole-number division that is 0 above two; with `exact`
// the division is exact. Attention counts without the causal mask.
double megatron_flops(const DecoderShape& shape, int64_t batch, int64_t length, bool exact);

}  // namespace ds
