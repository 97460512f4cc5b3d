// A library of the vendor that is opened at run time: what it is, or why it is not used.
#pragma once

#include <cstddef>
#include <string>

#include "base/dynamic_library.h"

namespace ds::kernels {

// Versions that have the functions and numbers that are used here, as 10000 * major + 100 * minor +
// patch.
struct VersionRange {
  size_t first, end;
};

struct OpenedLibrary {
  std::string name;    // "cuDNN 9.19.0 (libcudnn.so.9)"
  std::string reason;  // why it is not used; empty when it is
  bool off = false;    // since it was asked not to be

  bool usable() const { return reason.empty(); }
  // Takes over why what was opened at `place` cannot be used; whether it can.
  bool take_reason(const DynamicLibrary& opened, const std::string& place);
  // Names it, and refuses other versions.
  void take_version(const char* what, size_t version, const VersionRange& range,
                    const DynamicLibrary& opened);
};

}  // namespace ds::kernels
