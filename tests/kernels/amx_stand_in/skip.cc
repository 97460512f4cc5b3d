// Where a CPU has not what the program's tiles are made of, it would test once more what kernels_*
// do: there all its tests are skipped.
#include <gtest/gtest.h>

#include "kernels/cpu.h"

namespace ds::testing {
namespace {

class Tiles : public ::testing::Environment {
 public:
  void SetUp() override {
    if (kernels::cpu_features().amx_bf16) return;
    // CTest knows a skipped test by this mark, which GoogleTest leaves out here.
    GTEST_SKIP() << "[  SKIPPED ] needs AVX-512 with products and conversions of bf16";
  }
};

const ::testing::Environment* const tiles = ::testing::AddGlobalTestEnvironment(new Tiles);

}  // namespace
}  // namespace ds::testing
