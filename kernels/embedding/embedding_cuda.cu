// The embedding on a GPU. Backward sorts the ids (stably, by digits), cuts the sorted list in
// pieces and adds up every piece's runs of equal ids in the order of the ids. A run inside a piece
// is the only one of its id; runs that cross pieces leave partial sums, which are added in order.
// So every row of the table has one writer, and the bits are the same in every run.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "kernels/cuda/map.cuh"
#include "kernels/embedding/embedding.h"

namespace ds::kernels {
namespace {

using namespace cuda;

// ---- forward ----

template <bool kPositions, class T>
struct LookUpBody {
  Embedding<T> call;
  template <int N>
  struct Input {
    Pack<T, N> row;
    Pack<T, kPositions ? N : 1> position;
    bool known;
  };
  template <int N>
  __device__ __forceinline__ int column(int64_t) const {
    return 0;
  }
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t row, int64_t column) const {
    Input<N> in{};
    const int64_t id = call.ids[row];
    in.known = id >= 0 && id < call.table_rows;
    if constexpr (kPositions) {
      const int64_t position = call.position_ids[row];
      in.known = in.known && position >= 0 && position < call.position_rows;
      if (in.known) {
        in.position = load_pack<T, N>(call.positions + position * call.cols + column);
      }
    }
    if (in.known) in.row = load_pack<T, N>(call.table + id * call.cols + column);
    return in;
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t row, int64_t column, int,
                                        const Input<N>& in) const {
    Pack<T, N> out = in.row;
    if constexpr (kPositions) {
      float v[N], p[N];
      widen_pack(in.row, v);
      widen_pack(in.position, p);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += p[i];
      out = narrow_pack<T, N>(v);
    }
    if (!in.known) {
#pragma unroll
      for (int i = 0; i < N; ++i) out.at[i] = narrow<T>(__uint_as_float(0x7FC00000u));
    }
    store_pack(call.y + row * call.cols + column, out);
  }
};

template <class T>
void look_up(const Embedding<T>& call, const GpuStream& on) {
  const bool fits =
      packs_fit<kPack<T>>(call.cols, call.table, call.positions, static_cast<const T*>(call.y));
  const auto run = [&](const auto& body) {
    if (fits) {
      map_rows<kPack<T>>(on, "embedding", body, call.n, call.cols);
    } else {
      map_rows<1>(on, "embedding", body, call.n, call.cols);
    }
  };
  if (call.positions != nullptr) {
    run(LookUpBody<true, T>{call});
  } else {
    run(LookUpBody<false, T>{call});
  }
}

// ---- sorting ----

constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
constexpr int kSortWarps = 8, kSortThreads = kSortWarps * kWarp;
constexpr int kRounds = 8;  // of keys of a warp
constexpr int kWarpKeys = kRounds * kWarp, kTileKeys = kSortWarps * kWarpKeys;
static_assert(kTileKeys == kEmbeddingTile && kDigits == kEmbeddingDigits);
constexpr int kScanThreads = 1024;

// What a pass of the sort reads and writes. The first reads ids, and takes those outside the table,
// and that of padding, for `limit`, which no row has.
struct SortPass {
  const int32_t* keys;
  const int32_t* order;  // null in the first pass: as they stand
  int32_t limit;
  int32_t padding;
  int shift;  // of the digit
  int32_t n;
  int32_t tiles;
  int32_t* counts;  // [digit][tile]
  int32_t* keys_out;
  int32_t* order_out;

  __device__ __forceinline__ int32_t key(int32_t i) const {
    const int32_t key = keys[i];
    return order == nullptr && (key < 0 || key >= limit || key == padding) ? limit : key;
  }
  __device__ __forceinline__ int digit(int32_t key) const { return (key >> shift) & (kDigits - 1); }
};

__global__ void __launch_bounds__(kSortThreads) count_digits(SortPass pass) {
  __shared__ int32_t counts[kDigits];
  static_assert(kSortThreads == kDigits);
  counts[threadIdx.x] = 0;
  __syncthreads();
  const auto begin = static_cast<int32_t>(blockIdx.x) * kTileKeys;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys; i += kSortThreads) {
    if (begin + i < pass.n) atomicAdd(&counts[pass.digit(pass.key(begin + i))], 1);
  }
  __syncthreads();
  pass.counts[static_cast<int64_t>(threadIdx.x) * pass.tiles + blockIdx.x] = counts[threadIdx.x];
}

// Every count becomes the sum of those before it. One block.
__global__ void __launch_bounds__(kScanThreads) scan_counts(int32_t* counts, int32_t n) {
  __shared__ int32_t of_warp[kWarp];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int32_t each = (n + kScanThreads - 1) / kScanThreads;
  const int32_t begin = thread * each, end = begin + each < n ? begin + each : n;
  int32_t mine = 0;
  for (int32_t i = begin; i < end; ++i) mine += counts[i];
  int32_t upto = mine;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, upto, offset);
    if (lane >= offset) upto += other;
  }
  if (lane == kWarp - 1) of_warp[warp] = upto;
  __syncthreads();
  int32_t before = upto - mine;
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  for (int32_t i = begin; i < end; ++i) {
    const int32_t count = counts[i];
    counts[i] = before;
    before += count;
  }
}

