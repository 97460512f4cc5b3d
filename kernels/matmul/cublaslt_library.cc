#include "kernels/matmul/cublaslt_library.h"

#include <cstdlib>

#include "base/dynamic_library.h"
#include "base/log.h"
#include "base/text.h"

namespace ds::kernels::cublaslt {
namespace {

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr LibraryPlaces kPlaces = {"cuBLASLt", "DS_CUBLASLT_LIBRARY", kNames};

}  // namespace

std::string Library::text(cublasStatus_t status) const {
  return str_cat(status_name(status), " (", status_string(status), ")");
}

Library open_library(const std::string& place) {
  Library found;
  if (place == "off") {
    found.reason = "DS_CUBLASLT_LIBRARY is \"off\"";
    return found;
  }
  const DynamicLibrary opened = DynamicLibrary::open(kPlaces, place);
  found.reason = opened.reason();
  if (!opened) return found;

  const auto find = [&](auto& function, const char* symbol) {
    if (!opened.find(symbol, function) && found.reason.empty()) {
      found.reason = str_cat(opened.name(), " is no usable cuBLASLt: it has no ", symbol);
    }
  };
  find(found.version, "cublasLtGetVersion");
  find(found.status_name, "cublasLtGetStatusName");
  find(found.status_string, "cublasLtGetStatusString");
  find(found.create, "cublasLtCreate");
  find(found.operation_create, "cublasLtMatmulDescCreate");
  find(found.operation_destroy, "cublasLtMatmulDescDestroy");
  find(found.operation_set, "cublasLtMatmulDescSetAttribute");
  find(found.layout_create, "cublasLtMatrixLayoutCreate");
  find(found.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(found.preference_create, "cublasLtMatmulPreferenceCreate");
  find(found.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(found.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(found.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(found.matmul, "cublasLtMatmul");
  if (!found.usable()) return found;

  const size_t version = found.version();
  found.name = str_cat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100,
                       " (", opened.name(), ")");
  if (version < kFirstVersion || version >= kEndOfVersions) {
    found.reason = str_cat(found.name, " is not used: this build needs version ",
                           kFirstVersion / 10000, " or newer, below ", kEndOfVersions / 10000);
  }
  return found;
}

const Library& library() {
  static const Library& it = *new Library([] {
    const char* const place = std::getenv("DS_CUBLASLT_LIBRARY");
    Library opened = open_library(place != nullptr ? place : "");
    if (opened.usable()) {
      log_info("cuda", "matrix products by ", opened.name);
    } else {
      log_info("cuda", "matrix products by kernels of our own: ", opened.reason);
    }
    return opened;
  }());
  return it;
}

}  // namespace ds::kernels::cublaslt
