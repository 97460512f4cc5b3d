// Attention forward on a GPU: which kernel a problem gets.
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/forward.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

// Few queries: blocks of 16 rows, all query heads of a kv head together, and the keys split.
struct SplitPlan {
  int64_t begin, splits, pitch;
  explicit SplitPlan(const AttentionProblem& p) {
    const Band band(p);
    begin = band.first_key(0) / kSplitKeys * kSplitKeys;
    const int64_t end = std::max(begin, band.end_key(p.queries - 1));
    splits = std::max<int64_t>(1, divide_up(end - begin, kSplitKeys));
    if (p.past != nullptr) splits = most_splits(p);
    pitch = round_up(p.head_dim, 4) + 4;
  }
  static bool fits(const AttentionProblem& p) {
    return p.queries <= kFewQueriesOfGpus && p.dropout == 0 && p.segments == nullptr;
  }
  // Of any number of keys that there may be: a window begins anywhere in its first split.
  static int64_t most_splits(const AttentionProblem& p) {
    const int64_t all = divide_up(p.keys, kSplitKeys);
    if (p.window == 0) return all;
    return std::min(all, divide_up(p.window + p.queries, kSplitKeys) + 1);
  }
  int64_t floats(const AttentionProblem& p) const {
    return splits > 1 ? p.batch * p.heads * p.queries * splits * pitch : 0;
  }
};

constexpr int kJoinThreads = 128;

// Joins the splits of a row in their order.
template <class T>
__global__ void __launch_bounds__(kJoinThreads) join_splits(Forward<T> call) {
  __shared__ float weights[kJoinThreads], shared[kJoinThreads / kWarp];
  const int64_t row = blockIdx.x, query = row % call.cover.queries;
  const int64_t head = row / call.cover.queries % call.heads;
  const int64_t b = row / call.cover.queries / call.heads;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t splits = call.actual_splits(call.actual_cover(b));
  if (splits == 1 && call.past != nullptr) return;  // its block has written the result
  const float* const from = call.partials + row * call.splits * call.pitch;
  const auto stats = [&](int64_t split) {
    return load_pack<float, 2>(from + (split + 1) * call.pitch - 2);
  };
  float top = kLowest;
  for (int64_t split = thread; split < splits; split += kJoinThreads) {
    top = fmaxf(top, stats(split).at[0]);
  }
  top = warp_max(top);
  if (thread % kWarp == 0) shared[thread / kWarp] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kJoinThreads / kWarp; ++i) top = fmaxf(top, shared[i]);
  const float reference = top == kLowest ? 0.0f : top;
  float sum = 0, values[2] = {};
  for (int64_t first = 0; first < splits; first += kJoinThreads) {
    __syncthreads();
    weights[thread] = 0;
    if (first + thread < splits) {
      const Pack<float, 2> mine = stats(first + thread);
      weights[thread] = exp2f(mine.at[0] - reference);
      sum += mine.at[1] * weights[thread];
    }
    __syncthreads();
    const int64_t left = splits - first;
    const int count = static_cast<int>(left < kJoinThreads ? left : kJoinThreads);
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int column = part * kJoinThreads + thread;
        if (column < call.dim) {
          values[part] = fmaf(weights[i], from[(first + i) * call.pitch + column], values[part]);
        }
      }
    }
  }
  sum = block_sum(sum, shared);
  T* const to = call.out.at(b, query, head);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int column = part * kJoinThreads + thread;
    if (column < call.dim) to[column] = narrow<T>(sum == 0 ? 0.0f : values[part] / sum);
  }
  if (call.lse != nullptr && thread == 0) {
    call.lse[row] = sum == 0 ? kLowest : (top + (log2f(sum) - kLift<T>)) * kLogOf2;
  }
}

