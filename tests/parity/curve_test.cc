// Our loss curve against the one that PyTorch and Transformers recorded (gpt2_curve.json).
#include "parity/curve.h"
#include "test_paths.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace {

nlohmann::json recorded() {
  std::ifstream file(ds::test_source() / "tests/parity/gpt2_curve.json");
  return nlohmann::json::parse(file);
}

double worst_deviation(const std::vector<double>& ours, const nlohmann::json& theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    worst = std::max(worst, std::abs(ours[i] / theirs[i].get<double>() - 1));
  }
  ::testing::Test::RecordProperty("worst", std::to_string(worst));
  return worst;
}

TEST(PytorchCurve, Fp32AgreesAtEveryStep) {
  const std::vector<double> ours = parity::run(false);
  EXPECT_LT(ours.back(), ours.front() - 1);  // it learns, so agreement means something
  EXPECT_LT(worst_deviation(ours, recorded()["fp32"]), 1e-5);
}

TEST(PytorchCurve, Bf16AgreesWithAutocast) {
  EXPECT_LT(worst_deviation(parity::run(true), recorded()["bf16"]), 1e-2);
}

}  // namespace
