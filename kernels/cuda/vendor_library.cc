#include "kernels/cuda/vendor_library.h"

#include "base/text.h"

namespace ds::kernels {

bool OpenedLibrary::take_reason(const DynamicLibrary& opened, const std::string& place) {
  off = place == "off";
  reason = opened.reason();
  return usable();
}

void OpenedLibrary::take_version(const char* what, size_t version, const VersionRange& range,
                                 const DynamicLibrary& opened) {
  name = str_cat(what, " ", version / 10000, ".", version / 100 % 100, ".", version % 100, " (",
                 opened.name(), ")");
  if (version < range.first || version >= range.end) {
    reason = str_cat(name, " is not used: this build needs version ", range.first / 10000,
                     " or newer, below ", range.end / 10000);
  }
}

}  // namespace ds::kernels
