// Softmax cross entropy on a GPU: a block per row. A pass over the row finds the largest element
// and the sum of exponentials together, every thread relative to the largest it has met. The fused
// form keeps the row in shared memory meanwhile, so that logits are read once and written once; of
// rows longer than that, the rest is read again.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/map.cuh"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/row_sums.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / kWarp;
// What a block can have of a processor's shared memory, less what it needs besides.
constexpr int64_t kMostKept = int64_t{220} << 10;
constexpr int kLoads = 4;  // packs that a thread has in flight

// sum = sum of exp(x - shift); of nothing but -inf it is 0, and the shift -inf.
template <class Sum>
struct RowSum {
  float shift;
  Sum sum;
};

template <int N>
__device__ __forceinline__ void add_exponentials(RowSum<float>& row, const float* x) {
  float most = row.shift;
#pragma unroll
  for (int i = 0; i < N; ++i) most = x[i] > most ? x[i] : most;  // a NaN shows in the sum
  const float shift = finite_shift(most);
  float sum = row.sum * exponential(row.shift, shift);
#pragma unroll
  for (int i = 0; i < N; ++i) sum += exponential(x[i], shift);
  row = {most, sum};
}

// The sums of a block's threads relative to the largest shift, in a fixed order.
__device__ __forceinline__ RowSum<double> whole_row(const RowSum<float>& mine, float* most_of_warp,
                                                    double* sum_of_warp) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  float most = warp_max(mine.shift);
  if (lane == 0) most_of_warp[warp] = most;
  __syncthreads();
  for (int i = 0; i < warps; ++i) most = most_of_warp[i] > most ? most_of_warp[i] : most;
  const float shift = finite_shift(most);
  const double sum =
      block_sum(static_cast<double>(mine.sum * exponential(mine.shift, shift)), sum_of_warp);
  return {most, sum};
}

__device__ __forceinline__ double log_sum_exp(const RowSum<double>& row) {
  return static_cast<double>(row.shift) + log(row.sum);
}

// Not lse - x: the small difference of two large numbers would lose what the logarithm knows.
__device__ __forceinline__ float loss_of(const RowSum<double>& row, float logit) {
  const double loss = static_cast<double>(row.shift) - static_cast<double>(logit) + log(row.sum);
  return loss < 0 ? 0.0f : static_cast<float>(loss);
}

// scale * (p - 1), exact where p = exp(log_p) is near 1.
template <class T>
__device__ __forceinline__ T label_gradient(float scale, double log_p) {
  return narrow<T>(static_cast<float>(static_cast<double>(scale) * expm1(log_p)));
}

// How a row is cut: single elements until packs are aligned, packs, single elements.
template <int N>
struct Cut {
  int head;  // elements
  int64_t packs;
  int64_t n;

  __device__ __forceinline__ int64_t singles() const { return n - packs * N; }
  // Place of a single element.
  __device__ __forceinline__ int64_t single(int64_t i) const {
    return i < head ? i : i + packs * N;
  }
};

template <int N, class T>
__device__ __forceinline__ Cut<N> cut(const T* row, int64_t n) {
  const auto past = static_cast<unsigned>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % N);
  const int64_t before = (N - past) % N;
  const auto head = static_cast<int>(before < n ? before : n);
  return {head, (n - head) / N, n};
}

// The sum over the `valid` first elements. Packs below `kept` also go into shared memory, which
// only the thread that put them there reads again.
template <int N, class T>
__device__ __forceinline__ RowSum<float> sum_row(const T* x, const Cut<N>& row, T* shared,
                                                 int64_t kept) {
  RowSum<float> sum{-infinity(), 0};
  const int64_t step = blockDim.x;
  for (int64_t first = threadIdx.x; first < row.packs; first += kLoads * step) {
    Pack<T, N> in[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t pack = first + k * step;
      if (pack < row.packs) in[k] = load_pack<T, N>(x + row.head + pack * N);
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t pack = first + k * step;
      if (pack >= row.packs) continue;
      if (pack < kept) store_pack(shared + pack * N, in[k]);
      float v[N];
      widen_pack(in[k], v);
      add_exponentials<N>(sum, v);
    }
  }
  for (int64_t i = threadIdx.x; i < row.singles(); i += step) {
    const float v = widen(x[row.single(i)]);
    add_exponentials<1>(sum, &v);
  }
  return sum;
}

