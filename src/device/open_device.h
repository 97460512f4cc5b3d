// Devices by name: "cpu" and "cuda:0".
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "device/device.h"

namespace ds {

// "cpu", "cuda:1".
std::string device_name(const Device& device);

// A device of its own; "cuda" is "cuda:0". "auto" is what DS_ACCELERATOR of the environment names,
// "cpu" or "cuda", or else a GPU where there is one; of several GPUs that of this process's
// LOCAL_RANK. Throws kInvalidArgument for another text or DS_ACCELERATOR, and what make_cuda_device
// says.
std::shared_ptr<Device> open_device(std::string_view name);

}  // namespace ds
