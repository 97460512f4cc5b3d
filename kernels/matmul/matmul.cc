// Cuts products into tiles and multiplies each one; the tile sizes were measured with op_bench.
#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <memory>

#include "kernels/matmul/onednn.h"
#include "kernels/matmul/widen.h"

namespace ds::kernels {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

FloatType float_type(MatmulType type) {
  switch (type) {
    case MatmulType::kBFloat16:
      return FloatType::kBFloat16;
    case MatmulType::kFloat16:
      return FloatType::kFloat16;
    default:
      return FloatType::kFloat32;
  }
}

int64_t element_size(MatmulType type) { return type == MatmulType::kFloat32 ? 4 : 2; }

const void* advance(const void* data, int64_t elements, MatmulType type) {
  return static_cast<const std::byte*>(data) + elements * element_size(type);
}

// `total` in `pieces` equal parts, rounded up so that tiles keep the library's vector widths full.
int64_t piece(int64_t total, int64_t pieces, int64_t multiple) {
  if (total <= multiple) return total;
  return std::min(total, divide_up(divide_up(total, pieces), multiple) * multiple);
}

// The part [row, +rows) x [column, +columns) of C, from [depth, +depths) of k.
Matmul part(const Matmul& p, int64_t row, int64_t rows, int64_t column, int64_t columns,
            int64_t depth, int64_t depths) {
  Matmul tile = p;
  tile.m = rows;
  tile.n = columns;
  tile.k = depths;
  tile.a.data =
      advance(p.a.data, p.a.transposed ? depth * p.a.stride + row : row * p.a.stride + depth, p.in);
  tile.b.data = advance(
      p.b.data, p.b.transposed ? column * p.b.stride + depth : depth * p.b.stride + column, p.in);
  if (p.bias != nullptr) tile.bias = advance(p.bias, column, p.in);
  tile.c = static_cast<std::byte*>(p.c) + (row * p.c_stride + column) * element_size(p.out);
  return tile;
}

void multiply_float_tile(Matmul tile, int64_t depth) {
  if (tile.bias != nullptr) {
    start_with_bias(static_cast<const float*>(tile.bias), tile.accumulate,
                    static_cast<float*>(tile.c), tile.c_stride, tile.m, tile.n);
    tile.bias = nullptr;
    tile.accumulate = true;
  }
  for (int64_t at = 0; at < tile.k; at += depth) {
    Matmul slice = part(tile, 0, tile.m, 0, tile.n, at, std::min(depth, tile.k - at));
    slice.accumulate = tile.accumulate || at > 0;
    onednn::multiply_float(slice);
  }
}

// ---- fp16, and bf16 without library support: blocks widened to fp32, summed in fp32 ----

constexpr int64_t kWidenRows = 128;
constexpr int64_t kWidenColumns = 256;
constexpr int64_t kWidenDepth = 256;

// 512 KiB per thread, on the heap because thread storage of a shared library is scarce.
struct WidenScratch {
  float a[kWidenRows * kWidenDepth];
  float b[kWidenColumns * kWidenDepth];
  float c[kWidenRows * kWidenColumns];
};

MatmulInput widen_input(MatmulType type, const MatmulInput& input, float* to, int64_t rows,
                        int64_t columns) {
  if (input.transposed) std::swap(rows, columns);
  widen_block(float_type(type), input.data, input.stride, to, columns, rows, columns);
  return {to, columns, input.transposed};
}

void multiply_widened(const Matmul& tile) {
  static thread_local std::unique_ptr<WidenScratch> scratch;
  if (!scratch) scratch.reset(new WidenScratch);
  for (int64_t column = 0; column < tile.n; column += kWidenColumns) {
    const int64_t columns = std::min(kWidenColumns, tile.n - column);
    for (int64_t row = 0; row < tile.m; row += kWidenRows) {
      const int64_t rows = std::min(kWidenRows, tile.m - row);
      for (int64_t at = 0; at < tile.k; at += kWidenDepth) {
        const int64_t depth = std::min(kWidenDepth, tile.k - at);
        Matmul block = part(tile, row, rows, column, columns, at, depth);
        block.in = block.out = MatmulType::kFloat32;
        block.a = widen_input(tile.in, block.a, scratch->a, rows, depth);
        block.b = widen_input(tile.in, block.b, scratch->b, depth, columns);
        block.bias = nullptr;
        block.c = scratch->c;
        block.c_stride = columns;
        block.accumulate = at > 0;
        onednn::multiply_float(block);
      }
      const Matmul target = part(tile, row, rows, column, columns, 0, 0);
      finish_block({.from = scratch->c,
                    .from_stride = columns,
                    .bias_type = float_type(tile.in),
                    .bias = target.bias,
                    .accumulate = target.accumulate,
                    .c_type = float_type(tile.out),
                    .c = target.c,
                    .c_stride = target.c_stride,
                    .rows = rows,
                    .columns = columns});
    }
  }
}

// ---- k = 0: an empty sum ----

void empty_sum(const Matmul& p) {
  constexpr int64_t kWidth = 256;
  static const float zeros[kWidth] = {};
  for (int64_t j = 0; j < p.n; j += kWidth) {
    const int64_t columns = std::min(kWidth, p.n - j);
    const Matmul target = part(p, 0, p.m, j, columns, 0, 0);
    finish_block({.from = zeros,
                  .from_stride = 0,
                  .bias_type = float_type(p.in),
                  .bias = target.bias,
                  .accumulate = p.accumulate,
                  .c_type = float_type(p.out),
                  .c = target.c,
                  .c_stride = p.c_stride,
                  .rows = p.m,
                  .columns = columns});
  }
}

}  // namespace

