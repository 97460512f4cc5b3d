// Groups over NCCL: ranks are threads with a GPU each, NCCL and CUDA are stand-ins.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "comm/logger.h"
#include "comm/nccl/nccl_backoff.h"
#include "comm/nccl/nccl_communicator.h"
#include "cuda/emulation/nccl_on.h"
#include "cuda/emulation/stand_in.h"
#include "cuda/nccl/gpu_rank.h"
#include "fresh_seed.h"
#include "unit/base/expect_error.h"
#include "unit/comm/processes.h"
#include "unit/comm/support.h"

namespace ds {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::expect_error;
using testing::expect_ok;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::run_ranks;
using testing::World;
namespace stand_in = testing::stand_in;
using testing::Bytes;
using testing::Gpu;
using testing::nccl_control;

constexpr DType kAll[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                          DType::kInt8,    DType::kInt16,   DType::kInt32,   DType::kInt64,
                          DType::kUInt8,   DType::kUInt16,  DType::kUInt32,  DType::kUInt64,
                          DType::kBool};

CommOptions nccl_options() {
  CommOptions options;
  options.transport = TransportKind::kNccl;
  options.nccl_library = testing::stand_ins().nccl_library;
  options.deadline = 20s;
  options.rendezvous_deadline = 20s;
  return options;
}

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    stand_in::reset(4);
    stand_in::go_on_when_asked();
    nccl_control().reset();
  }
  void TearDown() override {
    EXPECT_EQ(stand_in::live(), stand_in::Live{}) << "something was not given back";
    EXPECT_THAT(stand_in::violations(), ::testing::IsEmpty());
    EXPECT_STREQ(nccl_control().violation(), "");
    EXPECT_EQ(nccl_control().live(), 0) << "communicators of NCCL are left";
    nccl_control().reset();
    stand_in::reset(2);
    if (HasFailure()) std::cout << "seed " << ds::run_seed() << "\n";
  }

  // Each rank with its GPU.
  static std::vector<Outcome> run(const World& world,
                                  const std::function<void(Communicator&, Gpu&)>& body) {
    return run_ranks(world, [&](Communicator& comm) {
      Gpu gpu(comm.topology().local_rank);
      body(comm, gpu);
      gpu.device->default_stream().synchronize();
    });
  }
  static Bytes random(DType dtype, int64_t count, int rank, int round = 0) {
    return testing::random_bytes(dtype, count,
                                 ds::run_seed() + static_cast<uint64_t>(rank * 1000 + round));
  }
};

Bytes part(const Bytes& whole, size_t index, size_t parts) {
  const size_t size = whole.size() / parts;
  return {whole.begin() + static_cast<std::ptrdiff_t>(index * size),
          whole.begin() + static_cast<std::ptrdiff_t>((index + 1) * size)};
}

void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

TEST_F(Nccl, Reductions) {
  for (const int size : {1, 2, 3, 4}) {
    const World world = make_local_group(size, nccl_options());
    expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
      EXPECT_STREQ(comm.transport(), "nccl");
      int round = 0;
      for (const DType dtype : kAll) {
        if (!comm::nccl::reduced_type(dtype)) continue;
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
          if (op == ReduceOp::kAverage && !dtype_is_floating(dtype)) continue;
          const int64_t piece = 1 + round % 70;
          std::vector<Bytes> inputs;
          for (int rank = 0; rank < size; ++rank) {
            inputs.push_back(random(dtype, piece * size, rank, round));
          }
          ++round;
          const auto rank = static_cast<size_t>(comm.rank());
          const Bytes expected = testing::reduced(dtype, inputs, op, size);
          const Tensor all = gpu.put(dtype, inputs[rank]);
          comm.all_reduce(all, op, {.label = "all"})->wait();
          EXPECT_EQ(gpu.get(all), expected) << dtype_name(dtype) << reduce_op_name(op);

          const Tensor to_last = gpu.put(dtype, inputs[rank]);
          comm.reduce(to_last, op, size - 1)->wait();
          EXPECT_EQ(gpu.get(to_last), comm.rank() == size - 1 ? expected : inputs[rank]);

          const Tensor whole = gpu.put(dtype, inputs[rank]);
          const Tensor own = gpu.empty(dtype, piece);
          comm.reduce_scatter(own, whole, op)->wait();
          EXPECT_EQ(gpu.get(own), part(expected, rank, inputs.size()));
        }
      }
    }));
  }
}

