// What a run that goes on from a checkpoint does otherwise than the run that saved it.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "data/dataset.h"

namespace ds {

// A run as far as its results depend on it.
struct RunSettings {
  Json config;    // as resolved
  int ranks = 1;  // that read data
};

// One text for each setting that differs, by its path in the configuration; a batch that differs is
// one, with the accumulation that keeps it where there is one. Settings that only one side knows
// are passed over, as are those that leave the results as they are: threads, ZeRO stages,
// recomputation, records.
std::vector<std::string> resume_differences(const RunSettings& saved, const RunSettings& now);

// The data's size and a checksum of some of its samples, which read the same as long as the run
// would see the same data; null when a sample cannot be read.
Json describe_dataset(const Dataset& dataset);
// How the data differ, "" where they do not or nobody knows.
std::string dataset_difference(const Json& saved, const Json& now);

}  // namespace ds
