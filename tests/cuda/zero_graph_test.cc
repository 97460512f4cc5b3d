// Ranks with a GPU each whose micro batches are recorded as CUDA graphs: they compute what they
// compute without, whatever the stage and wherever the optimizer's state lies.
#include <gmock/gmock.h>

#include "cuda/zero_world.h"
#include "full_run.h"

namespace ds::gpu_zero {
namespace {

struct Recorded {
  const char* name;
  Json zero;
  Json more;
  int world = 2;
  int ranks_per_node = 0;
  std::vector<int> stages = {0, 1, 2};
  std::function<void(models::Model&)> prepare = [](models::Model&) {};
};
void PrintTo(const Recorded& one, std::ostream* out) { *out << one.name; }

constexpr int kSteps = 4;

// Micro batches that were launched, of all ranks together; -1 where nothing counts them.
int64_t launches() {
  const auto* const stand_ins = testing::stand_ins_or_null();
  return stand_ins != nullptr ? stand_ins->graph_launches() : -1;
}

Job job_of(const Recorded& one, int stage, int accumulation, bool graphs, bool offload) {
  Json zero = fine(one.zero);
  if (offload) zero["offload_optimizer"] = {{"device", "cpu"}};
  return {one.world,
          with(zero_config(stage, zero, one.more),
               {{"graph_harvesting", graphs}, {"gradient_accumulation_steps", accumulation}}),
          kSteps, tiny_model(), one.prepare};
}

class RecordedRanks : public GpuZero, public ::testing::WithParamInterface<Recorded> {};

TEST_P(RecordedRanks, HaveTheSameBits) {
  const Recorded& one = GetParam();
  if (gpus_ < one.world) GTEST_SKIP() << "needs " << one.world << " GPUs";
  for (const int stage : one.stages) {
    for (const bool offload : {false, true}) {
      if (offload && stage == 0) continue;  // nothing of the optimizer is spread
      for (const int accumulation : {1, 3}) {
        // One of both for each stage, unless the whole suite runs.
        if (!testing::full_run() && (accumulation == 1) == ((stage == 1) != offload)) continue;
        SCOPED_TRACE(str_cat("stage ", stage, ", accumulation ", accumulation,
                             offload ? ", offloaded" : ""));
        const auto run = [&](bool graphs) {
          return train(Where::kGpus, job_of(one, stage, accumulation, graphs, offload),
                       one.ranks_per_node);
        };
        const Trained without = run(false);
        EXPECT_NE(without.losses[3], without.losses[0]);
        const int64_t before = launches();
        expect_same(run(true), without);
        // All but the first one of each rank, which finds what later ones need.
        if (before >= 0) {
          EXPECT_EQ(launches() - before, one.world * (kSteps * accumulation - 1));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, RecordedRanks,
    ::testing::Values(
        Recorded{"Fp32", {{"reduce_scatter", true}}, {{"gradient_clipping", 0.5}}},
        Recorded{"Bf16", Json::object(), kBf16},
        Recorded{"SplitMasters",
                 Json::object(),
                 {{"bf16", {{"enabled", true}, {"split_master", true}}}},
                 3,
                 0,
                 {1, 2}},
        // What travels is rounded, by itself where the others travel as they are.
        Recorded{"RoundedOnTheWay",
                 {{"overlap_comm", false}},
                 with(kBf16, {{"communication_data_type", "bf16"},
                              {"data_types", {{"grad_accum_dtype", "bf16"}}}})},
        Recorded{"Fp16",
                 Json::object(),
                 {{"fp16", {{"enabled", true}, {"initial_scale_power", 18}, {"hysteresis", 1}}}},
                 2,
                 0,
                 {2}},
        Recorded{"Checkpointed",
                 Json::object(),
                 {{"activation_checkpointing", {{"enabled", true}}}},
                 2,
                 0,
                 {1}},
        Recorded{"Adapters", Json::object(), kBf16, 2, 0, {0, 2}, add_adapters}),
    [](const auto& one) { return std::string(one.param.name); });

class RanksWithGraphs : public GpuZero {};

const Recorded kPlain = {"Plain", Json::object(), kBf16};

// At stage 3 weights are gathered within the passes: they are run as ever.
TEST_F(RanksWithGraphs, StageThreeIsNotRecorded) {
  const Trained without = train(Where::kGpus, job_of(kPlain, 3, 1, false, false));
  const int64_t before = launches();
  expect_same(train(Where::kGpus, job_of(kPlain, 3, 1, true, false)), without);
  EXPECT_EQ(launches(), before);
}

// Evaluation, saving and loading between recorded steps, and gradients of the program's own.
TEST_F(RanksWithGraphs, CallersMayStepBetween) {
  std::vector<Trained> found;
  for (const bool graphs : {false, true}) {
    std::vector<Trained> all(2);
    const gpu_test::Folder folder;
    on_ranks(Where::kGpus, job_of(kPlain, 2, 2, graphs, true),
             [&](Engine& engine, Communicator& comm) {
               train_steps(engine, 2);
               engine.save(folder.path("run"), "one");
               train_steps(engine, 1);
               engine.load(folder.path("run"), "one");
               const Tensor ids = ids_tensor({1, 2, 3, 4, 5, 6}, 1);
               for (int i = 0; i < 2; ++i) {
                 engine.backward(engine.forward({ids, ids, {}, {}, {}}));
                 engine.step();
               }
               all[static_cast<size_t>(comm.rank())] = train_steps(engine, 2);
             });
    expect_same(all[1], all[0]);
    found.push_back(all[0]);
  }
  expect_same(found[1], found[0]);
}

}  // namespace
}  // namespace ds::gpu_zero
