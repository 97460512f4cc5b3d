// Inputs of checkpointed segments in host memory: they come back bit for bit, what the GPU holds of
// them does not grow with their number, and training takes the same steps as without.
#include "nn/activation_offload.h"

#include <random>

#include "cuda/model_world.h"
#include "fresh_seed.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about

Json checkpointing(bool offload) {
  return {{"activation_checkpointing", {{"enabled", true}, {"cpu_checkpointing", offload}}}};
}

class GpuOffload : public GpuModel {
 protected:
  void SetUp() override {
    GpuModel::SetUp();
    if (IsSkipped()) return;
    gpu_ = make_cuda_device(0);
    copies_ = gpu_->create_stream();
  }
  Tensor random_on_gpu(const Shape& shape) {
    return to_device(random_tensor(random_, shape), gpu_, MemoryTag::kActivations);
  }
  // Made by work that is queued: nobody has waited for it.
  Tensor queued_copy(const Tensor& from) {
    const Tensor source = to_device(from, gpu_, MemoryTag::kWorkspace);
    const Tensor x = Tensor::empty(gpu_, from.dtype(), from.shape(), MemoryTag::kActivations);
    gpu_->copy(x.raw(), source.raw(), x.bytes(), gpu_->default_stream());
    return x;
  }
  std::vector<float> bits(const Tensor& x) const { return flat(to_host(x, gpu_->pinned())); }
  // What comes later on the default stream: takes freed memory and writes it.
  void use_freed_memory(const Shape& shape) const {
    for (int i = 0; i < 3; ++i) {
      const Tensor other = Tensor::empty(gpu_, DType::kFloat32, shape, MemoryTag::kWorkspace);
      gpu_->clear(other.raw(), other.bytes(), gpu_->default_stream());
    }
  }
  int64_t held() const { return gpu_->account().now(MemoryTag::kActivations); }
  int64_t on_host() const { return gpu_->pinned()->account().now(MemoryTag::kActivations); }

  std::mt19937_64 random_{ds::fresh_seed()};
  std::shared_ptr<CudaDevice> gpu_;
  std::unique_ptr<Stream> copies_;
};

// Copies run when they must, or as soon as they can.
TEST_F(GpuOffload, InputsComeBackAndTheGpuHoldsTwoSegmentsAtMost) {
  constexpr int kSegments = 6;
  const Shape shape{40, 128};
  const int64_t each = 40 * 128 * 4;
  for (const bool with_residual : {false, true}) {
    for (const bool at_once : {false, true}) {
      const int64_t segment = each * (with_residual ? 2 : 1);
      std::vector<Tensor> expected;
      nn::ActivationOffload offload(gpu_, *copies_);
      for (size_t i = 0; i < kSegments; ++i) {
        std::vector<Tensor> inputs;
        for (int k = with_residual ? 2 : 1; k > 0; --k) {
          expected.push_back(random_tensor(random_, shape));
          inputs.push_back(queued_copy(expected.back()));
        }
        EXPECT_EQ(offload.keep(inputs), i);
        if (at_once) copies_->synchronize();
        inputs.clear();
        EXPECT_EQ(held(), segment) << "the newest, which may be on its way";
        use_freed_memory(shape);
      }
      EXPECT_EQ(on_host(), kSegments * segment);
      for (size_t i = kSegments; i-- > 0;) {
        const std::vector<Tensor> inputs = offload.fetch(i);
        if (at_once) copies_->synchronize();
        EXPECT_EQ(held(), (i > 0 ? 2 : 1) * segment) << "this one, and the next under way";
        use_freed_memory(shape);
        ASSERT_EQ(inputs.size(), with_residual ? 2U : 1U);
        for (size_t k = inputs.size(); k-- > 0;) {
          EXPECT_TRUE(same_bits(bits(inputs[k]), flat(expected.back()))) << i;
          expected.pop_back();
        }
      }
    }
  }
  EXPECT_EQ(held(), 0);
  EXPECT_EQ(on_host(), 0);
}

