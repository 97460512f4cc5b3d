// Optimizers over state on a GPU beside the same on the CPU: equal states and weights after some
// steps, and states read and written across.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/exact_sum.h"
#include "cuda/side.h"
#include "fresh_seed.h"
#include "ops/update_gate.h"
#include "optim/optimizer.h"

namespace ds::optim {
namespace {

constexpr auto kFp32 = OptimizerStateType::kFp32;
constexpr int64_t kElements = 34000;  // more than a chunk

std::vector<TensorPlace> places() {
  std::vector<TensorPlace> out;
  const auto add = [&](const char* name, const Shape& shape, int64_t begin, bool decays) {
    TensorPlace place;
    place.name = name;
    place.shape = shape;
    place.begin = place.flat = begin;
    place.end = begin + shape.elements();
    place.decays = decays;
    out.push_back(place);
  };
  add("a.weight", {300, 109}, 0, true);  // ends inside the first chunk
  add("a.bias", {77}, 32704, false);     // and this one in the second
  add("b.weight", {10, 100}, 32800, true);
  add("b.bias", {3}, 33984, false);  // behind a gap
  return out;
}

using testing::Side;

struct Variant {
  const char* name;
  OptimizerType type;
  OptimizerStateType states;
  bool low_precision;  // bf16 gradients and a bf16 copy of the weights
  bool exact;          // the rule divides nowhere: the same bits as on the CPU
  double momentum = 0;
  bool more_state = false;  // AMSGrad, or centered
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class GpuOptimizer : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
  }
};

// Whether and by how much is decided with the bits of the host.
TEST(GpuUpdateGate, IsThatOfTheHost) {
  std::string why_none;
  if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
  std::mt19937_64 random(ds::fresh_seed());
  std::uniform_real_distribution<double> unit(0, 1);
  const Side gpu(make_cuda_device(0));
  for (int i = 0; i < 200; ++i) {
    ExactSum sum;
    for (int k = 0; k < i % 5; ++k) {  // the squares of numbers between 2^-140 and 2^120
      const double x = std::ldexp(1 + unit(random), static_cast<int>(unit(random) * 260) - 140);
      sum.add(x * x);
    }
    if (i % 17 == 3) sum.add(std::numeric_limits<double>::infinity());
    ExactSum carried;
    carried.add(sum);
    const kernels::GateRule rule{std::ldexp(1.0, i % 20), 0.5 + unit(random),
                                 i % 3 == 0 ? 0 : 10 * unit(random), i % 2 == 0};
    const kernels::UpdateGate expected = kernels::decide_update(std::sqrt(sum.value()), rule);
    const auto words = carried.words();
    const Tensor squares =
        gpu.tensor(DType::kInt64, std::vector<int64_t>(words.begin(), words.end()));
    kernels::UpdateGate actual;
    copy_to_host(ops::update_gate(gpu.ctx, squares, rule), &actual);
    EXPECT_EQ(actual.norm, expected.norm) << i;
    EXPECT_EQ(actual.grad_scale, expected.grad_scale) << i;
    EXPECT_EQ(actual.open, expected.open) << i;
  }
}

void expect_close(const std::vector<float>& actual, const std::vector<float>& expected, bool exact,
                  float relative, float absolute, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const float allowed = exact ? 0 : absolute + relative * std::abs(expected[i]);
    ASSERT_LE(std::abs(actual[i] - expected[i]), allowed)
        << what << " of element " << i << ": " << actual[i] << ", on the CPU " << expected[i];
  }
}

