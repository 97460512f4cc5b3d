// Rotary position embedding on a GPU: a block per token, a thread per pack of pairs.
#include <algorithm>

#include "kernels/rotary/turn.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

// A thread per pack.
template <int N, bool kAligned, bool kInterleaved, class T>
__global__ void __launch_bounds__(kMapThreads) rotary_tokens(Rotary<T> call) {
  const int64_t token = blockIdx.x, b = token / call.tokens, t = token - b * call.tokens;
  const T* const x = call.x.data + b * call.x.batch + t * call.x.token;
  T* const y = call.y.data + b * call.y.batch + t * call.y.token;
  const int64_t half = call.rotary_dim / 2;
  const Angles angles(call.cos, call.sin, half, call.positions[token], call.rows, call.inverse);
  const auto rotated_packs = static_cast<int>((kInterleaved ? call.rotary_dim : half) / N);
  // In place, channels that do not turn stay.
  constexpr int kRest = kAligned ? N : 1;
  const auto rest_packs = x == y ? 0 : static_cast<int>((call.head_dim - call.rotary_dim) / kRest);
  const int packs = rotated_packs + rest_packs, items = packs * static_cast<int>(call.heads);
  for (int item = static_cast<int>(threadIdx.x); item < items;
       item += static_cast<int>(blockDim.x)) {
    const int head = item / packs, pack = item - head * packs;
    const T* const from = x + head * call.x.head;
    T* const to = y + head * call.y.head;
    if (pack >= rotated_packs) {
      const int64_t at = call.rotary_dim + int64_t{pack - rotated_packs} * kRest;
      store_pack(to + at, load_pack<T, kRest>(from + at));
    } else {
      turn_pack<N, kAligned, kInterleaved>(from, to, pack, half, angles);
    }
  }
}

template <int N, bool kAligned, bool kInterleaved, class T>
void launch_tokens(const Rotary<T>& call, const GpuStream& on) {
  const int64_t items = std::max<int64_t>(1, call.heads * (call.head_dim / N));
  const int64_t warps = std::min<int64_t>((items + kWarp - 1) / kWarp, kMapThreads / kWarp);
  launch(on, "rotary", &rotary_tokens<N, kAligned, kInterleaved, T>,
         Grid{call.batch * call.tokens, static_cast<int>(warps * kWarp)}, call);
}

}  // namespace

template <class T>
void rotary(const Rotary<T>& call, const GpuStream& on) {
  constexpr int kN = kPack<T>;
  const bool fits =
      channels_fit<T>(call.head_dim, call.rotary_dim, call.interleaved, call.cos, call.sin) &&
      view_fits<T>(kN, call.x) && view_fits<T>(kN, call.y);
  if (call.interleaved) {
    fits ? launch_tokens<kN, true, true>(call, on) : launch_tokens<2, false, true>(call, on);
  } else {
    fits ? launch_tokens<kN, true, false>(call, on) : launch_tokens<1, false, false>(call, on);
  }
}
template void rotary(const Rotary<float>&, const GpuStream&);
template void rotary(const Rotary<bfloat16>&, const GpuStream&);
template void rotary(const Rotary<float16>&, const GpuStream&);

}  // namespace ds::kernels
