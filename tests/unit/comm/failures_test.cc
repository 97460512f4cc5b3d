// Ranks that stop, die, are aborted or call something else: every other rank gets an error that
// names them, within the deadline, and nothing hangs.
#include <gmock/gmock.h>

#include "unit/comm/support.h"

namespace ds::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class Failures : public ::testing::TestWithParam<Maker> {};

void small_step(Communicator& comm, std::string_view label,
                std::optional<std::chrono::milliseconds> deadline = {}) {
  const Tensor t = make_tensor(DType::kFloat32, 10);
  comm.all_reduce(t, ReduceOp::kSum, {.label = label, .deadline = deadline})->wait();
}

// A deadline that passes, and a pause in which it surely does.
constexpr std::chrono::milliseconds kShort{700}, kLong{2000};

TEST_P(Failures, ALateRankIsNamedWithWhatEachDid) {
  const World world = GetParam().make(3, quick_options());
  const auto outcomes = run_ranks(world, [](Communicator& comm) {
    small_step(comm, "first");
    if (comm.rank() == 1) std::this_thread::sleep_for(kLong);
    small_step(comm, "second", kShort);
  });
  for (const int rank : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    EXPECT_EQ(outcome.code, Code::kComm);
    EXPECT_THAT(outcome.text, HasSubstr("rank 1 did not arrive within 0.7 s"));
    EXPECT_THAT(outcome.text, HasSubstr("all_reduce(sum) of 10 float32 [10] \"second\""));
    EXPECT_THAT(outcome.text, HasSubstr("\"first\""));  // what rank 1 did last
    if (const CommPtr& comm = world[static_cast<size_t>(rank)]) {
      EXPECT_EQ(comm->state(), Communicator::State::kFailed);
    }
  }
  EXPECT_EQ(outcomes[1].code, Code::kComm) << outcomes[1].text;
  const auto later = run_ranks(world, [](Communicator& comm) { comm.barrier(); });
  for (const Outcome& outcome : later) {
    EXPECT_EQ(outcome.code, Code::kComm);
    EXPECT_THAT(outcome.text, HasSubstr("failed before"));
  }
}

TEST_P(Failures, ALargeTransferHasADeadlineToo) {
  const World world = GetParam().make(2, quick_options());
  const auto outcomes = run_ranks(world, [](Communicator& comm) {
    const Tensor t = make_tensor(DType::kFloat32, 1 << 20);
    comm.all_reduce(t, ReduceOp::kSum)->wait();
    if (comm.rank() == 0) {
      comm.all_reduce(t, ReduceOp::kSum, {.label = "large", .deadline = kShort})->wait();
    }
    if (comm.rank() == 1) std::this_thread::sleep_for(kLong);  // stays, idle
  });
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 1 did not arrive"));
  EXPECT_EQ(outcomes[1].code, Code::kOk);
}

TEST_P(Failures, AMismatchIsNamedOnEveryRank) {
  const World world = GetParam().make(4, quick_options());
  const auto outcomes = run_ranks(world, [](Communicator& comm) {
    const Tensor a = make_tensor(DType::kFloat32, 10), b = make_tensor(DType::kFloat32, 12);
    comm.all_reduce(comm.rank() == 2 ? b : a, ReduceOp::kSum, {.label = "layer.weight"})->wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::kComm);
    EXPECT_THAT(outcome.text, HasSubstr("desync at operation"));
    EXPECT_THAT(outcome.text, HasSubstr("rank 2 called all_reduce(sum) of 12 float32 [12] "
                                        "\"layer.weight\", while ranks 0, 1, 3 called all_reduce"));
  }
}

TEST_P(Failures, CheckedModeComparesLabelsAndShapes) {
  for (const bool checked : {false, true}) {
    CommOptions options = quick_options();
    options.checked = checked;
    const World world = GetParam().make(2, options);
    const auto outcomes = run_ranks(world, [](Communicator& comm) {
      const Tensor t = make_tensor(DType::kFloat32, 6);
      comm.all_reduce(comm.rank() == 0 ? t : t.view({2, 3}), ReduceOp::kSum)->wait();
    });
    const World labels = GetParam().make(2, options);
    const auto named = run_ranks(
        labels, [](Communicator& comm) { small_step(comm, comm.rank() == 0 ? "wte" : "wpe"); });
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(outcomes[rank].code, checked ? Code::kComm : Code::kOk) << outcomes[rank].text;
      EXPECT_EQ(named[rank].code, checked ? Code::kComm : Code::kOk);
      if (checked) {
        EXPECT_THAT(outcomes[rank].text, HasSubstr("[2, 3]"));
        EXPECT_THAT(named[rank].text, AnyOf(HasSubstr("rank 1 called all_reduce(sum) of 10 float32 "
                                                      "[10] \"wpe\"")));
      }
    }
  }
}

TEST_P(Failures, CountsThatDoNotFitAreNamed) {
  const World world = GetParam().make(2, quick_options());
  const auto outcomes = run_ranks(world, [](Communicator& comm) {
    const Tensor in = make_tensor(DType::kFloat32, 5), out = make_tensor(DType::kFloat32, 5);
    const int64_t other = comm.rank() == 0 ? 4 : 3;
    const std::vector<int64_t> counts =
        comm.rank() == 0 ? std::vector<int64_t>{1, other} : std::vector<int64_t>{other, 2};
    comm.all_to_all_v(out, in, counts, counts)->wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::kComm);
    // Each sees its own side; whoever is first is heard.
    EXPECT_THAT(outcome.text,
                AnyOf(HasSubstr("rank 1 sends 3 elements to rank 0, which expects 4"),
                      HasSubstr("rank 0 sends 4 elements to rank 1, which expects 3")));
  }
}