MatmulTiles matmul_tiles(const Matmul& p) {
  if (p.m <= 0 || p.n <= 0 || p.k <= 0) return {p.m, p.n, p.k};
  MatmulTiles limit{.rows = 512, .columns = 768, .depth = p.k};
  int64_t row_pieces = 0, wanted = 4;  // tiles to share out, when worth waking a thread for
  const bool gradient = p.a.transposed && !p.b.transposed;  // dy^T x
  if (p.in == MatmulType::kFloat32) {
    if (gradient) {
      // From 1536 rows on the library repacks A, which is a third faster; below, shorter sums make
      // up for a part of that.
      constexpr int64_t kRepacked = 1536;
      if (p.m >= 2 * kRepacked) {
        row_pieces = p.m / kRepacked;
        wanted = 2;
      } else {
        limit.rows = 768;
        limit.depth = std::min<int64_t>(p.k, 512);
      }
    }
  } else if (gradient) {
    limit.rows = 1024;
  } else if (p.k > 1024) {
    limit.columns = 512;
  } else {
    limit.rows = 256;
  }
  if (row_pieces == 0) row_pieces = divide_up(p.m, limit.rows);
  int64_t column_pieces = divide_up(p.n, limit.columns);

  constexpr int64_t kMinRows = 128, kMinColumns = 256;
  constexpr double kWorthSharing = 1 << 21;  // multiply-adds
  const double work =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  while (row_pieces * column_pieces < wanted &&
         work > static_cast<double>(row_pieces * column_pieces) * kWorthSharing) {
    if (p.m / row_pieces >= 2 * kMinRows) {
      row_pieces *= 2;
    } else if (p.n / column_pieces >= 2 * kMinColumns) {
      column_pieces *= 2;
    } else {
      break;
    }
  }
  return {piece(p.m, row_pieces, 16), piece(p.n, column_pieces, 64), limit.depth};
}

void matmul(const Matmul& p, ThreadPool& pool, MatmulPath path) {
  if (p.m <= 0 || p.n <= 0) return;
  if (p.k <= 0) return empty_sum(p);
  const MatmulTiles tiles = matmul_tiles(p);
  const int64_t row_tiles = divide_up(p.m, tiles.rows);
  const int64_t tasks = row_tiles * divide_up(p.n, tiles.columns);
  pool.run(tasks, [&](int64_t task) {
    // Neighbours share columns of B, the operand that is usually larger.
    const int64_t row = task % row_tiles * tiles.rows;
    const int64_t column = task / row_tiles * tiles.columns;
    const Matmul tile = part(p, row, std::min(tiles.rows, p.m - row), column,
                             std::min(tiles.columns, p.n - column), 0, p.k);
    const onednn::SingleThreaded single;
    if (p.in == MatmulType::kFloat32) {
      multiply_float_tile(tile, tiles.depth);
    } else if (p.in == MatmulType::kFloat16 || path == MatmulPath::kWiden ||
               !onednn::multiply_bfloat16(tile)) {
      multiply_widened(tile);
    }
  });
}

bool matmul_has_bf16() { return onednn::has_bfloat16(); }

}  // namespace ds::kernels
