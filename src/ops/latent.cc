// Checks and launches of what latent attention needs.
#include "ops/latent.h"

#include <algorithm>
#include <cstring>

#include "kernels/attention/latent.h"
#include "kernels/gemv/gemv.h"
#include "ops/product.h"
#include "tensor/transfer.h"

namespace ds::ops {
namespace {

// What `keys` [B, T, H, plain + turning], `expanded` [B, T, H, more] and `shared` [B, T, turning]
// say together.
kernels::LatentKeys shape_of(const Op& op, const Tensor& expanded, const Tensor& shared,
                             const Tensor& keys) {
  check_dense_float(keys, op, "keys");
  check_dense(expanded, op, "expanded", keys.dtype());
  check_float_type(shared, op, "shared");
  check_place(shared, op, "shared");
  DS_CHECK(
      keys.dims() == 4 && expanded.dims() == 4 && shared.dims() == 3 &&
          shared.dtype() == keys.dtype(),
      Code::kInvalidArgument, op, ": keys of shape ", keys.shape().text(), ", expanded of shape ",
      expanded.shape().text(), " and shared of shape ", shared.shape().text(),
      " must be [batch, tokens, heads, channels] twice and [batch, tokens, channels] of one type");
  kernels::LatentKeys s;
  s.type = float_type(keys);
  s.tokens = keys.size(0) * keys.size(1);
  s.heads = keys.size(2);
  s.turning = shared.size(2);
  s.plain = keys.size(3) - s.turning;
  s.values = expanded.size(3) - s.plain;
  s.shared_pitch = shared.stride(1);
  const auto same = [&](const Tensor& x) {
    return x.size(0) == keys.size(0) && x.size(1) == keys.size(1);
  };
  DS_CHECK(s.plain >= 0 && s.values >= 0 && same(expanded) && same(shared) &&
               expanded.size(2) == s.heads,
           Code::kInvalidArgument, op, ": expanded of shape ", expanded.shape().text(),
           " and shared of shape ", shared.shape().text(), " do not make keys of shape ",
           keys.shape().text());
  DS_CHECK((shared.stride(2) == 1 || s.turning <= 1) &&
               (shared.size(0) <= 1 || shared.stride(0) == shared.size(1) * s.shared_pitch),
           Code::kInvalidArgument, op, ": rows of shared must be dense and of equal distance");
  return s;
}

// Rows of heads: [R, H, channels].
void check_rows(const Op& op, const Tensor& x, const char* name, DType dtype, const Shape& shape) {
  check_float_type(x, op, name);
  check_place(x, op, name);
  DS_CHECK(x.dtype() == dtype && x.shape() == shape && (x.stride(2) == 1 || x.size(2) <= 1),
           Code::kInvalidArgument, op, ": ", name, " must be ", dtype_name(dtype), " of shape ",
           shape.text(), " with a dense last dimension, not ", dtype_name(x.dtype()), " of shape ",
           x.shape().text());
}

template <class T>
std::byte* head_of(const Tensor& x, int64_t h) {
  return reinterpret_cast<std::byte*>(x.data<T>() + h * x.stride(x.dims() - 2));
}

}  // namespace

void latent_keys(const OpContext& ctx, const Tensor& expanded, const Tensor& shared, Tensor& keys) {
  const Op op{ctx, "latent_keys"};
  const kernels::LatentKeys s = shape_of(op, expanded, shared, keys);
  if (keys.elements() == 0) return;
  run(ctx,
      [&](auto& on) { kernels::latent_keys(s, expanded.raw(), shared.raw(), keys.raw(), on); });
}

void latent_keys_backward(const OpContext& ctx, const Tensor& dkeys, Tensor& dexpanded,
                          Tensor& dshared) {
  const Op op{ctx, "latent_keys_backward"};
  const kernels::LatentKeys s = shape_of(op, dexpanded, dshared, dkeys);
  check_dense(dshared, op, "dshared");
  if (s.tokens == 0) return;
  run(ctx, [&](auto& on) {
    kernels::latent_keys_backward(s, dkeys.raw(), dexpanded.raw(), dshared.raw(), on);
  });
}

void head_linear(const OpContext& ctx, const Tensor& x, const Tensor& w, bool transposed,
                 Tensor& y) {
  const Op op{ctx, "head_linear"};
  check_on_cpu(op);
  check_float_type(x, op, "x");
  DS_CHECK(x.dims() == 3 && w && w.dims() == 3 && y && y.dims() == 3, Code::kInvalidArgument, op,
           ": x, w and y must have three dimensions");
  const int64_t heads = x.size(1), terms = x.size(2), columns = w.size(transposed ? 1 : 2);
  check_rows(op, x, "x", x.dtype(), x.shape());
  check_rows(op, w, "w", x.dtype(),
             transposed ? Shape{heads, columns, terms} : Shape{heads, terms, columns});
  check_rows(op, y, "y", x.dtype(), {x.size(0), heads, columns});
  if (y.elements() == 0 || !ctx.device->computes()) return;
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    kernels::Matmul p;
    p.n = columns;
    p.k = terms;
    p.in = p.out = matmul_type(x);
    p.a.stride = x.size(0) > 1 ? x.stride(0) : terms;
    p.b.stride = w.stride(1);
    p.b.transposed = transposed;
    p.c_stride = y.size(0) > 1 ? y.stride(0) : columns;
    // Few rows have the bits of each alone, as those of other layers (ops::few_rows).
    const bool few = x.size(0) <= kernels::kMaxGemvRows;
    const int64_t step = few ? kernels::kDirectRows : x.size(0);
    for (int64_t h = 0; h < heads; ++h) {
      p.b.data = w.data<T>() + h * w.stride(0);
      for (int64_t row = 0; row < x.size(0); row += step) {
        p.m = std::min(step, x.size(0) - row);
        p.a.data = head_of<T>(x, h) + row * p.a.stride * dtype_size(x.dtype());
        p.c = head_of<T>(y, h) + row * p.c_stride * dtype_size(y.dtype());
        kernels::matmul(p, *ctx.pool);
      }
    }
  });
}

