// Softmax attention on raw pointers: forward, backward, and the double-precision reference.
//
// Work is cut into tiles that stay in the first cache levels; no buffer grows with
// queries x keys. Scratch is one slot per thread (plus partial sums in backward when there are few
// heads), whose size the *_workspace functions give in floats.
//
// On CPUs with bf16 tiles (AMX), bf16 and long fp32 problems run there: bf16 with weights and their
// gradients rounded to bf16 and exponentials within 2^-13, fp32 as three parts without loss; sums
// are fp32. There subnormal inputs count as 0, and an infinite fp32 input gives NaN.
//
// GPUs multiply 16-bit types on tensor cores, with weights and their gradients rounded to the type;
// everything else is fp32. Some forms are cuDNN's there (attention_cudnn.h), by the stream's
// policy.
//
// What key_mask hides may hold anything. Keys that the band or the segments alone hide must hold
// finite numbers: they share tiles with keys that are seen, where their weight is 0.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/philox.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/token_blocks.h"

namespace ds::kernels {

// Rows of one head inside a strided tensor [batch, tokens, heads, head size]; strides in elements,
// the last dimension dense.
template <class T>
struct HeadView {
  T* data = nullptr;
  int64_t batch = 0;
  int64_t token = 0;
  int64_t head = 0;

  T* at(int64_t b, int64_t t, int64_t h) const { return data + b * batch + t * token + h * head; }
};

// Keys or values of a cache as 8-bit codes with a scale for each token and head (token_codes.h), in
// one piece or in blocks: then views have the strides inside a block.
template <class Code, class Scale>
struct CodedRows {
  HeadView<Code> codes;
  HeadView<Scale> scales;  // tokens of a head lie side by side
  TokenBlocks blocks, scale_blocks;

  explicit operator bool() const { return scales.data != nullptr; }
  Code* row(int64_t b, int64_t t, int64_t h) const {
    return blocks ? blocks.at<Code>(b, t, codes.token) + h * codes.head : codes.at(b, t, h);
  }
  Scale* scale(int64_t b, int64_t t, int64_t h) const {
    return scale_blocks ? scale_blocks.at<Scale>(b, t, scales.token) + h * scales.head
                        : scales.at(b, t, h);
  }
  CodedRows from(int64_t b) const {
    CodedRows rest = *this;
    rest.codes.data += b * codes.batch;
    rest.scales.data += b * scales.batch;
    rest.blocks = blocks.from(b);
    rest.scale_blocks = scale_blocks.from(b);
    return rest;
  }
};

struct AttentionProblem {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t head_dim = 0;   // of queries and keys: 1..kMaxHeadDim
  int64_t value_dim = 0;  // of values and results, on a CPU; 0: head_dim
  bool causal = true;     // query i sees keys j <= i + (keys - queries)
  int64_t window = 0;     // > 0: of those only j > i + (keys - queries) - window, and without
                          // `causal` also only j < i + (keys - queries) + window
  float scale = 1.0f;
  double dropout = 0;      // in [0, 1)
  int64_t first_head = 0;  // dropout counts heads from here: a rank may hold some of a layer's only
  RandomStream stream;
  const uint8_t* key_mask = nullptr;  // [batch, keys] rows mask_stride apart, 1 = visible, or null
  int64_t mask_stride = 0;
  // [batch] in the memory of the device, or null: as many keys of each sequence lie before its
  // first query, and `keys` is only how many may be read. For forward with few queries
  // (kFewQueriesOfCpus, kFewQueriesOfGpus), without dropout, segments and mask.
  const int32_t* past = nullptr;
  // Keys and values in blocks, for forward on a CPU: then k and v of a call have the strides inside
  // a block, and their data is not read.
  TokenBlocks key_blocks, value_blocks;
  // [batch, keys] rows segment_stride apart, or null; then queries = keys, and a query sees the
  // keys of its own segment only.
  const int32_t* segments = nullptr;
  int64_t segment_stride = 0;

  int64_t value_size() const { return value_dim == 0 ? head_dim : value_dim; }
  // Keys of one sequence, where the host reads them.
  int64_t keys_of(int64_t b) const { return past == nullptr ? keys : past[b] + queries; }
  // First random element of one row of probabilities.
  uint64_t row_element(int64_t b, int64_t h, int64_t i) const {
    return RandomStream::first_of_sample(b) +
           static_cast<uint64_t>((first_head + h) * queries + i) * static_cast<uint64_t>(keys);
  }
};

inline constexpr int64_t kMaxHeadDim = 256;
// Of a call for which DecodePlan::fits, on a CPU: keys that all heads share are long.
inline constexpr int64_t kMaxDecodedHeadDim = 2048;
// Up to here a CPU reads keys where they lie, and their sequences may have several lengths.
inline constexpr int64_t kFewQueriesOfCpus = 4;
// From here on a CPU with tiles multiplies fp32 on them.
inline constexpr int64_t kManyQueriesOfCpus = 512;
// As many queries share a block of a GPU, which splits their keys.
inline constexpr int64_t kFewQueriesOfGpus = 16;

template <class T>
struct AttentionForward {
  AttentionProblem p;
  HeadView<const T> q, k, v;
  // Instead of k, v and the problem's blocks, on a CPU where DecodePlan::fits; or empty.
  CodedRows<const int8_t, const float> coded_k = {}, coded_v = {};
  HeadView<T> out;
  float* lse = nullptr;        // [batch, heads, queries], natural logarithm, or null
  float* workspace = nullptr;  // attention_workspace(call, on) numbers
};
template <class T>
struct AttentionGradients {
  HeadView<const T> dout;
  HeadView<const T> out;
  const float* lse = nullptr;
  HeadView<T> dq, dk, dv;
};
template <class T>
struct AttentionBackward {
  AttentionProblem p;
  HeadView<const T> q, k, v;
  AttentionGradients<T> g;
  float* workspace = nullptr;  // attention_workspace(call, on) numbers
};

// T is float, bfloat16 or float16. The scratch of a call depends on the number of threads or, on a
// GPU, on who computes that very call.
template <class T>
int64_t attention_workspace(const AttentionForward<T>& call, const ThreadPool& pool);
template <class T>
int64_t attention_workspace(const AttentionForward<T>& call, const GpuStream& on);
template <class T>
void attention_forward(const AttentionForward<T>& call, ThreadPool& pool);
template <class T>
void attention_forward(const AttentionForward<T>& call, const GpuStream& on);

template <class T>
int64_t attention_workspace(const AttentionBackward<T>& call, const ThreadPool& pool);
template <class T>
int64_t attention_workspace(const AttentionBackward<T>& call, const GpuStream& on);
template <class T>
void attention_backward(const AttentionBackward<T>& call, ThreadPool& pool);
template <class T>
void attention_backward(const AttentionBackward<T>& call, const GpuStream& on);

// The reference: whole rows of probabilities in double, one scalar at a time. Dense arrays
// q, dq [batch, queries, heads, head size], k, dk with kv_heads; out, dout, v and dv likewise with
// the size of values; lse [batch, heads, queries].
void attention_forward_ref(const AttentionProblem& problem, const double* q, const double* k,
                           const double* v, double* out, double* lse);
struct AttentionReferenceGradients {
  const double* dout;
  double *dq, *dk, *dv;
};
void attention_backward_ref(const AttentionProblem& problem, const double* q, const double* k,
                            const double* v, const AttentionReferenceGradients& gradients);

}  // namespace ds::kernels
