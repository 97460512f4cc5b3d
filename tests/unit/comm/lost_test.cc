// Processes that are killed or stopped among their steps: every other rank names them.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "fresh_seed.h"
#include "unit/comm/processes.h"

namespace ds::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class Lost : public ::testing::TestWithParam<std::tuple<TransportKind, int>> {};

// One of three ranks is killed or stopped in the middle of its steps, several times over.
TEST_P(Lost, IsNamedByEveryOther) {
  const auto [kind, signal] = GetParam();
  for (int attempt = 0; attempt < 3; ++attempt) {
    CommOptions options = quick_options(700);
    options.rendezvous_deadline = std::chrono::seconds(60);
    options.transport = kind;
    if (kind == TransportKind::kHierarchical) options.ranks_per_node = 2;
    const int victim = attempt % 3;
    Processes processes(3, options, [](int, const std::function<CommPtr()>& join) {
      const CommPtr comm = join();
      const Tensor large =
          comm->shared_tensor(cpu(), DType::kFloat32, {200000}, MemoryTag::kCommunication);
      for (int step = 0; step < 100000; ++step) {
        if (step % 2 == 0) {
          comm->all_reduce(large, ReduceOp::kSum, {.label = "large"})->wait();
        } else {
          const Tensor t = make_tensor(DType::kFloat32, 10);
          comm->all_reduce(t, ReduceOp::kSum, {.label = "small"})->wait();
        }
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(400 + attempt * 37));
    ::kill(processes.id(victim), signal);
    const auto begin = std::chrono::steady_clock::now();
    const auto reports = processes.reports({victim});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 10.0);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const std::string& report = reports[static_cast<size_t>(rank)];
      if (signal == SIGSTOP) {  // others that wait for it are not blamed beside it
        EXPECT_THAT(report, HasSubstr(str_cat("rank ", victim, " did not arrive within")));
      } else {
        EXPECT_THAT(report, HasSubstr(str_cat("rank ", victim, " ")));
        EXPECT_THAT(report, AnyOf(HasSubstr("has ended"), HasSubstr("closed its connection")));
      }
    }
  }
}

// The whole job is stopped, in any order, and goes on one rank after the other: whoever looks first
// blames nobody.
class Stopped : public ::testing::TestWithParam<TransportKind> {};

TEST_P(Stopped, TogetherAndContinuedOneByOne) {
  CommOptions options = quick_options(2500);
  options.rendezvous_deadline = std::chrono::seconds(60);
  options.transport = GetParam();
  if (GetParam() == TransportKind::kHierarchical) options.ranks_per_node = 2;
  Processes processes(3, options, [](int rank, const std::function<CommPtr()>& join) {
    const CommPtr comm = join();
    const Tensor t = make_tensor(DType::kFloat32, 10), in = make_tensor(DType::kFloat32, 5000);
    for (int step = 0; step < 300; ++step) {
      comm->all_reduce(t, ReduceOp::kSum)->wait();
      const WorkPtr sent = comm->send(in, (rank + 1) % 3, 1);
      comm->recv(make_tensor(DType::kFloat32, 5000), (rank + 2) % 3, 1)->wait();
      sent->wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  std::mt19937_64 random(ds::run_seed());
  std::vector<int> order = {0, 1, 2};
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + random() % 100));
    for (const int rank : order) ::kill(processes.id(rank), SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(2700));
    std::ranges::shuffle(order, random);
    for (const int rank : order) {
      ::kill(processes.id(rank), SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
  }
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "ok");
}

INSTANTIATE_TEST_SUITE_P(Transports, Stopped,
                         ::testing::Values(TransportKind::kShm, TransportKind::kSockets,
                                           TransportKind::kHierarchical),
                         [](const auto& param) {
                           return std::string(transport_name(param.param));
                         });

INSTANTIATE_TEST_SUITE_P(Signals, Lost,
                         ::testing::Combine(::testing::Values(TransportKind::kShm,
                                                              TransportKind::kSockets,
                                                              TransportKind::kHierarchical),
                                            ::testing::Values(SIGKILL, SIGSTOP)),
                         [](const auto& param) {
                           return str_cat(
                               transport_name(std::get<0>(param.param)),
                               std::get<1>(param.param) == SIGKILL ? "_killed" : "_stopped");
                         });

}  // namespace
}  // namespace ds::testing
