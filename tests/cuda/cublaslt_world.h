// Tests of products with cuBLASLt's stand-in, each with a fresh one.
#pragma once

#include <gmock/gmock.h>

#include "cuda/emulation/cublaslt_on.h"
#include "cuda/emulation/stand_in.h"
#include "cuda/log_lines.h"
#include "cuda/matmul_check.h"

namespace ds::testing {

class CublasLt : public GpuMatmul {
 protected:
  void SetUp() override {
    GpuMatmul::SetUp();
    CublasLtStandIn fresh;
    fresh.queue = cublaslt().queue;
    fresh.current_gpu = cublaslt().current_gpu;
    fresh.take_time = cublaslt().take_time;
    fresh.descriptions = cublaslt().descriptions;
    fresh.workspace = 4096;
    cublaslt() = fresh;
  }
  void TearDown() override {
    EXPECT_THAT(cublaslt().violations, ::testing::IsEmpty());
    EXPECT_THAT(stand_in::violations(), ::testing::IsEmpty());
    cublaslt().failures.clear();
    cublaslt().refused.clear();
    cublaslt().no_algorithms = false;
    cublaslt().least_workspace = 0;
  }

  // Sizes that no other test has: the cache of choices is the process's.
  Matmul fresh_shape() {
    static int64_t next = 0;
    return shape(9, 24, 100 + ++next);
  }
  void check_bf16(const Matmul& p, bool with_bias = true, bool with_pre = false,
                  bool with_workspace = true) {
    check(p, DType::kBFloat16, DType::kBFloat16, 0, 0, with_bias, with_pre, 4, with_workspace);
  }
};

}  // namespace ds::testing
