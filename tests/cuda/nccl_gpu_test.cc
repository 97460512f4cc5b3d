// Groups over NCCL on this machine's GPUs, a rank for each. Linked twice: with CUDA and the
// machine's NCCL (skipped where there is none), and with their stand-ins.
#include <gmock/gmock.h>

#include "comm/nccl/nccl_library.h"
#include "cuda/nccl/gpu_rank.h"
#include "cuda/stand_ins.h"
#include "unit/comm/support.h"

namespace ds {
namespace {

using namespace std::chrono_literals;
using testing::expect_ok;
using testing::Gpu;
using testing::Outcome;
using testing::run_ranks;
using testing::World;

class NcclOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto* const stand_ins = testing::stand_ins_or_null()) {
      stand_ins->begin(2, int64_t{64} << 20);
      options_.nccl_library = stand_ins->nccl_library;
    }
    std::string why_none;
    const auto gpus = list_cuda_devices(&why_none);
    if (gpus.empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    try {
      comm::nccl::open_library(options_.nccl_library);
    } catch (const Error& error) {
      GTEST_SKIP() << "needs NCCL: " << error.message();
    }
    options_.transport = TransportKind::kNccl;
    options_.deadline = 60s;
    world_ = make_local_group(std::min(4, static_cast<int>(gpus.size())), options_);
  }
  int size() const { return static_cast<int>(world_.size()); }
  std::vector<Outcome> run(const std::function<void(Communicator&, Gpu&)>& body) {
    return run_ranks(world_, [&](Communicator& comm) {
      Gpu gpu(comm.rank());
      body(comm, gpu);
    });
  }

  CommOptions options_;
  World world_;
};

// Whole numbers: no order of additions rounds them.
TEST_F(NcclOnGpus, Collectives) {
  const auto n = static_cast<float>(size());
  std::vector<float> ranks;
  for (float rank = 0; rank < n; ++rank) ranks.push_back(rank);
  expect_ok(run([&](Communicator& comm, Gpu& gpu) {
    const auto rank = static_cast<float>(comm.rank());
    const Tensor sum = gpu.floats(std::vector<float>(1000, rank + 1));
    comm.all_reduce(sum, ReduceOp::kSum, {.label = "sum"})->wait();
    EXPECT_EQ(gpu.get_floats(sum), std::vector<float>(1000, n * (n + 1) / 2));
    comm.all_reduce(sum, ReduceOp::kAverage)->wait();
    EXPECT_EQ(gpu.get_floats(sum), std::vector<float>(1000, n * (n + 1) / 2));

    const Tensor piece = gpu.floats({rank});
    const Tensor all = gpu.empty(DType::kFloat32, size());
    comm.all_gather(all, piece)->wait();
    EXPECT_EQ(gpu.get_floats(all), ranks);
    comm.reduce_scatter(piece, all, ReduceOp::kMax)->wait();
    EXPECT_THAT(gpu.get_floats(piece), ::testing::ElementsAre(rank));
    const Tensor turned = gpu.empty(DType::kFloat32, size());
    comm.all_to_all(turned, all)->wait();
    EXPECT_EQ(gpu.get_floats(turned), std::vector<float>(ranks.size(), rank));
    comm.broadcast(piece, size() - 1)->wait();
    EXPECT_THAT(gpu.get_floats(piece), ::testing::ElementsAre(n - 1));
    comm.finalize();
  }));
}

TEST_F(NcclOnGpus, MessagesInARing) {
  if (size() < 2) GTEST_SKIP() << "needs two GPUs";
  expect_ok(run([&](Communicator& comm, Gpu& gpu) {
    const int next = (comm.rank() + 1) % size(), before = (comm.rank() + size() - 1) % size();
    const Tensor to = gpu.empty(DType::kFloat32, 1);
    comm.send(gpu.floats({static_cast<float>(comm.rank())}), next, 0);
    comm.recv(to, before, 0)->wait();
    EXPECT_THAT(gpu.get_floats(to), ::testing::ElementsAre(static_cast<float>(before)));
    comm.finalize();
  }));
}

TEST_F(NcclOnGpus, ALateRankIsNamedAndNothingHangs) {
  if (size() < 2) GTEST_SKIP() << "needs two GPUs";
  const auto outcomes = run([&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1});
    comm.all_reduce(tensor, ReduceOp::kSum, {.blocking = true})->wait();
    if (comm.rank() == 1) {
      for (int i = 0; i < 400 && comm.state() == Communicator::State::kActive; ++i) {
        std::this_thread::sleep_for(50ms);
      }
    }
    comm.all_reduce(tensor, ReduceOp::kSum, {.deadline = 1s})->wait();
    gpu.device->default_stream().synchronize();
    comm.barrier();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.text, ::testing::HasSubstr("rank 1 did not call operation 2"));
  }
}

}  // namespace
}  // namespace ds
