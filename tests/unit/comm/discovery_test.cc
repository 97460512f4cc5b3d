// Who a process is, from what launchers put into the environment.
#include "comm/discovery.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "comm/factory.h"

#include "unit/base/expect_error.h"

namespace ds::testing {
namespace {

struct PlaceCase {
  const char* name;
  Environment environment;
  std::string source;
  std::array<int, 4> numbers;  // rank, world, local rank, local size
  std::string master;
  std::array<int, 2> ports;  // first, count
};

TEST(Discovery, Table) {
  const std::vector<PlaceCase> cases = {
      {"nothing", {}, "none", {0, 1, 0, -1}, "", {0, 1}},
      {"torchrun",
       {{"RANK", "5"},
        {"WORLD_SIZE", "8"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"MASTER_ADDR", "node0"},
        {"MASTER_PORT", "29400"},
        {"TORCHELASTIC_RUN_ID", "x"}},
       "torchrun",
       {5, 8, 1, 4},
       "node0",
       {29400, 1}},
      {"torchrun keeps its port",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "0"},
        {"MASTER_ADDR", "h"},
        {"MASTER_PORT", "29400"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
       "torchrun",
       {0, 2, 0, -1},
       "h",
       {29401, 16}},
      {"a port of our own",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "0"},
        {"MASTER_ADDR", "h"},
        {"MASTER_PORT", "29400"},
        {"DS_MASTER_PORT", "31000"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
       "torchrun",
       {0, 2, 0, -1},
       "h",
       {31000, 1}},
      {"DeepSpeed's launcher",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_SIZE", "2"}},
       "torchrun",
       {1, 2, 1, 2},
       "127.0.0.1",
       {29500, 1}},
      {"torchrun inside Slurm",
       {{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "1"},
        {"MASTER_ADDR", "m"},
        {"MASTER_PORT", "1234"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "1"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_STEP_NUM_TASKS", "1"}},
       "torchrun",
       {1, 2, 1, -1},
       "m",
       {1234, 1}},
      {"Open MPI",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
        {"PMIX_RANK", "3"},
        {"MASTER_PORT", "5000"}},
       "Open MPI",
       {3, 4, 3, 4},
       "127.0.0.1",
       {5000, 1}},
      {"MPICH",
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"MPI_LOCALRANKID", "0"},
        {"MPI_LOCALNRANKS", "1"},
        {"MASTER_ADDR", "10.0.0.1"},
        {"MASTER_PORT", "7"}},
       "MPICH or Intel MPI",
       {1, 2, 0, 1},
       "10.0.0.1",
       {7, 1}},
      {"MVAPICH",
       {{"MV2_COMM_WORLD_RANK", "1"},
        {"MV2_COMM_WORLD_SIZE", "2"},
        {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
        {"MASTER_ADDR", "a"},
        {"MASTER_PORT", "7"}},
       "MVAPICH",
       {1, 2, 1, -1},
       "a",
       {7, 1}},
      {"a step of srun",
       {{"SLURM_PROCID", "7"},
        {"SLURM_NTASKS", "64"},
        {"SLURM_LOCALID", "3"},
        {"SLURM_STEP_ID", "2"},
        {"SLURM_STEP_NUM_TASKS", "8"},
        {"SLURM_STEP_NODELIST", "gnode[10,20,25-27]"},
        {"MASTER_PORT", "6000"}},
       "Slurm",
       {7, 8, 3, -1},
       "gnode10",
       {6000, 1}},
      {"a batch shell of Slurm",
       {{"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "64"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_JOB_ID", "9"}},
       "none",
       {0, 1, 0, -1},
       "",
       {0, 1}},
      {"an interactive shell of Slurm",
       {{"SLURM_PROCID", "0"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_STEP_ID", "4294967290"},
        {"SLURM_STEP_NUM_TASKS", "64"}},
       "none",
       {0, 1, 0, -1},
       "",
       {0, 1}},
  };
  for (const PlaceCase& c : cases) {
    const ProcessPlace place = discover_process(c.environment);
    EXPECT_EQ(place.source, c.source) << c.name;
    EXPECT_EQ((std::array<int, 4>{place.rank, place.world, place.local_rank, place.local_size}),
              c.numbers)
        << c.name;
    EXPECT_EQ(place.master_addr, c.master) << c.name;
    EXPECT_EQ((std::array<int, 2>{place.master_port, place.port_count}), c.ports) << c.name;
  }
}

TEST(Discovery, PartsAndNonsenseAreErrors) {
  const auto refused = [](const std::vector<std::string>& parts, const Environment& environment) {
    expect_error(Code::kConfig, parts, [&] { discover_process(environment); });
  };
  refused({"torchrun", "RANK=1", "WORLD_SIZE, LOCAL_RANK missing"}, {{"RANK", "1"}});
  refused({"Open MPI", "OMPI_COMM_WORLD_SIZE=2"}, {{"OMPI_COMM_WORLD_SIZE", "2"}});
  refused({"RANK is \"2\"", "0 to 1"}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}});
  refused({"WORLD_SIZE is \"two\""}, {{"RANK", "0"}, {"WORLD_SIZE", "two"}, {"LOCAL_RANK", "0"}});
  refused({"LOCAL_RANK is \"-1\""}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "-1"}});
  refused({"MASTER_PORT is \"70000\""},
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_PORT", "70000"}});
  refused({"SLURM_LOCALID missing"},
          {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}});
}

