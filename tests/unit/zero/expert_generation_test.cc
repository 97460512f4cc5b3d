// Generation by ranks that share experts: texts, logits and hidden states are those of one process
// that has all of them, whatever the others are at.
#include <gmock/gmock.h>

#include "expert_parallel_world.h"
#include "infer/generate.h"

namespace ds::zero_test {
namespace {

// A text to go on with, of each rank another one.
struct Task {
  std::vector<int32_t> prompt;
  infer::GenerateOptions options;
};

Task task_of(int rank, bool sampled) {
  Task task;
  for (int32_t i = 0; i < 3 + 4 * rank; ++i) task.prompt.push_back((7 * rank + i * i) % 61);
  // Some end early, and some fill the 32 positions of the model and forget.
  task.options.max_tokens = 5 + 19 * (rank % 3);
  task.options.seed = static_cast<uint64_t>(5 + rank);
  if (sampled) task.options.sampling = {0.9, 20, 0.95};
  return task;
}

std::vector<int32_t> continued(models::Model& model, const Task& task,
                               const std::function<bool(int32_t)>& on_token = {}) {
  infer::GenerateOptions options = task.options;
  options.ranks = model.pass_ranks();
  return infer::generate(model.context(), model.reader(), model.architecture(), task.prompt,
                         options, on_token);
}

class ExpertGeneration : public ::testing::TestWithParam<ExpertModel> {};

TEST_P(ExpertGeneration, TextsAreThoseOfOneProcess) {
  const int layouts[][3] = {{2, 2, 0}, {2, 2, 3}, {4, 2, 2}, {4, 2, 3}};
  for (const auto& [world, ranks, stage] : layouts) {
    SCOPED_TRACE(str_cat(ranks, " of ", world, " ranks, stage ", stage));
    Job job;
    job.world = world;
    job.model = GetParam().model;
    job.config = zero_config(stage, Json::object(), shared_by(ranks));
    run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = make_rank_engine(job, comm);
      engine->train_batch();
      models::Model& model = *engine->model();
      const auto whole = model.copy();
      const models::Model::Use use(model);
      for (const bool sampled : {false, true}) {
        const Task task = task_of(comm->rank(), sampled);
        std::vector<int32_t> heard;
        const std::vector<int32_t> text = continued(model, task, [&](int32_t token) {
          heard.push_back(token);
          return true;
        });
        EXPECT_EQ(text, continued(*whole, task));
        EXPECT_EQ(heard, text);
      }
    });
  }
}

TEST_P(ExpertGeneration, LogitsAndHiddenStatesAreThoseOfOneProcess) {
  Job job;
  job.model = GetParam().model;
  job.config = zero_config(1, Json::object(), shared_by(2));
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = make_rank_engine(job, comm);
    models::Model& model = *engine->model();
    const auto whole = model.copy();
    const models::Model::Use use(model);
    const auto outputs = [&](models::Model& of) {
      models::Batch batch;
      const int64_t length = 4 + 3 * comm->rank();
      batch.ids = Tensor::zeros(of.device(), DType::kInt32, {2, length}, MemoryTag::kOther);
      for (int32_t i = 0; i < 2 * length; ++i) batch.ids.data<int32_t>()[i] = i * 11 % 61;
      const ExchangeRanks experts = of.pass_ranks().experts;
      const Tensor logits =
          infer::batch_logits(of.context(), of.reader(), of.architecture(), batch, experts);
      const Tensor states =
          infer::batch_hidden(of.context(), of.reader(), of.architecture(), batch, experts);
      return std::pair{flat(logits), flat(states)};
    };
    const auto shared = outputs(model), alone = outputs(*whole);
    // An expert's rows may be of other numbers, and so go through another form of product.
    EXPECT_LT(largest_difference(shared.first, alone.first), 2e-5);
    EXPECT_LT(largest_difference(shared.second, alone.second), 2e-5);
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, ExpertGeneration, ::testing::ValuesIn(expert_models({4, 8})),
                         [](const auto& test) { return std::string(test.param.name); });

// A callback that stops, and a stop token, end one rank's text and nobody else's.
TEST(ExpertGenerationEnds, OneRankStopsAndTheOthersGoOn) {
  Job job;
  job.model = mixtral();
  job.config = zero_config(2, Json::object(), shared_by(2));
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = make_rank_engine(job, comm);
    models::Model& model = *engine->model();
    const auto whole = model.copy();
    const models::Model::Use use(model);
    const bool first = comm->rank() == 0;
    Task task = task_of(2, true);
    const std::vector<int32_t> all = continued(*whole, task);
    int heard = 0;
    const auto stop_at_third = [&](int32_t) { return !first || ++heard < 3; };
    if (first) {
      const std::string why =
          error_of(Code::kCallback, [&] { continued(model, task, stop_at_third); });
      EXPECT_EQ(heard, 3);
      EXPECT_THAT(why, ::testing::HasSubstr("callback"));
    } else {
      EXPECT_EQ(continued(model, task, stop_at_third), all);
    }
    if (first) task.options.stop_token = all[4];
    const std::vector<int32_t> text = continued(model, task);
    EXPECT_EQ(text.size(),
              first ? static_cast<size_t>(std::find(all.begin(), all.end(), all[4]) - all.begin())
                    : all.size());
  });
}

// The engine's exchanges are in step again afterwards.
TEST(ExpertGenerationEnds, TrainingGoesOnWithTheSameBits) {
  Job job;
  job.model = mixtral();
  job.config = zero_config(3, Json::object(), shared_by(2));
  const Trained plain = train(job);
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = make_rank_engine(job, comm);
    for (int i = 0; i < 3; ++i) {
      engine->train_batch();
      const models::Model::Use use(*engine->model());
      continued(*engine->model(), task_of(comm->rank(), false));
    }
    EXPECT_TRUE(same_bits(all_weights(*engine), plain.weights));
  });
}

}  // namespace
}  // namespace ds::zero_test
