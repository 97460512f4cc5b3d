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

// Of equal length. Masters are fp32, or split into bf16 `weight` and uint16 `low`, or in the
// model's own type, without a copy.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): the copy of an array
struct UpdateTensors {
  Tensor master;
  Tensor weight;
  Tensor low;
  Tensor model;  // bf16 or fp16 copy of the master, or empty
  Tensor grad;   // fp32, bf16 or fp16
  StateTensor states[kernels::kMostStates];
};

// Pieces and chunks in the memory of a GPU, where updates read them: made once by those who have
// them, for they do not change.
struct UpdateTables {
  Tensor pieces;  // the bytes of kernels::UpdatePiece
  Tensor first;   // int64
};
UpdateTables make_update_tables(const std::shared_ptr<Device>& device,
                                std::span<const kernels::UpdatePiece> pieces,
                                std::span<const int64_t> first);

struct UpdateWork {
  std::span<const kernels::UpdateConstants> constants;
  std::span<const kernels::UpdatePiece> pieces;
  std::span<const int64_t> first;        // piece of each chunk, and one beyond
  std::span<ExactSum> norms = {};        // kLambMoments: two per piece, which are added to
  const UpdateTables* tables = nullptr;  // on a GPU; else they are made for the call
  Tensor gate = {};                      // on a GPU, of ops::update_gate; not with norms
};

// On a GPU the call waits for it only to read norms, or to upload tables or more than
// kernels::kFewConstants constants.
void optimizer_update(const OpContext& ctx, kernels::UpdateRule rule, const UpdateWork& work,
                      UpdateTensors& tensors);

// Elements [begin, end) of a state as fp32 numbers in the host's memory, and back; the state may be
// in that of a GPU.
void read_state(const StateTensor& state, int64_t begin, int64_t end, float* out);
void write_state(StateTensor& state, int64_t begin, int64_t end, const float* values);

}  // namespace ds::ops
