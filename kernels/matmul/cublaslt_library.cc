#include "kernels/matmul/cublaslt_library.h"

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
  DynamicLibrary opened = DynamicLibrary::open(kPlaces, place);
  opened.need(found.version, "cublasLtGetVersion");
  opened.need(found.status_name, "cublasLtGetStatusName");
  opened.need(found.status_string, "cublasLtGetStatusString");
  opened.need(found.create, "cublasLtCreate");
  opened.need(found.operation_create, "cublasLtMatmulDescCreate");
  opened.need(found.operation_destroy, "cublasLtMatmulDescDestroy");
  opened.need(found.operation_set, "cublasLtMatmulDescSetAttribute");
  opened.need(found.layout_create, "cublasLtMatrixLayoutCreate");
  opened.need(found.layout_destroy, "cublasLtMatrixLayoutDestroy");
  opened.need(found.preference_create, "cublasLtMatmulPreferenceCreate");
  opened.need(found.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  opened.need(found.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  opened.need(found.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  opened.need(found.matmul, "cublasLtMatmul");
  if (found.take_reason(opened, place)) {
    found.take_version(kPlaces.what, found.version(), kVersions, opened);
  }
  return found;
}

const Library& library() {
  static const Library& it = *new Library(open_library(kPlaces.named()));
  return it;
}

void announce(const Library& library) {
  if (library.usable()) {
    log_info("cuda", "matrix products by ", library.name);
  } else if (library.off) {
    log_info("cuda", "matrix products by kernels of our own: ", library.reason);
  } else {
    log_warning("cuda", "matrix products by kernels of our own, which are slower than cuBLASLt: ",
                library.reason, ". DS_CUBLASLT_LIBRARY=off says that this is wanted");
  }
}

const Library& library_for_products() {
  static const Library& it = [&]() -> const Library& {
    announce(library());
    return library();
  }();
  return it;
}

}  // namespace ds::kernels::cublaslt
