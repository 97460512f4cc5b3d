// Which forms of products the machine's cuBLASLt serves, in numbers that a reader can compare; the
// results themselves are tested by matmul_test.cc and the rows of linear layers.
#include <iostream>

#include "cuda/matmul_check.h"
#include "kernels/matmul/cublaslt_library.h"
#include "kernels/matmul/matmul_cublaslt.h"

namespace ds::testing {
namespace {

using kernels::cublaslt::Done;

class CublasLtForms : public GpuMatmul {
 protected:
  void SetUp() override {
    GpuMatmul::SetUp();
    if (IsSkipped()) return;
    const kernels::cublaslt::Library& library = kernels::cublaslt::library();
    if (!library.usable()) GTEST_SKIP() << "needs cuBLASLt: " << library.reason;
    std::cout << library.name << "\n";
  }
};

TEST_F(CublasLtForms, ServesPlainProducts) {
  const GpuStream on = stream(device_->processors());
  for (const auto& [in, out] : kTypes) {
    for (int layout = 0; layout < 4; ++layout) {
      Matmul p = shape(64, 48, 32, layout);
      p.in = type_of(in);
      p.out = type_of(out);
      const Matrix a = matrix(in, 64, 64, 0, 0), b = matrix(in, 64, 64, 0, 0);
      const Matrix c = matrix(out, 64, 48, 0, 0), pre = matrix(out, 64, 48, 0, 0);
      const Matrix vector = matrix(out, 1, 64, 0, 0);
      const std::shared_ptr<void> workspace = memory(1 << 25);
      p.a = {a.view.raw(), 64, p.a.transposed};
      p.b = {b.view.raw(), 64, p.b.transposed};
      p.c = c.view.raw();
      p.c_stride = 48;
      p.workspace = workspace.get();
      p.workspace_bytes = 1 << 25;
      const DeviceScope scope(*device_);
      EXPECT_EQ(kernels::cublaslt::multiply(p, on), Done::kAll);
      const bool sums = out == DType::kFloat32 &&
                        kernels::cublaslt::multiply_with_sums(p, vector.view.data<float>(), on);
      p.bias = vector.view.raw();
      const bool bias = kernels::cublaslt::multiply(p, on) == Done::kAll;
      p.activation = ActivationKind::kGeluTanh;
      p.pre = pre.view.raw();
      p.pre_stride = 48;
      const bool gelu = kernels::cublaslt::multiply(p, on) == Done::kAll;
      device_->default_stream().synchronize();
      p.bias = nullptr;
      const bool slope = kernels::cublaslt::multiply_times_slope(p, on);
      device_->default_stream().synchronize();
      std::cout << type_name(in) << " to " << type_name(out) << (layout & 1 ? " T" : " N")
                << (layout & 2 ? "T" : "N") << ": bias " << bias << ", GELU " << gelu
                << ", derivative of GELU " << slope << ", bias gradient " << sums << "\n";
    }
  }
}

// The products of a linear layer in fp8; the rows of fp8 test what comes out.
TEST_F(CublasLtForms, ServesCodes) {
  const GpuStream on = stream(device_->processors());
  using kernels::Fp8Format;
  const std::shared_ptr<void> workspace = memory(1 << 25), operands = memory(64 * 64 * 2),
                              result = memory(64 * 64 * 4), scale = memory(4);
  const DeviceScope scope(*device_);
  for (const auto& [name, a, out, bias] :
       {std::tuple("y", Fp8Format::kE4M3, MatmulType::kBFloat16, true),
        std::tuple("dx", Fp8Format::kE5M2, MatmulType::kBFloat16, false),
        std::tuple("dw", Fp8Format::kE5M2, MatmulType::kFloat32, false)}) {
    kernels::Fp8Matmul p;
    p.m = p.n = p.k = 64;
    p.a_format = a;
    p.out = out;
    p.a = p.b = static_cast<const uint8_t*>(operands.get());
    p.a_inverse = p.b_inverse = static_cast<const float*>(scale.get());
    p.c = result.get();
    p.bias = bias ? static_cast<const bfloat16*>(operands.get()) : nullptr;
    p.accumulate = out == MatmulType::kFloat32;
    p.workspace = workspace.get();
    p.workspace_bytes = 1 << 25;
    const bool served = kernels::cublaslt::multiply_fp8(p, on);
    device_->default_stream().synchronize();
    std::cout << "fp8, " << name << ": " << served << "\n";
  }
}

// What is not finite must reach the gradients, where a step is skipped for it.
TEST_F(CublasLtForms, NanPassesThroughGelu) {
  const GpuStream on = stream(device_->processors());
  Random random(seed_);
  for (const auto& [in, out] : kTypes) {
    Matmul p = shape(64, 48, 32);
    p.in = type_of(in);
    p.out = type_of(out);
    const Matrix a = matrix(in, 64, 32, 0, 0), b = matrix(in, 48, 32, 0, 0);
    const Matrix c = matrix(out, 64, 48, 0, 0), pre = matrix(out, 64, 48, 0, 0);
    for (const Matrix* m : {&a, &b, &c, &pre}) fill_random(random, m->whole);
    const auto spoil = [](const Tensor& tensor, int64_t row) {
      const int64_t at = row * tensor.stride(0);
      set_element(tensor.dtype(),
                  static_cast<std::byte*>(tensor.raw()) + at * dtype_size(tensor.dtype()),
                  std::nan(""));
    };
    spoil(a.view, 3);
    const std::shared_ptr<void> workspace = memory(1 << 25);
    p.a = {a.view.raw(), 32, false};
    p.b = {b.view.raw(), 32, true};
    p.c = c.view.raw();
    p.c_stride = p.pre_stride = 48;
    p.workspace = workspace.get();
    p.workspace_bytes = 1 << 25;
    p.activation = ActivationKind::kGeluTanh;
    p.pre = pre.view.raw();
    const auto rows_with_nan = [&] {
      device_->default_stream().synchronize();
      std::vector<int64_t> rows;
      const std::vector<double> values = doubles(c.view);
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i])) rows.push_back(static_cast<int64_t>(i) / 48);
      }
      return rows;
    };
    const DeviceScope scope(*device_);
    if (kernels::cublaslt::multiply(p, on) == Done::kAll) {
      EXPECT_EQ(rows_with_nan(), std::vector<int64_t>(48, 3));
    }
    fill_random(random, pre.whole);
    spoil(pre.view, 5);
    if (kernels::cublaslt::multiply_times_slope(p, on)) {
      std::vector<int64_t> expected(48, 3);
      expected.push_back(5);
      EXPECT_EQ(rows_with_nan(), expected);
    }
  }
}

}  // namespace
}  // namespace ds::testing
