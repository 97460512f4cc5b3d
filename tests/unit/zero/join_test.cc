// Ranks with fewer batches than others, with models of the library and parameters of the caller.
#include <gmock/gmock.h>

#include "own_world.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

constexpr int kBatches[] = {3, 3, 3, 5};
constexpr int kRanks = 4;

MicroBatch batch_of(int rank, int step) {
  std::vector<int64_t> ids(2 * 12);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>((i * 5 + static_cast<size_t>(rank * 7 + step * 3)) % 61);
  }
  const Tensor tensor = ids_tensor(ids, 2);
  return {tensor, tensor, Tensor(), Tensor(), Tensor()};
}

StepReport train_one(Engine& engine, int rank, int step) {
  engine.backward(engine.forward(batch_of(rank, step)));
  return engine.step();
}

Json join_config(int stage, int accumulation = 1) {
  return zero_config(stage,
                     {{"reduce_bucket_size", 3000}, {"stage3_param_persistence_threshold", 40}},
                     {{"gradient_accumulation_steps", accumulation}, {"gradient_clipping", 0.3}});
}

// Steps that one rank alone has batches for are those of one process with these batches.
TEST(Join, TheLongestRankTrainsAsIfAlone) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Folder folder;
    std::vector<float> joined;
    std::vector<double> losses, norms;
    Progress progress;
    run_ranks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(join_config(stage)), models::Model::create(model_config(0), 3), comm);
      const int rank = comm->rank();
      for (int step = 0; step < kBatches[rank]; ++step) {
        const StepReport report = train_one(engine, rank, step);
        EXPECT_TRUE(report.applied);
        if (step == 2) {
          // The last step that all have; ranks without further batches save too.
          engine.save(folder.path(), "three");
        }
        if (rank == 3 && step >= 3) {
          losses.push_back(report.loss);
          norms.push_back(report.grad_norm);
        }
      }
      engine.join();
      EXPECT_EQ(engine.progress().steps, 5);
      EXPECT_EQ(engine.progress().micro_steps, 5);
      EXPECT_EQ(engine.progress().samples, 2 * (3 * 4 + 2));
      const std::vector<float> weights = all_weights(engine);
      if (rank == 3) joined = weights;
      // All go on together.
      EXPECT_TRUE(train_one(engine, rank, 9).applied);
      EXPECT_EQ(engine.progress().samples, 2 * (3 * 4 + 2 + 4));
    });
    Engine alone(dump_json(join_config(0)), models::Model::create(model_config(0), 3), nullptr);
    alone.load(folder.path(), "three");
    for (int step = 3; step < 5; ++step) {
      const StepReport report = train_one(alone, 3, step);
      EXPECT_EQ(report.loss, losses[static_cast<size_t>(step - 3)]);
      EXPECT_EQ(report.grad_norm, norms[static_cast<size_t>(step - 3)]);
    }
    EXPECT_TRUE(same_bits(all_weights(alone), joined));
  }
}

// With accumulation ranks may end in the middle of a step, and the stage does not matter.
TEST(Join, StagesAgreeInTheMiddleOfAStep) {
  std::vector<float> plain;
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    std::vector<std::vector<float>> all(kRanks);
    run_ranks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(join_config(stage, 2)), models::Model::create(model_config(0), 3),
                    comm);
      for (int step = 0; step < kBatches[comm->rank()]; ++step) {
        train_one(engine, comm->rank(), step);
      }
      engine.join();
      EXPECT_EQ(engine.progress().steps, 3);
      all[static_cast<size_t>(comm->rank())] = all_weights(engine);
    });
    if (stage == 0) plain = all[0];
    for (const std::vector<float>& weights : all) EXPECT_TRUE(same_bits(weights, plain));
  }
}

TEST(Join, OwnParametersAtEveryStage) {
  for (const int accumulation : {1, 2}) {
    std::vector<float> plain;
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", accumulation ", accumulation));
      const OwnJob job{kRanks, own_config(stage,
                                          {{"reduce_bucket_size", 900},
                                           {"stage3_param_persistence_threshold", 30},
                                           {"stage3_prefetch_bucket_size", 1500}},
                                          {{"gradient_accumulation_steps", accumulation}})};
      std::vector<std::vector<float>> all(kRanks);
      run_ranks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(job.config), own_model(job), comm);
        for (int i = 0; i < kBatches[comm->rank()]; ++i) {
          run_own_batch(engine, job, comm->rank(), i);
          engine.step();
        }
        engine.join();
        EXPECT_EQ(engine.progress().steps, accumulation == 1 ? 5 : 3);
        all[static_cast<size_t>(comm->rank())] = all_weights(engine);
      });
      if (stage == 0) plain = all[0];
      for (const std::vector<float>& weights : all) EXPECT_TRUE(same_bits(weights, plain));
    }
  }
}

TEST(Join, WrongMomentsAreRefused) {
  const OwnJob own{2, own_config(3)};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(own.config), own_model(own), comm);
    EXPECT_THAT(error_of(Code::kState, [&] { engine.join(); }), HasSubstr("at least one"));
  });
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(join_config(2)), models::Model::create(model_config(0), 3), comm);
    const Tensor loss = engine.forward(batch_of(0, 0));
    EXPECT_THAT(error_of(Code::kState, [&] { engine.join(); }), HasSubstr("ds_engine_step"));
    engine.backward(loss);
    engine.step();
    engine.join();
  });
}

}  // namespace
}  // namespace ds::zero_test
