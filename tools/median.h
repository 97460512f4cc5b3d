// The median of measured times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tool {

// 0 of none, and of an even number the mean of the two in the middle.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace tool
