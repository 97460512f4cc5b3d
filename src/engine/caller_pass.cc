#include "engine/caller_pass.h"

#include <utility>

namespace ds {

void CallerPass::begin(zero::TrainState& state) {
  if (!open_) state.weights().begin_pass();
  open_ = true;
}

void CallerPass::end_micro_batch(bool keep) {
  open_ = false;
  if (keep) last_uses_ = std::exchange(uses_, {});
}

void CallerPass::drop(zero::TrainState& state) {
  state.weights().drop_pass();
  open_ = false;
}

void CallerPass::repeat(zero::TrainState& state) {
  begin(state);
  for (const Use& use : last_uses_) {
    switch (use.kind) {
      case Kind::kFetch:
        state.weights().acquire_all(use.parameters);
        break;
      case Kind::kRelease:
        for (const nn::ParamId id : use.parameters) state.weights().release(id);
        break;
      case Kind::kGradient:
        for (const nn::ParamId id : use.parameters) state.gradients().gradient_complete(id);
        break;
    }
  }
}

}  // namespace ds
