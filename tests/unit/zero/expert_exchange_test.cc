// Rows of tokens that go between nodes first and then within them: what is computed stays the same
// bits, and what is sent is as planned.
#include <gmock/gmock.h>

#include <thread>

#include "engine/plan.h"
#include "expert_models.h"
#include "infer/generate.h"
#include "traffic_world.h"
#include "unit/comm/processes.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

Json exchanged_by(int ranks, const Json& two_steps) {
  return {{"expert_parallel",
           {{"enabled", true}, {"autoep_size", ranks}, {"hierarchical_all_to_all", two_steps}}}};
}

CommOptions nodes_of(int ranks) {
  CommOptions options;
  options.ranks_per_node = ranks;
  return options;
}

class ExpertSteps : public ::testing::TestWithParam<ExpertModel> {
 protected:
  Job job(int world, int ranks, int stage, const Json& two_steps,
          const Json& more = Json::object()) const {
    Job job;
    job.world = world;
    job.model = GetParam().model;
    job.config = zero_config(stage, {{"reduce_bucket_size", 3000}},
                             with({{"gradient_accumulation_steps", 2}}, more));
    job.config.merge_patch(exchanged_by(ranks, two_steps));
    return job;
  }
};

TEST_P(ExpertSteps, TwoHaveTheBitsOfOne) {
  for (const Json& precision : {Json::object(), Json{{"bf16", {{"enabled", true}}}}}) {
    for (const auto& [world, ranks] : {std::pair{4, 4}, {8, 4}}) {
      for (const int stage : {0, 1, 2, 3}) {
        if (world == 8 && stage % 2 == 0) continue;
        SCOPED_TRACE(
            str_cat(ranks, " of ", world, " ranks, stage ", stage, ", ", dump_json(precision)));
        const Measured plain = measure(job(world, ranks, stage, false, precision));
        const Measured steps = measure(job(world, ranks, stage, true, precision));
        EXPECT_TRUE(same_bits(steps.trained.weights, plain.trained.weights));
        EXPECT_EQ(steps.trained.losses, plain.trained.losses);
        EXPECT_EQ(steps.trained.norms, plain.trained.norms);
        const Collective rows = Collective::kAllToAllV;
        EXPECT_EQ(steps.sent(rows).calls, 2 * plain.sent(rows).calls);
        EXPECT_EQ(steps.sent(rows).across_nodes, plain.sent(rows).across_nodes);
        EXPECT_LT(steps.sent(rows).messages_across, plain.sent(rows).messages_across);
      }
    }
  }
}

TEST_P(ExpertSteps, RecomputationChangesNoBit) {
  const Trained plain = measure(job(4, 4, 1, true)).trained;
  const Json again = {{"activation_checkpointing", {{"enabled", true}}}};
  EXPECT_TRUE(same_bits(measure(job(4, 4, 1, true, again)).trained.weights, plain.weights));
}

// Each text ends at its own time; the others' tokens are served until all have.
TEST_P(ExpertSteps, TextsAreThoseOfOneProcess) {
  const Job shared = job(4, 4, 1, true);
  run_ranks(
      4,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = make_rank_engine(shared, comm);
        models::Model& model = *engine->model();
        ASSERT_NE(model.pass_ranks().experts.nodes, nullptr);
        const auto whole = model.copy();
        const models::Model::Use use(model);
        const std::vector<int32_t> prompt = {3, comm->rank() * 7 + 1, 5};
        const auto text = [&](models::Model& of) {
          infer::GenerateOptions options;
          options.max_tokens = 2 + 5 * comm->rank();
          options.ranks = of.pass_ranks();
          return infer::generate(of.context(), of.reader(), of.architecture(), prompt, options, {});
        };
        EXPECT_EQ(text(model), text(*whole));
      },
      two_nodes());
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertSteps, ::testing::ValuesIn(expert_models({4, 8})),
                         [](const auto& test) { return std::string(test.param.name); });

Job free_job(int world, int ranks, const Json& two_steps, const Json& more = Json::object()) {
  Job job;
  job.world = world;
  job.model = gpt_moe(
      {{"moe_drop_tokens", false}, {"moe_loss_coeff", 0}, {"moe_top_k", 4}, {"num_experts", 4}});
  job.config = zero_config(1, Json::object(), with({{"gradient_accumulation_steps", 2}}, more));
  job.config.merge_patch(exchanged_by(ranks, two_steps));
  return job;
}

