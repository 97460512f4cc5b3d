// offload_optimizer with device nvme: training state in real files trains with the bits of memory,
// goes on from any place to any other, and needs memory for weights and for what is on its way.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "attached_state.h"
#include "stored_jobs.h"

namespace ds::zero_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StateFilesKinds : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, StateFilesKinds, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(StateFilesKinds, TrainWithTheBitsOfMemory) {
  const Folder folder;
  const bool blocks = GetParam().name == std::string("States8Bit");  // they follow from the stage
  const Json& more = GetParam().more;
  expect_same(train(in_files(job(1, 1, more), folder)), train(job(1, 1, more)));
  expect_same(train(in_files(job(1, 1, more), folder, false)), train(job(1, 1, more)));
  const Trained two = train(job(2, 1, more));
  for (int stage = 1; stage <= 3; ++stage) {
    SCOPED_TRACE(str_cat("two ranks, stage ", stage));
    expect_same(train(in_files(job(2, stage, more), folder)),
                blocks ? train(job(2, stage, more)) : two);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "files have names";
}

TEST(StateFiles, CheckpointsGoOnFromAnyPlaceToAnyOther) {
  const Folder files;
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  const auto place = [&](bool stored, int world, int stage) {
    const Job plain = job(world, stage, bf16);
    return stored ? in_files(plain, files) : plain;
  };
  const Job places[] = {place(false, 1, 1), place(true, 1, 1), place(true, 2, 3)};
  std::vector<std::vector<float>> ends;
  for (const Job& from : places) {
    const Folder checkpoints;
    run_ranks(from.world, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(from, comm);
      engine->train_batch();
      engine->save(checkpoints.path(), "one");
    });
    for (const Job& to : places) {
      if (to.world != from.world && from.world == 2) continue;  // a loss sums in another order
      std::vector<float> end;
      run_ranks(to.world, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(to, comm);
        engine->load(checkpoints.path(), "one");
        engine->train_batch();
        const std::vector<float> weights = all_weights(*engine);
        if (comm->rank() == 0) end = weights;
      });
      ends.push_back(std::move(end));
    }
  }
  // Of one process, from memory or files, to memory or files.
  for (const size_t i : {1u, 3u, 4u}) EXPECT_TRUE(same_bits(ends[i], ends[0])) << i;
}

// A program's own parameters: their gradients stay memory that the program may write.
TEST(StateFiles, OwnParametersTrainToo) {
  const Folder folder;
  const auto weights = [&](const Json& zero) {
    nn::ParameterSet set;
    nn::Parameter p;
    p.name = "w";
    p.shape = {40, 50};
    p.dtype = DType::kFloat32;
    set.add(std::move(p));
    Json config = with(base_config(),
                       {{"train_micro_batch_size_per_gpu", 1}, {"gradient_accumulation_steps", 1}});
    config["zero_optimization"] = zero;
    Engine engine(dump_json(config), models::Model::from_parameters(std::move(set)), nullptr, {});
    const Tensor gradient =
        Tensor::empty(engine.model()->device(), DType::kFloat32, {40, 50}, MemoryTag::kOther);
    for (int step = 1; step <= 3; ++step) {
      for (int64_t i = 0; i < 2000; ++i) {
        gradient.data<float>()[i] = static_cast<float>((i * 7 + step) % 13 - 6);
      }
      const Tensor* const all[] = {&gradient};
      engine.gradients().add({}, all);
      engine.step();
    }
    return all_weights(engine);
  };
  EXPECT_TRUE(same_bits(
      weights({{"stage", 1},
               {"offload_optimizer", {{"device", "nvme"}, {"nvme_path", folder.path()}}}}),
      weights({{"stage", 1}})));
}

TEST(StateFiles, MemoryIsForWeightsAndForWhatIsOnItsWay) {
  const Folder folder;
  const Job stored = in_files(job(1, 1, {{"bf16", {{"enabled", true}}}}), folder);
  auto engine = make_rank_engine(stored, nullptr);
  engine->train_batch();
  const MemoryAccount& account = engine->model()->device()->account();
  const int64_t elements = train_state(*engine->model()).layout().elements();
  EXPECT_LE(account.now(MemoryTag::kParameters), 2 * elements);
  EXPECT_EQ(account.now(MemoryTag::kGradients), 0);
  EXPECT_EQ(account.now(MemoryTag::kOptimizer), 0);
}

TEST(StateFiles, AFolderThatIsNotThereIsNamed) {
  const Folder folder;
  Job nowhere = in_files(job(1, 1), folder);
  nowhere.config["zero_optimization"]["offload_optimizer"]["nvme_path"] = "/dev/null/state";
  try {
    make_rank_engine(nowhere, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("/dev/null/state"), HasSubstr("nvme_path")));
  }
}

// What cannot be written ends the step with an error that names the file; a load goes on.
TEST(StateFiles, AFailedWriteEndsTheStepAndALoadGoesOn) {
  const Folder folder, checkpoints;
  const Job stored = in_files(job(1, 1), folder, false);
  auto engine = make_rank_engine(stored, nullptr);
  engine->train_batch();
  engine->save(checkpoints.path(), "good");
  const std::vector<float> good = all_weights(*engine);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    engine->train_batch();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    message = error.message();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_THAT(message, AllOf(HasSubstr(folder.path()), HasSubstr(".state")));
  engine->load(checkpoints.path(), "good");
  EXPECT_TRUE(same_bits(all_weights(*engine), good));
  engine->train_batch();
}

}  // namespace
}  // namespace ds::zero_test
