// Matrix products of a GPU beyond the rows of the operator table: layouts, strides, alignments,
// both tile sizes, split sums, epilogues; against the reference in double precision.
#include "cuda/matmul_check.h"
#include "kernels/matmul/product_choices.h"

namespace ds::testing {
namespace {

// More processors than tiles: tiles of 64 x 64. One: 128 x 128, but where a side is covered by 64.
TEST_F(GpuMatmul, EveryLayoutAndAlignment) {
  for (const auto& [in, out] : kTypes) {
    for (int layout = 0; layout < 4; ++layout) {
      for (const int processors : {1, 100}) {
        Matmul p = shape(70, 90, 72, layout);
        check(p, in, out, 0, 0, false, false, processors, false);
        p = shape(19, 75, 37, layout);
        check(p, in, out, 0, 0, false, false, processors, false);
        p = shape(67, 75, 37, layout);
        p.accumulate = layout % 2 == 1;
        p.alpha = 0.25f;
        check(p, in, out, 3, 1, true, false, processors, false);
      }
    }
  }
}

TEST_F(GpuMatmul, EmptyAndOddSizes) {
  for (const auto& [in, out] : kTypes) {
    check(shape(3, 5, 0), in, out, 2, 0, true, false, 4, true);
    check(shape(0, 5, 3), in, out, 2, 0, true, false, 4, true);
    check(shape(4, 0, 3), in, out, 2, 0, true, false, 4, true);
    check(shape(1, 1, 1), in, out, 0, 1, true, false, 4, true);
  }
}

TEST_F(GpuMatmul, SplitSumsAreAddedInOrder) {
  for (const auto& [in, out] : kTypes) {
    Matmul p = shape(17, 33, 1100);
    p.accumulate = true;
    split_ = false;
    check(p, in, out, 0, 0, true, false, 132, true);
    EXPECT_TRUE(split_);
    check(p, in, out, 0, 0, true, false, 132, false);
  }
}

TEST_F(GpuMatmul, Epilogues) {
  for (const auto& [in, out] : kTypes) {
    for (const ActivationKind kind :
         {ActivationKind::kRelu, ActivationKind::kSilu, ActivationKind::kGeluTanh,
          ActivationKind::kGeluErf, ActivationKind::kTanh}) {
      Matmul p = shape(21, 35, 40);
      p.activation = kind;
      p.accumulate = kind == ActivationKind::kSilu;
      check(p, in, out, 1, 0, kind != ActivationKind::kTanh, true, 8, true);
    }
  }
}

// With cuBLASLt its proposals run several times; results are those of one product.
TEST_F(GpuMatmul, ProductsThatAreTimed) {
  policy_.time_products = true;
  kernels::forget_timed_products(stream(4));
  kernels::open_timing(stream(4));
  for (int turn = 0; turn < 2; ++turn) {
    for (const auto& [in, out] : kTypes) {
      for (const bool accumulate : {false, true}) {
        Matmul p = shape(64, 48, 96);
        p.accumulate = accumulate;
        check(p, in, out, 0, 0, false, false, 4, true);
        p.activation = ActivationKind::kGeluTanh;
        check(p, in, out, 0, 0, in == out, true, 4, true);
      }
    }
    kernels::close_timing(stream(4));
  }
}

}  // namespace
}  // namespace ds::testing
