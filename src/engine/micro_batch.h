// One micro batch: as callers give it, and as a model reads it.
#pragma once

#include "tensor/tensor.h"

namespace ds {

namespace models {
struct Batch;
}
struct RunContext;

// As callers give it; see ds_engine_forward.
struct MicroBatch {
  Tensor ids;          // [B, T]
  Tensor labels;       // [B, T], [B] for a classification head, [B, C] for one of numbers
  Tensor mask;         // [B, T], 0 = padding, or none
  Tensor segments;     // [B, T] or none
  Tensor token_types;  // [B, T] or none
};

// The model's inputs, checked, on the host.
models::Batch make_batch(RunContext& run, const MicroBatch& inputs);
// The labels, checked, on the host, where the loss counts them.
Tensor make_labels(RunContext& run, const MicroBatch& inputs);

}  // namespace ds