// Every token goes to all experts, so that loads are equal.
TEST(ExpertStepsTraffic, IsAsPlanned) {
  for (const Json& two_steps : {Json(false), Json(nullptr), Json(true)}) {
    for (const int ranks : {2, 4}) {
      if (ranks == 2 && two_steps == true) continue;  // on one node
      SCOPED_TRACE(str_cat(ranks, " of 4 ranks, ", dump_json(two_steps)));
      const Job job = free_job(4, ranks, two_steps);
      PlanOptions options;
      options.world = 4;
      options.ranks_per_node = 2;
      options.sequence_length = 16;
      const Json plan = plan_training(job.model, dump_json(job.config), options);
      run_ranks(
          4,
          [&](const std::shared_ptr<Communicator>& comm) {
            const auto engine = make_rank_engine(job, comm);
            engine->train_batch();
            const TrafficTable before = comm->total_traffic();
            engine->train_batch();
            const TrafficTable after = comm->total_traffic();
            for (const Collective kind : {Collective::kAllToAll, Collective::kAllToAllV}) {
              const auto i = static_cast<size_t>(kind);
              const auto expect = [&](int64_t Traffic::*sent, const char* key) {
                int64_t planned = 0;
                for (const Json& one : plan["moved_per_step"]) {
                  if (one["collective"] == collective_name(kind))
                    planned += one[key].get<int64_t>();
                }
                EXPECT_EQ(after[i].*sent - before[i].*sent, planned)
                    << key << " of " << collective_name(kind);
              };
              expect(&Traffic::calls, "calls");
              expect(&Traffic::within_node, "within_node");
              expect(&Traffic::across_nodes, "across_nodes");
            }
          },
          two_nodes());
    }
  }
}

// The choice where the configuration says nothing: by where the ranks sit.
TEST(ExpertStepsTraffic, FollowTheNodes) {
  const auto in_steps = [](int ranks, int per_node) {
    bool out = false;
    run_ranks(
        4,
        [&](const std::shared_ptr<Communicator>& comm) {
          const auto engine = make_rank_engine(free_job(4, ranks, nullptr), comm);
          if (comm->rank() == 3) out = engine->model()->pass_ranks().experts.nodes != nullptr;
        },
        nodes_of(per_node));
    return out;
  };
  EXPECT_TRUE(in_steps(4, 2));
  EXPECT_FALSE(in_steps(4, 4)) << "one node";
  EXPECT_FALSE(in_steps(4, 1)) << "one rank on each";
  EXPECT_FALSE(in_steps(4, 3)) << "of two sizes";
  EXPECT_FALSE(in_steps(2, 2)) << "ranks that share experts sit on one node";
}

constexpr const char* kKey = "/expert_parallel/hierarchical_all_to_all";

TEST(ExpertStepsRefusals, NeedSeveralRanksOnSeveralNodes) {
  for (const int per_node : {1, 4}) {
    run_ranks(
        4,
        [](const std::shared_ptr<Communicator>& comm) {
          EXPECT_THAT(
              error_of(Code::kConfig, [&] { make_rank_engine(free_job(4, 4, true), comm); }),
              HasSubstr(kKey));
        },
        nodes_of(per_node));
  }
  PlanOptions options;
  options.world = 4;
  const Job job = free_job(4, 4, true);
  EXPECT_THAT(
      error_of(Code::kConfig, [&] { plan_training(job.model, dump_json(job.config), options); }),
      HasSubstr(kKey));
}

// On memory that ranks share, and where two steps really cross sockets.
TEST(ExpertStepsRanks, OneThatIsLostIsNamed) {
  for (const TransportKind kind : {TransportKind::kAuto, TransportKind::kHierarchical}) {
    constexpr int kVictim = 2;
    CommOptions options = ds::testing::quick_options(2000);
    options.rendezvous_deadline = std::chrono::seconds(60);
    options.transport = kind;
    options.ranks_per_node = 2;
    ds::testing::Processes processes(
        4, options, [](int rank, const std::function<ds::testing::CommPtr()>& join) {
          const std::shared_ptr<Communicator> comm = join();
          const auto engine = make_rank_engine(free_job(4, 4, true), comm);
          std::thread end;
          if (rank == kVictim) {
            end = std::thread([&] {
              const auto rows = static_cast<size_t>(Collective::kAllToAllV);
              while (comm->total_traffic()[rows].calls < 100) std::this_thread::yield();
              ::kill(::getpid(), SIGKILL);
            });
          }
          for (int i = 0; i < 100000; ++i) engine->train_batch();
          if (end.joinable()) end.join();
        });
    const auto reports = processes.reports({kVictim});
    for (const int rank : {0, 1, 3}) {
      EXPECT_THAT(reports[static_cast<size_t>(rank)], HasSubstr("rank 2 ")) << "of rank " << rank;
    }
  }
}

}  // namespace
}  // namespace ds::zero_test
