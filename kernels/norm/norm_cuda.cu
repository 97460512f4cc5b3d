// Layer and RMS normalisation on a GPU. Forward and dx: a block per row, the row in registers
// between its passes, so that memory is read and written once. Sums over rows: every chunk of rows
// adds its own, and the chunks are added in order, as on the CPU.
#include <cmath>

#include "kernels/cuda/device.cuh"
#include "kernels/norm/layer_norm.h"
#include "kernels/norm/rms_norm.h"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kMostThreads = 512;
constexpr int kMostWarps = kMostThreads / kWarp;
// Elements of a row that a thread keeps in registers; the rest is read again.
constexpr int kKept = 16;

// Threads for rows of `cols` elements: whole warps, each thread with at least one pack.
int threads_for(int64_t cols, int pack) {
  const int64_t wanted = (cols + pack - 1) / pack;
  const int64_t warps = (wanted + kWarp - 1) / kWarp;
  return static_cast<int>(warps < kMostWarps ? warps : kMostWarps) * kWarp;
}

// Calls visit(pack_index, kept_slot, column) for the packs of a row that this thread has.
template <int N, class Visit>
__device__ __forceinline__ void for_packs(int64_t cols, const Visit& visit) {
  const int64_t step = int64_t{N} * blockDim.x;
  int64_t column = int64_t{N} * threadIdx.x;
#pragma unroll
  for (int slot = 0; slot < kKept / N; ++slot, column += step) {
    if (column < cols) visit(slot * N, column);
  }
}

// The rest of a row beyond what threads keep.
template <int N, class Visit>
__device__ __forceinline__ void for_rest(int64_t cols, const Visit& visit) {
  const int64_t step = int64_t{N} * blockDim.x;
  for (int64_t column = int64_t{N} * threadIdx.x + step * (kKept / N); column < cols;
       column += step) {
    visit(column);
  }
}

template <int N, class T>
__device__ __forceinline__ void load_wide(const T* from, float* to) {
  const Pack<T, N> pack = load_pack<T, N>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = widen(pack.at[i]);
}
template <int N, class T>
__device__ __forceinline__ void store_narrow(T* to, const float* from) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.at[i] = narrow<T>(from[i]);
  store_pack(to, pack);
}

// s = x + residual, rounded to the type and stored where a sum is wanted.
template <int N, class Call>
__device__ __forceinline__ void load_sum(const Call& call, int64_t at, float* s) {
  using T = typename Call::Type;
  load_wide<N>(call.x + at, s);
  if (call.residual == nullptr) {
    if (call.sum != nullptr && call.sum != call.x) store_narrow<N>(call.sum + at, s);
    return;
  }
  float r[N];
  load_wide<N>(call.residual + at, r);
#pragma unroll
  for (int i = 0; i < N; ++i) s[i] = widen(narrow<T>(s[i] + r[i]));
  store_narrow<N>(call.sum + at, s);
}

// s again, after load_sum.
template <int N, class Call>
__device__ __forceinline__ void reload_sum(const Call& call, int64_t at, float* s) {
  load_wide<N>(call.residual == nullptr ? call.x + at : call.sum + at, s);
}

template <int N, class Call>
__global__ void __launch_bounds__(kMostThreads) forward_rows(Call call) {
  __shared__ float partial[kMostWarps];
  const int64_t row = blockIdx.x, cols = call.cols, at = row * cols;
  const float count = static_cast<float>(cols);
  float kept[kKept], s[N];
  float total = 0;
  for_packs<N>(cols, [&](int slot, int64_t column) {
    load_sum<N>(call, at + column, kept + slot);
#pragma unroll
    for (int i = 0; i < N; ++i)
      total += Call::kCentred ? kept[slot + i] : kept[slot + i] * kept[slot + i];
  });
  for_rest<N>(cols, [&](int64_t column) {
    load_sum<N>(call, at + column, s);
#pragma unroll
    for (int i = 0; i < N; ++i) total += Call::kCentred ? s[i] : s[i] * s[i];
  });
  total = block_sum(total, partial);
  float mean = 0, squares = total;
  if constexpr (Call::kCentred) {
    mean = total / count;
    squares = 0;
    for_packs<N>(cols, [&](int slot, int64_t) {
#pragma unroll
      for (int i = 0; i < N; ++i) squares += (kept[slot + i] - mean) * (kept[slot + i] - mean);
    });
    for_rest<N>(cols, [&](int64_t column) {
      reload_sum<N>(call, at + column, s);
#pragma unroll
      for (int i = 0; i < N; ++i) squares += (s[i] - mean) * (s[i] - mean);
    });
    squares = block_sum(squares, partial);
  }
  const float rstd = 1.0f / sqrtf(squares / count + call.eps);
  const auto write = [&](int64_t column, float* values) {
    float gamma[N];
    load_wide<N>(call.gamma + column, gamma);
    if constexpr (Call::kCentred) {
      float beta[N];
      load_wide<N>(call.beta + column, beta);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = (values[i] - mean) * rstd * gamma[i] + beta[i];
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = values[i] * rstd * gamma[i];
    }
    store_narrow<N>(call.y + at + column, values);
  };
  for_packs<N>(cols, [&](int slot, int64_t column) { write(column, kept + slot); });
  for_rest<N>(cols, [&](int64_t column) {
    reload_sum<N>(call, at + column, s);
    write(column, s);
  });
  if (threadIdx.x == 0) {
    if constexpr (Call::kCentred) call.mean[row] = mean;
    call.rstd[row] = rstd;
  }
}

