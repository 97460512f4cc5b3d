// Engines that time the algorithms of matrix products in their first step, alone and with others,
// over the stand-ins of cuBLASLt and NCCL.
#include <gmock/gmock.h>

#include "cuda/emulation/cublaslt_on.h"
#include "cuda/emulation/stand_in.h"
#include "cuda/log_lines.h"
#include "cuda/zero_world.h"
#include "kernels/matmul/product_choices.h"

namespace ds::gpu_zero {
namespace {

using testing::cublaslt;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LogLines;

const Json kTimed = {{"cuda", {{"time_products", true}}}};

class ProductTiming : public GpuZero {
 protected:
  void SetUp() override {
    GpuZero::SetUp();
    cublaslt().seconds = {5e-5, 2e-5, 3e-5};
    clear();
  }
  void TearDown() override {
    EXPECT_THAT(cublaslt().violations, IsEmpty());
    cublaslt().seconds = {1e-5};
    GpuZero::TearDown();
  }
  static void clear() {
    cublaslt().algorithms.clear();
    cublaslt().gpus.clear();
    cublaslt().fast.clear();
  }
  static std::vector<std::byte> choices(int gpu) {
    const std::shared_ptr<CudaDevice> device = make_cuda_device(gpu);
    const DeviceScope scope(*device);
    kernels::GpuStream on{device->default_stream().native(), 1, gpu, 90, {}};
    return kernels::export_timed_products(on);
  }
  // A step's algorithms.
  static std::vector<int> step(Engine& engine) {
    clear();
    engine.train_batch();
    engine.model()->device()->default_stream().synchronize();
    return cublaslt().algorithms;
  }
  static Json config(const Json& more = Json::object()) {
    return with(with(zero_config(0, fine()), kTimed), more);
  }
};

TEST_F(ProductTiming, TheFirstStepTimesAndLaterOnesKeep) {
  const auto engine =
      make_rank_engine(Where::kGpus, {1, config(), 3, tiny_model()}, make_single_communicator());
  const std::vector<int> first = step(*engine);
  EXPECT_THAT(first, ::testing::Contains(2));
  const std::vector<int> second = step(*engine);
  EXPECT_LT(second.size() * 3, first.size());
  EXPECT_THAT(second, Each(1));
  EXPECT_EQ(step(*engine), second);
  // What comes first after that is not timed: evaluation has forms of its own.
  clear();
  engine->evaluate(*periodic_data(8), 1);
  EXPECT_THAT(cublaslt().algorithms, Each(::testing::AnyOf(0, 1)));

  // Another engine begins anew; one that does not ask for it never times.
  const auto again =
      make_rank_engine(Where::kGpus, {1, config(), 3, tiny_model()}, make_single_communicator());
  EXPECT_EQ(step(*again), first);
  const auto plain = make_rank_engine(Where::kGpus, {1, zero_config(0, fine()), 3, tiny_model()},
                                      make_single_communicator());
  EXPECT_THAT(step(*plain), Each(0));
}

// Weights after the first step differ by nothing but what the algorithms round: the runs that were
// timed have left no trace.
TEST_F(ProductTiming, TimedRunsLeaveNoTrace) {
  cublaslt().seconds = {2e-5, 5e-5, 3e-5};  // the first is the fastest
  const auto trained = [&](const Json& with_config) {
    const auto engine = make_rank_engine(Where::kGpus, {1, with_config, 3, tiny_model()},
                                         make_single_communicator());
    return train_steps(*engine, 3);
  };
  expect_same(trained(with(config(), {{"gradient_accumulation_steps", 2}})),
              trained(with(zero_config(0, fine()), {{"gradient_accumulation_steps", 2}})));
}

// The first step is not recorded, and the graphs of later ones have the algorithms that it chose.
TEST_F(ProductTiming, GraphsHaveTheTimedAlgorithms) {
  const auto run = [&](bool graphs) {
    const auto engine =
        make_rank_engine(Where::kGpus, {1, config({{"graph_harvesting", graphs}}), 3, tiny_model()},
                         make_single_communicator());
    const int64_t before = testing::stand_in::graph_launches();
    EXPECT_THAT(step(*engine), ::testing::Contains(2));
    EXPECT_THAT(step(*engine), Each(1));
    EXPECT_THAT(step(*engine), Each(1));
    const Trained out = train_steps(*engine, 2);
    EXPECT_EQ(testing::stand_in::graph_launches() > before, graphs);
    return out;
  };
  expect_same(run(true), run(false));
}

TEST_F(ProductTiming, RanksTakeOverTheChoicesOfTheFirst) {
  for (const int world : {2, 4}) {
    for (const int stage : {0, 3}) {
      SCOPED_TRACE(str_cat(world, " ranks, stage ", stage));
      clear();
      const LogLines log;
      const Json ranks = with(zero_config(stage, fine()), kTimed);
      train(Where::kGpus, {world, ranks, 1, tiny_model()});
      // Only rank 0 ran what is not the first proposal.
      for (size_t i = 0; i < cublaslt().gpus.size(); ++i) {
        if (cublaslt().gpus[i] == 0) continue;
        // evaluate() follows the step
        ASSERT_TRUE(cublaslt().algorithms[i] < 2) << "rank " << cublaslt().gpus[i] << " timed";
      }
      const std::vector<std::byte> first = choices(0);
      EXPECT_GT(first.size(), 1000u);
      for (int rank = 1; rank < world; ++rank) EXPECT_EQ(choices(rank), first) << rank;
      train(Where::kGpus, {world, ranks, 3, tiny_model()});
      EXPECT_THAT(log.warnings(), IsEmpty());
    }
  }
}

// One rank cannot: then none does, and all have the first proposals.
TEST_F(ProductTiming, RanksThatCannotTakeThemOverKeepTheFirst) {
  const LogLines log;
  cublaslt().other_proposals_on = 1;
  on_ranks(Where::kGpus, {2, config(), 2, tiny_model()}, [&](Engine& engine, Communicator& comm) {
    engine.train_batch();
    comm.barrier();
    if (comm.rank() == 0) clear();
    comm.barrier();
    engine.train_batch();
    engine.model()->device()->default_stream().synchronize();
  });
  cublaslt().other_proposals_on = -1;
  EXPECT_THAT(cublaslt().algorithms, Each(0));
  EXPECT_THAT(log.warnings(), ::testing::SizeIs(2));
  EXPECT_THAT(log.warnings(), Each(HasSubstr("all ranks take the first algorithm")));
}

TEST_F(ProductTiming, FastAccumulationIsForForwardProductsOfCodes) {
  for (const bool fast : {true, false}) {
    const Json fp8 = {{"bf16", {{"enabled", true}}},
                      {"fp8", {{"enabled", true}, {"fast_accumulation", fast}}}};
    const auto engine = make_rank_engine(
        Where::kGpus,
        {1, with(zero_config(0, fine()), with(fp8, {{"train_micro_batch_size_per_gpu", 4}})), 3,
         tiny_model()},
        make_single_communicator());
    step(*engine);
    const auto count = std::count(cublaslt().fast.begin(), cublaslt().fast.end(), 1);
    EXPECT_EQ(count > 0, fast);
    EXPECT_LT(count * 2, static_cast<int64_t>(cublaslt().fast.size()));
  }
}

}  // namespace
}  // namespace ds::gpu_zero
