// Table look-up and its gradient.
#pragma once

#include "ops/context.h"

namespace ds::ops {

// y[i, :] = table[ids[i], :] + positions[position_ids[i], :]. ids are int32; `positions` and
// `position_ids` may both be empty. An id outside its table throws kInvalidArgument naming the
// place; nothing is written then.
void embedding(const OpContext& ctx, const Tensor& ids, const Tensor& table,
               const Tensor& position_ids, const Tensor& positions, Tensor& y);

// dtable (fp32) [ids[i], :] += dy[i, :], in index order for every row, so any thread count gives
// the same bits; the row `padding` (-1: none) gets nothing. Ids were checked by the forward call
// and are checked again.
void embedding_backward(const OpContext& ctx, const Tensor& ids, const Tensor& dy, Tensor& dtable,
                        int64_t padding = -1);

}  // namespace ds::ops
