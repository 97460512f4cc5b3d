// The JSON of ds_dataset_open as a data set specification.
#pragma once

#include "data/dataset_spec.h"

namespace ds::capi {

// Throws kConfig with the JSON path of what is wrong.
DatasetSpec parse_dataset_spec(const char* spec_json);

}  // namespace ds::capi