template <int N, class Call>
__global__ void __launch_bounds__(kMostThreads) backward_rows(Call call) {
  __shared__ float partial[kMostWarps];
  const int64_t row = blockIdx.x, cols = call.cols, at = row * cols;
  const float count = static_cast<float>(cols), rstd = call.rstd[row];
  float mean = 0;
  if constexpr (Call::kCentred) mean = call.mean[row];
  float g_kept[kKept], x_kept[kKept], g_one[N], x_one[N];
  float g_sum = 0, gx_sum = 0;
  // g = dy gamma and xhat of a pack.
  const auto load = [&](int64_t column, float* g, float* x) {
    float gamma[N];
    load_wide<N>(call.dy + at + column, g);
    load_wide<N>(call.sum + at + column, x);
    load_wide<N>(call.gamma + column, gamma);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      g[i] *= gamma[i];
      x[i] = (x[i] - mean) * rstd;
    }
  };
  const auto add = [&](const float* g, const float* x) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (Call::kCentred) g_sum += g[i];
      gx_sum += g[i] * x[i];
    }
  };
  for_packs<N>(cols, [&](int slot, int64_t column) {
    load(column, g_kept + slot, x_kept + slot);
    add(g_kept + slot, x_kept + slot);
  });
  for_rest<N>(cols, [&](int64_t column) {
    load(column, g_one, x_one);
    add(g_one, x_one);
  });
  if constexpr (Call::kCentred) g_sum = block_sum(g_sum, partial) / count;
  gx_sum = block_sum(gx_sum, partial) / count;
  const auto write = [&](int64_t column, float* g, const float* x) {
    float direct[N] = {};
    if (call.dsum != nullptr) load_wide<N>(call.dsum + at + column, direct);
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] = rstd * (g[i] - g_sum - x[i] * gx_sum) + direct[i];
    store_narrow<N>(call.dx + at + column, g);
  };
  for_packs<N>(cols,
               [&](int slot, int64_t column) { write(column, g_kept + slot, x_kept + slot); });
  for_rest<N>(cols, [&](int64_t column) {
    load(column, g_one, x_one);
    write(column, g_one, x_one);
  });
}

constexpr int kColumnsPerBlock = 64;
constexpr int kRowsAtOnce = 4;

// A chunk of rows' own sums of dy xhat and dy, by column. Runs before dx, which may be dy.
template <class Call>
__global__ void __launch_bounds__(kColumnsPerBlock* kRowsAtOnce)
    column_partials(Call call, int64_t chunk_size, int64_t chunks) {
  __shared__ float sums[2][kRowsAtOnce][kColumnsPerBlock];
  const int64_t chunk = blockIdx.y;
  const int in_block = static_cast<int>(threadIdx.x) % kColumnsPerBlock;
  const int lane_row = static_cast<int>(threadIdx.x) / kColumnsPerBlock;
  const int64_t column = int64_t{blockIdx.x} * kColumnsPerBlock + in_block;
  const int64_t begin = chunk * chunk_size;
  const int64_t end = begin + chunk_size < call.rows ? begin + chunk_size : call.rows;
  float dgamma = 0, dbeta = 0;
  if (column < call.cols) {
    for (int64_t row = begin + lane_row; row < end; row += kRowsAtOnce) {
      const float dy = widen(call.dy[row * call.cols + column]);
      float x = widen(call.sum[row * call.cols + column]);
      if constexpr (Call::kCentred) x -= call.mean[row];
      dgamma += dy * (x * call.rstd[row]);
      dbeta += dy;
    }
  }
  sums[0][lane_row][in_block] = dgamma;
  sums[1][lane_row][in_block] = dbeta;
  __syncthreads();
  if (lane_row != 0 || column >= call.cols) return;
  for (int i = 1; i < kRowsAtOnce; ++i) {
    dgamma += sums[0][i][in_block];
    dbeta += sums[1][i][in_block];
  }
  call.partials[chunk * call.cols + column] = dgamma;
  if constexpr (Call::kCentred) call.partials[(chunks + chunk) * call.cols + column] = dbeta;
}