// NCCL has queued a collective a few microseconds after it was called, and a thread that goes to
// sleep for that wakes up far too late.
TEST_F(Nccl, NobodySleepsWhileNcclQueues) {
  constexpr int kCalls = 200;
  const World world = make_local_group(1, nccl_options());
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor x = gpu.put(DType::kFloat32, random(DType::kFloat32, 64, 0));
    const auto sleeps = [] {
      rusage used{};
      EXPECT_EQ(getrusage(RUSAGE_THREAD, &used), 0);
      return used.ru_nvcsw;
    };
    comm.all_reduce(x, ReduceOp::kSum)->wait();  // begins the channel
    const auto before = sleeps();
    const auto since = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) comm.all_reduce(x, ReduceOp::kSum)->wait();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - since;
    std::cout << "microseconds of the host per collective: " << took.count() / kCalls << "\n";
    EXPECT_LT(sleeps() - before, kCalls / 2) << "the watch alone may hold a lock now and then";
  }));
}

TEST(NcclBackoff, SleepsGrowWithTheWait) {
  const comm::Clock::time_point since{};
  const comm::Backoff backoff(since);
  EXPECT_EQ(backoff.pause(since), 0us);
  EXPECT_EQ(backoff.pause(since + 49us), 0us);
  EXPECT_EQ(backoff.pause(since + 50us), 50us);
  EXPECT_EQ(backoff.pause(since + 400us), 100us);
  EXPECT_EQ(backoff.pause(since + 10s), 1000us);
}

TEST_F(Nccl, Movements) {
  for (const int size : {1, 2, 3, 4}) {
    const World world = make_local_group(size, nccl_options());
    expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
      const auto n = static_cast<size_t>(size), self = static_cast<size_t>(comm.rank());
      int round = 0;
      for (const DType dtype : kAll) {
        const int64_t piece = 1 + round % 5 * 7;
        std::vector<Bytes> inputs;  // size pieces each
        for (int rank = 0; rank < size; ++rank) {
          inputs.push_back(random(dtype, piece * size, rank, round));
        }
        ++round;
        const Bytes mine = part(inputs[self], 0, n);
        Bytes gathered, crossed;
        for (const Bytes& input : inputs) {
          append(gathered, part(input, 0, n));
          append(crossed, part(input, self, n));
        }
        const Tensor all = gpu.empty(dtype, piece * size);
        comm.all_gather(all, gpu.put(dtype, mine))->wait();
        EXPECT_EQ(gpu.get(all), gathered);

        // In place: the own piece of the output.
        const Tensor place = gpu.put(dtype, inputs[self]);
        const Tensor inside = place.slice(0, comm.rank() * piece, (comm.rank() + 1) * piece);
        gpu.device->copy(inside.raw(), place.raw(), inside.bytes(), gpu.device->default_stream());
        comm.all_gather(place, inside)->wait();
        EXPECT_EQ(gpu.get(place), gathered);

        const Tensor same = gpu.put(dtype, inputs[self]);
        comm.broadcast(same, size - 1)->wait();
        EXPECT_EQ(gpu.get(same), inputs[n - 1]);

        const Tensor turned = gpu.empty(dtype, piece * size);
        comm.all_to_all(turned, gpu.put(dtype, inputs[self]))->wait();
        EXPECT_EQ(gpu.get(turned), crossed);

        const Tensor at_root = comm.rank() == 0 ? gpu.empty(dtype, piece * size) : Tensor();
        comm.gather(at_root, gpu.put(dtype, mine), 0)->wait();
        if (comm.rank() == 0) {
          EXPECT_EQ(gpu.get(at_root), gathered);
        }

        const Tensor own = gpu.empty(dtype, piece);
        const Tensor spread = comm.rank() == size - 1 ? gpu.put(dtype, inputs[self]) : Tensor();
        comm.scatter(own, spread, size - 1)->wait();
        EXPECT_EQ(gpu.get(own), part(inputs[n - 1], self, n));
      }
    }));
  }
}

