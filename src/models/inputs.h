// Checks what callers hand in and converts it to the types that models read.
#pragma once

#include "models/architecture.h"
#include "ops/context.h"

namespace ds::models {

// int32 or int64 [B, T] -> int32, every id in [0, vocab). Errors name `what` and the place.
Tensor token_ids(const OpContext& ctx, const Tensor& ids, const char* what, int64_t vocab);

// The same for labels, where ops::kIgnoreLabel is allowed too. Must have the shape of `ids`.
Tensor label_ids(const OpContext& ctx, const Tensor& labels, const Tensor& ids, int64_t vocab);

// first, first + 1, ... for every sequence of [batch, length].
Tensor position_ids(const OpContext& ctx, int64_t batch, int64_t length, int64_t first);

// int32 or int64 of the shape of `ids`, every value in [0, limit) -> int32. Errors name `what`.
Tensor matching_ids(const OpContext& ctx, const Tensor& values, const Tensor& ids, const char* what,
                    int64_t limit);

// Labels of whole sequences: int32 or int64 [B] or [B, 1] -> int32 [B], in [0, classes) or ignored.
Tensor class_labels(const OpContext& ctx, const Tensor& labels, const Tensor& ids, int64_t classes);

// What heads of numbers are compared with: fp32, int32 or int64 [B, outputs], and [B] for one
// output -> fp32 [B, outputs]. Finite, and from 0 to 1 where the loss asks for probabilities.
Tensor number_labels(const OpContext& ctx, const Tensor& labels, const Tensor& ids,
                     const ArchitectureInfo& info);

// Whichever of these the model's loss takes. kUnsupported for a model without a head.
Tensor loss_labels(const OpContext& ctx, const Tensor& labels, const Tensor& ids,
                   const ArchitectureInfo& info);
// Zeros that stand for labels of `batch` sequences of `length` tokens.
Tensor blank_labels(const OpContext& ctx, int64_t batch, int64_t length,
                    const ArchitectureInfo& info);

// Numbers of the packed pieces: int32 or int64 of the shape of `ids` -> int32, not negative.
Tensor segment_ids(const OpContext& ctx, const Tensor& segments, const Tensor& ids);
// Positions that begin at 0 with each run of equal segment numbers.
Tensor segment_positions(const OpContext& ctx, const Tensor& segments);

// uint8, bool, int32 or int64 of the shape of `ids` -> uint8, nonzero = visible. No tensor stays
// none.
Tensor key_mask(const OpContext& ctx, const Tensor& mask, const Tensor& ids);

}  // namespace ds::models
