// Libraries of the vendor that kernels on a GPU may use, for reports.
#pragma once

#include <string>
#include <vector>

namespace ds::kernels {

struct VendorLibrary {
  std::string name;
  bool usable = false;
  std::string text;  // the version and its file, or why it is not used
};

// Opens them, unless that has been done. Empty in a build without CUDA.
std::vector<VendorLibrary> vendor_libraries();

}  // namespace ds::kernels
