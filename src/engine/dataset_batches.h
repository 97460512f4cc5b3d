// Samples of a data set as micro batches, and whether a data set fits a model.
#pragma once

#include <cstdint>
#include <span>

#include "data/dataset.h"
#include "engine/micro_batch.h"
#include "models/architecture.h"
#include "ops/context.h"

namespace ds {

// Reads samples as the rows of a micro batch, on the host.
MicroBatch read_samples(const OpContext& ctx, const Dataset& dataset,
                        const models::ArchitectureInfo& info, std::span<const int64_t> indices);

// Throws kInvalidArgument where the model cannot read these samples.
void check_dataset(const Dataset& dataset, const models::ArchitectureInfo& info);

}  // namespace ds
