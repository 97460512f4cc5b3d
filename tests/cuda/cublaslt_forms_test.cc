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
  const GpuStream on{device_->default_stream().native(), device_->processors()};
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
      std::cout << type_name(in) << " to " << type_name(out) << (layout & 1 ? " T" : " N")
                << (layout & 2 ? "T" : "N") << ": bias " << bias << ", GELU " << gelu
                << ", bias gradient " << sums << "\n";
    }
  }
}

}  // namespace
}  // namespace ds::testing