TEST_F(Nccl, CountsByRank) {
  const World world = make_local_group(3, nccl_options());
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    // Rank r gives r elements, so rank 0 gives none.
    const std::vector<int64_t> counts = {0, 1, 2};
    const int64_t mine = comm.rank();
    const Tensor all = gpu.empty(DType::kFloat32, 3);
    comm.all_gather_v(all,
                      gpu.floats(std::vector<float>(static_cast<size_t>(mine),
                                                    static_cast<float>(10 * mine))),
                      counts)
        ->wait();
    EXPECT_THAT(gpu.get_floats(all), ::testing::ElementsAre(10, 20, 20));

    // Rank i sends i + 2 j elements to rank j.
    std::vector<int64_t> sent, received;
    std::vector<float> values, expected;
    for (int64_t peer = 0; peer < 3; ++peer) {
      sent.push_back(mine + 2 * peer);
      received.push_back(peer + 2 * mine);
      values.insert(values.end(), static_cast<size_t>(sent.back()),
                    static_cast<float>(10 * mine + peer));
      expected.insert(expected.end(), static_cast<size_t>(received.back()),
                      static_cast<float>(10 * peer + mine));
    }
    const Tensor out = gpu.empty(DType::kFloat32, static_cast<int64_t>(expected.size()));
    comm.all_to_all_v(out, gpu.floats(values), received, sent)->wait();
    EXPECT_EQ(gpu.get_floats(out), expected);
  }));
}

TEST_F(Nccl, MessagesThatCrossGoOutTogether) {
  const World world = make_local_group(3, nccl_options());
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    const int next = (comm.rank() + 1) % 3, before = (comm.rank() + 2) % 3;
    for (float round = 0; round < 3; ++round) {
      // Everybody sends first; nothing goes out before somebody waits.
      comm.send(gpu.floats({round, static_cast<float>(comm.rank())}), next, 0);
      comm.send(gpu.floats({7}), before, 5);
      const Tensor first = gpu.empty(DType::kFloat32, 2), second = gpu.empty(DType::kFloat32, 1);
      const WorkPtr a = comm.recv(first, before, 0), b = comm.recv(second, next, 5);
      a->wait();
      b->wait();
      EXPECT_EQ(a->participants(), 2);
      EXPECT_THAT(gpu.get_floats(first), ::testing::ElementsAre(round, static_cast<float>(before)));
      EXPECT_THAT(gpu.get_floats(second), ::testing::ElementsAre(7));
    }
    EXPECT_EQ(comm.traffic()[static_cast<size_t>(Collective::kSend)].calls, 6);
  }));
  EXPECT_EQ(nccl_control().launches(), 9) << "three of each rank";
}

TEST_F(Nccl, WaitOrdersTheStreamAndNotTheHost) {
  const World world = make_local_group(2, nccl_options());
  nccl_control().hold(true);
  std::atomic<int> waited{0};
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    // The input is still being written when the collective is called.
    const Tensor tensor = gpu.floats({static_cast<float>(comm.rank() + 1)});
    const WorkPtr work = comm.all_reduce(tensor, ReduceOp::kSum);
    EXPECT_FALSE(work->done());
    work->wait();
    EXPECT_FALSE(work->done()) << "the host waited";
    Bytes bytes(4);
    Stream& stream = gpu.device->default_stream();
    gpu.device->copy(bytes.data(), tensor.raw(), 4, stream);
    const auto read = stream.record();
    EXPECT_FALSE(read->ready()) << "work after wait() came before the collective";
    if (++waited == 2) nccl_control().hold(false);
    stream.synchronize();
    float sum = 0;
    std::memcpy(&sum, bytes.data(), 4);
    EXPECT_EQ(sum, 3);
    EXPECT_TRUE(work->done());
    work->wait();
  }));
}

TEST_F(Nccl, BlockingCallsAndBarriersWaitForTheGpu) {
  const World world = make_local_group(2, nccl_options());
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1});
    const WorkPtr work = comm.all_reduce(tensor, ReduceOp::kSum, {.blocking = true});
    EXPECT_TRUE(work->done());
    work->wait();
    const WorkPtr later = comm.all_reduce(tensor, ReduceOp::kSum);
    comm.barrier();
    EXPECT_TRUE(later->done());
    EXPECT_THAT(gpu.get_floats(tensor), ::testing::ElementsAre(4));
  }));
}

TEST_F(Nccl, MemoryIsHeldUntilTheGpuIsDone) {
  const World world = make_local_group(2, nccl_options());
  nccl_control().hold(true);
  std::atomic<int> called{0};
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    WorkPtr work;
    {
      const Tensor tensor = gpu.floats(std::vector<float>(100, 1));
      work = comm.all_reduce(tensor, ReduceOp::kSum);
    }
    EXPECT_GT(gpu.device->account().now(MemoryTag::kCommunication), 0);
    if (++called == 2) nccl_control().hold(false);
    comm.barrier();
    EXPECT_EQ(gpu.device->account().now(MemoryTag::kCommunication), 0);
  }));
}