TEST_F(GpuOffload, WhatSeveralSegmentsKeepIsCopiedOnce) {
  const Shape shape{64, 128};
  nn::ActivationOffload offload(gpu_, *copies_);
  Tensor shared = random_on_gpu(shape);
  const std::vector<float> expected = bits(shared);
  for (int i = 0; i < 3; ++i) offload.keep(std::vector<Tensor>{shared, shared});
  offload.keep({});
  EXPECT_EQ(on_host(), shared.bytes());
  EXPECT_TRUE(offload.fetch(3).empty());
  // While somebody holds it, that is what comes back.
  const void* const place = shared.raw();
  EXPECT_EQ(offload.fetch(2).at(1).raw(), place);
  shared = Tensor();
  EXPECT_EQ(held(), expected.size() * 4) << "the next segment has it";
  Tensor last = offload.fetch(1).at(0);
  EXPECT_EQ(last.raw(), place);
  last = Tensor();
  const std::vector<Tensor> again = offload.fetch(0);
  EXPECT_EQ(again.at(0).raw(), again.at(1).raw());
  EXPECT_TRUE(same_bits(bits(again[0]), expected));
}

// The tensors between are gone, and then this is fetched for the segment before.
TEST_F(GpuOffload, AViewOfALargerTensorTravelsAlone) {
  const Shape shape{3, 40, 128};
  std::vector<float> expected[2];
  nn::ActivationOffload offload(gpu_, *copies_);
  {
    const Tensor whole = random_on_gpu(shape);
    for (const int64_t i : {1, 2}) {
      const Tensor part = whole.select(0, i);
      expected[i - 1] = bits(part);
      offload.keep({&part, 1});
    }
    EXPECT_EQ(on_host(), 2 * 40 * 128 * 4) << "equal storage, other bytes";
  }
  offload.keep({});
  EXPECT_EQ(held(), 0);
  offload.fetch(2);
  for (const size_t i : {1, 0}) {
    const Tensor part = offload.fetch(i).at(0);
    EXPECT_EQ(part.shape(), Shape({40, 128}));
    EXPECT_TRUE(same_bits(bits(part), expected[i])) << i;
  }
}

TEST_F(GpuOffload, WhatIsNotWorthACopyStays) {
  const Tensor small = random_on_gpu({nn::TensorMark::kSmallest / 4 - 1});
  const Tensor strided = random_on_gpu({128, 128}).slice(1, 0, 64);
  const Tensor on_the_host = random_tensor(random_, {128, 128});
  nn::ActivationOffload offload(gpu_, *copies_);
  const std::vector<Tensor> given{small, strided, Tensor(), on_the_host};
  offload.keep(given);
  offload.keep(given);
  EXPECT_EQ(on_host(), 0);
  for (const size_t i : {1, 0}) {
    const std::vector<Tensor> back = offload.fetch(i);
    for (size_t k = 0; k < given.size(); ++k) EXPECT_EQ(back.at(k).raw(), given[k].raw());
  }
}

TEST_F(GpuOffload, APassThatIsGivenUp) {
  for (const int fetched : {-1, 2, 1}) {
    {
      nn::ActivationOffload offload(gpu_, *copies_);
      for (int i = 0; i < 3; ++i) {
        const Tensor x = random_on_gpu({64, 128});
        offload.keep({&x, 1});
      }
      for (int i = 2; fetched >= 0 && i >= fetched; --i) offload.fetch(static_cast<size_t>(i));
    }
    EXPECT_EQ(held(), 0);
    EXPECT_EQ(on_host(), 0);
    // No copy comes late into memory that others have by now.
    std::vector<Tensor> others;
    for (int i = 0; i < 3; ++i) {
      others.push_back(
          Tensor::zeros(gpu_->pinned(), DType::kFloat32, {64, 128}, MemoryTag::kOther));
    }
    copies_->synchronize();
    for (const Tensor& x : others) EXPECT_EQ(flat(x), std::vector<float>(64 * 128));
  }
}

struct OffloadedModel {
  const char* name;
  Json model;
  Json config;
};
void PrintTo(const OffloadedModel& c, std::ostream* out) { *out << c.name; }

std::vector<OffloadedModel> offloaded_models() {
  const Json gpt2 = with(model_config(0.1), {{"n_layer", 3}});
  return {{"Gpt2", gpt2, Json::object()},
          {"Gpt2Bf16", with(gpt2, {{"n_embd", 64}}), {{"bf16", {{"enabled", true}}}}},
          {"OneSegment", gpt2, {{"activation_checkpointing", {{"number_checkpoints", 1}}}}},
          {"Llama", with(llama_config(), {{"num_hidden_layers", 3}}), Json::object()}};
}

class GpuOffloadedTraining : public GpuModel,
                             public ::testing::WithParamInterface<OffloadedModel> {};

