// Attention backward on a GPU: which kernels a problem gets.
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/backward.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kDeltaThreads = 256;

template <class Tile, Part kPart, class T>
void launch_keys(Backward<T>& call, const AttentionProblem& p, const GpuStream& on) {
  call.tiles = divide_up(p.keys, Tile::kOwn);
  launch(on, "attention_backward", &key_gradients<Tile, kPart, T>,
         {p.batch * p.kv_heads * call.tiles, Tile::kThreads, Tile::shared(2)}, call);
}

template <class Tile, class T>
void launch_queries(Backward<T>& call, const AttentionProblem& p, const GpuStream& on) {
  call.tiles = divide_up(p.queries, Tile::kOwn);
  launch(on, "attention_backward", &query_gradients<Tile, T>,
         {p.batch * p.heads * call.tiles, Tile::kThreads, Tile::shared(2)}, call);
}

template <int kDim, class T>
void launch_backward(Backward<T>& call, const AttentionProblem& p, const GpuStream& on) {
  // More rows at once would not fit the registers with wide heads, or in fp32 the shared memory.
  using KeyTile = Tiling<T, kDim, kDim == 64 ? 64 : 32, 1, 4>;
  constexpr int kKeys = kDim == 64 || (kDim == 128 && sizeof(T) == 2) ? 64 : 32;
  const int64_t rows = p.batch * p.heads * p.queries;
  launch(on, "attention_backward", &row_deltas<kDeltaThreads, T>,
         {divide_up(rows, kDeltaThreads / kWarp), kDeltaThreads}, call, rows);
  if constexpr (kDim == 256) {
    launch_keys<KeyTile, Part::kKeys>(call, p, on);
    launch_keys<KeyTile, Part::kValues>(call, p, on);
  } else {
    launch_keys<KeyTile, Part::kBoth>(call, p, on);
  }
  launch_queries<Tiling<T, kDim, kKeys, 1, 4>>(call, p, on);
}

}  // namespace

template <class T>
int64_t attention_backward_workspace(const GpuStream& on, const AttentionProblem& p,
                                     HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                                     const AttentionGradients<T>& gradients) {
  if (const cudnn::AttentionCall call(on, p, q, k, v, gradients); call) return call.workspace_floats();
  return unit_floats(p) + p.batch * p.heads * p.queries;
}

template <class T>
void attention_backward(const GpuStream& on, const AttentionProblem& p, HeadView<const T> q,
                        HeadView<const T> k, HeadView<const T> v,
                        const AttentionGradients<T>& gradients, float* workspace) {
  if (const cudnn::AttentionCall call(on, p, q, k, v, gradients); call) return call.run(on, workspace);
  Backward<T> call(p);
  call.q = Rows<const T>(q);
  call.k = Rows<const T>(k);
  call.v = Rows<const T>(v);
  call.out = Rows<const T>(gradients.out);
  call.dout = Rows<const T>(gradients.dout);
  call.dq = Rows<T>(gradients.dq);
  call.dk = Rows<T>(gradients.dk);
  call.dv = Rows<T>(gradients.dv);
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