// Keys of a warp go to their places in turn, so that equal digits keep their order.
__global__ void __launch_bounds__(kSortThreads) scatter_keys(SortPass pass) {
  __shared__ int32_t places[kSortWarps][kDigits];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int w = 0; w < kSortWarps; ++w) places[w][threadIdx.x] = 0;
  __syncthreads();
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kTileKeys + warp * kWarpKeys;
  int32_t keys[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int32_t i = begin + r * kWarp + lane;
    keys[r] = i < pass.n ? pass.key(i) : 0;
    if (i < pass.n) atomicAdd(&places[warp][pass.digit(keys[r])], 1);
  }
  __syncthreads();
  int32_t place = pass.counts[static_cast<int64_t>(threadIdx.x) * pass.tiles + blockIdx.x];
#pragma unroll
  for (int w = 0; w < kSortWarps; ++w) {
    const int32_t count = places[w][threadIdx.x];
    places[w][threadIdx.x] = place;
    place += count;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int32_t i = begin + r * kWarp + lane;
    const int digit = pass.digit(keys[r]);
    unsigned same = __ballot_sync(kAllLanes, i < pass.n);
#pragma unroll
    for (int bit = 0; bit < kDigitBits; ++bit) {
      const bool set = (digit >> bit & 1) != 0;
      const unsigned vote = __ballot_sync(kAllLanes, set);
      same &= set ? vote : ~vote;
    }
    const int rank = __popc(same & ((1u << lane) - 1u));
    const int32_t to = places[warp][digit] + rank;
    __syncwarp();
    if (i < pass.n) {
      if (rank == 0) places[warp][digit] += __popc(same);
      pass.keys_out[to] = keys[r];
      pass.order_out[to] = pass.order != nullptr ? pass.order[i] : i;
    }
    __syncwarp();
  }
}

// ---- sums of runs ----

constexpr int kPiece = kEmbeddingPiece;  // places of the sorted list
constexpr int kSumLoads = 8;
constexpr int kSumThreads = 256;

struct Sorted {
  const int32_t* keys;
  const int32_t* order;
  int32_t n;
  int32_t limit;  // keys from here on have no row
};

// Partial sums of piece p: in row 2 p what begins with the piece, in 2 p + 1 what ends with it.
template <int N, class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_pieces(Sorted sorted, const T* dy, int64_t cols, float* dtable, float* partials) {
  __shared__ int32_t keys[kPiece + 2];  // with the neighbours of the piece
  __shared__ int32_t order[kPiece];
  const int64_t piece = blockIdx.x;
  const auto begin = static_cast<int32_t>(piece * kPiece);
  const int count = sorted.n - begin < kPiece ? sorted.n - begin : kPiece;
  for (int i = static_cast<int>(threadIdx.x); i < kPiece + 2; i += static_cast<int>(blockDim.x)) {
    const int32_t at = begin + i - 1;
    keys[i] = at >= 0 && at < sorted.n ? sorted.keys[at] : -1;
    if (i < count) order[i] = sorted.order[begin + i];
  }
  __syncthreads();
  const int32_t* const key = keys + 1;
  for (int64_t column = int64_t{threadIdx.x} * N; column < cols;
       column += int64_t{blockDim.x} * N) {
    float sums[N] = {};
    bool from_start = true;
    for (int first = 0; first < count; first += kSumLoads) {
      Pack<T, N> in[kSumLoads];
#pragma unroll
      for (int k = 0; k < kSumLoads; ++k) {
        if (first + k < count && key[first + k] < sorted.limit) {
          in[k] = load_pack<T, N>(dy + order[first + k] * cols + column);
        }
      }
#pragma unroll
      for (int k = 0; k < kSumLoads; ++k) {
        const int i = first + k;
        if (i >= count || key[i] >= sorted.limit) continue;
        float v[N];
        widen_pack(in[k], v);
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += v[j];
        const bool last = i + 1 == count, goes_on = key[i + 1] == key[i];
        if (goes_on && !last) continue;
        // key[-1] is that of the piece before.
        if (goes_on || (from_start && key[-1] == key[i])) {
          Pack<float, N> out;
#pragma unroll
          for (int j = 0; j < N; ++j) out.at[j] = sums[j];
          store_pack(partials + (2 * piece + (from_start ? 0 : 1)) * cols + column, out);
        } else {
          float* const row = dtable + key[i] * cols + column;
          Pack<float, N> out = load_pack<float, N>(static_cast<const float*>(row));
#pragma unroll
          for (int j = 0; j < N; ++j) out.at[j] += sums[j];
          store_pack(row, out);
        }
        from_start = false;
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] = 0;
      }
    }
  }
}

