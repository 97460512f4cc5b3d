// Operators on tensors through the C ABI: quantisation by groups, softmax, heads. The kernels have
// tables of their own (tests/kernels); here is what a caller relies on, against plain formulas.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "capi/world.h"
#include "ds.hpp"
#include "fresh_seed.h"

namespace capi_test {
namespace {

using libds::GroupFormat;
using libds::Tensor;
using ::testing::HasSubstr;

// One step of the group that begins at `begin`, by definition.
double step_of(const std::vector<float>& x, size_t begin, const GroupFormat& format) {
  const size_t end = std::min(x.size(), begin + static_cast<size_t>(format.group_size));
  double least = x[begin], most = x[begin];
  for (size_t i = begin; i < end; ++i) {
    least = std::min(least, static_cast<double>(x[i]));
    most = std::max(most, static_cast<double>(x[i]));
  }
  if (format.asymmetric) return (most - least) / ((1 << format.bits) - 1);
  return std::max(std::fabs(least), std::fabs(most)) / ((1 << (format.bits - 1)) - 1);
}

std::vector<float> round_trip(const std::vector<float>& x, const GroupFormat& format) {
  const auto [codes, scales] = libds::quantize_groups(Tensor::from(x), format);
  Tensor back(DS_FLOAT32, {static_cast<int64_t>(x.size())});
  libds::dequantize_groups(codes, scales, format, back);
  return back.to_vector<float>();
}

struct Form {
  GroupFormat format;
  size_t elements;
};

// GoogleTest would read the bytes of the struct, and the gaps among them.
void PrintTo(const Form& form, std::ostream* out) { *out << form.elements << " elements"; }

class GroupsOf : public ::testing::TestWithParam<Form> {};

// Half a step to the nearest, a step stochastically, and the same numbers with and without codes.
TEST_P(GroupsOf, ComeBackWithinTheBound) {
  const auto seed = static_cast<uint32_t>(ds::fresh_seed());
  SCOPED_TRACE(ds::str_cat("seed ", seed));
  const std::vector<float> x = random_floats(GetParam().elements, seed);
  for (const int64_t rounding : {int64_t{-1}, int64_t{seed}}) {
    GroupFormat format = GetParam().format;
    format.seed = rounding;
    const std::vector<float> y = round_trip(x, format);
    EXPECT_EQ(libds::fake_quantize(Tensor::from(x), format).to_vector<float>(), y);
    const auto group = static_cast<size_t>(format.group_size);
    for (size_t i = 0; i < x.size(); ++i) {
      const double step = step_of(x, i / group * group, format);
      // Scale, minimum and result are rounded to fp32.
      const double slack = 0x1p-22 * (std::fabs(x[i]) + 16 * step);
      ASSERT_NEAR(y[i], x[i], (rounding < 0 ? 0.5 : 1) * step + slack) << i;
    }
  }
}

TEST_P(GroupsOf, ExtremesAreExactUpToRounding) {
  const GroupFormat format = GetParam().format;
  const std::vector<float> x = random_floats(GetParam().elements, 5);
  const std::vector<float> y = round_trip(x, format);
  const auto group = static_cast<size_t>(format.group_size);
  for (size_t begin = 0; begin < x.size(); begin += group) {
    const auto first = x.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = x.begin() + static_cast<std::ptrdiff_t>(std::min(x.size(), begin + group));
    const auto magnitude = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    const auto top = format.asymmetric ? std::max_element(first, last)
                                       : std::max_element(first, last, magnitude);
    EXPECT_FLOAT_EQ(y[static_cast<size_t>(top - x.begin())], *top);
    if (format.asymmetric) {
      const auto low = std::min_element(first, last);
      EXPECT_EQ(y[static_cast<size_t>(low - x.begin())], *low);
    }
  }
}

// The mean of many roundings of the same group: six standard deviations of what lies between two
// codes, at most half a step each.
TEST_P(GroupsOf, StochasticRoundingHasNoBias) {
  GroupFormat format = GetParam().format;
  const auto copies =
      static_cast<size_t>(std::clamp<int64_t>(int64_t{1 << 19} / format.group_size, 128, 8192));
  format.seed = static_cast<uint32_t>(ds::fresh_seed());
  SCOPED_TRACE(ds::str_cat("seed ", format.seed));
  const auto group = static_cast<size_t>(format.group_size);
  const std::vector<float> one = random_floats(group, static_cast<uint32_t>(format.seed));
  std::vector<float> x;
  for (size_t i = 0; i < copies; ++i) x.insert(x.end(), one.begin(), one.end());
  const std::vector<float> y = round_trip(x, format);
  const double step = step_of(one, 0, format);
  for (size_t i = 0; i < group; ++i) {
    double mean = 0;
    for (size_t copy = 0; copy < copies; ++copy) mean += y[copy * group + i];
    mean /= static_cast<double>(copies);
    const double bound = 6 * 0.5 * step / std::sqrt(static_cast<double>(copies));
    EXPECT_NEAR(mean, one[i], bound + 1e-6 * std::fabs(one[i])) << i;
  }
  EXPECT_EQ(round_trip(x, format), y) << "the same seed, the same roundings";
  format.seed += 1;
  EXPECT_NE(round_trip(x, format), y);
}

INSTANTIATE_TEST_SUITE_P(Forms, GroupsOf,
                         ::testing::Values(Form{{8, 2, false}, 7}, Form{{8, 64, false}, 1000},
                                           Form{{8, 4096, false}, 9001}, Form{{8, 64, true}, 999},
                                           Form{{8, 600, true}, 1801}, Form{{4, 2, false}, 7},
                                           Form{{4, 64, false}, 1001}, Form{{4, 64, true}, 1001},
                                           Form{{4, 1000, true}, 3333}),
                         [](const auto& row) {
                           const GroupFormat& f = row.param.format;
                           return ds::str_cat("Bits", f.bits, "Group", f.group_size,
                                              f.asymmetric ? "Asymmetric" : "Symmetric");
                         });

TEST(Groups, SpecialNumbers) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, 0, 3.5f, 3.5f, 1, inf, 1e-45f, 0, -3e38f, 3e38f, 5};
  for (const bool asymmetric : {false, true}) {
    const std::vector<float> y = round_trip(x, {8, 2, asymmetric});
    EXPECT_EQ(y[0], 0);
    EXPECT_FLOAT_EQ(y[2], 3.5f);
    EXPECT_FLOAT_EQ(y[3], 3.5f);
    EXPECT_TRUE(std::isnan(y[4]) && std::isnan(y[5])) << "not finite: the whole group";
    EXPECT_NEAR(y[6], 0, 1e-44);
    EXPECT_FLOAT_EQ(y[8], -3e38f);
    EXPECT_FLOAT_EQ(y[9], 3e38f);
    EXPECT_FLOAT_EQ(y[10], 5) << "a short last group";
  }
}

