// Meeting at a store, and strangers at its port.
#include <gmock/gmock.h>

#include "comm/sockets/socket.h"
#include "comm/sockets/tcp_store.h"
#include "unit/base/expect_error.h"
#include "unit/comm/memory_store.h"
#include "unit/comm/processes.h"
#include "unit/comm/wire.h"

namespace ds::testing {
namespace {

using ::testing::HasSubstr;

// ---- the store ----

StorePtr client(int port, int rank, int world, const std::string& job = "job", int ms = 20000) {
  std::string address;
  return comm::connect_store(loopback(port), {job, world}, rank, std::chrono::milliseconds(ms),
                             &address);
}

TEST(TcpStore, PutsAndGets) {
  const comm::TcpStoreServer server(loopback(0), {"job", 2});
  const StorePtr a = client(server.port(), 0, 2), b = client(server.port(), 1, 2);
  a->put("key/0", std::string("va\0lue", 6));
  EXPECT_EQ(b->get("key/0", std::chrono::seconds(5)), std::string("va\0lue", 6));
  EXPECT_EQ(b->get("missing", std::chrono::milliseconds(30)), std::nullopt);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    a->put("later/0", std::string(300000, 'x'));
  });
  EXPECT_EQ(b->get("later/0", std::chrono::seconds(20))->size(), 300000u);
  later.join();
  expect_error(Code::kInvalidArgument, {"a store takes"},
               [&] { a->put(std::string(300, 'k'), ""); });
}

TEST(TcpStore, OtherJobsAndWorldsAreTurnedAway) {
  const comm::TcpStoreServer server(loopback(0), {"job", 2});
  expect_error(Code::kComm, {"rank 0 expects 2 ranks, rank 1 3"},
               [&] { client(server.port(), 1, 3); });
  expect_error(Code::kComm, {"another job meets"},
               [&] { client(server.port(), 1, 2, "other", 1000); });
  const StorePtr first = client(server.port(), 1, 2);
  expect_error(Code::kComm, {"a rank 1 is there already"},
               [&] { client(server.port(), 1, 2, "job", 1000); });
}

TEST(TcpStore, TwoJobsShareARangeOfPorts) {
  const int port = Processes::free_port();
  const comm::TcpStoreServer one(loopback(port, 16), {"one", 1}),
      two(loopback(port, 16), {"two", 1});
  EXPECT_NE(one.port(), two.port());
  for (const char* job : {"one", "two"}) {
    std::string address;
    const StorePtr store =
        comm::connect_store(loopback(port, 16), {job, 1}, 0, std::chrono::seconds(20), &address);
    EXPECT_EQ(address, "127.0.0.1");
    store->put("who/0", job);
    EXPECT_EQ(store->get("who/0", std::chrono::seconds(1)), job);
  }
}

// ---- whole groups ----

TEST(Rendezvous, ProcessesInAnyOrder) {
  for (const TransportKind kind : {TransportKind::kAuto, TransportKind::kSockets}) {
    CommOptions options = quick_options();
    options.transport = kind;
    Processes processes(4, options, [&](int rank, const std::function<CommPtr()>& join) {
      std::this_thread::sleep_for(std::chrono::milliseconds((rank * 37 + 11) % 50 * 10));
      const CommPtr comm = join();
      EXPECT_STREQ(comm->transport(), kind == TransportKind::kAuto ? "shm" : "sockets");
      const Tensor t = make_tensor(DType::kInt64, 4000);
      t.data<int64_t>()[3999] = rank;
      comm->all_reduce(t, ReduceOp::kSum)->wait();
      DS_CHECK(t.data<int64_t>()[3999] == 6, Code::kInternal, "wrong sum");
      comm->finalize();
    });
    for (const std::string& report : processes.reports()) EXPECT_EQ(report, "ok");
  }
}

// A megabyte by eight processes: whole numbers, whose sums fp32 holds, so that each must be exact.
TEST(Rendezvous, EightProcessesAddAMegabyteExactly) {
  constexpr int kRanks = 8;
  constexpr int64_t kElements = (1 << 20) / sizeof(float);
  const auto number = [](int64_t i, int rank) {
    return static_cast<float>((i * 7919 + rank * 104729) % 20011 - 10005);
  };
  for (const TransportKind kind : {TransportKind::kAuto, TransportKind::kSockets}) {
    CommOptions options = quick_options();
    options.transport = kind;
    options.rendezvous_deadline = std::chrono::seconds(60);
    options.deadline = std::chrono::seconds(60);
    Processes processes(kRanks, options, [&](int rank, const std::function<CommPtr()>& join) {
      const CommPtr comm = join();
      const Tensor t = make_tensor(DType::kFloat32, kElements);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        for (int64_t i = 0; i < kElements; ++i) t.data<float>()[i] = number(i, rank);
        comm->all_reduce(t, op)->wait();
        for (int64_t i = 0; i < kElements; ++i) {
          float sum = 0;
          for (int other = 0; other < kRanks; ++other) sum += number(i, other);
          const float expected = op == ReduceOp::kSum ? sum : sum / kRanks;
          DS_CHECK(t.data<float>()[i] == expected, Code::kInternal, "element ", i, " is ",
                   t.data<float>()[i], ", not ", expected);
        }
      }
      comm->finalize();
    });
    for (const std::string& report : processes.reports()) EXPECT_EQ(report, "ok");
  }
}

