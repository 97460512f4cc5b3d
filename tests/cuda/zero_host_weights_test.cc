// Weights that rest in the hosts' memory beside GPUs (stage 3, offload_param): what is computed is
// what GPUs compute that hold their pieces, to the bit, and GPUs hold no more than what they use.
#include <gmock/gmock.h>

#include "attached_state.h"
#include "cuda/zero_world.h"
#include "ops/elementwise.h"

namespace ds::gpu_zero {
namespace {

using ::testing::HasSubstr;

Json offloaded(const Json& zero, const Json& more, bool pinned, bool weights) {
  const Json where = {{"device", "cpu"}, {"pin_memory", pinned}};
  Json all = with(fine({{"reduce_scatter", false}, {"offload_optimizer", where}}), zero);
  if (weights) all["offload_param"] = where;
  return zero_config(3, all, more);
}

struct WeightsKind {
  const char* name;
  Json zero, more;
  bool pinned = true;
  int world = 2;
  int ranks_per_node = 0;
  std::function<void(models::Model&)> prepare = [](models::Model&) {};
};
void PrintTo(const WeightsKind& kind, std::ostream* out) { *out << kind.name; }

class HostWeights : public GpuZero, public ::testing::WithParamInterface<WeightsKind> {
 protected:
  int least_gpus() const override { return 1; }
};

TEST_P(HostWeights, TrainWithTheBitsOfWeightsOnGpus) {
  const WeightsKind& kind = GetParam();
  if (gpus_ < kind.world) GTEST_SKIP() << "needs " << kind.world << " GPUs";
  Trained trained[2];
  int64_t resting[2] = {0, 0};
  for (const bool weights : {false, true}) {
    const Job run{kind.world, offloaded(kind.zero, kind.more, kind.pinned, weights), 0,
                  tiny_model(), kind.prepare};
    on_ranks(
        Where::kGpus, run,
        [&](Engine& engine, Communicator& comm) {
          const zero::StateArrays& arrays = train_state(*engine.model()).arrays();
          EXPECT_EQ(on_host(arrays.weights().memory()), weights);
          Trained mine = train_steps(engine, 3);
          if (comm.rank() != 0) return;
          trained[weights] = std::move(mine);
          resting[weights] = engine.model()->device()->account().now(MemoryTag::kParameters);
        },
        kind.ranks_per_node);
  }
  expect_same(trained[1], trained[0]);
  EXPECT_LT(resting[1], resting[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, HostWeights,
    ::testing::Values(
        WeightsKind{"Fp32", none(), {{"gradient_clipping", 0.5}}},
        WeightsKind{"Fp32Pageable", none(), none(), false},
        WeightsKind{"Bf16", none(), with(kBf16, {{"gradient_accumulation_steps", 2}})},
        WeightsKind{"Bf16Pageable", none(), kBf16, false},
        WeightsKind{"SplitMasters", none(), kSplit},
        WeightsKind{"Fp16", none(), {{"fp16", {{"enabled", true}, {"initial_scale_power", 4}}}}},
        WeightsKind{"Alone", none(), kBf16, true, 1},
        WeightsKind{"AloneFp32", none(), none(), true, 1},
        WeightsKind{"AloneSplit", none(), with(kSplit, {{"gradient_accumulation_steps", 2}}), false,
                    1},
        WeightsKind{"Fp8", none(), with(kBf16, {{"fp8", {{"enabled", true}}}})},
        WeightsKind{"Tiles", {{"stage3_tile_size", 400}}, none()},
        WeightsKind{"SecondCopies", {{"zero_hpz_partition_size", 2}}, none(), true, 4},
        WeightsKind{"ShardGroups",
                    {{"mics_shard_size", 2}, {"mics_hierarchical_params_gather", false}},
                    none(),
                    true,
                    4},
        WeightsKind{"Quantized", {{"zero_quantized_weights", true}}, kBf16},
        WeightsKind{"Recomputed", none(), {{"activation_checkpointing", {{"enabled", true}}}}},
        WeightsKind{"ZenFlow",
                    {{"zenflow",
                      {{"topk_ratio", 0.3},
                       {"update_interval", 2},
                       {"select_strategy", "step"},
                       {"select_interval", 2},
                       {"overlap_step", false}}}},
                    kBf16},
        WeightsKind{"Adapters", none(), kBf16, true, 2, 0, add_adapters}),
    [](const auto& one) { return std::string(one.param.name); });

// One rank alone computes what it computes with weights on its GPU, whose path is another.
TEST_F(GpuZero, HostWeightsOfOneRankAgreeWithOneThatDoesNotShare) {
  for (const Json& precision : {none(), kBf16, kSplit}) {
    SCOPED_TRACE(dump_json(precision));
    Job run{1, offloaded(none(), precision, true, true), 3, tiny_model()};
    const Trained host = train(Where::kGpus, run);
    run.config["zero_optimization"].erase("offload_param");
    run.config["zero_optimization"]["stage"] = 2;
    expect_same(host, train(Where::kGpus, run));
  }
}

// What is saved does not depend on where weights rest, and is loaded everywhere.
TEST_F(GpuZero, HostWeightsGoToOtherPlacesAndBack) {
  for (const Json& precision : {none(), kBf16, kSplit}) {
    SCOPED_TRACE(dump_json(precision));
    const Folder folder;
    Trained saved, later;
    on_ranks(Where::kGpus, {2, offloaded(none(), precision, true, true), 0, tiny_model(0)},
             [&](Engine& engine, Communicator& comm) {
               engine.train_batch();
               engine.save(folder.path("0"), "one");
               Trained mine;
               mine.weights = weights_of(engine);
               mine.states = states_of(engine);
               Trained next = train_steps(engine, 1);
               if (comm.rank() != 0) return;
               saved = std::move(mine);
               later = std::move(next);
             });
    struct Target {
      Where where;
      int world;
      bool weights;
    };
    for (const Target& to : {Target{Where::kGpus, 2, true}, Target{Where::kGpus, 2, false},
                             Target{Where::kGpus, 1, true}, Target{Where::kCpu, 2, true}}) {
      on_ranks(to.where,
               {to.world, offloaded(none(), precision, true, to.weights), 0, tiny_model(0)},
               [&](Engine& engine, Communicator&) {
                 engine.train_batch();
                 engine.load(folder.path("0"), "one");
                 EXPECT_TRUE(same_bits(weights_of(engine), saved.weights));
                 EXPECT_TRUE(same_bits(states_of(engine), saved.states));
                 if (to.where != Where::kGpus || to.world != 2) return;
                 expect_same(train_steps(engine, 1), later);
               });
    }
  }
}

// Values that callers set are those that passes see.
TEST_F(GpuZero, HostWeightsFollowValuesThatAreSet) {
  for (const int world : {1, 2}) {
    for (const Json& precision : {none(), kBf16, kSplit}) {
      SCOPED_TRACE(str_cat("world ", world, ", ", dump_json(precision)));
      const Job run{world, offloaded(none(), precision, true, true), 1, tiny_model()};
      on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator&) {
        engine.train_batch();
        const std::string name = "h.1.mlp.c_fc.weight";
        const nn::ParamId id = engine.model()->parameters().find(name);
        std::mt19937_64 random(7);
        const Tensor value = random_tensor(random, engine.model()->parameters()[id].shape);
        for (float& x : std::span(value.data<float>(), static_cast<size_t>(value.elements()))) {
          x = std::round(x * 8) / 8;  // of every type
        }
        const auto expect_gpu_follows = [&](const std::vector<float>& all) {
          zero::Weights& weights = train_state(*engine.model()).weights();
          const Tensor there = weights.acquire(id);
          EXPECT_FALSE(on_host(there));
          const Tensor here = copied_to_host(there, engine.model()->host());
          weights.release(id);
          ThreadPool pool(1);
          const OpContext host{engine.model()->host(), &pool};
          Tensor wide = host.workspace(DType::kFloat32, here.shape());
          ops::cast(host, here, wide);
          EXPECT_TRUE(same_bits(flat(wide), all));
        };
        engine.model()->set(name, value);
        EXPECT_TRUE(same_bits(flat(engine.model()->get(name)), flat(value)));
        expect_gpu_follows(flat(value));
        const zero::FlatRange own = engine.values().local_range(name);
        const Tensor mine = Tensor::empty(engine.model()->host(), DType::kFloat32, {own.elements()},
                                          MemoryTag::kOther);
        std::fill_n(mine.data<float>(), own.elements(), 0.5f);
        engine.values().set_local(name, "parameter", mine);
        expect_gpu_follows(std::vector<float>(static_cast<size_t>(value.elements()), 0.5f));
        EXPECT_TRUE(engine.train_batch().applied);
      });
    }
  }
}

// What excludes it is said, with what to do instead.
TEST_F(GpuZero, HostWeightsAreRefusedWhereTheyCannotBe) {
  const Json cpu = {{"device", "cpu"}};
  const std::pair<Json, const char*> rows[] = {
      {{{"offload_param", cpu}}, "offload_optimizer with device cpu"},
      {{{"offload_optimizer", with(cpu, {{"super_offload", true}})}, {"offload_param", cpu}},
       "leave offload_param out"}};
  for (const auto& [zero, words] : rows) {
    const Job run{1, zero_config(3, zero, kBf16), 0, tiny_model()};
    const auto model = zero_test::make_rank_model(run);
    model->set_device(make_cuda_device(0));
    EXPECT_THAT(
        error_of(Code::kUnsupported, [&] { Engine(dump_json(run.config), model, nullptr); }),
        HasSubstr(words));
  }
}

}  // namespace
}  // namespace ds::gpu_zero
