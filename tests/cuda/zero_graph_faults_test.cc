// Ranks whose micro batches are recorded as CUDA graphs, when a call of CUDA fails on one of them.
// NCCL and CUDA are stand-ins.
#include <gmock/gmock.h>

#include "cuda/emulation/stand_in.h"
#include "cuda/zero_world.h"

namespace ds::gpu_zero {
namespace {

namespace stand_in = testing::stand_in;

class FailingGraphs : public GpuZero {
 protected:
  static constexpr int kSteps = 4;

  static Job job(int stage, int accumulation, bool graphs, bool offload) {
    Json zero = fine();
    if (offload) zero["offload_optimizer"] = {{"device", "cpu"}};
    return {2,
            with(zero_config(stage, zero, kBf16),
                 {{"graph_harvesting", graphs}, {"gradient_accumulation_steps", accumulation}}),
            kSteps, tiny_model()};
  }
};

// A rank that cannot record runs its micro batches, and the others launch theirs.
TEST_F(FailingGraphs, ARankThatCannotRecordGoesOnBesideTheOthers) {
  for (const bool offload : {false, true}) {
    const Trained without = train(Where::kGpus, job(2, 2, false, offload));
    const int64_t before = stand_in::graph_launches();
    stand_in::fail_next("cudaGraphInstantiate", cudaErrorDevicesUnavailable);
    expect_same(train(Where::kGpus, job(2, 2, true, offload)), without);
    EXPECT_EQ(stand_in::graph_launches() - before, kSteps * 2 - 1) << "of one rank";
  }
}

// A step that fails after a launch is dropped, and the ranks go on together or end together.
TEST_F(FailingGraphs, AFailedLaunchDropsTheStep) {
  on_ranks(Where::kGpus, job(1, 1, true, false), [&](Engine& engine, Communicator& comm) {
    train_steps(engine, 2);
    const std::vector<float> weights = weights_of(engine);
    comm.barrier({});
    if (comm.rank() == 1) stand_in::fail_next("cudaGraphLaunch", cudaErrorIllegalAddress);
    // The next launch fails, whichever rank makes it, which then ends the group.
    EXPECT_THROW(engine.train_batch(), Error);
    comm.abort("a rank could not launch");
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(std::isfinite(weights[i]));
  });
}

}  // namespace
}  // namespace ds::gpu_zero
