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
int64_t attention_backward_workspace(const GpuStream& on, const AttentionProblem& p,
                                     HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                                     const AttentionGradients<T>& gradients) {
  if (const cudnn::AttentionCall call(on, p, q, k, v, gradients); call)
    return call.workspace_floats();
  return unit_floats(p) + p.batch * p.heads * p.queries;
}

template <class T>
void attention_backward(const GpuStream& on, const AttentionProblem& p, HeadView<const T> q,
                        HeadView<const T> k, HeadView<const T> v,
                        const AttentionGradients<T>& gradients, float* workspace) {
  if (const cudnn::AttentionCall call(on, p, q, k, v, gradients); call)
    return call.run(on, workspace);
  Backward<T> call(p);
  call.q = {q, p.head_dim};
  call.k = {k, p.head_dim};
  call.v = {v, p.head_dim};
  call.out = {gradients.out, p.head_dim};
  call.dout = {gradients.dout, p.head_dim};
  call.dq = {gradients.dq, p.head_dim};
  call.dk = {gradients.dk, p.head_dim};
  call.dv = {gradients.dv, p.head_dim};
  call.lse = gradients.lse;
  call.delta = workspace + unit_floats(p);
  call.cover = make_cover(p, workspace, on);
  if (p.head_dim <= 64) {
    launch_backward<64>(call, p, on);
  } else if (p.head_dim <= 128) {
    launch_backward<128>(call, p, on);
  } else {
    launch_backward<256>(call, p, on);
  }
}
template int64_t attention_backward_workspace(const GpuStream&, const AttentionProblem&,
                                              HeadView<const float>, HeadView<const float>,
                                              HeadView<const float>,
                                              const AttentionGradients<float>&);
template int64_t attention_backward_workspace(const GpuStream&, const AttentionProblem&,
                                              HeadView<const bfloat16>, HeadView<const bfloat16>,
                                              HeadView<const bfloat16>,
                                              const AttentionGradients<bfloat16>&);
template int64_t attention_backward_workspace(const GpuStream&, const AttentionProblem&,
                                              HeadView<const float16>, HeadView<const float16>,
                                              HeadView<const float16>,
                                              const AttentionGradients<float16>&);
template void attention_backward(const GpuStream&, const AttentionProblem&, HeadView<const float>,
                                 HeadView<const float>, HeadView<const float>,
                                 const AttentionGradients<float>&, float*);
template void attention_backward(const GpuStream&, const AttentionProblem&,
                                 HeadView<const bfloat16>, HeadView<const bfloat16>,
                                 HeadView<const bfloat16>, const AttentionGradients<bfloat16>&,
                                 float*);
template void attention_backward(const GpuStream&, const AttentionProblem&, HeadView<const float16>,
                                 HeadView<const float16>, HeadView<const float16>,
                                 const AttentionGradients<float16>&, float*);

}  // namespace ds::kernels