// Adds up the run that begins in the block's piece and goes on behind it, if there is one.
__global__ void __launch_bounds__(kSumThreads)
    join_pieces(Sorted sorted, int64_t cols, const float* partials, float* dtable) {
  const int64_t piece = blockIdx.x;
  const auto begin = static_cast<int32_t>(piece * kPiece);
  const int32_t end = begin + kPiece;
  if (end >= sorted.n) return;
  const int32_t key = sorted.keys[end - 1];
  if (key >= sorted.limit || sorted.keys[end] != key) return;
  const bool whole = sorted.keys[begin] == key;
  if (whole && begin > 0 && sorted.keys[begin - 1] == key) return;  // begins before
  // The end of the run.
  int32_t low = end, high = sorted.n;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (sorted.keys[middle] > key) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const int64_t last = (low - 1) / kPiece;
  for (int64_t column = threadIdx.x; column < cols; column += blockDim.x) {
    float total = partials[(2 * piece + (whole ? 0 : 1)) * cols + column];
#pragma unroll 8
    for (int64_t p = piece + 1; p <= last; ++p) total += partials[2 * p * cols + column];
    dtable[key * cols + column] += total;
  }
}

template <class T>
void scatter_rows(const EmbeddingBackward<T>& call, const GpuStream& on) {
  if (call.n <= 0 || call.cols <= 0) return;
  const char* const name = "embedding_backward";
  DS_CHECK(call.n <= INT32_MAX - kTileKeys && call.rows < INT32_MAX, Code::kUnsupported, name, ": ",
           call.n, " ids and a table of ", call.rows, " rows; a GPU takes fewer than 2^31 of each");
  const int64_t tiles = (call.n + kTileKeys - 1) / kTileKeys;
  int32_t* const counts = call.scratch + 4 * call.n;
  SortPass pass{};
  pass.keys = call.ids;
  pass.limit = static_cast<int32_t>(call.rows);
  pass.padding = call.padding;
  pass.n = static_cast<int32_t>(call.n);
  pass.tiles = static_cast<int32_t>(tiles);
  pass.counts = counts;
  const int bits = std::bit_width(static_cast<uint32_t>(pass.limit));
  for (int turn = 0; turn == 0 || pass.shift < bits; ++turn) {
    pass.keys_out = call.scratch + turn % 2 * (2 * call.n);
    pass.order_out = pass.keys_out + call.n;
    launch(on, name, &count_digits, Grid{tiles, kSortThreads}, pass);
    launch(on, name, &scan_counts, Grid{1, kScanThreads}, counts,
           static_cast<int32_t>(kDigits * tiles));
    launch(on, name, &scatter_keys, Grid{tiles, kSortThreads}, pass);
    pass.keys = pass.keys_out;
    pass.order = pass.order_out;
    pass.shift += kDigitBits;
  }
  const Sorted sorted{pass.keys, pass.order, pass.n, pass.limit};
  constexpr int kN = kPack<T>;
  const bool fits = packs_fit<kN>(call.cols, call.dy) &&
                    packs_fit<4>(call.cols, static_cast<const float*>(call.dtable),
                                 static_cast<const float*>(call.partials));
  const auto grid = [&](int pack) {
    const int64_t warps = (call.cols / pack + kWarp - 1) / kWarp;
    return Grid{(call.n + kPiece - 1) / kPiece,
                static_cast<int>(std::clamp<int64_t>(warps, 1, kSumThreads / kWarp)) * kWarp};
  };
  if (fits) {
    launch(on, name, &sum_pieces<kN, T>, grid(kN), sorted, call.dy, call.cols, call.dtable,
           call.partials);
  } else {
    launch(on, name, &sum_pieces<1, T>, grid(1), sorted, call.dy, call.cols, call.dtable,
           call.partials);
  }
  launch(on, name, &join_pieces, grid(1), sorted, call.cols,
         static_cast<const float*>(call.partials), call.dtable);
}

}  // namespace

void embedding(const Embedding<float>& call, const GpuStream& on) { look_up(call, on); }
void embedding(const Embedding<bfloat16>& call, const GpuStream& on) { look_up(call, on); }
void embedding(const Embedding<float16>& call, const GpuStream& on) { look_up(call, on); }

void embedding_backward(const EmbeddingBackward<float>& call, const GpuStream& on) {
  scatter_rows(call, on);
}
void embedding_backward(const EmbeddingBackward<bfloat16>& call, const GpuStream& on) {
  scatter_rows(call, on);
}
void embedding_backward(const EmbeddingBackward<float16>& call, const GpuStream& on) {
  scatter_rows(call, on);
}

}  // namespace ds::kernels
