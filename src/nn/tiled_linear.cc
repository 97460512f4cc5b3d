#include "nn/tiled_linear.h"

#include "ops/elementwise.h"
#include "ops/linear.h"

namespace ds::nn {
namespace {

class TileGuard {
 public:
  TileGuard(ParameterReader& reader, ParamId id, int64_t tile)
      : reader_(reader), id_(id), tile_(tile), rows_(reader.acquire_tile(id, tile)) {}
  ~TileGuard() { reader_.release_tile(id_, tile_); }
  TileGuard(const TileGuard&) = delete;
  TileGuard& operator=(const TileGuard&) = delete;
  const Tensor& operator*() const { return rows_; }

 private:
  ParameterReader& reader_;
  ParamId id_;
  int64_t tile_;
  Tensor rows_;
};

// Calls fn(rows of the weight, rows of the tile) for each block that has rows in a tile.
template <class Fn>
void for_blocks(const Tiling& tiling, int64_t all_rows, int64_t tile, const Fn& fn) {
  for (int64_t block = 0; block < tiling.blocks; ++block) {
    const Tiling::Rows rows = tiling.rows_of(all_rows, block, tile);
    if (rows.count > 0) fn(rows, block * tiling.rows(tile));
  }
}

Tensor columns(const Tensor& matrix, const Tiling::Rows& range) {
  return matrix.slice(matrix.dims() - 1, range.begin, range.begin + range.count);
}

// What blocks leave out of a tile's gradient: rows that the weight does not have.
void clear_padding(const OpContext& ctx, const Tiling& tiling, int64_t all_rows, int64_t tile,
                   const Tensor& gradient) {
  const int64_t height = tiling.rows(tile);
  for (int64_t block = 0; block < tiling.blocks; ++block) {
    const int64_t count = tiling.rows_of(all_rows, block, tile).count;
    if (count == height) continue;
    Tensor rest = gradient.slice(0, block * height + count, (block + 1) * height);
    ops::fill(ctx, 0.0f, rest);
  }
}

}  // namespace

void tiled_linear(Tape& tape, const Tensor& x, ParamId weight, const Tensor& bias, Tensor& y) {
  ParameterReader& weights = tape.weights();
  const Tiling& tiling = *weights.tiling(weight);
  const int64_t outputs = weights.shape(weight)[0];
  for (int64_t tile = 0; tile < tiling.count; ++tile) {
    const TileGuard w(weights, weight, tile);
    for_blocks(tiling, outputs, tile, [&](const Tiling::Rows& rows, int64_t from) {
      Tensor part = columns(y, rows);
      ops::linear(tape.ctx(), x, (*w).slice(0, from, from + rows.count),
                  bias ? bias.slice(0, rows.begin, rows.begin + rows.count) : Tensor(), part);
    });
  }
}

void tiled_linear_backward(Tape& tape, const Tensor& x, const Tensor& dy, ParamId weight,
                           Tensor& dx) {
  ParameterReader& weights = tape.weights();
  const OpContext& ctx = tape.ctx();
  const Tiling& tiling = *weights.tiling(weight);
  const int64_t outputs = weights.shape(weight)[0];
  const bool last_use = tape.last_use(weight);
  Tensor sum;
  if (dx) {
    sum = dx.dtype() == DType::kFloat32 ? dx : ctx.workspace(DType::kFloat32, dx.shape());
  }
  bool add = false;
  for (int64_t tile = 0; tile < tiling.count; ++tile) {
    if (dx) {
      const TileGuard w(weights, weight, tile);
      for_blocks(tiling, outputs, tile, [&](const Tiling::Rows& rows, int64_t from) {
        ops::linear_grad_input(ctx, columns(dy, rows), (*w).slice(0, from, from + rows.count), sum,
                               add);
        add = true;
      });
    }
    const GradientTarget dw = tape.gradients().tile_gradient(weight, tile);
    if (!dw.sum) continue;
    for_blocks(tiling, outputs, tile, [&](const Tiling::Rows& rows, int64_t from) {
      Tensor part = dw.sum.slice(0, from, from + rows.count);
      ops::linear_grad_weight(ctx, columns(dy, rows), x, part, dw.add);
    });
    if (!dw.add) clear_padding(ctx, tiling, outputs, tile, dw.sum);
    if (last_use) tape.gradients().tile_gradient_complete(weight, tile);
  }
  if (dx && dx.dtype() != DType::kFloat32) ops::cast(ctx, sum, dx);
}

}  // namespace ds::nn
