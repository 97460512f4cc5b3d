// Attention backward on a GPU: which kernels a problem gets.
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/backward.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kDeltaThreads = 256;

template <class Tile, Form kForm, Part kPart, class T>
void launch_keys(Backward<T>& call, const AttentionProblem& p, const GpuStream& on) {
  const int64_t tiles = divide_up(p.keys, Tile::kOwn);
  call.tiles = static_cast<int>(tiles);
  launch(on, "attention_backward", &key_gradients<Tile, kForm, kPart, T>,
         {p.batch * p.kv_heads * tiles, Tile::kThreads, Tile::shared(2)}, call);
}

template <class Tile, Form kForm, class T>
void launch_queries(Backward<T>& call, const AttentionProblem& p, const GpuStream& on) {
  const int64_t tiles = divide_up(p.queries, Tile::kOwn);
  call.tiles = static_cast<int>(tiles);
  launch(on, "attention_backward", &query_gradients<Tile, kForm, T>,
         {p.batch * p.heads * tiles, Tile::kThreads, Tile::shared(2)}, call);
}

// More rows at once would not fit the registers with wide heads, or in fp32 the shared memory.
template <int kDim, Form kForm, class T>
void launch_both(Backward<T>& call, const AttentionProblem& p, const GpuStream& on) {
  constexpr Keep kQueries = kForm == Form::kPlain ? Keep::kBoth : Keep::kFirst;
  if constexpr (sizeof(T) == 4 || kDim == 256) {
    constexpr int kRows = kDim == 64 ? 64 : 32;
    using Tile = Tiling<T, kDim, kRows, kRows, 1, 4, 1>;
    if constexpr (kDim == 256) {
      launch_keys<Tile, kForm, Part::kKeys>(call, p, on);
      launch_keys<Tile, kForm, Part::kValues>(call, p, on);
    } else {
      launch_keys<Tile, kForm, Part::kBoth>(call, p, on);
    }
    launch_queries<Tile, kForm>(call, p, on);
  } else if constexpr (kDim == 128) {
    constexpr Keep kKeys = kForm == Form::kPlain ? Keep::kFirst : Keep::kNone;
    launch_keys<Tiling<T, kDim, 32, 32, 1, 4, 2, kKeys>, kForm, Part::kBoth>(call, p, on);
    launch_queries<Tiling<T, kDim, 64, 64, 1, 4, 2, kQueries>, kForm>(call, p, on);
  } else {
    launch_keys<Tiling<T, kDim, 64, 32, 2, 4, 2>, kForm, Part::kBoth>(call, p, on);
    launch_queries<Tiling<T, kDim, 64, 32, 2, 4, 2, kQueries>, kForm>(call, p, on);
  }
}

template <int kDim, class T>
void launch_backward(Backward<T>& call, const AttentionProblem& p, const GpuStream& on) {
  const int64_t rows = p.batch * p.heads * p.queries;
  launch(on, "attention_backward", &row_deltas<kDeltaThreads, T>,
         {divide_up(rows, kDeltaThreads / kWarp), kDeltaThreads}, call, rows);
  const bool wide = call.q.wide && call.k.wide && call.v.wide && call.dout.wide;
  if constexpr (sizeof(T) == 2 && kDim <= 128) {
    if (wide && !has_units(p) && !call.dropout.active) {
      return launch_both<kDim, Form::kPlain>(call, p, on);
    }
  }
  launch_both<kDim, Form::kMasked>(call, p, on);
}

}  // namespace

template <class T>
int64_t attention_workspace(const AttentionBackward<T>& call, const GpuStream& on) {
  if (const cudnn::AttentionCall theirs(on, call); theirs) return theirs.workspace_floats();
  const AttentionProblem& p = call.p;
  return unit_floats(p) + p.batch * p.heads * p.queries;
}

template <class T>
void attention_backward(const AttentionBackward<T>& call, const GpuStream& on) {
  if (const cudnn::AttentionCall theirs(on, call); theirs) return theirs.run(on, call.workspace);
  const AttentionProblem& p = call.p;
  Backward<T> ours(p);
  ours.q = {call.q, p.head_dim};
  ours.k = {call.k, p.head_dim};
  ours.v = {call.v, p.head_dim};
  ours.out = {call.g.out, p.head_dim};
  ours.dout = {call.g.dout, p.head_dim};
  ours.dq = {call.g.dq, p.head_dim};
  ours.dk = {call.g.dk, p.head_dim};
  ours.dv = {call.g.dv, p.head_dim};
  ours.lse = call.g.lse;
  ours.delta = call.workspace + unit_floats(p);
  ours.cover = make_cover(p, call.workspace, on);
  if (p.head_dim <= 64) {
    launch_backward<64>(ours, p, on);
  } else if (p.head_dim <= 128) {
    launch_backward<128>(ours, p, on);
  } else {
    launch_backward<256>(ours, p, on);
  }
}

#define DS_ONE_TYPE(T)                                                                 \
  template int64_t attention_workspace(const AttentionBackward<T>&, const GpuStream&); \
  template void attention_backward(const AttentionBackward<T>&, const GpuStream&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
