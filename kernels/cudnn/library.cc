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
  DynamicLibrary opened = DynamicLibrary::open(kPlaces, place);
  opened.need(found.version, "cudnnGetVersion");
  opened.need(found.error_string, "cudnnGetErrorString");
  opened.need(found.last_error, "cudnnGetLastErrorString");
  opened.need(found.create, "cudnnCreate");
  opened.need(found.set_stream, "cudnnSetStream");
  opened.need(found.describe, "cudnnBackendCreateDescriptor");
  opened.need(found.destroy, "cudnnBackendDestroyDescriptor");
  opened.need(found.set, "cudnnBackendSetAttribute");
  opened.need(found.get, "cudnnBackendGetAttribute");
  opened.need(found.finalize, "cudnnBackendFinalize");
  opened.need(found.execute, "cudnnBackendExecute");
  found.reason = opened.reason();
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
