// nvme_checkpointing: inputs of checkpointed segments in files train with the bits of memory, by
// one process and by several, and memory holds those of a few segments alone.
#include <gmock/gmock.h>

#include "stored_jobs.h"

namespace ds::zero_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Inputs of blocks are large enough to travel: 16 samples of 16 tokens, 32 numbers each.
Job deep(int world, int stage, int layers = 6, const Json& more = Json::object()) {
  Job out{world, zero_config(stage, Json::object(),
                             {{"train_micro_batch_size_per_gpu", 32 / world},
                              {"gradient_accumulation_steps", 2},
                              {"activation_checkpointing", {{"enabled", true}}}})};
  out.config.merge_patch(more);
  out.model["n_layer"] = layers;
  return out;
}

Job with_activations_in_files(Job of, const Folder& folder) {
  of.config["activation_checkpointing"].merge_patch(
      {{"nvme_checkpointing", true}, {"nvme_path", folder.path()}});
  return of;
}

TEST(ActivationFiles, TrainWithTheBitsOfMemory) {
  const Folder folder;
  for (const Json& more : {Json::object(), Json{{"bf16", {{"enabled", true}}}},
                           Json{{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}},
                           Json{{"activation_checkpointing", {{"number_checkpoints", 2}}}},
                           Json{{"activation_checkpointing", {{"checkpoint_every_nth", 2}}}},
                           Json{{"aio",
                                 {{"intra_op_parallelism", 2},
                                  {"single_submit", true},
                                  {"overlap_events", false},
                                  {"block_size", 5000}}}}}) {
    SCOPED_TRACE(dump_json(more));
    for (const int world : {1, 2}) {
      for (const int stage : world == 1 ? std::vector{0} : std::vector{0, 2, 3}) {
        SCOPED_TRACE(str_cat("world ", world, ", stage ", stage));
        const Job plain = deep(world, stage, 6, more);
        expect_same(train(with_activations_in_files(plain, folder)), train(plain));
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "files have names";
}

// Everything of a process that can lie in files does.
TEST(ActivationFiles, GoWithStateAndWeightsInFiles) {
  const Folder folder;
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  for (const int world : {1, 2}) {
    SCOPED_TRACE(world);
    const Job plain = deep(world, 3, 4, bf16);
    Job stored = with_activations_in_files(in_files(plain, folder), folder);
    stored.config["zero_optimization"]["offload_param"] = {
        {"device", "nvme"}, {"nvme_path", folder.path()}, {"max_in_cpu", 0}};
    expect_same(train(stored), train(plain));
  }
}

TEST(ActivationFiles, MemoryDoesNotGrowWithTheLayers) {
  const Folder folder;
  constexpr int64_t kInput = int64_t{32} * 16 * 32 * sizeof(float);  // a summand of a block's
  const auto peak = [&](int layers, bool stored) {
    Job job = deep(1, 0, layers);
    if (stored) job = with_activations_in_files(job, folder);
    auto engine = make_rank_engine(job, nullptr);
    engine->train_batch();
    const MemoryAccount& account = engine->model()->device()->account();
    EXPECT_EQ(account.now(MemoryTag::kIo), 0) << "what was kept for the pass stays";
    // Four are written and as many read at most, while one is worked on.
    EXPECT_LE(account.peak(MemoryTag::kIo), 10 * kInput);
    return account.peak(MemoryTag::kActivations);
  };
  // In memory sixteen more layers keep sixteen more inputs, of two summands each.
  EXPECT_GT(peak(20, false) - peak(4, false), 2 * 15 * kInput);
  EXPECT_EQ(peak(20, true), peak(4, true));
}

// Samples that are shorter, or fewer, than those before.
TEST(ActivationFiles, MicroBatchesOfOtherSizesHaveTheirOwnRoom) {
  const Folder folder;
  std::vector<std::vector<float>> ends;
  for (const bool stored : {false, true}) {
    Job job = deep(1, 0);
    if (stored) job = with_activations_in_files(job, folder);
    auto engine = make_rank_engine(job, nullptr);
    for (const int64_t rows : {32, 9, 40, 1}) {
      std::vector<int64_t> values;
      for (int64_t i = 0; i < rows * 12; ++i) values.push_back(i * 7 % 61);
      const Tensor ids = ids_tensor(values, rows);
      engine->backward(engine->forward({ids, ids, {}, {}, {}}));
      engine->step();
    }
    ends.push_back(all_weights(*engine));
  }
  EXPECT_TRUE(same_bits(ends[1], ends[0]));
}

TEST(ActivationFiles, AFolderThatIsNotThereIsNamed) {
  const Folder folder;
  Job nowhere = with_activations_in_files(deep(1, 0), folder);
  nowhere.config["activation_checkpointing"]["nvme_path"] = "/dev/null/inputs";
  EXPECT_THAT(
      error_of(Code::kIo, [&] { make_rank_engine(nowhere, nullptr); }),
      AllOf(HasSubstr("/dev/null/inputs"), HasSubstr("activation_checkpointing.nvme_path")));
}

// Where they cannot be written the micro batch fails, and changes nothing that training needs.
TEST(ActivationFiles, AFailedWriteEndsTheMicroBatchAlone) {
  const Folder folder;
  const Job plain = deep(1, 0);
  auto reference = make_rank_engine(plain, nullptr);
  auto engine = make_rank_engine(with_activations_in_files(plain, folder), nullptr);
  reference->train_batch();
  engine->train_batch();
  std::vector<int64_t> values(32 * 16, 5);
  const Tensor ids = ids_tensor(values, 32);
  const std::string message = error_of_full_files([&] {
    engine->backward(engine->forward({ids, ids, {}, {}, {}}));
  });
  EXPECT_THAT(message, AllOf(HasSubstr(folder.path()), HasSubstr("activations")));
  engine->discard_gradients();
  reference->train_batch();
  engine->train_batch();
  EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*reference)));
}

}  // namespace
}  // namespace ds::zero_test