TEST(Rendezvous, AWithheldRankIsNamed) {
  CommOptions options = quick_options();
  options.rendezvous_deadline = std::chrono::milliseconds(700);
  Processes processes(4, options, [](int rank, const std::function<CommPtr()>& join) {
    if (rank != 2) join();
  });
  const auto reports = processes.reports();
  for (const size_t rank : {size_t{0}, size_t{1}, size_t{3}}) {
    EXPECT_THAT(reports[rank], HasSubstr("rank 2 of 4 did not come to the rendezvous"));
  }
}

TEST(Rendezvous, WithoutRankZero) {
  CommOptions options = quick_options();
  options.rendezvous_deadline = std::chrono::milliseconds(300);
  Processes processes(2, options, [](int rank, const std::function<CommPtr()>& join) {
    if (rank != 0) join();
  });
  EXPECT_THAT(processes.reports()[1], HasSubstr("rank 0 could not be reached at 127.0.0.1"));
}

TEST(Rendezvous, TwoJobsAtOnce) {
  const auto body = [](int, const std::function<CommPtr()>& join) {
    const CommPtr comm = join();
    const Tensor t =
        comm->shared_tensor(cpu(), DType::kFloat32, {30000}, MemoryTag::kCommunication);
    for (int i = 0; i < 20; ++i) {
      std::fill_n(t.data<float>(), 30000, 1.0f);
      comm->all_reduce(t, ReduceOp::kSum)->wait();
      DS_CHECK(t.data<float>()[29999] == 2, Code::kInternal, "wrong sum");
    }
    comm->finalize();
  };
  Processes one(2, quick_options(), body), two(2, quick_options(), body);
  for (const std::string& report : one.reports()) EXPECT_EQ(report, "ok");
  for (const std::string& report : two.reports()) EXPECT_EQ(report, "ok");
}

// The agent holds MASTER_PORT, and somebody silent the port after it.
TEST(Rendezvous, BesideTheAgentOfTorchrun) {
  const int port = Processes::free_port();
  const comm::Socket agent = comm::listen_on("127.0.0.1", port);
  const comm::Socket silent = comm::listen_on("127.0.0.1", port + 1);
  World world(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const Environment environment = {{"RANK", std::to_string(rank)},
                                       {"WORLD_SIZE", "2"},
                                       {"LOCAL_RANK", std::to_string(rank)},
                                       {"LOCAL_WORLD_SIZE", "2"},
                                       {"MASTER_ADDR", "127.0.0.1"},
                                       {"MASTER_PORT", std::to_string(port)},
                                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                       {"TORCHELASTIC_RUN_ID", "test"}};
      try {
        world[static_cast<size_t>(rank)] =
            make_communicator(-1, -1, quick_options(), nullptr, environment);
      } catch (const Error& error) {
        ADD_FAILURE() << error.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(world[0] && world[1]);
  expect_ok(run_ranks(world, [](Communicator& comm) { comm.barrier(); }));
}

TEST(Rendezvous, OptionsMustAgree) {
  const StorePtr store = make_memory_store();
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommOptions options = quick_options();
      options.ranks_per_node = rank;
      try {
        make_communicator(rank, 2, options, store);
      } catch (const Error& error) {
        texts[static_cast<size_t>(rank)] = error.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) {
    EXPECT_THAT(text, HasSubstr("ranks_per_node 0"));
    EXPECT_THAT(text, HasSubstr("they must agree"));
  }
}

TEST(Rendezvous, NeedsAPlace) {
  expect_error(Code::kConfig, {"set MASTER_ADDR and MASTER_PORT"},
               [] { make_communicator(0, 2, quick_options(), nullptr, {}); });
  const auto alone = make_communicator(-1, -1, quick_options(), nullptr, {});
  EXPECT_EQ(alone->size(), 1);
  expect_error(Code::kInvalidArgument, {"give both"},
               [] { make_communicator(-1, 2, quick_options(), nullptr, {}); });
}

}  // namespace
}  // namespace ds::testing
