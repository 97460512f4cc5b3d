// Keys and values of a cache as 8-bit codes: a number is its code times the scale of its token and
// head, in fp32. The scale is the largest magnitude / 127, codes are rounded to nearest, so that a
// number is off by half a scale at most. A row with a number that is not finite becomes NaN.
#pragma once

#include "kernels/attention/attention.h"

namespace ds::kernels {

// Rows of x [batch, tokens, heads, size], which become the codes of tokens past, past + 1, ... of a
// cache, in one piece or in blocks.
template <class T>
struct TokenCodes {
  int64_t batch = 0, tokens = 0, heads = 0, size = 0;
  HeadView<const T> x;
  CodedRows<int8_t, float> to;
  int64_t past = 0;
  const int32_t* past_of_each = nullptr;  // [batch], or null: read instead of `past`
};
template <class T>
void quantize_tokens(const TokenCodes<T>& call, ThreadPool& pool);

// The first tokens of one sequence as y [tokens, heads, size].
template <class T>
struct CodedTokens {
  int64_t tokens = 0, heads = 0, size = 0;
  int64_t sequence = 0;
  CodedRows<const int8_t, const float> from;
  HeadView<T> y;
};
template <class T>
void dequantize_tokens(const CodedTokens<T>& call, ThreadPool& pool);

}  // namespace ds::kernels