template <class Call>
__global__ void add_chunks(Call call, int64_t chunks) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= call.cols) return;
  float dgamma = 0, dbeta = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    dgamma += call.partials[chunk * call.cols + column];
    if constexpr (Call::kCentred) dbeta += call.partials[(chunks + chunk) * call.cols + column];
  }
  call.dgamma[column] += dgamma;
  if constexpr (Call::kCentred) call.dbeta[column] += dbeta;
}

// The widest packs that all pointers and the row length allow.
template <class T, class Kernels>
void by_pack(bool fits, const Kernels& kernels) {
  if (fits) {
    kernels(std::integral_constant<int, kPack<T>>());
  } else {
    kernels(std::integral_constant<int, 1>());
  }
}

template <class Call>
void forward(const Call& call, const GpuStream& on, const char* name) {
  using T = typename Call::Type;
  if (call.rows <= 0 || call.cols <= 0) return;
  bool fits = packs_fit<kPack<T>>(call.cols, call.x, call.residual, call.gamma,
                                  static_cast<const T*>(call.y), static_cast<const T*>(call.sum));
  if constexpr (Call::kCentred) fits = fits && packs_fit<kPack<T>>(call.cols, call.beta);
  by_pack<T>(fits, [&](auto pack) {
    constexpr int kN = decltype(pack)::value;
    launch(on, name, &forward_rows<kN, Call>, {call.rows, threads_for(call.cols, kN)}, call);
  });
}

template <class Call>
void backward(const Call& call, const GpuStream& on, const char* name) {
  using T = typename Call::Type;
  if (call.rows <= 0 || call.cols <= 0) return;
  const int64_t chunk_size = row_chunk_size(call.rows), chunks = row_chunks(call.rows);
  const int64_t wide = (call.cols + kColumnsPerBlock - 1) / kColumnsPerBlock;
  launch(on, name, &column_partials<Call>, {wide, kColumnsPerBlock * kRowsAtOnce, 0, chunks}, call,
         chunk_size, chunks);
  launch(on, name, &add_chunks<Call>, {(call.cols + 127) / 128, 128}, call, chunks);
  const bool fits = packs_fit<kPack<T>>(call.cols, call.dy, call.dsum, call.sum, call.gamma,
                                        static_cast<const T*>(call.dx));
  by_pack<T>(fits, [&](auto pack) {
    constexpr int kN = decltype(pack)::value;
    launch(on, name, &backward_rows<kN, Call>, {call.rows, threads_for(call.cols, kN)}, call);
  });
}

}  // namespace

void layer_norm(const LayerNorm<float>& call, const GpuStream& on) {
  forward(call, on, "layer_norm");
}
void layer_norm(const LayerNorm<bfloat16>& call, const GpuStream& on) {
  forward(call, on, "layer_norm");
}
void layer_norm(const LayerNorm<float16>& call, const GpuStream& on) {
  forward(call, on, "layer_norm");
}
void layer_norm_backward(const LayerNormBackward<float>& call, const GpuStream& on) {
  backward(call, on, "layer_norm_backward");
}
void layer_norm_backward(const LayerNormBackward<bfloat16>& call, const GpuStream& on) {
  backward(call, on, "layer_norm_backward");
}
void layer_norm_backward(const LayerNormBackward<float16>& call, const GpuStream& on) {
  backward(call, on, "layer_norm_backward");
}
void rms_norm(const RmsNorm<float>& call, const GpuStream& on) { forward(call, on, "rms_norm"); }
void rms_norm(const RmsNorm<bfloat16>& call, const GpuStream& on) { forward(call, on, "rms_norm"); }
void rms_norm(const RmsNorm<float16>& call, const GpuStream& on) { forward(call, on, "rms_norm"); }
void rms_norm_backward(const RmsNormBackward<float>& call, const GpuStream& on) {
  backward(call, on, "rms_norm_backward");
}
void rms_norm_backward(const RmsNormBackward<bfloat16>& call, const GpuStream& on) {
  backward(call, on, "rms_norm_backward");
}
void rms_norm_backward(const RmsNormBackward<float16>& call, const GpuStream& on) {
  backward(call, on, "rms_norm_backward");
}

}  // namespace ds::kernels
