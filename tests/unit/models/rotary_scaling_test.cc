// Rotary frequencies of configurations in use against recorded values of Transformers'
// modeling_rope_utils (fp32, heads of 128 channels, pairs 0, 1, 15, 25, 31, 47, 63), and the
// tables.
#include "models/rotary_scaling.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ds::models {
namespace {

RotaryConfig read(const Json& rope, int64_t positions) {
  const Json config = {{"rope_parameters", rope}};
  const ConfigReader reader(config);
  const RotaryConfig out = read_rotary(reader, 128, positions, {});
  reader.finish();
  return out;
}

void expect_frequencies(const RotaryConfig& config, int64_t length,
                        const std::vector<double>& expected) {
  const std::vector<double> got = rotary_frequencies(config, length);
  ASSERT_EQ(got.size(), 64u);
  const size_t pairs[] = {0, 1, 15, 25, 31, 47, 63};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(got[pairs[i]] / expected[i], 1, 2e-6) << "pair " << pairs[i];
  }
}

TEST(RotaryScaling, FrequenciesMatchTransformers) {
  expect_frequencies(
      read({{"rope_type", "llama3"},
            {"rope_theta", 5e5},
            {"factor", 8},
            {"low_freq_factor", 1},
            {"high_freq_factor", 4},
            {"original_max_position_embeddings", 8192}},
           131072),
      131072, {1.0, 0.8146172, 0.04616405, 0.005940731, 0.0008567515, 8.160728e-06, 3.068926e-07});
  const RotaryConfig yarn = read({{"rope_type", "yarn"},
                                  {"rope_theta", 1e6},
                                  {"factor", 4},
                                  {"original_max_position_embeddings", 32768}},
                                 131072);
  EXPECT_NEAR(yarn.attention_factor, 1.138629436111989, 1e-12);
  expect_frequencies(
      yarn, 131072,
      {1.0, 0.8058422, 0.0392419, 0.004131738, 0.0008029598, 9.810475e-06, 3.102344e-07});
  const RotaryConfig dynamic = read({{"rope_type", "dynamic"}, {"factor", 2}}, 2048);
  expect_frequencies(
      dynamic, 5000,
      {1.0, 0.8475171, 0.083604, 0.01598497, 0.00592383, 0.0004197378, 2.974087e-05});
  EXPECT_EQ(rotary_positions(dynamic), 4096);
  expect_frequencies(
      read({{"type", "linear"}, {"factor", 4}}, 2048), 2048,
      {0.25, 0.2164911, 0.02886955, 0.006846049, 0.002886955, 0.0002886955, 2.886955e-05});
}

TEST(RotaryScaling, TablesGrowAndDynamicOnesFollowTheLength) {
  const auto device = make_cpu_device();
  ThreadPool pool(2);
  const OpContext ctx{device, &pool};
  Tensor ids = Tensor::empty(device, DType::kInt32, {1, 2}, MemoryTag::kOther);
  ids.data<int32_t>()[0] = 3;
  ids.data<int32_t>()[1] = 90;
  const RotaryTables plain(read({{"rope_type", "default"}}, 64));
  const nn::RotaryTable table = plain.rows(ctx, ids);
  ASSERT_GE(table.cos.size(0), 91);
  EXPECT_NEAR(table.cos.data<float>()[90 * 64], std::cos(90.0), 1e-6);
  EXPECT_NEAR(table.sin.data<float>()[3 * 64 + 32], std::sin(3 * 0.01), 1e-6);
  EXPECT_EQ(plain.rows(ctx, ids).cos.raw(), table.cos.raw());  // made once
  const RotaryConfig config = read({{"rope_type", "dynamic"}, {"factor", 3}}, 64);
  const RotaryTables dynamic(config);
  const auto angle_at = [&](int32_t top) {
    ids.data<int32_t>()[1] = top;
    return std::asin(double{dynamic.rows(ctx, ids).sin.data<float>()[64 + 40]});
  };
  for (const int32_t top : {10, 63, 64, 100, 20}) {
    EXPECT_NEAR(angle_at(top) / rotary_frequencies(config, top + 1)[40], 1, 1e-5) << top;
  }
  EXPECT_GT(angle_at(10), angle_at(150));
}

}  // namespace
}  // namespace ds::models