TEST_P(GpuOffloadedTraining, TakesTheSameSteps) {
  const OffloadedModel& c = GetParam();
  const auto engine_on = [&](bool offload) {
    auto engine =
        make_engine_on(true, with(with(base_config(), checkpointing(offload)), c.config), c.model);
    engine->set_dataset(periodic_data(32));
    return engine;
  };
  const auto plain = engine_on(false), offloaded = engine_on(true);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(offloaded->train_batch().loss, plain->train_batch().loss) << "step " << i;
  }
  EXPECT_TRUE(same_bits(weights_of(*offloaded), weights_of(*plain)));
  EXPECT_TRUE(same_bits(states_of(*offloaded), states_of(*plain)));
  const auto host_peak = [](Engine& engine) {
    return host_memory_of(engine.model()->device())->account().peak(MemoryTag::kActivations);
  };
  EXPECT_GE(host_peak(*offloaded), host_peak(*plain) + nn::TensorMark::kSmallest);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuOffloadedTraining, ::testing::ValuesIn(offloaded_models()),
                         [](const auto& test) { return test.param.name; });

// fp32 inputs of a segment are 2 tensors (the first segment's one) of 4 * 32 * 32 numbers.
TEST_F(GpuModel, ActivationsDoNotGrowWithTheSegments) {
  constexpr int64_t kInput = 2 * 4 * 32 * 32 * 4;
  const auto peak = [](bool offload, int layers) {
    const auto engine = make_engine_on(true, with(base_config(), checkpointing(offload)),
                                       with(model_config(), {{"n_layer", layers}}));
    engine->set_dataset(periodic_data(32));
    engine->train_batch();
    return engine->model()->device()->account().peak(MemoryTag::kActivations);
  };
  EXPECT_EQ(peak(true, 9), peak(true, 5));
  EXPECT_EQ(peak(false, 9), peak(false, 5) + 4 * kInput);
  EXPECT_LE(peak(true, 5), peak(false, 5));
}

// In files beside a GPU (nvme_checkpointing): the same steps, with no more on the GPU than when
// they wait in the host's memory, nor there.
TEST_P(GpuOffloadedTraining, TakesTheSameStepsWithInputsInFiles) {
  const OffloadedModel& c = GetParam();
  const Folder folder;
  const auto engine_on = [&](const Json& where) {
    auto engine = make_engine_on(
        true, with(with(with(base_config(), checkpointing(false)), where), c.config), c.model);
    engine->set_dataset(periodic_data(32));
    return engine;
  };
  const Json files = {{"nvme_checkpointing", true}, {"nvme_path", folder.path()}};
  const auto plain = engine_on(Json::object());
  const auto stored = engine_on({{"activation_checkpointing", files}});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(stored->train_batch().loss, plain->train_batch().loss) << "step " << i;
  }
  EXPECT_TRUE(same_bits(weights_of(*stored), weights_of(*plain)));
  EXPECT_TRUE(same_bits(states_of(*stored), states_of(*plain)));
  EXPECT_GT(stored->model()->host()->account().peak(MemoryTag::kIo), 0);
}

TEST_F(GpuModel, ActivationsInFilesDoNotGrowWithTheSegments) {
  const Folder folder;
  const auto peaks = [&](int layers) {
    const Json files = {
        {"enabled", true}, {"nvme_checkpointing", true}, {"nvme_path", folder.path()}};
    const auto engine =
        make_engine_on(true, with(base_config(), {{"activation_checkpointing", files}}),
                       with(model_config(), {{"n_layer", layers}}));
    engine->set_dataset(periodic_data(32));
    engine->train_batch();
    return std::pair(engine->model()->device()->account().peak(MemoryTag::kActivations),
                     engine->model()->host()->account().peak(MemoryTag::kIo));
  };
  EXPECT_EQ(peaks(9), peaks(5));
}

TEST(CpuOffload, ChangesNothing) {
  const auto engine_on = [](bool offload) {
    return make_engine_on(false, with(base_config(), checkpointing(offload)));
  };
  const auto plain = engine_on(false), offloaded = engine_on(true);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(offloaded->train_batch().loss, plain->train_batch().loss);
  }
  EXPECT_TRUE(same_bits(weights_of(*offloaded), weights_of(*plain)));
  EXPECT_EQ(offloaded->model()->host()->account().peak(MemoryTag::kActivations),
            plain->model()->host()->account().peak(MemoryTag::kActivations));
}

}  // namespace
}  // namespace ds