TEST_P(Failures, AbortWakesEverybodyWithTheReason) {
  const World world = GetParam().make(3, quick_options());
  const auto outcomes = run_ranks(world, [&](Communicator& comm) {
    small_step(comm, "before");
    if (comm.rank() == 2) {
      std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        comm.abort("the disk is full");
      }).join();
      comm.barrier();
    }
    small_step(comm, "waits");
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::kAborted) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("the disk is full"));
  }
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 2 aborted the group"));
}

TEST_P(Failures, ARankThatLeavesIsNamed) {
  World world = GetParam().make(3, quick_options());
  const auto outcomes = run_ranks(world, [&](Communicator& comm) {
    small_step(comm, "together");
    if (comm.rank() == 1) {
      world[1].reset();
    } else {
      small_step(comm, "alone");
    }
  });
  EXPECT_EQ(outcomes[1].code, Code::kOk);
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(outcomes[rank].code, Code::kComm);
    EXPECT_THAT(outcomes[rank].text, HasSubstr("rank 1 "));
    EXPECT_THAT(outcomes[rank].text, HasSubstr("its communicator is gone"));
  }
}

TEST_P(Failures, DroppedWhileInFlight) {
  World world = GetParam().make(2, quick_options());
  WorkPtr work;
  const auto outcomes = run_ranks(world, [&](Communicator& comm) {
    if (comm.rank() == 0) {
      work = comm.all_reduce(make_tensor(DType::kFloat32, 10), ReduceOp::kSum);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      world[0].reset();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      small_step(comm, "late");
    }
  });
  EXPECT_EQ(outcomes[0].code, Code::kOk) << outcomes[0].text;
  EXPECT_EQ(outcomes[1].code, Code::kComm);
  EXPECT_THAT(outcomes[1].text, HasSubstr("rank 0"));
  if (work) {
    EXPECT_THROW(work->wait(), Error);
  }
}

TEST_P(Failures, UnevenBatchesFinishWithJoin) {
  const World world = GetParam().make(4, quick_options());
  const int batches[] = {3, 3, 3, 5};
  expect_ok(run_ranks(world, [&](Communicator& comm) {
    const int mine = batches[comm.rank()];
    const int64_t n = 5000;
    for (int step = 0; step < mine; ++step) {
      const bool alone = step >= 3;
      const Tensor whole = make_tensor(DType::kFloat32, n);
      std::fill_n(whole.data<float>(), n, 1.0f);
      const WorkPtr work = comm.all_reduce(whole, ReduceOp::kSum);
      work->wait();
      EXPECT_EQ(work->participants(), alone ? 1 : 4);
      EXPECT_EQ(whole.data<float>()[n - 1], alone ? 1 : 4);
      std::fill_n(whole.data<float>(), n, 2.0f);
      comm.all_reduce(whole, ReduceOp::kAverage, {.average_over_participants = true})->wait();
      EXPECT_EQ(whole.data<float>()[0], 2);
      std::fill_n(whole.data<float>(), n, 2.0f);
      comm.all_reduce(whole, ReduceOp::kAverage)->wait();
      EXPECT_EQ(whole.data<float>()[0], alone ? 0.5f : 2.0f);
      std::fill_n(whole.data<float>(), n, -3.0f);
      comm.all_reduce(whole, ReduceOp::kMax)->wait();
      EXPECT_EQ(whole.data<float>()[0], -3);  // nothing, not zero
      std::fill_n(whole.data<float>(), n, 1.0f);
      const Tensor piece = make_tensor(DType::kFloat32, n / 4);
      comm.reduce_scatter(piece, whole, ReduceOp::kSum)->wait();
      EXPECT_EQ(piece.data<float>()[0], alone ? 1 : 4);
      std::fill_n(whole.data<float>(), n, 9.0f);
      comm.all_gather(whole, piece)->wait();
      EXPECT_EQ(whole.data<float>()[0], alone ? 0 : 4);
      EXPECT_EQ(whole.data<float>()[n - 1], alone ? 1 : 4);
      const Tensor turned = make_tensor(DType::kFloat32, n);
      comm.all_to_all(turned, whole)->wait();
      EXPECT_EQ(turned.data<float>()[0], alone ? 0 : 4);
      const Tensor small = make_tensor(DType::kInt32, 1);
      small.data<int32_t>()[0] = 7;
      comm.all_reduce(small, ReduceOp::kSum, {.blocking = true})->wait();
      EXPECT_EQ(small.data<int32_t>()[0], alone ? 7 : 28);
      comm.broadcast(whole, 3)->wait();
      comm.barrier();
    }
    comm.join();
    small_step(comm, "after");  // the group goes on
    comm.finalize();
  }));
}

TEST_P(Failures, WhatNeedsEverybodySaysWhoJoined) {
  const World world = GetParam().make(2, quick_options());
  const auto outcomes = run_ranks(world, [](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.join();
    } else {
      comm.split(0, 0);
    }
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.text, HasSubstr("split needs every rank, and rank 0 called join"));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Failures, ::testing::ValuesIn(makers()), maker_name);

}  // namespace
}  // namespace ds::testing