TEST(Discovery, JobsOfOneHostGetPortsOfTheirOwn) {
  const auto port = [](const char* space) {
    return discover_process({{"OMPI_COMM_WORLD_RANK", "0"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"PMIX_NAMESPACE", space}})
        .master_port;
  };
  EXPECT_EQ(port("123"), port("123"));
  EXPECT_NE(port("123"), port("124"));
  EXPECT_GE(port("123"), 20000);
  EXPECT_LT(port("123"), 32768);
}

TEST(Discovery, MinutesOfACollective) {
  EXPECT_EQ(collective_deadline({}), std::nullopt);
  EXPECT_EQ(collective_deadline({{"DEEPSPEED_TIMEOUT", "45"}}), std::chrono::minutes(45));
  for (const char* const wrong : {"", "0", "-1", "1.5", "30m", "10000001"}) {
    expect_error(Code::kConfig, {"DEEPSPEED_TIMEOUT is \"" + std::string(wrong) + "\""}, [&] {
      collective_deadline({{"DEEPSPEED_TIMEOUT", wrong}});
    });
  }
  const char* const old = std::getenv("DEEPSPEED_TIMEOUT");
  EXPECT_EQ(old, nullptr) << "the tests run without it";
  const auto deadline = [](const char* options) {
    return make_communicator(0, 1, parse_comm_options(options))->deadline();
  };
  EXPECT_EQ(deadline("{}"), std::chrono::minutes(30));
  ::setenv("DEEPSPEED_TIMEOUT", "45", 1);
  EXPECT_EQ(deadline("{}"), std::chrono::minutes(45));
  EXPECT_EQ(deadline(""), std::chrono::minutes(45));
  EXPECT_EQ(deadline(R"({"timeout_seconds": 1800})"), std::chrono::minutes(30));
  ::setenv("DEEPSPEED_TIMEOUT", "soon", 1);
  expect_error(Code::kConfig, {"DEEPSPEED_TIMEOUT is \"soon\""}, [&] { deadline("{}"); });
  ::unsetenv("DEEPSPEED_TIMEOUT");
}

TEST(Discovery, FirstHost) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("n1,n2"), "n1");
  EXPECT_EQ(first_host("gnode[10,20,25-27]"), "gnode10");
  EXPECT_EQ(first_host("gnode[007-010]-ib,x"), "gnode007-ib");
  EXPECT_EQ(first_host("[1-2]"), "1");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("broken["), "broken[");
}

}  // namespace
}  // namespace ds::testing
