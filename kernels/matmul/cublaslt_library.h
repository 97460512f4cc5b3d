// NVIDIA's cuBLASLt, opened when a GPU first multiplies: nothing links against it, and where it is
// missing products have kernels of our own. Only for the sources of a CUDA build.
#pragma once

#include <cublasLt.h>

#include <string>

#include "kernels/cuda/vendor_library.h"

namespace ds::kernels::cublaslt {

struct Library : OpenedLibrary {
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmulDescCreate) operation_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) operation_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) operation_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  // "CUBLAS_STATUS_NOT_SUPPORTED (...)".
  std::string text(cublasStatus_t status) const;
};

inline constexpr VersionRange kVersions{120000, 140000};

// Opens the library at `place`. Empty: the version that the process has already loaded, or else the
// newest that is found; "off": none. Never throws for a library that cannot be used.
Library open_library(const std::string& place);

// The process's, opened once; DS_CUBLASLT_LIBRARY is its place.
const Library& library();

// Tells the log who multiplies: with a warning, when that is not this library and nobody asked for
// it.
void announce(const Library& library);
// The process's, for the first product: announced once.
const Library& library_for_products();

}  // namespace ds::kernels::cublaslt
