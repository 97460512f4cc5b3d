// What the processor offers and the operating system lets a process use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ds::capi {

struct CpuFeature {
  const char* name;
  bool usable;
};

struct CpuFeatures {
  std::string model;
  std::vector<CpuFeature> features;  // of this architecture; others are not listed
  bool has(std::string_view name) const;
};

CpuFeatures cpu_features();

}  // namespace ds::capi