// y = factor * exp(x - shift) in a row.
template <int N, class T>
__device__ __forceinline__ void write_row(const T* x, const Cut<N>& row, const T* shared,
                                          int64_t kept, float shift, float factor, T* y) {
  const int64_t step = blockDim.x;
  for (int64_t first = threadIdx.x; first < row.packs; first += kLoads * step) {
    Pack<T, N> in[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t pack = first + k * step;
      if (pack >= row.packs) continue;
      in[k] = pack < kept ? load_pack<T, N>(shared + pack * N)
                          : load_pack<T, N>(x + row.head + pack * N);
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t pack = first + k * step;
      if (pack >= row.packs) continue;
      float v[N];
      widen_pack(in[k], v);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = factor * exponential(v[i], shift);
      store_pack(y + row.head + pack * N, narrow_pack<T, N>(v));
    }
  }
  for (int64_t i = threadIdx.x; i < row.singles(); i += step) {
    const int64_t at = row.single(i);
    y[at] = narrow<T>(factor * exponential(widen(x[at]), shift));
  }
}

template <class T>
__device__ __forceinline__ void clear(T* y, int64_t begin, int64_t end) {
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) y[i] = T{};
}

template <class T>
__global__ void __launch_bounds__(kMostThreads)
    forward_rows(const T* logits, const int32_t* labels, int64_t columns, int64_t valid,
                 float* loss, float* lse) {
  __shared__ float most[kMostWarps];
  __shared__ double sums[kMostWarps];
  const int64_t row = blockIdx.x;
  const int32_t label = labels[row];
  if (label < 0) {
    if (threadIdx.x == 0) loss[row] = lse[row] = 0;
    return;
  }
  const T* const x = logits + row * columns;
  const RowSum<float> mine =
      sum_row<kPack<T>, T>(x, cut<kPack<T>>(x, valid), static_cast<T*>(nullptr), 0);
  const RowSum<double> sum = whole_row(mine, most, sums);
  if (threadIdx.x != 0) return;
  lse[row] = static_cast<float>(log_sum_exp(sum));
  // A label outside the row cannot be looked up; it must not pass unseen.
  loss[row] = label < valid ? loss_of(sum, widen(x[label])) : not_a_number();
}

// N is 1 where logits and gradients are not aligned alike.
template <int N, class T>
__global__ void __launch_bounds__(kMostThreads)
    backward_rows(const T* logits, const int32_t* labels, int64_t columns, int64_t valid,
                  const float* lse, float scale, T* dlogits) {
  const int64_t row = blockIdx.x;
  const int32_t label = labels[row];
  const T* const x = logits + row * columns;
  T* const dx = dlogits + row * columns;
  if (label < 0) {
    clear(dx, 0, columns);
    return;
  }
  const float row_lse = lse[row];
  const bool known = label < valid;
  const float logit = threadIdx.x == 0 && known ? widen(x[label]) : 0;  // before dx, which may be x
  __syncthreads();
  write_row<N, T>(x, cut<N>(x, valid), static_cast<const T*>(nullptr), 0, row_lse,
                  known ? scale : not_a_number(), dx);
  clear(dx, valid, columns);
  __syncthreads();
  if (threadIdx.x == 0 && known) {
    dx[label] = label_gradient<T>(scale, static_cast<double>(logit) - static_cast<double>(row_lse));
  }
}