TEST_P(GpuOptimizer, UpdatesAsTheCpuDoes) {
  const Variant& variant = GetParam();
  OptimizerConfig config;
  config.type = variant.type;
  config.lr = 1e-3;
  config.weight_decay = 0.1;
  config.momentum = variant.momentum;
  config.amsgrad = config.centered = variant.more_state;
  config.state_dtype = variant.states;
  Side cpu(make_cpu_device()), gpu(make_cuda_device(0));
  Side* const sides[] = {&cpu, &gpu};

  std::mt19937_64 random(ds::fresh_seed());
  std::normal_distribution<float> normal(0, 0.1f);
  std::vector<float> start(kElements);
  for (float& x : start) x = normal(random);
  std::unique_ptr<Optimizer> optimizers[2];
  FlatTensors tensors[2];
  for (int i = 0; i < 2; ++i) {
    optimizers[i] = make_optimizer(config, places(), sides[i]->device);
    tensors[i].masters = sides[i]->tensor(DType::kFloat32, start);
    if (variant.low_precision) {
      const std::vector<bfloat16> zeros(kElements);
      tensors[i].model = sides[i]->tensor(DType::kBFloat16, zeros);
    }
  }
  for (int step = 0; step < 3; ++step) {
    std::vector<float> wide(kElements);
    std::vector<bfloat16> narrow(kElements);
    for (size_t i = 0; i < wide.size(); ++i) {
      wide[i] = normal(random);
      narrow[i] = to_bfloat16(wide[i]);
    }
    for (int i = 0; i < 2; ++i) {
      tensors[i].gradients = variant.low_precision ? sides[i]->tensor(DType::kBFloat16, narrow)
                                                   : sides[i]->tensor(DType::kFloat32, wide);
      UpdateStep update;
      update.rates.assign(optimizers[i]->base_rates().begin(), optimizers[i]->base_rates().end());
      update.grad_scale = 0.5f;
      optimizers[i]->step(sides[i]->ctx, update, tensors[i]);
    }
  }
  // Codes of 8 bits may fall on the other side of a boundary.
  const bool codes = variant.states == OptimizerStateType::kInt8;
  const bool lamb = variant.type == OptimizerType::kLamb;
  const float loose = codes ? 2e-4f : lamb ? 1e-5f : 2e-6f;
  expect_close(gpu.host<float>(tensors[1].masters.memory()),
               cpu.host<float>(tensors[0].masters.memory()), variant.exact, 1e-6f, loose, "master");
  if (variant.low_precision) {
    const auto masters = gpu.host<float>(tensors[1].masters.memory());
    const auto model = gpu.host<bfloat16>(tensors[1].model.memory());
    int64_t copied = 0;
    for (const TensorPlace& place : places()) {
      for (int64_t i = place.begin; i < place.end; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(model[at].bits, to_bfloat16(masters[at]).bits) << "model of element " << i;
        ++copied;
      }
    }
    EXPECT_GT(copied, 0);
  }
  for (size_t place = 0; place < places().size(); ++place) {
    for (const std::string& state : optimizers[0]->states(place)) {
      const Tensor on_gpu = optimizers[1]->read_state(gpu.ctx, place, state);
      EXPECT_EQ(on_gpu.storage()->device_kind(), DeviceKind::kCuda);
      EXPECT_FALSE(optimizers[1]->state_view(place, state));
      const Tensor on_cpu = optimizers[0]->read_state(cpu.ctx, place, state);
      // States that see the weights, through decay in the gradient.
      const bool sees_weights =
          variant.type == OptimizerType::kAdagrad || variant.type == OptimizerType::kRmsprop;
      const bool same_bits = variant.exact || (variant.states == kFp32 && !sees_weights);
      expect_close(gpu.host<float>(on_gpu), cpu.host<float>(on_cpu), same_bits,
                   codes ? 0.1f : 0.01f, codes ? 1e-3f : 0, state.c_str());
      // From the CPU to the GPU and back, the state stays.
      optimizers[1]->write_state(gpu.ctx, place, state, on_cpu);
      const Tensor back = optimizers[1]->read_state(gpu.ctx, place, state);
      expect_close(gpu.host<float>(back), cpu.host<float>(on_cpu), !codes, 1e-6f, 1e-6f, "state");
      optimizers[1]->write_state(gpu.ctx, place, state, back);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, GpuOptimizer,
    ::testing::Values(
        Variant{"adamw", OptimizerType::kAdamW, kFp32, false, false},
        Variant{"adamw_bf16", OptimizerType::kAdamW, kFp32, true, false},
        Variant{"adamw_bf16_states", OptimizerType::kAdamW, OptimizerStateType::kBf16, true, false},
        Variant{"adamw_8_bits", OptimizerType::kAdamW, OptimizerStateType::kInt8, true, false},
        Variant{"lion", OptimizerType::kLion, kFp32, true, true},
        Variant{"lion_bf16_states", OptimizerType::kLion, OptimizerStateType::kBf16, true, true},
        Variant{"adagrad", OptimizerType::kAdagrad, kFp32, false, false},
        Variant{"amsgrad", OptimizerType::kAdamW, kFp32, true, false, 0, true},
        Variant{"amsgrad_8_bits", OptimizerType::kAdamW, OptimizerStateType::kInt8, true, false, 0,
                true},
        Variant{"nadam", OptimizerType::kNadam, kFp32, true, false},
        Variant{"rmsprop", OptimizerType::kRmsprop, kFp32, false, false},
        Variant{"rmsprop_momentum", OptimizerType::kRmsprop, kFp32, true, false, 0.9},
        Variant{"rmsprop_centered", OptimizerType::kRmsprop, kFp32, true, false, 0, true},
        Variant{"rmsprop_both", OptimizerType::kRmsprop, kFp32, false, false, 0.9, true},
        Variant{"sgd", OptimizerType::kSgd, kFp32, false, true},
        Variant{"momentum", OptimizerType::kSgd, kFp32, true, true, 0.9},
        Variant{"lamb", OptimizerType::kLamb, kFp32, true, false}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace ds::optim
