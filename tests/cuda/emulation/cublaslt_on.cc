#include "cuda/emulation/cublaslt_on.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/error.h"
#include "cuda/emulation/stand_in.h"

namespace ds::testing {

CublasLtStandIn& cublaslt() {
  static CublasLtStandIn& it = []() -> CublasLtStandIn& {
    void* const library = ::dlopen(DS_CUBLASLT_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail(Code::kInternal, ::dlerror());
    void* const entry = ::dlsym(library, kCublasLtStandInSymbol);
    CublasLtStandIn& found = *reinterpret_cast<CublasLtStandInEntry*>(entry)();
    found.queue = stand_in::queue_kernel;
    found.take_time = stand_in::take_time;
    found.current_gpu = [] {
      int gpu = -1;
      cudaGetDevice(&gpu);
      return gpu;
    };
    found.workspace = 4096;
    return found;
  }();
  return it;
}

namespace {

// Before main: the library looks once, at the first product of any test.
[[maybe_unused]] const bool kChosen = [] {
  ::setenv("DS_CUBLASLT_LIBRARY", DS_CUBLASLT_STAND_IN, 1);
  cublaslt();
  return true;
}();

}  // namespace
}  // namespace ds::testing
