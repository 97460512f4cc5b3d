// Layer and RMS normalisation on a GPU: which kernel a call takes.
#include "kernels/norm/backward.cuh"
#include "kernels/norm/forward.cuh"
#include "kernels/norm/norm.h"

namespace ds::kernels {
namespace {

using namespace norm;

template <int n>
using Number = std::integral_constant<int, n>;

// The widest packs that all pointers and the row length allow.
template <class T, class Kernels>
void by_pack(bool fits, const Kernels& kernels) {
  if (fits) {
    kernels(Number<kPack<T>>());
  } else {
    kernels(Number<1>());
  }
}

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

template <class Call>
void forward(const Call& call, const GpuStream& on, const char* name) {
  using T = typename Call::Type;
  if (call.rows <= 0 || call.cols <= 0) return;
  bool fits = packs_fit<kPack<T>>(call.cols, call.x, call.residual, call.gamma,
                                  static_cast<const T*>(call.y), static_cast<const T*>(call.sum));
  if constexpr (Call::kCentred) fits = fits && packs_fit<kPack<T>>(call.cols, call.beta);
  const int64_t slots = divide_up(call.cols, int64_t{kPack<T>} * kWarp);
  if (!fits || slots > kMostSlots) {
    return by_pack<T>(fits, [&](auto pack) {
      constexpr int kN = decltype(pack)::value;
      launch(on, name, &forward_rows<kN, Call>, {call.rows, threads_for(call.cols, kN)}, call);
    });
  }
  const auto by_warps = [&](auto kept) {
    launch(on, name, &forward_warps<decltype(kept)::value, Call>,
           {divide_up(call.rows, kRowWarps), kRowWarps * kWarp}, call);
  };
  if (slots <= 2) return by_warps(Number<2>());
  if (slots <= 4) return by_warps(Number<4>());
  by_warps(Number<kMostSlots>());
}

// dgamma, dbeta and dx in one pass; false where a row does not fit into the registers of a block.
template <class Call>
bool backward_at_once(const Call& call, const GpuStream& on, const char* name, int64_t chunk_size,
                      int64_t chunks) {
  using T = typename Call::Type;
  const int64_t packs = divide_up(call.cols, kPack<T>);
  const auto run = [&](auto slots, auto many, int warps) {
    launch(on, name, &backward_chunks<decltype(slots)::value, decltype(many)::value, Call>,
           {chunks, kChunkWarps * kWarp}, call, chunk_size, chunks, warps);
    return true;
  };
  const std::false_type one;
  const std::true_type many;
  if (packs <= 2 * kWarp) return run(Number<2>(), one, 1);
  if (packs <= 3 * kWarp) return run(Number<3>(), one, 1);
  for (const int warps : {2, 4, 8}) {
    if (packs <= int64_t{2} * warps * kWarp) return run(Number<2>(), many, warps);
    if (packs <= int64_t{3} * warps * kWarp) return run(Number<3>(), many, warps);
  }
  return packs <= int64_t{4} * kChunkWarps * kWarp && run(Number<4>(), many, kChunkWarps);
}

template <class Call>
void backward(const Call& call, const GpuStream& on, const char* name) {
  using T = typename Call::Type;
  if (call.rows <= 0 || call.cols <= 0) return;
  const int64_t chunk_size = gpu_norm_chunk_size(call.rows), chunks = gpu_norm_chunks(call.rows);
  const bool fits = packs_fit<kPack<T>>(call.cols, call.dy, call.dsum, call.sum, call.gamma,
                                        static_cast<const T*>(call.dx));
  const Grid add{divide_up(call.cols, kAddColumns), kAddColumns * kAddLanes};
  if (fits && backward_at_once(call, on, name, chunk_size, chunks)) {
    return launch(on, name, &add_chunks<Call>, add, call, chunks);
  }
  launch(on, name, &column_partials<Call>,
         {divide_up(call.cols, kColumnsPerBlock), kColumnsPerBlock * kRowsAtOnce, 0, chunks}, call,
         chunk_size, chunks);
  launch(on, name, &add_chunks<Call>, add, call, chunks);
  by_pack<T>(fits, [&](auto pack) {
    constexpr int kN = decltype(pack)::value;
    launch(on, name, &backward_rows<kN, Call>, {call.rows, threads_for(call.cols, kN)}, call);
  });
}

}  // namespace

template <class T, bool kCentred>
void norm_forward(const Norm<T, kCentred>& call, const GpuStream& on) {
  forward(call, on, kCentred ? "layer_norm" : "rms_norm");
}
template <class T, bool kCentred>
void norm_backward(const NormBackward<T, kCentred>& call, const GpuStream& on) {
  backward(call, on, kCentred ? "layer_norm_backward" : "rms_norm_backward");
}

template void norm_forward(const LayerNorm<float>&, const GpuStream&);
template void norm_forward(const LayerNorm<bfloat16>&, const GpuStream&);
template void norm_forward(const LayerNorm<float16>&, const GpuStream&);
template void norm_forward(const RmsNorm<float>&, const GpuStream&);
template void norm_forward(const RmsNorm<bfloat16>&, const GpuStream&);
template void norm_forward(const RmsNorm<float16>&, const GpuStream&);
template void norm_backward(const LayerNormBackward<float>&, const GpuStream&);
template void norm_backward(const LayerNormBackward<bfloat16>&, const GpuStream&);
template void norm_backward(const LayerNormBackward<float16>&, const GpuStream&);
template void norm_backward(const RmsNormBackward<float>&, const GpuStream&);
template void norm_backward(const RmsNormBackward<bfloat16>&, const GpuStream&);
template void norm_backward(const RmsNormBackward<float16>&, const GpuStream&);

}  // namespace ds::kernels
