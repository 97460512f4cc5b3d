#include "kernels/cudnn/library.h"

#include <array>

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
  if (found.take_reason(opened, place)) {
    found.take_version(kPlaces.what, found.version(), kVersions, opened);
  }
  return found;
}

const Library& library() {
  static const Library& it = *new Library([] {
    Library opened = open_library(kPlaces.named());
    log_info("cuda", opened.usable() ? str_cat("attention may use ", opened.name)
                                     : str_cat("attention without cuDNN: ", opened.reason));
    return opened;
  }());
  return it;
}

}  // namespace ds::kernels::cudnn
