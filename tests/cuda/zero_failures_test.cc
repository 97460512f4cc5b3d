// Engines over GPUs when something fails: every rank ends with an error, and none hangs. And what
// waits for what: the host never for NCCL while a step is queued. NCCL and CUDA are stand-ins.
#include <gmock/gmock.h>

#include <thread>

#include "attached_state.h"
#include "cuda/emulation/nccl_on.h"
#include "cuda/zero_world.h"
#include "unit/comm/support.h"

namespace ds::gpu_zero {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::Outcome;

class GpuZeroFailures : public GpuZero {
 protected:
  // What becomes of ranks that train until something stops them; `before` is called in each step.
  static std::vector<Outcome> train_until_failure(
      int stage, const std::function<void(Engine&, int rank, int step)>& before,
      std::chrono::milliseconds deadline = 20s) {
    return train_until_failure(Job{3, zero_config(stage, fine()), 0, tiny_model()}, before,
                               deadline);
  }
  static std::vector<Outcome> train_until_failure(
      const Job& run, const std::function<void(Engine&, int rank, int step)>& before,
      std::chrono::milliseconds deadline = 20s) {
    CommOptions options = nccl_options();
    options.deadline = deadline;
    const auto world = make_local_group(run.world, options);
    return testing::run_ranks(world, [&](Communicator& comm) {
      const auto engine =
          make_rank_engine(Where::kGpus, run, world[static_cast<size_t>(comm.rank())]);
      try {
        for (int step = 0; step < 4; ++step) {
          before(*engine, comm.rank(), step);
          engine->train_batch();
        }
        comm.barrier();
      } catch (const Error&) {
        comm.abort("a rank failed");  // as a program does that ends: nothing if it failed already
        engine->model()->device()->default_stream().synchronize();
        throw;
      }
    });
  }
};

TEST_F(GpuZeroFailures, AForwardThatFailsEndsEveryRank) {
  for (const int stage : {1, 3}) {
    const auto outcomes = train_until_failure(stage, [](Engine& engine, int rank, int step) {
      if (rank != 1 || step != 2) return;
      const Tensor ids = ids_tensor({1, 2, 99999, 4}, 1);
      engine.forward({ids, ids, {}, {}, {}});
    });
    EXPECT_EQ(outcomes[1].code, Code::kInvalidArgument) << outcomes[1].text;
    for (const int rank : {0, 2}) {
      EXPECT_EQ(outcomes[static_cast<size_t>(rank)].code, Code::kAborted);
      EXPECT_THAT(outcomes[static_cast<size_t>(rank)].text, HasSubstr("a rank failed"));
    }
  }
}

TEST_F(GpuZeroFailures, CallsOfNcclThatFailEndEveryRank) {
  struct Case {
    int stage;
    const char* call;
  };
  for (const Case& one : {Case{0, "ncclAllReduce"}, Case{2, "ncclReduceScatter"},
                          Case{2, "ncclAllGather"}, Case{3, "ncclAllGather"}}) {
    SCOPED_TRACE(str_cat("stage ", one.stage, ", ", one.call));
    const auto outcomes = train_until_failure(one.stage, [&](Engine&, int rank, int step) {
      if (rank == 2 && step == 1)
        testing::nccl_control().fail_next(one.call, comm::nccl::kSystemError);
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.code, Code::kComm);
      EXPECT_THAT(outcome.text, HasSubstr(one.call));
    }
  }
}

// Of the groups that a rank is in, the one whose call failed is named.
TEST_F(GpuZeroFailures, TheGroupThatFailedIsNamed) {
  struct Case {
    const char *call, *group;
  };
  for (const Case& one :
       {Case{"ncclAllGather", "shard group"}, Case{"ncclAllReduce", "replicas"}}) {
    const Json zero = {{"mics_shard_size", 2}, {"mics_hierarchical_params_gather", false}};
    const auto outcomes = train_until_failure(
        Job{4, zero_config(3, fine(zero)), 0, tiny_model()}, [&](Engine&, int rank, int step) {
          if (rank == 2 && step == 1)
            testing::nccl_control().fail_next(one.call, comm::nccl::kSystemError);
        });
    int named = 0;
    for (const Outcome& outcome : outcomes) {
      EXPECT_NE(outcome.code, Code::kOk);
      named +=
          outcome.text.find(str_cat("(group \"", one.group, "\" of ranks ")) != std::string::npos;
    }
    EXPECT_GE(named, 1) << one.call << ": " << outcomes[2].text;
  }
}

TEST_F(GpuZeroFailures, ErrorsInTheBackgroundEndEveryRank) {
  for (const int stage : {2, 3}) {
    const auto outcomes = train_until_failure(stage, [](Engine&, int rank, int step) {
      if (rank == 0 && step == 1) testing::nccl_control().report(1, comm::nccl::kRemoteError);
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.code, Code::kComm);
      EXPECT_THAT(outcome.text, HasSubstr("remote process exited"));
    }
  }
}

// A rank that stops calling is named when the deadline has passed.
TEST_F(GpuZeroFailures, ARankThatStopsIsNamed) {
  for (const int stage : {0, 3}) {
    const auto outcomes = train_until_failure(
        stage,
        [](Engine& engine, int rank, int step) {
          if (rank != 1 || step != 1) return;
          const Communicator& comm = *train_state(*engine.model()).arrays().all_ranks().comm;
          for (int i = 0; i < 400 && comm.state() == Communicator::State::kActive; ++i) {
            std::this_thread::sleep_for(50ms);
          }
        },
        6s);  // far longer than a rank on a busy machine is behind the others
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.code, Code::kComm);
      EXPECT_THAT(outcome.text, AnyOf(HasSubstr("rank 1 did not"), HasSubstr("rank 1")));
    }
  }
}

TEST_F(GpuZeroFailures, NoMemoryForWhatMovesIsAnError) {
  const auto outcomes = train_until_failure(2, [](Engine&, int rank, int step) {
    if (rank == 0 && step == 0) {
      testing::stand_in::fail_next("cudaMalloc", cudaErrorMemoryAllocation);
      testing::stand_in::fail_next("cudaMalloc", cudaErrorMemoryAllocation);
    }
  });
  int out_of_memory = 0;
  for (const Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.code, Code::kOk);
    out_of_memory += outcome.code == Code::kOutOfMemory ? 1 : 0;
  }
  EXPECT_EQ(out_of_memory, 1);
}

// What backward reduces, and what a step gathers, the GPU waits for and the host does not: while
// NCCL is held, backward is queued to its end.
TEST_F(GpuZeroFailures, BackwardDoesNotWaitForNccl) {
  for (const int stage : {0, 2}) {
    const Job run{2, zero_config(stage, fine()), 0, tiny_model()};
    std::atomic<int> forward{0}, backward{0};
    on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator& comm) {
      engine.train_batch();
      engine.model()->device()->default_stream().synchronize();
      const Tensor ids = ids_tensor({1, 2, 3, 4, 5, 6, 7, 8}, 1);
      const Tensor loss = engine.forward({ids, ids, {}, {}, {}});
      if (++forward == 2) testing::nccl_control().hold(true);
      while (forward < 2 && comm.state() == Communicator::State::kActive) {
        std::this_thread::sleep_for(1ms);
      }
      // One of the two may be a little early: it only queues what the other has not held yet.
      engine.backward(loss);
      if (++backward == 2) testing::nccl_control().hold(false);
      EXPECT_TRUE(engine.step().applied);
    });
  }
}

}  // namespace
}  // namespace ds::gpu_zero
