// The comms logger: bandwidths, trimmed means, the table, and what groups report to it.
#include "comm/logger.h"

#include <gmock/gmock.h>

#include "unit/comm/support.h"

namespace ds::testing {
namespace {

using ::testing::HasSubstr;

TEST(CommsLogger, Bandwidths) {
  const auto is = [](Collective kind, double algorithm, double bus) {
    const Bandwidth b = collective_bandwidth(kind, 1000, 0.5, 4);
    EXPECT_DOUBLE_EQ(b.algorithm, algorithm) << collective_name(kind);
    EXPECT_DOUBLE_EQ(b.bus, bus) << collective_name(kind);
  };
  is(Collective::kAllReduce, 4000, 3000);
  is(Collective::kAllGather, 8000, 6000);  // of the gathered 4000 bytes
  is(Collective::kReduceScatter, 2000, 1500);
  is(Collective::kAllToAll, 2000, 1500);
  is(Collective::kBroadcast, 2000, 2000);
  is(Collective::kSend, 2000, 2000);
  EXPECT_EQ(collective_bandwidth(Collective::kSend, 1, 0, 2).bus, 0);
}

TEST(CommsLogger, MeansAreTrimmed) {
  CommsLogger logger;
  EXPECT_TRUE(logger.summary().empty());
  for (const double ms : {100.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.001}) {
    logger.record(Collective::kBroadcast, 4096, ms * 1e-3, 2);
  }
  const Json summary = logger.summary();
  const Json& row = summary["broadcast"][0];
  EXPECT_EQ(row["bytes"], 4096);
  EXPECT_EQ(row["count"], 10);
  EXPECT_NEAR(row["average_ms"].get<double>(), 2, 1e-5);
  EXPECT_NEAR(row["total_ms"].get<double>(), 116.001, 1e-3);
  EXPECT_THAT(logger.table(), HasSubstr("4.00 KiB"));
  EXPECT_THAT(logger.table(), HasSubstr("broadcast\n"));
}

TEST(CommsLogger, ChosenOperationsOnly) {
  CommsLoggerOptions options;
  options.profile_all = false;
  options.operations = {"all_gather"};
  CommsLogger logger(options);
  logger.record(Collective::kAllReduce, 1, 1, 2);
  logger.record(Collective::kAllGather, 1, 1, 2);
  EXPECT_FALSE(logger.summary().contains("all_reduce"));
  EXPECT_TRUE(logger.summary().contains("all_gather"));
}

TEST(CommsLogger, GroupsReport) {
  const World world = make_local_group(2, quick_options());
  const auto logger = std::make_shared<CommsLogger>();
  world[1]->set_logger(logger);
  expect_ok(run_ranks(world, [](Communicator& comm) {
    for (int i = 0; i < 3; ++i) {
      comm.all_reduce(make_tensor(DType::kFloat32, 256), ReduceOp::kSum)->wait();
    }
    comm.barrier();
  }));
  const Json summary = logger->summary();
  EXPECT_EQ(summary["all_reduce"][0]["bytes"], 1024);
  EXPECT_EQ(summary["all_reduce"][0]["count"], 3);
  EXPECT_TRUE(summary.contains("barrier"));
}

}  // namespace
}  // namespace ds::testing
