// Checks of tables of blocks.
#include "ops/token_blocks.h"

#include "ops/checks.h"

namespace ds::ops {

kernels::TokenBlocks table_of(const Tensor& blocks, int64_t tokens) {
  return {blocks.data<int64_t>(), blocks.stride(0), tokens};
}

void check_blocks(const Op& op, const TokenBlocks& blocks, int64_t batch, int64_t tokens) {
  DS_CHECK(op.ctx.device->kind() == DeviceKind::kCpu, Code::kUnsupported, op,
           ": a GPU reads keys and values in one piece");
  DS_CHECK(blocks.keys.dims() == 2, Code::kInvalidArgument, op, ": a table of blocks of shape ",
           blocks.keys.shape().text(), " must be [batch, blocks]");
  check_dense(blocks.keys, op, "blocks of keys", DType::kInt64, {batch, blocks.keys.size(1)});
  check_dense(blocks.values, op, "blocks of values", DType::kInt64, blocks.keys.shape());
  DS_CHECK(tokens > 0 && blocks.room >= 0 && blocks.room <= blocks.keys.size(1) * tokens,
           Code::kInvalidArgument, op, ": ", blocks.keys.size(1), " blocks of ", tokens,
           " tokens have no room for ", blocks.room);
}

void check_scale_blocks(const Op& op, const TokenBlocks& blocks) {
  check_dense(blocks.key_scales, op, "blocks of scales of keys", DType::kInt64,
              blocks.keys.shape());
  check_dense(blocks.value_scales, op, "blocks of scales of values", DType::kInt64,
              blocks.keys.shape());
}

void check_tokens(const Op& op, const TokenBlocks& blocks, int64_t b, int64_t count,
                  int64_t tokens) {
  const int64_t first = b * blocks.keys.size(1);
  for (int64_t n = 0; n * tokens < count; ++n) {
    DS_CHECK(blocks.keys.data<int64_t>()[first + n] != 0 &&
                 blocks.values.data<int64_t>()[first + n] != 0,
             Code::kInvalidArgument, op, ": sequence ", b, " has no block ", n, " for ", count,
             " tokens");
  }
}

}  // namespace ds::ops