// After wait() the default stream is ordered behind the collective, and memory with it: it may
// serve again while NCCL has not begun.
TEST_F(Nccl, MemoryFollowsTheDefaultStreamAfterWait) {
  const World world = make_local_group(2, nccl_options());
  nccl_control().hold(true);
  std::atomic<int> called{0};
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    Bytes sum(400);
    Stream& stream = gpu.device->default_stream();
    {
      const Tensor tensor = gpu.floats(std::vector<float>(100, 1));
      const WorkPtr work = comm.all_reduce(tensor, ReduceOp::kSum);
      work->wait();
      EXPECT_FALSE(work->done());
      gpu.device->copy(sum.data(), tensor.raw(), 400, stream);
    }
    EXPECT_EQ(gpu.device->account().now(MemoryTag::kCommunication), 0);
    const Tensor next = gpu.floats(std::vector<float>(100, 7));
    const WorkPtr work = comm.all_reduce(next, ReduceOp::kMax);
    if (++called == 2) nccl_control().hold(false);
    work->wait();
    stream.synchronize();
    const std::vector<float> twos(100, 2);
    EXPECT_EQ(std::memcmp(sum.data(), twos.data(), 400), 0);
    EXPECT_EQ(gpu.get_floats(next), std::vector<float>(100, 7));
  }));
}

// Their operations run in the order of their calls: NCCL may hang when two run at once.
TEST_F(Nccl, GroupsSplitFromOneAnotherTakeTurns) {
  const World world = make_local_group(2, nccl_options());
  std::atomic<int> called{0};
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    const auto part = comm.split(comm.rank(), 0);  // each alone
    const Tensor one = gpu.floats({1}), other = gpu.floats({5});
    comm.all_reduce(one, ReduceOp::kSum, {.blocking = true})->wait();
    part->all_reduce(other, ReduceOp::kSum, {.blocking = true})->wait();
    comm.barrier();
    nccl_control().hold(true);
    const WorkPtr first = comm.all_reduce(one, ReduceOp::kSum);
    const WorkPtr second = part->all_reduce(other, ReduceOp::kSum);
    if (++called == 2) nccl_control().hold(false);
    if (comm.rank() == 0) {  // alone it could go on
      second->wait();
      gpu.device->default_stream().synchronize();
      EXPECT_TRUE(first->done());
    }
    first->wait();
    EXPECT_THAT(gpu.get_floats(one), ::testing::ElementsAre(4));
    part->finalize();
  }));
}

TEST_F(Nccl, HostMemoryGoesOverTheGroupBelow) {
  const World world = make_local_group(2, nccl_options());
  expect_ok(run_ranks(world, [&](Communicator& comm) {
    const Tensor tensor = testing::make_tensor(DType::kFloat32, 3);
    tensor.data<float>()[1] = 2;
    comm.all_reduce(tensor, ReduceOp::kSum)->wait();
    EXPECT_EQ(tensor.data<float>()[1], 4);
    const Tensor shared =
        comm.shared_tensor(testing::cpu(), DType::kFloat32, Shape{2}, MemoryTag::kCommunication);
    EXPECT_EQ(shared.elements(), 2);
    Gpu gpu(comm.rank());
    const Tensor on_gpu =
        comm.shared_tensor(gpu.device, DType::kFloat32, Shape{2}, MemoryTag::kCommunication);
    EXPECT_THAT(gpu.get_floats(on_gpu), ::testing::ElementsAre(0, 0));
  }));
  EXPECT_EQ(nccl_control().launches(), 0);
}

