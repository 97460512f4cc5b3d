#include "kernels/cudnn/library.h"

#include <array>
#include <cstdlib>

#include "base/dynamic_library.h"
#include "base/log.h"
#include "base/text.h"

namespace ds::kernels::cudnn {
namespace {

constexpr const char* kNames[] = {"libcudnn.so.9"};
constexpr LibraryPlaces kPlaces = {"cuDNN", "DS_CUDNN_LIBRARY", kNames};

}  // namespace

std::string Library::text(Status status) const {
  std::array<char, 1024> said{};
  last_error(said.data(), said.size());
  return said[0] == '\0' ? std::string(error_string(status))
                         : str_cat(error_string(status), " (", said.data(), ")");
}

Library open_library(const std::string& place) {
  Library found;
  if (place == "off") {
    found.reason = "DS_CUDNN_LIBRARY is \"off\"";
    return found;
  }
  const DynamicLibrary opened = DynamicLibrary::open(kPlaces, place);
  found.reason = opened.reason();
  if (!opened) return found;

  const auto find = [&](auto& function, const char* symbol) {
    if (!opened.find(symbol, function) && found.reason.empty()) {
      found.reason = str_cat(opened.name(), " is no usable cuDNN: it has no ", symbol);
    }
  };
  find(found.version, "cudnnGetVersion");
  find(found.error_string, "cudnnGetErrorString");
  find(found.last_error, "cudnnGetLastErrorString");
  find(found.create, "cudnnCreate");
  find(found.set_stream, "cudnnSetStream");
  find(found.describe, "cudnnBackendCreateDescriptor");
  find(found.destroy, "cudnnBackendDestroyDescriptor");
  find(found.set, "cudnnBackendSetAttribute");
  find(found.get, "cudnnBackendGetAttribute");
  find(found.finalize, "cudnnBackendFinalize");
  find(found.execute, "cudnnBackendExecute");
  if (!found.usable()) return found;

  const size_t version = found.version();
  found.name = str_cat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100,
                       " (", opened.name(), ")");
  if (version < kFirstVersion || version >= kEndOfVersions) {
    found.reason = str_cat(found.name, " is not used: this build needs version ",
                           kFirstVersion / 10000, " or newer, below ", kEndOfVersions / 10000);
  }
  return found;
}

const Library& library() {
  static const Library& it = *new Library([] {
    const char* const place = std::getenv("DS_CUDNN_LIBRARY");
    Library opened = open_library(place != nullptr ? place : "");
    log_info("cuda", opened.usable() ? str_cat("attention may use ", opened.name)
                                     : str_cat("attention without cuDNN: ", opened.reason));
    return opened;
  }());
  return it;
}

}  // namespace ds::kernels::cudnn