TEST(Groups, ArgumentsAreChecked) {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4});
  for (const GroupFormat& bad :
       {GroupFormat{2, 4}, GroupFormat{8, 0}, GroupFormat{8, 3}, GroupFormat{8, -2},
        GroupFormat{8, INT64_MAX - 1}, GroupFormat{4, 4, true, -2}}) {
    EXPECT_THROW(libds::quantize_groups(x, bad), libds::Error);
    EXPECT_THROW(libds::fake_quantize(x, bad), libds::Error);
  }
  const auto [codes, scales] = libds::quantize_groups(x, {4, 2, true});
  Tensor longer(DS_FLOAT32, {5});
  EXPECT_THROW(libds::dequantize_groups(codes, scales, {4, 2}, longer), libds::Error);
  Tensor back(DS_FLOAT32, {4});
  EXPECT_THROW(libds::dequantize_groups(codes, scales, {8, 2}, back), libds::Error);
  EXPECT_THROW(libds::dequantize_groups(codes, scales, {4, 4}, back), libds::Error);
  EXPECT_THROW(libds::quantize_groups(Tensor(DS_INT32, {4}), {8, 2}), libds::Error);
}

// ---- softmax ----

TEST(Operators, SoftmaxOfScoresWithMaskAndOrder) {
  const std::vector<float> x = random_floats(2 * 3 * 5 * 7, 11);
  const Tensor scores = Tensor::from(x, {2, 3, 5, 7});
  std::vector<uint8_t> hides(2 * 5 * 7);
  for (size_t i = 0; i < hides.size(); ++i) hides[i] = i % 3 != 1;
  const Tensor mask = Tensor::from(hides, {2, 1, 5, 7});
  const double scale = 0.125;
  const Tensor y = libds::softmax(scores, &mask, scale, true);
  EXPECT_EQ(y.shape(), scores.shape());
  const std::vector<float> got = y.to_vector<float>();
  const std::vector<float> weights = random_floats(got.size(), 12);
  const std::vector<float> dx =
      libds::softmax_backward(y, Tensor::from(weights, {2, 3, 5, 7}), scale).to_vector<float>();
  for (size_t row = 0; row < 2 * 3 * 5; ++row) {
    const size_t query = row % 5, sample = row / 15;
    const auto seen = [&](size_t j) {
      return hides[(sample * 5 + query) * 7 + j] && j <= query + 2;
    };
    double sum = 0, dot = 0;
    for (size_t j = 0; j < 7; ++j) {
      if (seen(j)) sum += std::exp(scale * x[row * 7 + j]);
    }
    std::vector<double> p(7);
    for (size_t j = 0; j < 7; ++j) {
      p[j] = seen(j) ? std::exp(scale * x[row * 7 + j]) / sum : 0;
      dot += p[j] * weights[row * 7 + j];
      EXPECT_NEAR(got[row * 7 + j], p[j], 1e-6);
    }
    for (size_t j = 0; j < 7; ++j) {
      EXPECT_NEAR(dx[row * 7 + j], scale * p[j] * (weights[row * 7 + j] - dot), 1e-6);
    }
  }
}