TEST_F(Nccl, WhatDoesNotFitIsRefused) {
  const World world = make_local_group(2, nccl_options());
  const World plain = make_local_group(2);
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1, 2}), host = testing::make_tensor(DType::kFloat32, 4);
    comm.all_reduce(tensor, ReduceOp::kSum)->wait();
    expect_error(Code::kUnsupported, {"all_reduce: NCCL does not reduce int16"},
                 [&] { comm.all_reduce(gpu.empty(DType::kInt16, 3), ReduceOp::kSum); });
    expect_error(Code::kInvalidArgument, {"all_gather: output lies on the host and input on cuda:"},
                 [&] { comm.all_gather(host, tensor); });
    Gpu other(2 + comm.rank());
    expect_error(Code::kInvalidArgument, {"lies on cuda:", "a rank has one GPU"},
                 [&] { comm.all_reduce(other.empty(DType::kFloat32, 1), ReduceOp::kSum); });
    expect_error(Code::kUnsupported, {"join", "as many batches"}, [&] { comm.join(); });
    expect_error(Code::kUnsupported,
                 {"a tensor lies on cuda:", "transport \"shm\"", "with transport \"nccl\""}, [&] {
                   plain[static_cast<size_t>(comm.rank())]->all_reduce(tensor, ReduceOp::kSum);
                 });
    // None of it did any harm.
    comm.all_reduce(tensor, ReduceOp::kMax)->wait();
    EXPECT_THAT(gpu.get_floats(tensor), ::testing::ElementsAre(2, 4));
  }));
}

TEST_F(Nccl, OneProcessAlone) {
  Gpu gpu(1);
  const auto single = make_single_communicator();
  const Tensor from = gpu.floats({3, 4}), to = gpu.empty(DType::kFloat32, 2);
  single->all_gather(to, from)->wait();
  EXPECT_THAT(gpu.get_floats(to), ::testing::ElementsAre(3, 4));
  const auto comm = make_communicator(0, 1, nccl_options());
  const Tensor again = gpu.empty(DType::kFloat32, 2);
  comm->all_to_all(again, from)->wait();
  EXPECT_THAT(gpu.get_floats(again), ::testing::ElementsAre(3, 4));
  comm->finalize();
}

// ---- failures ----

// Every later call throws the same, and the default stream is not stuck.
void expect_ended(Communicator& comm, Gpu& gpu, Communicator::State state) {
  EXPECT_EQ(comm.state(), state);
  const Code code = state == Communicator::State::kAborted ? Code::kAborted : Code::kComm;
  expect_error(code, {"all_reduce"}, [&] { comm.all_reduce(gpu.floats({1}), ReduceOp::kSum); });
  gpu.device->default_stream().synchronize();
}

TEST_F(Nccl, ALateRankIsNamed) {
  const World world = make_local_group(3, nccl_options());
  const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1});
    comm.all_reduce(tensor, ReduceOp::kSum, {.label = "first"})->wait();
    if (comm.rank() == 1) {
      for (int i = 0; i < 400 && comm.state() == Communicator::State::kActive; ++i) {
        std::this_thread::sleep_for(50ms);
      }
    } else {
      const WorkPtr work = comm.all_reduce(
          tensor, ReduceOp::kSum, {.label = "second", .deadline = 500ms, .blocking = true});
      expect_error(
          Code::kComm,
          {"operation 2, all_reduce(sum) of 1 float32 [1] \"second\"", "was not over within 0.5 s",
           "rank 1 did not call operation 2", "rank 1 called operation 1", "\"first\""},
          [&] { work->wait(); });
    }
    expect_ended(comm, gpu, Communicator::State::kFailed);
    comm.all_reduce(tensor, ReduceOp::kSum);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::kComm);
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("the group failed before: NCCL: rank "),
                                    HasSubstr("rank 1 did not call operation 2")));
  }
}

TEST_F(Nccl, DifferentCallsEndInADeadlineThatListsThem) {
  CommOptions options = nccl_options();
  options.deadline = 500ms;
  const World world = make_local_group(2, options);
  const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1});
    comm.all_reduce(tensor, comm.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMax, {.blocking = true})
        ->wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("every rank called operation 1"),
                                    HasSubstr("rank 0 called operation 1, all_reduce(sum)"),
                                    HasSubstr("rank 1 called operation 1, all_reduce(max)")));
  }
}

TEST_F(Nccl, CheckedGroupsCompareCallsBefore) {
  CommOptions options = nccl_options();
  options.checked = true;
  const World world = make_local_group(2, options);
  const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1});
    comm.all_reduce(tensor, ReduceOp::kSum, {.label = "same"})->wait();
    comm.broadcast(tensor, 0, {.label = comm.rank() == 0 ? "a" : "b"})->wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::kComm);
    EXPECT_THAT(outcome.text,
                AllOf(HasSubstr("desync at operation 2"), HasSubstr("\"a\""), HasSubstr("\"b\"")));
  }
}

