// The sizes that layer norm and RMS norm are tested with.
#pragma once

#include <utility>
#include <vector>

#include "kernels/op_case.h"

namespace ds::testing {

// norm_case(dtype, rows, columns, whether with a residual) and nan_case(dtype, rows, columns).
template <class NormCase, class NanCase>
void add_norm_rows(DType dtype, const NormCase& norm_case, const NanCase& nan_case,
                   std::vector<OpCase>& rows) {
  for (const auto& [r, c] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 2}, {5, 3}, {3, 16}, {9, 17}, {33, 129}, {130, 768}, {3, 20001}}) {
    for (const bool residual : {false, true}) rows.push_back(norm_case(dtype, r, c, residual));
  }
  // By how GPUs share rows out: chunks of 32 rows or more, rows of one warp, of 2, 4 or 8, and
  // wider ones.
  for (const auto& [r, c] : std::vector<std::pair<int64_t, int64_t>>{{1037, 1},
                                                                     {1, 7},
                                                                     {31, 64},
                                                                     {1000, 64},
                                                                     {32, 512},
                                                                     {65, 1024},
                                                                     {9, 1536},
                                                                     {33, 1600},
                                                                     {5, 3072},
                                                                     {3, 4096},
                                                                     {2, 6144},
                                                                     {3, 8192},
                                                                     {3, 12288}}) {
    rows.push_back(norm_case(dtype, r, c, c % 128 == 0));
  }
  if (dtype == DType::kBFloat16) rows.push_back(norm_case(dtype, 16500, 8, false));
  for (const int64_t c : {5, 768, 1600, 12288}) rows.push_back(nan_case(dtype, 7, c));
}

}  // namespace ds::testing