TEST(Operators, SoftmaxIsChecked) {
  const Tensor scores(DS_FLOAT32, {2, 3, 4});
  const Tensor mask(DS_UINT8, {2, 3, 1});
  EXPECT_THROW(libds::softmax(scores, &mask), libds::Error);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("mask has shape [2, 3, 1] and x [2, 3, 4]"));
  const Tensor floats(DS_FLOAT32, {2, 3, 4});
  EXPECT_THROW(libds::softmax(scores, &floats), libds::Error);
  EXPECT_THROW(libds::softmax(Tensor(DS_INT32, {2, 2})), libds::Error);
  EXPECT_THROW(libds::softmax(Tensor(DS_FLOAT32, {})), libds::Error);
  EXPECT_THROW(libds::softmax(Tensor(DS_FLOAT32, {1, 1, 1, 2, 2})), libds::Error);
  EXPECT_THROW(libds::softmax_backward(scores, Tensor(DS_FLOAT32, {2, 3, 5})), libds::Error);
}

// ---- heads ----

TEST(Operators, HeadsApartAndTogether) {
  const size_t batch = 2, tokens = 3, parts = 3, heads = 2, size = 5;
  const std::vector<float> x = random_floats(batch * tokens * parts * heads * size, 21);
  const std::vector<float> added = random_floats(parts * heads * size, 22);
  const Tensor packed = Tensor::from(x, {2, 3, 30}), bias = Tensor::from(added);
  const Tensor split = libds::split_heads(packed, &bias, 3, 2);
  EXPECT_EQ(split.shape(), (std::vector<int64_t>{3, 2, 2, 3, 5}));
  const std::vector<float> y = split.to_vector<float>();
  size_t i = 0;
  for (size_t p = 0; p < parts; ++p) {
    for (size_t b = 0; b < batch; ++b) {
      for (size_t h = 0; h < heads; ++h) {
        for (size_t t = 0; t < tokens; ++t) {
          for (size_t d = 0; d < size; ++d, ++i) {
            const size_t column = (p * heads + h) * size + d;
            EXPECT_EQ(y[i], x[(b * tokens + t) * 30 + column] + added[column]);
          }
        }
      }
    }
  }
  const Tensor plain = libds::split_heads(packed, nullptr, 3, 2);
  const Tensor back = libds::merge_heads(plain);
  EXPECT_EQ(back.shape(), packed.shape());
  EXPECT_EQ(back.to_vector<float>(), x);
}

TEST(Operators, HeadsAreChecked) {
  const Tensor packed(DS_FLOAT32, {2, 3, 30});
  EXPECT_THROW(libds::split_heads(packed, nullptr, 3, 4), libds::Error);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("3 parts of 4 heads do not divide"));
  EXPECT_THROW(libds::split_heads(packed, nullptr, 0, 1), libds::Error);
  const Tensor bias(DS_FLOAT32, {29});
  EXPECT_THROW(libds::split_heads(packed, &bias, 3, 2), libds::Error);
  EXPECT_THROW(libds::merge_heads(packed), libds::Error);
}

}  // namespace
}  // namespace capi_test