TEST_F(Nccl, AbortFromAnotherThread) {
  const World world = make_local_group(2, nccl_options());
  nccl_control().hold(true);
  std::thread aborter;
  std::atomic<int> called{0};
  const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1});
    if (comm.rank() == 0) {
      aborter = std::thread([&] {
        while (called < 2) std::this_thread::sleep_for(1ms);
        comm.abort("enough");
      });
    }
    const WorkPtr work = comm.all_reduce(tensor, ReduceOp::kSum);
    work->wait();  // in the default stream, which hangs now
    ++called;
    gpu.device->default_stream().synchronize();  // until NCCL is ended
    for (int i = 0; i < 400 && comm.state() == Communicator::State::kActive; ++i) {
      std::this_thread::sleep_for(5ms);
    }
    expect_error(Code::kAborted, {"enough"}, [&] { work->wait(); });
    expect_ended(comm, gpu, Communicator::State::kAborted);
    comm.barrier();
  });
  aborter.join();
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::kAborted);
    EXPECT_THAT(outcome.text, HasSubstr("enough"));
  }
}

TEST_F(Nccl, ErrorsInTheBackgroundEndEveryRank) {
  const World world = make_local_group(3, nccl_options());
  std::atomic<int> called{0};
  const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1});
    comm.all_reduce(tensor, ReduceOp::kSum)->wait();
    comm.barrier();
    nccl_control().hold(true);
    const WorkPtr work = comm.all_reduce(tensor, ReduceOp::kSum);
    if (++called == 3) nccl_control().report(1, comm::nccl::kRemoteError);
    comm.all_reduce(tensor, ReduceOp::kSum, {.blocking = true})->wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::kComm);
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("failed on cuda:1"), HasSubstr("remote process"),
                                    HasSubstr("as the stand-in was told")));
  }
}

TEST_F(Nccl, ErrorsOfCallsEndEveryRank) {
  for (const char* const call : {"ncclAllReduce", "ncclGroupEnd", "ncclCommInitRankConfig"}) {
    const World world = make_local_group(2, nccl_options());
    nccl_control().fail_next(call, comm::nccl::kSystemError);
    const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
      const Tensor tensor = gpu.floats({1});
      comm.all_reduce(tensor, ReduceOp::kSum, {.label = "x", .blocking = true})->wait();
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.code, Code::kComm);
      EXPECT_THAT(outcome.text,
                  AllOf(HasSubstr(call), HasSubstr("unhandled system error"), HasSubstr("\"x\"")));
    }
  }
}

TEST_F(Nccl, BeginningHasADeadline) {
  {
    const World world = make_local_group(2, nccl_options());
    nccl_control().hold_begin(true);
    const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
      comm.all_reduce(gpu.floats({1}), ReduceOp::kSum, {.deadline = 300ms})->wait();
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_THAT(outcome.text, AllOf(HasSubstr("was not over within 0.3 s"),
                                      HasSubstr("every rank called operation 1")));
    }
    nccl_control().hold_begin(false);
  }
  {
    const World world = make_local_group(2, nccl_options());
    nccl_control().fail_next("ncclGetUniqueId", comm::nccl::kSystemError);
    const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
      comm.all_reduce(gpu.floats({1}), ReduceOp::kSum)->wait();
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_THAT(outcome.text, HasSubstr("ncclGetUniqueId failed on rank 0"));
    }
  }
  {  // A rank that does not call at all.
    const World world = make_local_group(2, nccl_options());
    const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
      if (comm.rank() == 1) return;
      comm.all_reduce(gpu.floats({1}), ReduceOp::kSum, {.deadline = 300ms})->wait();
    });
    EXPECT_THAT(outcomes[0].text, HasSubstr("rank 1 did not"));
  }
}

TEST_F(Nccl, ALostGpuEndsEveryRank) {
  const World world = make_local_group(2, nccl_options());
  const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1});
    comm.all_reduce(tensor, ReduceOp::kSum, {.blocking = true})->wait();
    comm.barrier();
    if (comm.rank() == 0) stand_in::fail_next("cudaStreamWaitEvent", cudaErrorIllegalAddress);
    comm.all_reduce(tensor, ReduceOp::kSum, {.blocking = true})->wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::kComm);
    EXPECT_THAT(outcome.text, HasSubstr("cudaErrorIllegalAddress"));
  }
}

