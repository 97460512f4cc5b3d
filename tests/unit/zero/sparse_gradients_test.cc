// Gradients of token embeddings that travel as rows.
#include <gmock/gmock.h>

#include "own_world.h"
#include "traffic_world.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

// Most of its numbers are in the table, of which a micro batch has at most 32 rows.
Job sparse_job(int stage, bool sparse, const Json& more = Json::object()) {
  Json config = zero_config(stage, {{"reduce_bucket_size", 3000}}, more);
  config["sparse_gradients"] = sparse;
  Job job{2, config};
  job.model = with(model_config(), {{"vocab_size", 600}, {"tie_word_embeddings", false}});
  return job;
}

int64_t bytes(const Traffic& traffic) { return traffic.within_node + traffic.across_nodes; }

TEST(SparseGradients, HaveTheBitsOfDenseOnes) {
  const Json kinds[] = {Json::object(),
                        {{"bf16", {{"enabled", true}}}},
                        {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}},
                        {{"gradient_accumulation_steps", 2}, {"gradient_allreduce_op", "sum"}}};
  for (const Json& kind : kinds) {
    for (const int stage : {0, 1}) {
      SCOPED_TRACE(str_cat("stage ", stage, " ", dump_json(kind)));
      Job dense = sparse_job(stage, false, kind), sparse = sparse_job(stage, true, kind);
      dense.world = sparse.world = 3;
      const Trained expected = train(dense), trained = train(sparse);
      EXPECT_TRUE(same_bits(trained.weights, expected.weights));
      EXPECT_EQ(trained.norms, expected.norms);
      EXPECT_EQ(trained.losses, expected.losses);
    }
  }
}

// What is sent instead of the table's 600 rows is counted by the communicators.
TEST(SparseGradients, SendTheRowsThatTokensTouch) {
  constexpr int64_t kRow = 32 * 4, kTable = 600 * kRow;
  for (const int stage : {0, 1}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Measured dense = measure(sparse_job(stage, false)),
                   sparse = measure(sparse_job(stage, true));
    const Collective reduction = stage == 0 ? Collective::kAllReduce : Collective::kReduceScatter;
    const int64_t saved = bytes(dense.sent(reduction)) - bytes(sparse.sent(reduction));
    // Two ranks and three steps; a rank sends half of the table to scatter it, and again to gather.
    EXPECT_NEAR(static_cast<double>(saved), 2 * 3 * kTable * (stage == 0 ? 1.0 : 0.5),
                0.05 * 6 * kTable);
    const int64_t rows = bytes(sparse.sent(Collective::kAllGatherV));
    EXPECT_GT(rows, 2 * 3 * kRow);
    EXPECT_LE(rows, 2 * 3 * 32 * (kRow + 4));  // 2 samples of 16 tokens
    EXPECT_EQ(bytes(dense.sent(Collective::kAllGatherV)), 0);
  }
}

// More rows than the table has, together: it travels whole.
TEST(SparseGradients, TablesWithoutZerosTravelWhole) {
  Job dense = sparse_job(1, false), sparse = sparse_job(1, true);
  dense.model["vocab_size"] = sparse.model["vocab_size"] = 61;
  dense.world = sparse.world = 6;
  for (Job* const job : {&dense, &sparse}) job->config["train_micro_batch_size_per_gpu"] = 4;
  const Measured expected = measure(dense), trained = measure(sparse);
  EXPECT_TRUE(same_bits(trained.trained.weights, expected.trained.weights));
  EXPECT_EQ(bytes(trained.sent(Collective::kAllGatherV)), 0);
  // The table has a bucket of its own, so that there may be one more to be padded.
  EXPECT_NEAR(static_cast<double>(bytes(trained.sent(Collective::kReduceScatter))),
              static_cast<double>(bytes(expected.sent(Collective::kReduceScatter))),
              0.01 * static_cast<double>(bytes(expected.sent(Collective::kReduceScatter))));
}

// Where the key changes nothing it is accepted: tied tables, one rank, stages 2 and 3.
TEST(SparseGradients, AreAcceptedWhereTheyHaveNoEffect) {
  for (const int stage : {1, 2, 3}) {
    Job dense = sparse_job(stage, false), sparse = sparse_job(stage, true);
    dense.model["tie_word_embeddings"] = sparse.model["tie_word_embeddings"] = stage == 1;
    EXPECT_TRUE(same_bits(train(sparse).weights, train(dense).weights));
    sparse.world = 1;
    EXPECT_EQ(train(sparse).norms.size(), 3u);
  }
}

// Nor are gradients of the caller's own parameters sent so, which is logged.
TEST(SparseGradients, OwnParametersTakeTheKeyWithAWarning) {
  OwnJob job{2, own_config(1)};
  job.config["sparse_gradients"] = true;
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(job.config), own_model(job), comm);
    run_own_batch(engine, job, comm->rank(), 0);
    EXPECT_TRUE(engine.step().applied);
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("sparse_gradients has no effect: the parameters are the caller's own"));
}

}  // namespace
}  // namespace ds::zero_test
