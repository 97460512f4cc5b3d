// Several ranks whose optimizer state lies on their hosts, when copies or memory fail on one of
// them: the step goes on where it can, and otherwise every rank ends with an error. NCCL and CUDA
// are stand-ins.
#include <gmock/gmock.h>

#include "cuda/emulation/stand_in.h"
#include "cuda/zero_world.h"
#include "unit/comm/support.h"

namespace ds::gpu_zero {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
namespace stand_in = testing::stand_in;

Job offloaded_job(int stage) {
  const Json zero = {{"offload_optimizer", {{"device", "cpu"}}}};
  return {2, zero_config(stage, fine(zero), {{"bf16", {{"enabled", true}}}}), 0, tiny_model(0)};
}

// What ranks do, each until its own error; calls fail on either of them.
std::vector<Outcome> outcomes_of(
    const Job& run, const std::function<void(const std::shared_ptr<Communicator>&)>& body) {
  CommOptions options = nccl_options();
  options.deadline = std::chrono::seconds(20);
  const auto world = make_local_group(run.world, options);
  return testing::run_ranks(world, [&](Communicator& comm) {
    try {
      body(world[static_cast<size_t>(comm.rank())]);
    } catch (const Error&) {
      comm.abort("a rank failed");
      throw;
    }
  });
}

// Weights that one rank could not send after an update are sent again before others gather them.
TEST_F(GpuZero, OffloadedWeightsThatDoNotArriveAreSentAgain) {
  for (const int stage : {2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const auto train = [&](bool fails) {
      Trained out;
      std::atomic<int> ready{0};
      on_ranks(Where::kGpus, offloaded_job(stage), [&](Engine& engine, Communicator& comm) {
        const nn::ParameterSet& parameters = engine.model()->parameters();
        for (int step = 0; step < 3; ++step) {
          std::mt19937_64 random(static_cast<uint64_t>(step));
          for (nn::ParamId id = 0; id < parameters.size(); ++id) {
            engine.gradients().set(parameters[id].name,
                                   random_tensor(random, parameters[id].shape));
          }
          engine.model()->device()->default_stream().synchronize();
          comm.barrier();
          // The next copies are those of the update.
          if (fails && comm.rank() == 1) {
            stand_in::fail_next("cudaMemcpyAsync", cudaErrorIllegalAddress);
          }
          comm.barrier();
          EXPECT_TRUE(engine.step().applied);
          comm.barrier();
          if (fails && comm.rank() == 0) {
            EXPECT_EQ(stand_in::fail_no_more(), 0);
          }
        }
        Trained mine;
        mine.evaluated = engine.evaluate(*periodic_data(8), 2);
        mine.weights = weights_of(engine);
        if (comm.rank() == 0) out = std::move(mine);
      });
      return out;
    };
    const Trained calm = train(false), disturbed = train(true);
    EXPECT_TRUE(same_bits(disturbed.weights, calm.weights));
    EXPECT_EQ(disturbed.evaluated, calm.evaluated);  // by the weights of the GPUs
  }
}

// Where one rank has no room for its masters all end, and none waits.
// Without the plan, whose own agreement would be the first to ask for memory, of some bytes.
TEST_F(GpuZero, NoHostMemoryOnOneRankEndsAll) {
  Job run = offloaded_job(2);
  run.config["memory_plan"] = {{"check", "off"}};
  const auto outcomes = outcomes_of(run, [&](const std::shared_ptr<Communicator>& comm) {
    auto model = zero_test::make_rank_model(run);
    model->set_device(make_cuda_device(comm->rank()));
    host_memory_of(model->device())->trim();
    comm->barrier();
    if (comm->rank() ==
        1) {  // a call, and again after the cache was given back; by one rank at least
      for (int i = 0; i < 3; ++i) stand_in::fail_next("cudaHostAlloc", cudaErrorMemoryAllocation);
    }
    comm->barrier();
    Engine(dump_json(run.config), model, comm);
  });
  stand_in::fail_no_more();
  for (const Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.code, Code::kOk);
    EXPECT_THAT(outcome.text, HasSubstr("locked for cuda:"));
  }
}

}  // namespace
}  // namespace ds::gpu_zero