// `kept` packs of a row fit into the dynamic shared memory.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    fused_rows(T* logits, const int32_t* labels, int64_t columns, int64_t valid, GradientScale from,
               float* loss, int64_t kept) {
  constexpr int kN = kPack<T>;
  __shared__ float most[kMostWarps];
  __shared__ double sums[kMostWarps];
  T* const shared = dynamic_shared<T>();
  const int64_t row = blockIdx.x;
  const int32_t label = labels[row];
  T* const x = logits + row * columns;
  if (label < 0) {
    if (threadIdx.x == 0) loss[row] = 0;
    clear(x, 0, columns);
    return;
  }
  const float scale = from.memory == nullptr ? from.number : __ldg(from.memory);
  const bool known = label < valid;
  const float logit = threadIdx.x == 0 && known ? widen(x[label]) : 0;  // before it is overwritten
  const Cut<kN> parts = cut<kN>(static_cast<const T*>(x), valid);
  const RowSum<double> sum = whole_row(sum_row<kN, T>(x, parts, shared, kept), most, sums);
  const auto factor =
      known ? static_cast<float>(static_cast<double>(scale) / sum.sum) : not_a_number();
  write_row<kN, T>(x, parts, shared, kept, sum.shift, factor, x);
  clear(x, valid, columns);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (known) {
    x[label] = label_gradient<T>(scale, static_cast<double>(logit) - log_sum_exp(sum));
  }
  loss[row] = known ? loss_of(sum, logit) : not_a_number();
}

// Whole warps, a pack for each thread at least.
int threads_for(int64_t columns, int pack, int64_t most) {
  const int64_t wanted = (columns + pack - 1) / pack;
  const int64_t threads = (wanted + kWarp - 1) / kWarp * kWarp;
  return static_cast<int>(std::clamp<int64_t>(threads, kWarp, most));
}

}  // namespace

template <class T>
void cross_entropy(const CrossEntropy<T>& call, const GpuStream& on) {
  launch(on, "cross_entropy", &forward_rows<T>,
         Grid{call.rows, threads_for(call.valid, kPack<T>, 512)}, call.logits, call.labels,
         call.columns, call.valid, call.loss, call.lse);
}

template <class T>
void cross_entropy_backward(const CrossEntropyBackward<T>& call, const GpuStream& on) {
  const auto with_pack = [&](auto pack) {
    constexpr int kN = decltype(pack)::value;
    launch(on, "cross_entropy_backward", &backward_rows<kN, T>,
           Grid{call.rows, threads_for(call.valid, kN, 512)}, call.logits, call.labels,
           call.columns, call.valid, call.lse, call.scale, call.dlogits);
  };
  // Rows of both follow each other at the same distance.
  const bool alike = pack_head<kPack<T>>(call.logits, static_cast<const T*>(call.dlogits)) >= 0;
  if (alike) {
    with_pack(std::integral_constant<int, kPack<T>>());
  } else {
    with_pack(std::integral_constant<int, 1>());
  }
}

template <class T>
void cross_entropy_fused(const CrossEntropyFused<T>& call, const GpuStream& on) {
  constexpr int kN = kPack<T>;
  const int64_t kept = std::min(call.valid / kN, kMostKept / 16), bytes = kept * 16;
  // A long row has a processor for itself.
  const int64_t most = bytes > kMostKept / 2 ? kMostThreads : 512;
  launch(on, "cross_entropy_fused", &fused_rows<T>,
         Grid{call.rows, threads_for(call.valid, kN, most), bytes}, call.logits, call.labels,
         call.columns, call.valid, call.scale, call.loss, kept);
}

#define DS_ONE_TYPE(T)                                                                    \
  template void cross_entropy(const CrossEntropy<T>&, const GpuStream&);                  \
  template void cross_entropy_backward(const CrossEntropyBackward<T>&, const GpuStream&); \
  template void cross_entropy_fused(const CrossEntropyFused<T>&, const GpuStream&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