// Processes have stand-ins of their own, so NCCL never gets ready for them.
TEST_F(Nccl, AProcessThatEndsIsNamed) {
  testing::Processes ranks(2, nccl_options(), [](int rank, const auto& join) {
    const auto comm = join();
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    Gpu gpu(0);
    comm->all_reduce(gpu.floats({1}), ReduceOp::kSum)->wait();
  });
  const auto reports = ranks.reports({1});
  EXPECT_THAT(reports[0], AllOf(HasSubstr("rank 1 (process "), HasSubstr("has ended")));
}

TEST_F(Nccl, LeavingWithWorkInFlightIsTold) {
  World world = make_local_group(2, nccl_options());
  const auto outcomes = run_ranks(world, [&](Communicator& comm) {
    Gpu gpu(comm.rank());
    const Tensor tensor = gpu.floats({1});
    comm.all_reduce(tensor, ReduceOp::kSum, {.blocking = true})->wait();
    comm.barrier();
    if (comm.rank() == 0) {
      nccl_control().hold(true);
      const WorkPtr work = comm.all_reduce(tensor, ReduceOp::kSum);
      world[0].reset();
      expect_error(Code::kComm, {"rank 0 destroyed its communicator"}, [&] { work->wait(); });
      return;
    }
    comm.all_reduce(tensor, ReduceOp::kSum, {.blocking = true})->wait();
  });
  EXPECT_THAT(outcomes[1].text,
              HasSubstr("rank 0 destroyed its communicator while operations were in flight"));
}

TEST_F(Nccl, LeavingIdleIsNoFailure) {
  World world = make_local_group(3, nccl_options());
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    const Tensor tensor = gpu.floats({1});
    comm.all_reduce(tensor, ReduceOp::kSum, {.blocking = true})->wait();
    comm.barrier();
    if (comm.rank() == 0) return;
    std::this_thread::sleep_for(300ms);
    EXPECT_EQ(comm.state(), Communicator::State::kActive);
  }));
  world[0].reset();
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(world[1]->state(), Communicator::State::kActive);
}

// ---- groups ----

TEST_F(Nccl, SplitAndFinalize) {
  const World world = make_local_group(4, nccl_options());
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    const auto half = comm.split(comm.rank() % 2, -comm.rank());
    EXPECT_STREQ(half->transport(), "nccl");
    EXPECT_EQ(half->size(), 2);
    EXPECT_EQ(half->rank(), comm.rank() < 2 ? 1 : 0);
    const Tensor tensor = gpu.floats({static_cast<float>(comm.rank())});
    half->all_reduce(tensor, ReduceOp::kSum)->wait();
    EXPECT_THAT(gpu.get_floats(tensor), ::testing::ElementsAre(comm.rank() % 2 == 0 ? 2 : 4));
    const auto none = comm.split(comm.rank() == 0 ? 0 : -1, 0);
    EXPECT_EQ(none != nullptr, comm.rank() == 0);
    comm.all_reduce(tensor, ReduceOp::kSum)->wait();
    EXPECT_THAT(gpu.get_floats(tensor), ::testing::ElementsAre(12));
    const auto calls = static_cast<size_t>(Collective::kAllReduce);
    EXPECT_EQ(comm.traffic()[calls].calls, 1);
    half->barrier();
    EXPECT_EQ(comm.total_traffic()[calls].calls, 2);
    half->finalize();
    comm.finalize();
    expect_error(Code::kState, {"finalized"}, [&] { comm.barrier(); });
  }));
}

TEST_F(Nccl, AbortReachesGroupsSplitFromIt) {
  const World world = make_local_group(2, nccl_options());
  std::atomic<int> ready{0};
  const auto outcomes = run(world, [&](Communicator& comm, Gpu& gpu) {
    const auto part = comm.split(0, comm.rank());
    part->all_reduce(gpu.floats({1}), ReduceOp::kSum, {.blocking = true})->wait();
    ++ready;
    while (ready < 2) std::this_thread::sleep_for(1ms);
    if (comm.rank() == 1) comm.abort("stop");
    for (int i = 0; i < 400 && part->state() == Communicator::State::kActive; ++i) {
      std::this_thread::sleep_for(5ms);
    }
    expect_ended(*part, gpu, Communicator::State::kAborted);
  });
  expect_ok(outcomes);
}

