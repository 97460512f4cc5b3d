// Optimizer updates over one run of the flat space: masters, gradients, states and the model's copy
// in one pass (kernels/optimizer/update.h has the rules).
#pragma once

#include <span>

#include "kernels/optimizer/update.h"
#include "ops/context.h"

namespace ds::ops {

// fp32 or bf16; or int8 (signed) or uint8 (unsigned) with fp32 scales per kernels::kStateBlock.
struct StateTensor {
  Tensor data;
  Tensor scales;
};

// Of equal length. Masters are either fp32 or split into bf16 `weight` and uint16 `low`.
struct UpdateTensors {
  Tensor master;
  Tensor weight;
  Tensor low;
  Tensor model;  // bf16 or fp16 copy of the master, or empty
  Tensor grad;   // fp32, bf16 or fp16
  StateTensor states[2];
};

struct UpdateWork {
  std::span<const kernels::UpdateConstants> constants;
  std::span<const kernels::UpdatePiece> pieces;
  std::span<const int64_t> first;  // piece of each chunk, and one beyond
  std::span<ExactSum> norms = {};  // kLambMoments: two per piece
};

void optimizer_update(const OpContext& ctx, kernels::UpdateRule rule, const UpdateWork& work,
                      UpdateTensors& tensors);

// Elements [begin, end) of a state as fp32 numbers, and back.
void read_state(const StateTensor& state, int64_t begin, int64_t end, float* out);
void write_state(StateTensor& state, int64_t begin, int64_t end, const float* values);

}  // namespace ds::ops
