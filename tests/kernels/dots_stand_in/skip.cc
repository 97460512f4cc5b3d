// Where a CPU has no AMX, the program would test once more what kernels_operators does: there all
// its tests are skipped.
#include <gtest/gtest.h>

#include "kernels/cpu.h"

namespace ds::kernels {
const CpuFeatures& features_of_this_cpu();
}  // namespace ds::kernels

namespace ds::testing {
namespace {

class Dots : public ::testing::Environment {
 public:
  void SetUp() override {
    if (kernels::features_of_this_cpu().amx_bf16) return;
    // CTest knows a skipped test by this mark, which GoogleTest leaves out here.
    GTEST_SKIP() << "[  SKIPPED ] needs a CPU with AMX, whose other products of bf16 it tests";
  }
};

const ::testing::Environment* const dots = ::testing::AddGlobalTestEnvironment(new Dots);

}  // namespace
}  // namespace ds::testing
