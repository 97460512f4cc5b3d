// NVIDIA's cuBLASLt, opened when a GPU first multiplies: nothing links against it, and where it is
// missing products have kernels of our own. Only for the sources of a CUDA build.
#pragma once

#include <cublasLt.h>

#include <string>

namespace ds::kernels::cublaslt {

struct Library {
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

  std::string name;    // "cuBLASLt 13.1.0 (libcublasLt.so.13)"
  std::string reason;  // why it is not used; empty when it is
  bool off = false;    // since it was asked not to be

  bool usable() const { return reason.empty(); }
  // "CUBLAS_STATUS_NOT_SUPPORTED (...)".
  std::string text(cublasStatus_t status) const;
};

// Versions 12 and 13 have the functions and numbers that are used here.
inline constexpr size_t kFirstVersion = 120000, kEndOfVersions = 140000;

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