TEST_F(Nccl, TrafficAndLogger) {
  CommOptions options = nccl_options();
  options.ranks_per_node = 1;
  const World world = make_local_group(2, options);
  expect_ok(run_ranks(world, [&](Communicator& comm) {
    Gpu gpu(comm.rank());
    const auto logger = std::make_shared<CommsLogger>();
    comm.set_logger(logger);
    const Tensor whole = gpu.floats({1, 2, 3, 4}), piece = gpu.empty(DType::kFloat32, 2);
    comm.reduce_scatter(piece, whole, ReduceOp::kSum)->wait();
    comm.all_gather(whole, piece)->wait();
    comm.barrier();
    const Traffic gathered = comm.traffic()[static_cast<size_t>(Collective::kAllGather)];
    EXPECT_EQ(gathered.across_nodes % 512, 8) << "beside what the ranks tell when NCCL begins";
    const Traffic scattered = comm.traffic()[static_cast<size_t>(Collective::kReduceScatter)];
    EXPECT_EQ(scattered.calls, 1);
    EXPECT_EQ(scattered.across_nodes, 8);
    EXPECT_EQ(scattered.within_node, 0);
    EXPECT_THAT(logger->table(), HasSubstr("reduce_scatter"));
  }));
}

// ---- how groups are made ----

TEST_F(Nccl, OverSockets) {
  CommOptions below;
  below.transport = TransportKind::kSockets;
  const World plain = testing::maker_of("", TransportKind::kSockets).make(3, below);
  const auto outcomes = run(plain, [&](Communicator& comm, Gpu& gpu) {
    auto group = std::static_pointer_cast<comm::Group>(plain[static_cast<size_t>(comm.rank())]);
    const auto over = comm::make_nccl_communicator(group, nccl_options());
    const Tensor tensor = gpu.floats({1});
    over->all_reduce(tensor, ReduceOp::kSum)->wait();
    EXPECT_THAT(gpu.get_floats(tensor), ::testing::ElementsAre(3));
    if (comm.rank() == 2) {
      for (int i = 0; i < 400 && over->state() == Communicator::State::kActive; ++i) {
        std::this_thread::sleep_for(50ms);
      }
    }
    over->all_reduce(tensor, ReduceOp::kSum, {.deadline = 500ms, .blocking = true})->wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.text, HasSubstr("rank 2 did not call operation 2"));
  }
}

TEST_F(Nccl, MetAtAPort) {
  const World world = testing::maker_of("", TransportKind::kNccl).make(2, nccl_options());
  expect_ok(run(world, [&](Communicator& comm, Gpu& gpu) {
    EXPECT_STREQ(comm.transport(), "nccl");
    const Tensor tensor = gpu.floats({1, 2});
    comm.broadcast(tensor, 1)->wait();
    comm.finalize();
  }));
}

TEST_F(Nccl, LibrariesThatWillNotDo) {
  const auto refused = [](const std::string& library, std::vector<std::string> texts) {
    CommOptions options = nccl_options();
    options.nccl_library = library;
    expect_error(Code::kUnsupported, texts, [&] { make_local_group(2, options); });
  };
  refused("/nowhere/libnccl.so.2", {"NCCL was not found", "/nowhere/libnccl.so.2",
                                    "install NCCL 2.14 or newer", "DS_NCCL_LIBRARY"});
  refused("libm.so.6", {"libm.so.6 is no usable NCCL: it has no ncclGetVersion"});
  refused(DS_OLD_NCCL, {"is version 2.12.12, which cannot begin without blocking"});
  refused(DS_BROKEN_NCCL, {"says that it is version 2.28.3 and lacks ncclGetUniqueId",
                           "ncclCommInitRankConfig", "ncclRecv"});
  ::setenv("DS_NCCL_LIBRARY", DS_OLD_NCCL, 1);
  refused("", {DS_OLD_NCCL, "2.12.12"});
  ::unsetenv("DS_NCCL_LIBRARY");
  stand_in::reset(0);
  refused(testing::stand_ins().nccl_library, {"transport \"nccl\" needs a GPU", "shows no GPU"});
}

TEST_F(Nccl, RanksWithoutNcclAreNamed) {
  const World plain = make_local_group(2);
  const auto outcomes = run_ranks(plain, [&](Communicator& comm) {
    CommOptions options = nccl_options();
    if (comm.rank() == 1) options.nccl_library = DS_OLD_NCCL;
    comm::make_nccl_communicator(
        std::static_pointer_cast<comm::Group>(plain[static_cast<size_t>(comm.rank())]), options);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::kUnsupported);
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank 1: NCCL: "), HasSubstr("2.12.12")));
  }
}

}  // namespace
}  // namespace ds
