// Worlds whose ranks are the processes that mpirun has started: every process runs the same tests
// at the same time and is one rank in them. The transports are MPI, and MPI between pretended
// nodes. The program begins MPI itself and passes its communicators.
#include <mpi.h>

#include <cstdio>

#include "unit/comm/support.h"

namespace ds::testing {
namespace {

int number(int (*ask)(MPI_Comm, int*)) {
  int value = 0;
  ask(MPI_COMM_WORLD, &value);
  return value;
}
int own_rank() { return number(MPI_Comm_rank); }
int process_count() { return number(MPI_Comm_size); }

// By size: the communicator of so many first processes. Made by main(), while nobody is busy.
std::vector<MPI_Comm>& groups() {
  static std::vector<MPI_Comm> all(static_cast<size_t>(process_count()) + 1, MPI_COMM_NULL);
  return all;
}

World make_over_mpi(int size, CommOptions options) {
  if (size > process_count()) {
    ADD_FAILURE() << "a world of " << size << " ranks among " << process_count() << " processes";
    return {};
  }
  World world(static_cast<size_t>(size));
  if (own_rank() >= size) return world;
  options.mpi_communicator = MPI_Comm_c2f(groups()[static_cast<size_t>(size)]);
  const auto self = static_cast<size_t>(own_rank());
  const Outcome made = outcome_of([&] { world[self] = make_communicator(-1, -1, options); });
  EXPECT_EQ(made.code, Code::kOk) << made.text;
  return world;
}

}  // namespace

// Every process learns what every rank threw.
std::vector<Outcome> run_ranks(const World& world, const std::function<void(Communicator&)>& body) {
  struct Told {
    int code = 0;
    char text[4096] = {};
  };
  Told mine;
  const auto self = static_cast<size_t>(own_rank());
  if (self < world.size() && world[self]) {
    const Outcome outcome = outcome_of([&] { body(*world[self]); });
    mine.code = static_cast<int>(outcome.code);
    std::snprintf(mine.text, sizeof(mine.text), "%s", outcome.text.c_str());
  }
  std::vector<Told> all(static_cast<size_t>(process_count()));
  // Not the blocking call: it would keep busy the processors that others need.
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(&mine, sizeof(Told), MPI_BYTE, all.data(), sizeof(Told), MPI_BYTE, MPI_COMM_WORLD,
                 &request);
  for (int done = 0; !done;) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }
  std::vector<Outcome> outcomes;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    outcomes.push_back({static_cast<Code>(all[rank].code), all[rank].text});
  }
  return outcomes;
}

std::vector<Maker> makers() {
  return {{"mpi",
           [](int size, CommOptions options) {
             options.transport = TransportKind::kMpi;
             return make_over_mpi(size, options);
           }},
          {"hierarchical", [](int size, CommOptions options) {
             options.transport = TransportKind::kHierarchical;
             options.mpi_across = true;
             options.ranks_per_node = 2;
             return make_over_mpi(size, options);
           }}};
}

std::vector<int> world_sizes() { return {process_count()}; }

// For a program that began MPI for its own thread alone.
TEST(MpiThreads, AreNeeded) {
  int level = 0;
  MPI_Query_thread(&level);
  if (level >= MPI_THREAD_SERIALIZED) GTEST_SKIP() << "MPI was begun for any thread";
  CommOptions options = quick_options();
  options.transport = TransportKind::kMpi;
  const Outcome outcome = outcome_of([&] { make_communicator(-1, -1, options); });
  EXPECT_EQ(outcome.code, Code::kUnsupported);
  EXPECT_NE(outcome.text.find("MPI_THREAD_FUNNELED, and this library calls it from threads of its "
                              "own; call MPI_Init_thread with MPI_THREAD_SERIALIZED"),
            std::string::npos)
      << outcome.text;
}

TEST(Mpi, WhatTheCallerSaysMustAgree) {
  const int rank = own_rank(), size = process_count();
  CommOptions options = quick_options();
  options.transport = TransportKind::kMpi;
  options.mpi_communicator = MPI_Comm_c2f(MPI_COMM_WORLD);
  const auto refused = [&](Code code, const char* text, const std::function<void()>& call) {
    const Outcome outcome = outcome_of(call);
    EXPECT_EQ(outcome.code, code);
    EXPECT_NE(outcome.text.find(text), std::string::npos) << outcome.text;
  };
  refused(Code::kConfig, "and MPI rank ",
          [&] { make_communicator((rank + 1) % size, size, options); });
  refused(Code::kInvalidArgument, "a store has no use",
          [&] { make_communicator(-1, -1, options, make_memory_store()); });
  const CommPtr given = make_communicator(rank, size, options);
  EXPECT_EQ(given->rank(), rank);
  // Over MPI_COMM_WORLD, with what mpirun says in the environment.
  options.mpi_communicator.reset();
  const CommPtr found = make_communicator(-1, -1, options);
  EXPECT_EQ(found->size(), size);
  EXPECT_STREQ(found->transport(), "mpi");
  given->finalize();
  found->finalize();
  options.mpi_communicator = 12345;
  refused(Code::kComm, "copying the communicator failed",
          [&] { make_communicator(-1, -1, options); });
}

}  // namespace ds::testing

int main(int count, char** arguments) {
  // The tests' main thread and those of the library call MPI at once.
  const bool one_thread = std::getenv("DS_TEST_MPI_FUNNELED") != nullptr;
  int level = 0;
  MPI_Init_thread(&count, &arguments, one_thread ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE,
                  &level);
  for (int size = 1; size <= ds::testing::process_count(); ++size) {
    const int rank = ds::testing::own_rank();
    MPI_Comm_split(MPI_COMM_WORLD, rank < size ? 0 : MPI_UNDEFINED, rank,
                   &ds::testing::groups()[static_cast<size_t>(size)]);
  }
  ::testing::InitGoogleTest(&count, arguments);
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
