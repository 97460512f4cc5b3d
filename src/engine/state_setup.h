// What an engine makes of its model's weights when it begins, and how it leaves them when it ends:
// over how many ranks, in which types, on the device or the host.
#pragma once

#include "engine/run_context.h"

namespace ds {

// Collective: spreads, offloads or converts the weights as the configuration says, and makes room
// for gradients.
void set_up_state(RunContext& run);
// Whether offload_optimizer.super_offload is asked for and has an effect; a warning where not.
bool updates_ahead(const RunContext& run);
// Ends that, and the model holds its weights again, without waiting for anybody; what goes wrong is
// logged.
void release_state(RunContext& run) noexcept;

// As configured; parameters of the caller's own may be float32 all the same.
DType compute_type_of(const Config& config);

}  // namespace ds
