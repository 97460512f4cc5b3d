// NVIDIA's cuDNN, opened when a GPU first needs it: nothing links against it, and where it is
// missing there are kernels of our own. Only for the sources of a CUDA build.
#pragma once

#include <string>

#include "kernels/cuda/vendor_library.h"
#include "kernels/cudnn/api.h"

namespace ds::kernels::cudnn {

struct Library : Functions, OpenedLibrary {
  // The status in words, with what cuDNN said last on this thread.
  std::string text(Status status) const;
};

// 9.0 brought deterministic gradients of attention on Hopper; graphs may change with 10.
inline constexpr VersionRange kVersions{90000, 100000};

// Opens the library at `place`. Empty: the version that the process has already loaded, or else the
// one that is found; "off": none. Never throws for a library that cannot be used.
Library open_library(const std::string& place);

// The process's, opened once; DS_CUDNN_LIBRARY is its place.
const Library& library();

}  // namespace ds::kernels::cudnn
