// Matrix products on a GPU: by cuBLASLt, or else with kernels of our own, which take any shape,
// stride and alignment.
#include "kernels/matmul/matmul_cublaslt.h"
#include "kernels/matmul/tiles.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

constexpr int64_t kLarge = 128, kSmall = 64;
constexpr int64_t kMostParts = 16, kLeastPart = 256;

// How a product is cut, the same for everything but what runs.
struct Cut {
  bool large = false;  // tiles of 128 x 128, else of 64 x 64
  int64_t tiles_m = 0, tiles_n = 0, parts = 1, k_part = 0;
  int64_t bytes(const Matmul& p) const { return parts > 1 ? parts * p.m * p.n * 4 : 0; }
};

Cut cut(const Matmul& p, const GpuStream& on) {
  Cut c;
  // Of a side that a small tile covers, a large one would multiply nothing but zeros in its other
  // half.
  c.large = p.m > kSmall && p.n > kSmall &&
            divide_up(p.m, kLarge) * divide_up(p.n, kLarge) >= on.processors;
  const int64_t tile = c.large ? kLarge : kSmall;
  c.tiles_m = divide_up(p.m, tile);
  c.tiles_n = divide_up(p.n, tile);
  // Split sums where blocks would leave much of the GPU idle.
  const int64_t blocks = c.tiles_m * c.tiles_n, room = int64_t{on.processors} * 2 / blocks;
  const int64_t longest = p.k / kLeastPart, most = room < longest ? room : longest;
  c.parts = most < 1 ? 1 : most > kMostParts ? kMostParts : most;
  c.k_part = divide_up(divide_up(p.k, c.parts), kDepth) * kDepth;
  c.parts = p.k > 0 ? divide_up(p.k, c.k_part) : 1;
  return c;
}

template <class T>
Stored<T> stored(const MatmulInput& input) {
  const auto* const data = static_cast<const T*>(input.data);
  return {data, input.stride, packs_fit<kPack<T>>(input.stride, data)};
}

template <class T, bool kARows, bool kBRows, int kM, int kN, int kWarpM, int kWarpN>
void launch_tensor(const Problem<T>& p, const Cut& c, const GpuStream& on) {
  using Tile = TensorTile<T, kARows, kBRows, kM, kN, kWarpM, kWarpN>;
  launch(on, "matmul", &multiply_16bit<Tile, T, kARows, kBRows, kM, kN, kWarpM, kWarpN>,
         {c.tiles_m * c.tiles_n, Tile::kThreads, Tile::kShared, c.parts}, p);
}

template <class T, bool kARows, bool kBRows>
void launch_product(const Problem<T>& p, const Cut& c, const GpuStream& on) {
  if constexpr (sizeof(T) == 2) {
    if (c.large) {
      launch_tensor<T, kARows, kBRows, 128, 128, 64, 32>(p, c, on);
    } else {
      launch_tensor<T, kARows, kBRows, 64, 64, 32, 32>(p, c, on);
    }
  } else {
    const Grid grid{c.tiles_m * c.tiles_n, kFloatThreads, 0, c.parts};
    if (c.large) {
      launch(on, "matmul", &multiply_fp32<kARows, kBRows, 128>, grid, p);
    } else {
      launch(on, "matmul", &multiply_fp32<kARows, kBRows, 64>, grid, p);
    }
  }
}

template <class T>
void multiply(const Matmul& call, const GpuStream& on) {
  Cut c = cut(call, on);
  if (c.bytes(call) > call.workspace_bytes) {
    c.parts = 1;
    c.k_part = call.k;
  }
  Problem<T> p;
  p.m = call.m;
  p.n = call.n;
  p.k = call.k;
  p.a = stored<T>(call.a);
  p.b = stored<T>(call.b);
  p.finish = Finish(call);
  p.tiles_m = c.tiles_m;
  p.tiles_n = c.tiles_n;
  p.k_part = c.k_part;
  p.partials = c.parts > 1 ? static_cast<float*>(call.workspace) : nullptr;
  if (call.a.transposed) {
    if (call.b.transposed) {
      launch_product<T, false, true>(p, c, on);
    } else {
      launch_product<T, false, false>(p, c, on);
    }
  } else if (call.b.transposed) {
    launch_product<T, true, true>(p, c, on);
  } else {
    launch_product<T, true, false>(p, c, on);
  }
  if (c.parts > 1) {
    const Grid grid = grid_for(on, p.m * p.n);
    if (p.finish.wide_out) {
      launch(on, "matmul", &finish_parts<T, float>, grid, p, c.parts);
    } else {
      launch(on, "matmul", &finish_parts<T, T>, grid, p, c.parts);
    }
  }
  finish_activation(call, on);
}

template <class T>
__global__ void activate_rows(ActivationKind kind, const T* from, int64_t from_stride, T* to,
                              int64_t to_stride, int64_t rows, int64_t columns) {
  with_function(kind, [&](auto function) {
    for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < rows * columns;
         at += int64_t{gridDim.x} * blockDim.x) {
      const int64_t row = at / columns, column = at % columns;
      to[row * to_stride + column] =
          narrow<T>(function.value(widen(from[row * from_stride + column])));
    }
  });
}

template <class T>
void launch_activation(const Matmul& p, const GpuStream& on) {
  const Finish finish(p);
  launch(on, "matmul", &activate_rows<T>, grid_for(on, p.m * p.n), *p.activation,
         static_cast<const T*>(finish.to), finish.to_stride, static_cast<T*>(p.c), p.c_stride, p.m,
         p.n);
}

}  // namespace

namespace cuda {

void finish_activation(const Matmul& p, const GpuStream& on) {
  if (!p.activation) return;
  switch (p.out) {
    case MatmulType::kBFloat16:
      return launch_activation<bfloat16>(p, on);
    case MatmulType::kFloat16:
      return launch_activation<float16>(p, on);
    default:
      return launch_activation<float>(p, on);
  }
}

}  // namespace cuda

int64_t matmul_workspace(const Matmul& p, const GpuStream& on, MatmulExtra extra,
                         const float* sums) {
  if (p.m <= 0 || p.n <= 0) return 0;
  const int64_t own = extra == MatmulExtra::kSlope ? 0 : cut(p, on).bytes(p);
  return cublaslt::workspace(p, on, extra, sums).value_or(own);
}

void matmul(const Matmul& p, const GpuStream& on) {
  if (p.m <= 0 || p.n <= 0) return;
  switch (cublaslt::multiply(p, on)) {
    case cublaslt::Done::kAll:
      return;
    case cublaslt::Done::kArguments:
      return finish_activation(p, on);
    case cublaslt::Done::kNothing:
      break;
  }
  switch (p.in) {
    case MatmulType::kBFloat16:
      return multiply<bfloat16>(p, on);
    case MatmulType::kFloat16:
      return multiply<float16>(p, on);
    default:
      return multiply<float>(p, on);
  }
}

bool matmul_with_sums(const Matmul& p, float* sums, const GpuStream& on) {
  return p.m > 0 && p.n > 0 && cublaslt::multiply_with_sums(p, sums, on);
}

bool matmul_times_derivative(const Matmul& p, const GpuStream& on) {
  return p.m > 0 && p.n > 0 && cublaslt::multiply_times_slope(p, on);
}

}  // namespace ds::kernels
