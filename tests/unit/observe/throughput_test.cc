// The rules that turn a step into operations.
#include "observe/throughput.h"

#include <gtest/gtest.h>

namespace ds {
namespace {

TEST(Throughput, SixN) { EXPECT_DOUBLE_EQ(six_n_flops(1'000'000, 2048), 6.0 * 1e6 * 2048); }

TEST(Throughput, MegatronFormulaOfItsExample) {
  // B 8, L 2, h 64, f 256, s 32, V 128 in 0.01 s: 0.01762 TFLOPS.
  DecoderShape shape{
      .layers = 2, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 256, .vocab = 128};
  EXPECT_NEAR(megatron_flops(shape, 8, 32, false) / 0.01 / 1e12, 0.01762, 5e-6);
  EXPECT_DOUBLE_EQ(megatron_flops(shape, 8, 32, true), megatron_flops(shape, 8, 32, false));
  const double plain = megatron_flops(shape, 8, 32, false);
  shape.recomputed = 1;
  EXPECT_DOUBLE_EQ(megatron_flops(shape, 8, 32, false), plain * 4 / 3);
  shape.recomputed = 0.5;
  EXPECT_DOUBLE_EQ(megatron_flops(shape, 8, 32, false), plain * 3.5 / 3);
}

TEST(Throughput, GroupedQueriesAndGatesByHand) {
  DecoderShape shape{
      .layers = 3, .hidden = 16, .heads = 8, .kv_heads = 2, .ffn = 40, .vocab = 50, .gated = true};
  // Four query heads share a key: Megatron counts 2 div 4 = 0, exactly it is half of h * h.
  const double tokens = 2 * 10,
               forward = tokens * (3 * (2 * 256 + 3 * 40 * 16) + 50 * 16) + 3 * 2 * 2 * 16 * 100.0;
  EXPECT_DOUBLE_EQ(megatron_flops(shape, 2, 10, false), 6 * forward);
  EXPECT_DOUBLE_EQ(megatron_flops(shape, 2, 10, true), 6 * (forward + tokens * 3 * 0.5 * 256));
  EXPECT_FALSE(DecoderShape{});
  EXPECT_TRUE(shape);
}

}  // namespace
}  // namespace ds
