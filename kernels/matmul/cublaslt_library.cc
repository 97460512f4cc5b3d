#include "kernels/matmul/cublaslt_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "base/log.h"
#include "base/text.h"

namespace ds::kernels::cublaslt {
namespace {

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

// The file and its handle; null with the reasons when none can be opened. Libraries stay loaded:
// cuBLASLt has state on GPUs that outlives every use here.
void* load(const std::string& place, std::string* opened, std::string* reason) {
  std::vector<std::string> places = {place};
  if (place.empty()) {
    places.assign(std::begin(kNames), std::end(kNames));
    for (const char* const name : kNames) {
      if (void* const loaded = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
        *opened = name;
        return loaded;
      }
    }
  }
  std::vector<std::string> troubles;
  for (const std::string& name : places) {
    if (void* const loaded = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      *opened = name;
      return loaded;
    }
    const char* const why = ::dlerror();
    troubles.emplace_back(why != nullptr ? why : name + " cannot be opened");
  }
  *reason = str_cat("cuBLASLt was not found (DS_CUBLASLT_LIBRARY names another place): ",
                    join(troubles, "; "));
  return nullptr;
}

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
  std::string opened;
  void* const handle = load(place, &opened, &found.reason);
  if (handle == nullptr) return found;

  const auto find = [&](auto& function, const char* symbol) {
    void* const at = ::dlsym(handle, symbol);
    if (at == nullptr && found.reason.empty()) {
      found.reason = str_cat(opened, " is no usable cuBLASLt: it has no ", symbol);
    }
    function = reinterpret_cast<std::decay_t<decltype(function)>>(at);
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
                       " (", opened, ")");
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
