// Where the ranks of `ds train` train, and how they talk from there.
#pragma once

#include <string>

#include "ds.hpp"
#include "failure.h"

namespace tool {

// The communication options of ranks whose models are on `device`: on GPUs over NCCL, unless they
// name a transport.
std::string comm_config_on(const std::string& device, const std::string& comm_config);

// What "auto" stands for, "cpu" or "cuda": what DS_ACCELERATOR of the environment names, else a GPU
// where there is one. Other names stay.
std::string resolved_device(const std::string& device);

// The device of this rank. "cuda" stands for GPUs that the ranks of a host take one by one: that of
// the rank's number on its host, counted anew where the process sees fewer (one each, say).
std::string rank_device(const std::string& device, const libds::Comm& comm);

}  // namespace tool