void read_tokens(const OpContext& ctx, const Tensor& keys, const TokenBlocks& blocks, int64_t b,
                 Tensor& rows) {
  const Op op{ctx, "read_tokens"};
  check_float_type(keys, op, "keys");
  check_place(keys, op, "keys");
  DS_CHECK(keys.dims() == 4 && keys.size(2) == 1 && keys.stride(3) == 1 && rows.dims() == 2,
           Code::kInvalidArgument, op, ": keys of shape ", keys.shape().text(),
           " must be [batch, tokens, 1, channels] with dense channels");
  check_dense(rows, op, "rows", keys.dtype(), {rows.size(0), keys.size(3)});
  const int64_t count = rows.size(0), block_tokens = keys.size(1);
  if (blocks) {
    check_on_cpu(op);
    check_blocks(op, blocks, blocks.keys.size(0), block_tokens);
    check_tokens(op, blocks, b, count, block_tokens);
  } else {
    DS_CHECK(b < keys.size(0) && count <= block_tokens, Code::kInvalidArgument, op, ": sequence ",
             b, " has no ", count, " tokens in keys of shape ", keys.shape().text());
  }
  if (ctx.device->kind() != DeviceKind::kCpu) {
    const int64_t item = dtype_size(keys.dtype()), row = keys.size(3) * item;
    return copy_rows(
        *ctx.device, {rows.raw(), row},
        {static_cast<std::byte*>(keys.raw()) + b * keys.stride(0) * item, keys.stride(1) * item},
        row, count);
  }
  with_float_type(keys, [&](auto type) {
    using T = decltype(type);
    const kernels::TokenBlocks table =
        blocks ? table_of(blocks.keys, block_tokens) : kernels::TokenBlocks();
    const int64_t size = keys.size(3), pitch = keys.stride(1);
    ctx.pool->for_range(count, std::max<int64_t>(1, 16384 / size), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* const from =
            blocks ? table.at<T>(b, t, pitch) : keys.data<T>() + b * keys.stride(0) + t * pitch;
        std::memcpy(rows.data<T>() + t * size, from, static_cast<size_t>(size) * sizeof(T));
      }
    });
  });
}

}  // namespace ds::ops