template <class Tile, Form kForm, class T>
void launch_tiles(Forward<T>& call, const AttentionProblem& p, const GpuStream& on) {
  constexpr bool kSplit = kForm == Form::kSplit;
  const int64_t tiles = divide_up(kSplit ? p.queries * call.group : p.queries, Tile::kOwn);
  call.tiles = static_cast<int>(tiles);
  const int64_t parts = p.batch * (kSplit ? p.kv_heads : p.heads);
  launch(on, "attention", &attend<Tile, kForm, T>,
         {parts * tiles * call.splits, Tile::kThreads, Tile::shared(1)}, call);
}

// More keys or blocks at once, or more operands in registers, would not fit these.
template <int kDim, class T>
void launch_forward(Forward<T>& call, const AttentionProblem& p, const GpuStream& on) {
  if (SplitPlan::fits(p)) {
    constexpr Keep kKeeps = kDim == 256 ? Keep::kNone : Keep::kFirst;
    launch_tiles<Tiling<T, kDim, 32, 32, 1, 1, 1, kKeeps>, Form::kSplit>(call, p, on);
    if (call.partials != nullptr) {
      launch(on, "attention", &join_splits<T>, {p.batch * p.heads * p.queries, kJoinThreads}, call);
    }
  } else if constexpr (sizeof(T) == 4) {
    constexpr int kKeys = kDim == 64 ? 64 : 32, kResident = kDim == 64 ? 3 : kDim == 128 ? 2 : 1;
    launch_tiles<Tiling<T, kDim, kKeys, kKeys, 1, 4, kResident>, Form::kMasked>(call, p, on);
  } else if constexpr (kDim == 256) {
    launch_tiles<Tiling<T, kDim, 32, 32, 1, 8, 1, Keep::kFirst>, Form::kMasked>(call, p, on);
  } else if (has_units(p) || call.dropout.active || !call.k.wide || !call.v.wide) {
    constexpr Keep kKeeps = kDim == 128 ? Keep::kNone : Keep::kFirst;
    launch_tiles<Tiling<T, kDim, 64, 32, 2, 4, 2, kKeeps>, Form::kMasked>(call, p, on);
  } else if constexpr (kDim == 128) {
    launch_tiles<Tiling<T, kDim, 64, 64, 2, 4, 2>, Form::kPlain>(call, p, on);
  } else {
    launch_tiles<Tiling<T, kDim, 64, 32, 2, 4, 3, Keep::kFirst>, Form::kPlain>(call, p, on);
  }
}

}  // namespace

template <class T>
int64_t attention_workspace(const AttentionForward<T>& call, const GpuStream& on) {
  if (const cudnn::AttentionCall theirs(on, call); theirs) return theirs.workspace_floats();
  const AttentionProblem& p = call.p;
  return unit_floats(p) + (SplitPlan::fits(p) ? SplitPlan(p).floats(p) : 0);
}

template <class T>
void attention_forward(const AttentionForward<T>& call, const GpuStream& on) {
  if (const cudnn::AttentionCall theirs(on, call); theirs) return theirs.run(on, call.workspace);
  const AttentionProblem& p = call.p;
  Forward<T> ours(p);
  ours.q = {call.q, p.head_dim};
  ours.k = {call.k, p.head_dim};
  ours.v = {call.v, p.head_dim};
  ours.out = {call.out, p.head_dim};
  ours.lse = call.lse;
  ours.cover = make_cover(p, call.workspace, on);
  if (SplitPlan::fits(p)) {
    const SplitPlan plan(p);
    ours.split_begin = static_cast<int>(plan.begin);
    ours.splits = static_cast<int>(plan.splits);
    ours.pitch = plan.pitch;
    ours.past = p.past;
    if (plan.splits > 1) ours.partials = call.workspace + unit_floats(p);
  }
  if (p.head_dim <= 64) {
    launch_forward<64>(ours, p, on);
  } else if (p.head_dim <= 128) {
    launch_forward<128>(ours, p, on);
  } else {
    launch_forward<256>(ours, p, on);
  }
}

#define DS_ONE_TYPE(T)                                                                \
  template int64_t attention_workspace(const AttentionForward<T>&, const GpuStream&); \
  template void attention_forward(const AttentionForward<T>&, const GpuStream&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
