// offload_optimizer with device nvme: training state in real files trains with the bits of memory,
// goes on from any place to any other, and needs memory for weights and for what is on its way.
#include <gmock/gmock.h>

#include "attached_state.h"
#include "engine/plan.h"
#include "stored_jobs.h"
#include "zero/state_files.h"

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

// The other share stays in memory; the cut lies inside tensors, buckets and sub-groups.
TEST_P(StateFilesKinds, AShareInFilesTrainsWithTheBitsOfMemory) {
  const Folder folder;
  const bool blocks = GetParam().name == std::string("States8Bit");  // they follow from the stage
  const Json& more = GetParam().more;
  const Trained one = train(job(1, 1, more)), two = train(job(2, 1, more));
  for (const double ratio : {0.0, 0.2, 0.3, 1.0}) {
    SCOPED_TRACE(ratio);
    expect_same(train(with_ratio(in_files(job(1, 1, more), folder), ratio)), one);
    for (const int stage : {2, 3}) {
      SCOPED_TRACE(str_cat("two ranks, stage ", stage));
      const Job shared = job(2, stage, more);
      expect_same(train(with_ratio(in_files(shared, folder, ratio > 0.25), ratio)),
                  blocks ? train(shared) : two);
    }
  }
}

TEST(StateFiles, CheckpointsGoOnFromAnyPlaceToAnyOther) {
  const Folder files;
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  const auto place = [&](double stored, int world, int stage) {
    const Job plain = job(world, stage, bf16);
    return stored > 0 ? with_ratio(in_files(plain, files), stored) : plain;
  };
  const Job places[] = {place(0, 1, 1), place(1, 1, 1), place(0.3, 1, 1), place(1, 2, 3)};
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
  // Of one process, from memory, files or both, to any of them.
  for (const size_t i : {1u, 2u, 4u, 5u, 6u, 8u, 9u, 10u}) {
    EXPECT_TRUE(same_bits(ends[i], ends[0])) << i;
  }
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
  for (const int world : {1, 2}) {
    const Job stored = in_files(job(world, 1, {{"bf16", {{"enabled", true}}}}), folder);
    run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(stored, comm);
      engine->train_batch();
      const MemoryAccount& account = engine->model()->device()->account();
      const int64_t elements = train_state(*engine->model()).layout().flat().elements();
      EXPECT_LE(account.now(MemoryTag::kParameters), 2 * elements);
      // Nor is there an accumulator, beside what goes to the others.
      EXPECT_EQ(account.now(MemoryTag::kGradients), 0) << "of " << world;
      EXPECT_EQ(account.now(MemoryTag::kOptimizer), 0);
    });
  }
}

TEST(StateFiles, RatioBoundsTheMemoryOfState) {
  const Folder folder;
  const Job stored = with_ratio(in_files(job(1, 1, {{"bf16", {{"enabled", true}}}}), folder), 0.5);
  auto engine = make_rank_engine(stored, nullptr);
  engine->train_batch();
  const MemoryAccount& account = engine->model()->device()->account();
  const int64_t elements = train_state(*engine->model()).layout().flat().elements();
  const int64_t half = elements / 2 / kernels::kUpdateChunk * kernels::kUpdateChunk;
  ASSERT_GT(half, 0);
  EXPECT_EQ(account.now(MemoryTag::kParameters), 2 * elements + 4 * half);
  EXPECT_EQ(account.now(MemoryTag::kGradients), 4 * half);
  EXPECT_EQ(account.now(MemoryTag::kOptimizer), 2 * 4 * half);
  // The plan says so before, and where the other half is.
  const Json plan = plan_training(stored.model, dump_json(stored.config), {});
  EXPECT_EQ(plan["memory_per_rank"]["parameters"], 2 * elements + 4 * half);
  EXPECT_EQ(plan["memory_per_rank"]["gradients"], 4 * half);
  EXPECT_NEAR(plan["memory_per_rank"]["optimizer"].get<double>(), static_cast<double>(2 * 4 * half),
              8.0 * 4096);  // it counts no padding
  EXPECT_EQ(plan["files_per_rank"]["gradients"], 4 * (elements - half));
}

TEST(StateFiles, WhatStaysIsWholeChunksOrEverything) {
  constexpr int64_t kChunk = kernels::kUpdateChunk;
  EXPECT_EQ(zero::StateFiles::stay_of(10 * kChunk + 5, 1), 0);
  EXPECT_EQ(zero::StateFiles::stay_of(10 * kChunk + 5, 0), 10 * kChunk + 5);
  EXPECT_EQ(zero::StateFiles::stay_of(10 * kChunk, 0.25), 7 * kChunk);
  EXPECT_EQ(zero::StateFiles::stay_of(10 * kChunk, 1e-9), 9 * kChunk);
  EXPECT_EQ(zero::StateFiles::stay_of(kChunk / 2, 0.1), 0);
  EXPECT_EQ(zero::StateFiles::stay_of(0, 0.3), 0);
  EXPECT_EQ(zero::StateFiles::stay_of(1280, 0.25, 128), 896);
}

TEST(StateFiles, ArraysThatStayWholeTakeNoFile) {
  const Folder folder;
  zero::StateFileOptions options;
  options.weights.emplace().folder = folder.path();
  options.weights_in_memory = 1000;
  zero::StateFiles files(options, make_cpu_device());
  const auto open_files = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto make = [&](int64_t elements) {
    return files.make({optim::ArrayRole::kWeights, "weights", DType::kBFloat16, elements});
  };
  const auto before = open_files();
  const auto whole = make(1000);
  EXPECT_EQ(open_files(), before);
  const auto cut = make(1001);
  EXPECT_GT(open_files(), before) << "its last element is there";
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
  const std::string message = error_of_full_files([&] { engine->train_batch(); });
  EXPECT_THAT(message, AllOf(HasSubstr(folder.path()), HasSubstr(".state")));
  engine->load(checkpoints.path(), "good");
  EXPECT_TRUE(same_bits(all_weights(*engine), good));
  engine->train_batch();
}

}  // namespace
}  // namespace ds::zero_test
