// One matrix product of a GPU with random operands, against the reference in double precision.
#pragma once

#include <gtest/gtest.h>

#include "cuda/managed_memory.h"
#include "fresh_seed.h"
#include "kernels/case_util.h"
#include "kernels/matmul/matmul.h"

namespace ds::testing {

using kernels::ActivationKind;
using kernels::GpuStream;
using kernels::Matmul;
using kernels::MatmulType;

inline MatmulType type_of(DType dtype) {
  if (dtype == DType::kFloat16) return MatmulType::kFloat16;
  return dtype == DType::kFloat32 ? MatmulType::kFloat32 : MatmulType::kBFloat16;
}

class GpuMatmul : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    device_ = make_cuda_device(0);
  }

  GpuStream stream(int processors) const {
    return {device_->default_stream().native(), processors, device_->index(), device_->capability(),
            policy_};
  }

  // Memory that the GPU and the host reach, from a multiple of 256 bytes on.
  std::shared_ptr<void> memory(int64_t bytes) {
    void* const block = take_managed(*device_, static_cast<size_t>(bytes > 0 ? bytes : 1));
    EXPECT_NE(block, nullptr);
    return {block, [this](void* at) { give_managed(*device_, at); }};
  }

  // rows x columns whose rows are `stride` apart, the first `skew` elements after the alignment.
  struct Matrix {
    std::shared_ptr<void> memory;
    Tensor whole, view;
    int64_t stride = 0;
  };
  Matrix matrix(DType dtype, int64_t rows, int64_t columns, int64_t more, int64_t skew) {
    Matrix m;
    m.stride = columns + more;
    const int64_t elements = rows * m.stride + skew + 1;
    m.memory = memory(elements * dtype_size(dtype));
    auto storage = std::make_shared<Storage>(DeviceKind::kCuda, 0, m.memory.get(),
                                             elements * dtype_size(dtype), false, [] {});
    m.whole = Tensor(storage, 0, dtype, Shape{elements});
    m.view = Tensor(storage, skew * dtype_size(dtype), dtype, Shape{rows, columns},
                    std::array<int64_t, 2>{m.stride, 1});
    return m;
  }
  // One product against the reference; everything of C's memory outside C stays.
  void check(const Matmul& shape, DType in, DType out, int64_t more, int64_t skew, bool with_bias,
             bool with_pre, int processors, bool with_workspace) {
    SCOPED_TRACE(str_cat(type_name(in), " to ", type_name(out), " ", shape.m, "x", shape.n, "x",
                         shape.k, shape.a.transposed ? " T" : " N", shape.b.transposed ? "T" : "N",
                         " +", more, " skew ", skew, " on ", processors));
    Random random(seed_++);
    Matmul p = shape;
    p.in = type_of(in);
    p.out = type_of(out);
    const Matrix a =
        p.a.transposed ? matrix(in, p.k, p.m, more, skew) : matrix(in, p.m, p.k, more, skew);
    const Matrix b =
        p.b.transposed ? matrix(in, p.n, p.k, more, skew) : matrix(in, p.k, p.n, more, skew);
    const Matrix c = matrix(out, p.m, p.n, more, skew);
    const Matrix pre = matrix(out, p.m, p.n, more + pre_more_, skew);
    const Matrix bias = matrix(in, 1, p.n, 0, skew);
    for (const Matrix* m : {&a, &b, &c, &pre, &bias}) fill_random(random, m->whole);
    p.a = {a.view.raw(), a.stride, p.a.transposed};
    p.b = {b.view.raw(), b.stride, p.b.transposed};
    p.c = c.view.raw();
    p.c_stride = c.stride;
    if (with_bias) p.bias = bias.view.raw();
    if (with_pre) {
      p.pre = pre.view.raw();
      p.pre_stride = pre.stride;
    }
    std::vector<double> expected = doubles(c.view), magnitude(expected.size());
    std::vector<double> a64 = doubles(a.view);
    for (double& v : a64) v *= p.alpha;
    const std::vector<double> b64 = doubles(b.view), bias64 = doubles(bias.view);
    kernels::matmul_ref({.m = p.m,
                         .n = p.n,
                         .k = p.k,
                         .a = a64.data(),
                         .a_transposed = p.a.transposed,
                         .b = b64.data(),
                         .b_transposed = p.b.transposed,
                         .bias = with_bias ? bias64.data() : nullptr,
                         .accumulate = p.accumulate,
                         .c = expected.data(),
                         .magnitude = magnitude.data()});
    const std::vector<double> around = doubles(c.whole);

    const GpuStream on = stream(processors);
    std::shared_ptr<void> workspace;
    {
      const DeviceScope scope(*device_);
      p.workspace_bytes = with_workspace ? kernels::matmul_workspace(p, on) : 0;
      split_ = split_ || p.workspace_bytes > 0;
      workspace = memory(p.workspace_bytes);
      if (p.workspace_bytes > 0) p.workspace = workspace.get();
      kernels::matmul(p, on);
    }
    device_->default_stream().synchronize();

    const double sum = 4 * std::sqrt(static_cast<double>(p.k) + 4) * unit_roundoff(DType::kFloat32);
    const double rounding = with_bias ? biased_roundoff(out) : storage_roundoff(out);
    const Tolerance tolerance{sum + rounding, 1e-30};
    CaseResult result;
    if (p.activation) {
      ASSERT_TRUE(with_pre);
      compare(result, "pre", pre.view, expected, tolerance, magnitude);
      std::vector<double> value = doubles(pre.view), size(value.size());
      for (size_t i = 0; i < value.size(); ++i) {
        size[i] = std::abs(value[i]);
        value[i] = kernels::reference::activation(value[i], *p.activation);
      }
      // cuBLASLt's GELU is of sums that were not rounded yet; its slope is below 1.13.
      const double argument =
          p.activation == ActivationKind::kGeluTanh ? 1.13 * storage_roundoff(out) : 0;
      compare(result, "activated", c.view, value,
              {8 * 0x1p-24 + argument + storage_roundoff(out), 1e-7}, size);
    } else {
      compare(result, "c", c.view, expected, tolerance, magnitude);
    }
    EXPECT_LE(result.worst, 1.0) << result.where << ", seed " << seed_ - 1;
    const std::vector<double> after = doubles(c.whole);
    for (int64_t i = 0; i < static_cast<int64_t>(after.size()); ++i) {
      const int64_t row = (i - skew) / c.stride, column = (i - skew) % c.stride;
      if (i >= skew && row < p.m && column < p.n) continue;
      ASSERT_EQ(after[static_cast<size_t>(i)], around[static_cast<size_t>(i)])
          << "outside C: " << i;
    }
  }

  std::shared_ptr<CudaDevice> device_;
  kernels::GpuPolicy policy_;
  uint64_t seed_ = ds::fresh_seed();
  bool split_ = false;
  int64_t pre_more_ = 0;  // by which rows of `pre` lie farther apart than those of C
};

inline constexpr std::pair<DType, DType> kTypes[] = {{DType::kFloat32, DType::kFloat32},
                                                     {DType::kBFloat16, DType::kBFloat16},
                                                     {DType::kBFloat16, DType::kFloat32},
                                                     {DType::kFloat16, DType::kFloat16},
                                                     {DType::kFloat16, DType::kFloat32}};

inline Matmul shape(int64_t m, int64_t n, int64_t k, int layout = 2) {
  Matmul p;
  p.m = m;
  p.n = n;
  p.k = k;
  p.a.transposed = (layout & 1) != 0;
  p.b.transposed = (layout & 2) != 0;
  return p;
}

}  // namespace ds::testing
