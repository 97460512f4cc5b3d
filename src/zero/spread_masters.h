// Masters of a new layout, whole or what this rank owns of them: from the loader that all ranks
// have, or from the masters of rank 0.
#pragma once

#include "zero/masters.h"
#include "zero/new_masters.h"
#include "zero/share_options.h"

namespace ds::zero {

// Collective: fills `masters`, of `layout`, which the arrays do not have yet. They lie where the
// context's device is, which may be the host beside a GPU.
void spread_masters(const OpContext& ctx, const StateArrays& arrays, const Masters& from,
                    const ShareOptions& options, const FlatLayout& layout,
                    const NewMasters& masters);

}  // namespace ds::zero
