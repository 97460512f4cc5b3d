#include "kernels/cuda/libraries.h"

#include "kernels/cudnn/library.h"
#include "kernels/matmul/cublaslt_library.h"

namespace ds::kernels {
namespace {

template <class Library>
VendorLibrary entry(const char* name, const Library& library) {
  return {name, library.usable(), library.usable() ? library.name : library.reason};
}

}  // namespace

std::vector<VendorLibrary> vendor_libraries() {
  return {entry("cuBLASLt", cublaslt::library()), entry("cuDNN", cudnn::library())};
}

}  // namespace ds::kernels
