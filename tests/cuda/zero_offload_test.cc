// Several ranks with a GPU each whose optimizer state lies in the memory of their hosts: what they
// compute is what one rank computes, and what stages without offload compute.
#include <gmock/gmock.h>

#include <bit>
#include <cstring>

#include "attached_state.h"
#include "cuda/zero_world.h"
#include "fresh_seed.h"
#include "ops/elementwise.h"
#include "ops/split_master.h"
#include "zero/weight_checks.h"

namespace ds::gpu_zero {
namespace {

using ::testing::HasSubstr;

Json offload_zero(const Json& zero, bool pinned) {
  return with(fine({{"reduce_scatter", false},
                    {"offload_optimizer", {{"device", "cpu"}, {"pin_memory", pinned}}}}),
              zero);
}

Json offloaded(int stage, const Json& more = none(), bool pinned = true) {
  return with(zero_config(stage, offload_zero(none(), pinned), more),
              {{"zero_allow_untested_optimizer", true}});
}

// Of three steps: a choice, a new one, and an update of the others between.
Json zenflow(const Json& more, bool overlap = false) {
  return with(more, {{"zero_optimization",
                      {{"zenflow",
                        {{"topk_ratio", 0.3},
                         {"update_interval", overlap ? 1 : 2},
                         {"select_strategy", "step"},
                         {"select_interval", 2},
                         {"overlap_step", overlap}}}}}});
}

Json optimizer(const char* type) {
  return {{"optimizer", {{"type", type}, {"params", {{"lr", 1e-2}}}}}};
}

// ---- the update ----

// Every rank sets the same reduced gradients, of all parameters.
void set_random_gradients(Engine& engine, uint64_t seed) {
  std::mt19937_64 random(seed);
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const Tensor value = random_tensor(random, parameters[id].shape);
    if (parameters[id].trainable) engine.gradients().set(parameters[id].name, value);
  }
}

struct Update {
  const char* name;
  Json config;
  bool pinned = true;
  bool blocks = false;  // of states, which are cut where a rank's part ends
  std::function<void(models::Model&)> prepare = [](models::Model&) {};
};
void PrintTo(const Update& one, std::ostream* out) { *out << one.name; }

class OffloadedUpdates : public GpuZero, public ::testing::WithParamInterface<Update> {};

TEST_P(OffloadedUpdates, HaveTheBitsOfOneRankOnTheCpu) {
  const Update& one = GetParam();
  const uint64_t seed = ds::fresh_seed();
  const auto train = [&](Where where, int stage, int world) {
    Trained out;
    const Job run{world, offloaded(stage, one.config, one.pinned), 0, tiny_model(), one.prepare};
    on_ranks(where, run, [&](Engine& engine, Communicator& comm) {
      Trained mine;
      for (uint64_t i = 0; i < 3; ++i) {
        set_random_gradients(engine, seed + i);
        mine.norms.push_back(engine.step().grad_norm);
      }
      mine.weights = weights_of(engine);
      mine.states = states_of(engine);
      if (comm.rank() == 0) out = std::move(mine);
    });
    return out;
  };
  const Trained alone = train(Where::kCpu, 1, 1);
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage, ", seed ", seed));
    const int world = stage == 2 ? std::min(3, gpus_) : 2;
    expect_same(train(Where::kGpus, stage, world),
                one.blocks ? train(Where::kCpu, stage, world) : alone);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Updates, OffloadedUpdates,
    ::testing::Values(Update{"Fp32", {{"gradient_clipping", 0.5}}},
                      Update{"Fp32Pageable", none(), false}, Update{"Bf16", kBf16},
                      Update{"Bf16GradientsInBf16",
                             with(kBf16, {{"data_types", {{"grad_accum_dtype", "bf16"}}}})},
                      Update{"SplitMasters", kSplit}, Update{"SplitMastersPageable", kSplit, false},
                      Update{"Fp16", {{"fp16", {{"enabled", true}, {"initial_scale_power", 4}}}}},
                      Update{"Int8States", {{"optimizer", {{"state_dtype", "int8"}}}}, true, true},
                      Update{"ZenFlowFp32", zenflow(none())},
                      Update{"ZenFlowBf16", zenflow(kBf16, true)},
                      Update{"ZenFlowSplit", zenflow(kSplit, true), false},
                      Update{"ZenFlowBf16Pageable", zenflow(kBf16), false},
                      Update{"Lion", with(kBf16, optimizer("Lion"))},
                      Update{"Lamb", optimizer("Lamb")},
                      Update{"Muon", with(kBf16, optimizer("Muon"))},
                      Update{"Adapters", kBf16, true, false, add_adapters}),
    [](const auto& one) { return std::string(one.param.name); });

// ---- training ----

struct Training {
  const char* name;
  Json config;
  bool pinned = true;
  std::function<void(models::Model&)> prepare = [](models::Model&) {};
};
void PrintTo(const Training& one, std::ostream* out) { *out << one.name; }

class OffloadedTraining : public GpuZero, public ::testing::WithParamInterface<Training> {};

// Ranks that see the same samples have the mean of equal gradients, which is exact.
TEST_P(OffloadedTraining, HasTheBitsOfOneRankThatSeesTheSame) {
  const Training& one = GetParam();
  const Json whole = {{"communication_data_type", "fp32"}, {"gradient_accumulation_steps", 2}};
  const auto train = [&](int stage, int world) {
    Trained out;
    const Job run{world, with(offloaded(stage, one.config, one.pinned), whole), 0, tiny_model(0),
                  one.prepare};
    on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator& comm) {
      Trained mine;
      for (int64_t i = 0; i < 4; ++i) {
        std::vector<int64_t> ids;
        for (int64_t k = 0; k < 16; ++k) ids.push_back((i * 11 + k * 7) % 61);
        const Tensor batch = ids_tensor(ids, 2);
        engine.backward(engine.forward({batch, batch, {}, {}, {}}));
        const StepReport report = engine.step();
        if (i % 2 == 0) continue;
        mine.losses.push_back(report.loss);
        mine.norms.push_back(report.grad_norm);
      }
      mine.weights = weights_of(engine);
      mine.states = states_of(engine);
      if (comm.rank() == 0) out = std::move(mine);
    });
    return out;
  };
  const Trained alone = train(2, 1);
  EXPECT_NE(alone.losses[1], alone.losses[0]);
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Trained ranks = train(stage, 2);
    if (kSumsInOrder) {
      expect_same(ranks, alone);
    } else {
      expect_near(ranks, alone, 2e-2, 5e-2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Trainings, OffloadedTraining,
    ::testing::Values(Training{"Fp32", none()}, Training{"Bf16Pageable", kBf16, false},
                      Training{"SplitMasters", kSplit},
                      Training{"Recomputed",
                               {{"activation_checkpointing", {{"enabled", true}}},
                                {"zero_optimization", {{"overlap_comm", false}}}}},
                      Training{"ZenFlow", zenflow(kBf16)},
                      Training{"ZenFlowOverlap", zenflow(none(), true)},
                      Training{"Adapters", kBf16, true, add_adapters}),
    [](const auto& one) { return std::string(one.param.name); });

struct OffloadKind {
  const char* name;
  Json zero, more;
  int world = 2;
  int ranks_per_node = 0;
  std::vector<int> stages = {3};
  double loss = 1e-5, weight = 2e-4;  // largest differences from ranks that do not offload
};
void PrintTo(const OffloadKind& kind, std::ostream* out) { *out << kind.name; }

class OffloadedKinds : public GpuZero, public ::testing::WithParamInterface<OffloadKind> {};

// Each rank sees its own samples, gradients travel rounded, and stage 3 gathers in all its ways.
TEST_P(OffloadedKinds, FollowRanksThatDoNotOffload) {
  const OffloadKind& kind = GetParam();
  if (gpus_ < kind.world) GTEST_SKIP() << "needs " << kind.world << " GPUs";
  std::optional<Trained> first;
  for (const int stage : kind.stages) {
    SCOPED_TRACE(str_cat("stage ", stage));
    Job run{kind.world, zero_config(stage, offload_zero(kind.zero, true), kind.more), 2,
            tiny_model()};
    const Trained ranks = train(Where::kGpus, run, kind.ranks_per_node);
    run.config["zero_optimization"].erase("offload_optimizer");
    const Trained plain = train(Where::kGpus, run, kind.ranks_per_node);
    expect_near(ranks, plain, kind.loss, kind.weight);
    EXPECT_EQ(ranks.losses[0], plain.losses[0]);
    if (kSumsInOrder) {
      EXPECT_EQ(ranks.norms[0], plain.norms[0]);
    }
    if (first && kSumsInOrder) expect_same(ranks, *first);
    if (!first) first = ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, OffloadedKinds,
    ::testing::Values(
        OffloadKind{"Stages",
                    none(),
                    with(kBf16, {{"gradient_accumulation_steps", 2}}),
                    2,
                    0,
                    {1, 2, 3},
                    2e-2,
                    5e-2},
        OffloadKind{
            "Fp8", none(), with(kBf16, {{"fp8", {{"enabled", true}}}}), 2, 0, {2, 3}, 2e-2, 5e-2},
        OffloadKind{"Tiles", {{"stage3_tile_size", 400}}, none()},
        OffloadKind{"SecondCopies", {{"zero_hpz_partition_size", 2}}, none(), 4},
        OffloadKind{"ShardGroups",
                    {{"mics_shard_size", 2}, {"mics_hierarchical_params_gather", false}},
                    {{"gradient_accumulation_steps", 2}},
                    4},
        OffloadKind{"QuantizedGradients",
                    {{"stage3_param_persistence_threshold", 0},
                     {"reduce_scatter", true},
                     {"zero_quantized_gradients", true}},
                    none(),
                    4,
                    2,
                    {3},
                    2e-2,
                    5e-2}),
    [](const auto& one) { return std::string(one.param.name); });

// ---- checkpoints ----

// With an open step: gradients of the host go too. The state is that of the call, though training
// goes on while it is written.
TEST_F(GpuZero, OffloadedStateGoesToOtherPlacesAndBack) {
  const auto step = [](Engine& engine, int64_t at) {
    std::vector<int64_t> ids;
    for (int64_t k = 0; k < 16; ++k) ids.push_back((at * 11 + k * 7) % 61);
    const Tensor batch = ids_tensor(ids, 2);
    engine.backward(engine.forward({batch, batch, {}, {}, {}}));
    return engine.step();
  };
  for (const Json& precision : {none(), kSplit}) {
    const Json more = with(precision, {{"gradient_accumulation_steps", 2},
                                       {"checkpoint", {{"writer", {{"decoupled", true}}}}}});
    const auto job = [&](int stage, int world, bool offload) {
      Json config = offloaded(stage, more);
      if (!offload) config["zero_optimization"].erase("offload_optimizer");
      return Job{world, config, 0, tiny_model(0)};
    };
    const Folder folder;
    Trained saved, later;
    on_ranks(Where::kGpus, job(3, 2, true), [&](Engine& engine, Communicator& comm) {
      for (int64_t i = 0; i < 3; ++i) step(engine, i);
      engine.save(folder.path("0"), "open");
      Trained mine, next;
      mine.weights = weights_of(engine);
      mine.states = states_of(engine);
      next.norms = {step(engine, 3).grad_norm};
      next.weights = weights_of(engine);
      if (comm.rank() != 0) return;
      saved = std::move(mine);
      later = std::move(next);
    });
    struct Target {
      Where where;
      int stage, world;
      bool offload;
    };
    int last = 0;  // each saves for the next one
    for (const Target& to : {Target{Where::kGpus, 1, 2, false}, Target{Where::kGpus, 1, 2, true},
                             Target{Where::kCpu, 3, 2, false}, Target{Where::kGpus, 2, 2, true}}) {
      SCOPED_TRACE(str_cat("stage ", to.stage, to.offload ? ", offloaded" : ""));
      on_ranks(to.where, job(to.stage, to.world, to.offload), [&](Engine& engine, Communicator&) {
        engine.load(folder.path(std::to_string(last).c_str()), "open");
        EXPECT_TRUE(same_bits(weights_of(engine), saved.weights));
        EXPECT_TRUE(same_bits(states_of(engine), saved.states));
        engine.save(folder.path(std::to_string(last + 1).c_str()), "open");
        if (!to.offload) return;
        EXPECT_EQ(step(engine, 3).grad_norm, later.norms[0]);
        EXPECT_TRUE(same_bits(weights_of(engine), later.weights));
      });
      ++last;
    }
    // One GPU, which keeps everything on its host.
    on_ranks(Where::kGpus, job(2, 1, true), [&](Engine& engine, Communicator&) {
      engine.load(folder.path(std::to_string(last).c_str()), "open");
      EXPECT_TRUE(same_bits(weights_of(engine), saved.weights));
      EXPECT_TRUE(same_bits(states_of(engine), saved.states));
    });
  }
}

// ---- what callers read and set ----

TEST_F(GpuZero, OffloadedStateIsReachable) {
  for (const int stage : {1, 3}) {
    for (const Json& precision : {none(), kBf16, kSplit}) {
      SCOPED_TRACE(str_cat("stage ", stage));
      const Job run{2, offloaded(stage, precision), 1, tiny_model()};
      const uint64_t seed = ds::fresh_seed();
      on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator& comm) {
        engine.train_batch();
        const std::string name = "h.1.mlp.c_fc.weight";
        const nn::ParamId id = engine.model()->parameters().find(name);
        const Shape shape = engine.model()->parameters()[id].shape;
        std::mt19937_64 random(seed);
        const Tensor value = random_tensor(random, shape);
        value.data<float>()[5] = std::bit_cast<float>(0x3f808000U);  // between two of bf16
        const std::vector<float> all = flat(value);
        zero::TrainState& state = train_state(*engine.model());
        // The GPU's weights are the masters, rounded as those are held.
        const auto expect_gpu_follows = [&] {
          const Tensor there = state.weights().acquire(id);
          EXPECT_FALSE(on_host(there));
          const Tensor here = copied_to_host(there, engine.model()->host());
          state.weights().release(id);
          ThreadPool pool(1);
          const OpContext host{engine.model()->host(), &pool};
          Tensor rounded = host.workspace(here.dtype(), shape);
          if (state.arrays().flat.low_halves) {
            Tensor low = host.workspace(DType::kUInt16, shape);
            ops::split_masters(host, engine.model()->get(name), rounded, low);
          } else {
            ops::cast(host, engine.model()->get(name), rounded);
          }
          EXPECT_EQ(std::memcmp(here.raw(), rounded.raw(), static_cast<size_t>(here.bytes())), 0);
        };
        engine.model()->set(name, value);
        EXPECT_TRUE(same_bits(flat(engine.model()->get(name)), all));
        expect_gpu_follows();
        engine.values().set_optimizer_state(name, "exp_avg", value);
        EXPECT_TRUE(same_bits(flat(engine.values().optimizer_state(name, "exp_avg")), all));
        engine.gradients().set(name, value);
        EXPECT_TRUE(same_bits(flat(engine.gradients().get(name)), all));
        const zero::FlatRange own = engine.values().local_range(name);
        const std::vector<float> part(all.begin() + own.begin, all.begin() + own.end);
        for (const char* const what : {"parameter", "exp_avg", "gradient"}) {
          EXPECT_TRUE(same_bits(flat(engine.values().local(name, what)), part)) << what;
        }
        engine.discard_gradients();
        const int64_t index = id;
        const std::vector<Tensor> whole = engine.scopes().gather({&index, 1});
        EXPECT_TRUE(same_bits(flat(whole[0]), all));
        whole[0].data<float>()[7] = 42;
        engine.scopes().scatter({&index, 1}, 1);
        EXPECT_EQ(engine.model()->get(name).data<float>()[7], 42);
        expect_gpu_follows();
        // Each rank sets its part; the GPUs follow.
        const Tensor mine = Tensor::empty(engine.model()->host(), DType::kFloat32, {own.elements()},
                                          MemoryTag::kOther);
        std::fill_n(mine.data<float>(), own.elements(), 0.5f + static_cast<float>(comm.rank()));
        engine.values().set_local(name, "parameter", mine);
        expect_gpu_follows();
        EXPECT_TRUE(engine.train_batch().applied);
      });
    }
  }
}

// Each rank's own, whole: added to those of backward, and kept whole by no_sync.
TEST_F(GpuZero, OffloadedGradientsOfTheCaller) {
  const uint64_t seed = ds::fresh_seed();
  for (const bool bf16_sums : {false, true}) {
    for (const int stage : {1, 2}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", seed ", seed));
      const Json sums = {{"data_types", {{"grad_accum_dtype", bf16_sums ? "bf16" : "fp32"}}}};
      const auto train_with = [&](Where where) {
        const Job run{2, offloaded(stage, bf16_sums ? with(kBf16, sums) : sums), 0, tiny_model()};
        Trained out;
        on_ranks(where, run, [&](Engine& engine, Communicator& comm) {
          std::mt19937_64 random(seed + static_cast<uint64_t>(comm.rank()));
          const nn::ParameterSet& parameters = engine.model()->parameters();
          Trained mine;
          for (int step = 0; step < 2; ++step) {
            std::vector<Tensor> gradients;
            std::vector<const Tensor*> pointers;
            for (nn::ParamId id = 0; id < parameters.size(); ++id) {
              gradients.push_back(random_tensor(random, parameters[id].shape));
            }
            for (const Tensor& gradient : gradients) pointers.push_back(&gradient);
            engine.gradients().add({}, pointers);
            // Not reduced yet, they are this rank's own.
            const std::vector<float> seen = flat(engine.gradients().get(parameters[0].name));
            EXPECT_TRUE(bf16_sums || same_bits(seen, flat(gradients[0])));
            const zero::FlatRange own = engine.values().local_range(parameters[0].name);
            EXPECT_TRUE(same_bits(flat(engine.values().local(parameters[0].name, "gradient")),
                                  {seen.begin() + own.begin, seen.begin() + own.end}));
            mine.norms.push_back(engine.step().grad_norm);
          }
          mine.weights = weights_of(engine);
          mine.states = states_of(engine);
          if (comm.rank() == 0) out = std::move(mine);
        });
        return out;
      };
      const Trained gpus = train_with(Where::kGpus), cpu = train_with(Where::kCpu);
      if (kSumsInOrder) {
        expect_same(gpus, cpu);
      } else {
        EXPECT_LT(largest_difference(gpus.weights, cpu.weights), bf16_sums ? 1e-2 : 1e-5);
      }
    }
  }
}

// ---- memory, and afterwards ----

TEST_F(GpuZero, OffloadedStateLeavesTheGpuItsWeights) {
  const Json model = with(tiny_model(0), {{"n_embd", 64}});
  for (const int stage : {1, 3}) {
    on_ranks(Where::kGpus, {2, offloaded(stage, kBf16), 1, model},
             [&](Engine& engine, Communicator&) {
               engine.train_batch();
               const auto p = static_cast<double>(engine.model()->parameters().elements());
               const Device& gpu = *engine.model()->device();
               const Device& host = *host_memory_of(engine.model()->device());
               const auto each = [&](const Device& device, MemoryTag tag) {
                 return static_cast<double>(device.account().now(tag)) / p;
               };
               EXPECT_EQ(each(gpu, MemoryTag::kOptimizer), 0);
               EXPECT_EQ(each(gpu, MemoryTag::kGradients), 0);
               EXPECT_NEAR(each(gpu, MemoryTag::kParameters), stage == 3 ? 1 : 2, 0.1);
               // This rank's half of the masters, the moments and the gradients.
               EXPECT_NEAR(each(host, MemoryTag::kParameters), 2, 0.1);
               EXPECT_NEAR(each(host, MemoryTag::kOptimizer), 4, 0.2);
               EXPECT_NEAR(each(host, MemoryTag::kGradients), 2, 0.1);
             });
  }
}

// Whole weights stay, in the precision that they were computed with, and train again; of pieces
// nothing is left.
TEST_F(GpuZero, ModelsGoOnAfterOffloadByRanks) {
  const Job run{2, offloaded(1, kBf16), 1, tiny_model()};
  const auto weights_after = [&](bool offload) {
    std::vector<float> out;
    run_ranks(
        2,
        [&](const std::shared_ptr<Communicator>& comm) {
          auto model = zero_test::make_rank_model(run);
          model->set_device(make_cuda_device(comm->rank()));
          for (int round = 0; round < 2; ++round) {
            Engine engine(dump_json(run.config), model, comm);
            set_random_gradients(engine, static_cast<uint64_t>(round));
            engine.step();
          }
          std::vector<float> mine = weights_of(*model);
          // To the GPU, when somebody computes with them.
          const Tensor weight = model->reader().acquire(0);
          EXPECT_FALSE(on_host(weight));
          model->reader().release(0);
          EXPECT_TRUE(same_bits(weights_of(*model), mine));
          Job again = run;
          if (!offload) again.config["zero_optimization"].erase("offload_optimizer");
          Engine engine(dump_json(again.config), model, comm);
          EXPECT_TRUE(same_bits(weights_of(engine), mine));
          engine.set_dataset(periodic_data(8));
          EXPECT_TRUE(engine.train_batch().applied);
          if (comm->rank() == 0) out = std::move(mine);
        },
        nccl_options());
    return out;
  };
  const std::vector<float> once = weights_after(true);
  EXPECT_TRUE(same_bits(weights_after(false), once));
  // The lower halves of fp32 are empty.
  for (const float one : once) ASSERT_EQ(std::bit_cast<uint32_t>(one) & 0xffff, 0U) << one;

  run_ranks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        auto model = zero_test::make_rank_model(run);
        model->set_device(make_cuda_device(comm->rank()));
        { const Engine engine(dump_json(offloaded(3, kBf16)), model, comm); }
        EXPECT_THAT(error_of(Code::kState, [&] { weights_of(*model); }),
                    HasSubstr("spread over ranks by an engine"));
      },
      nccl_options());
}

TEST_F(GpuZero, SanityChecksReadMastersOfTheHost) {
  for (const int stage : {1, 3}) {
    const Job run{
        2, with(offloaded(stage, kBf16), {{"zero_optimization", {{"enable_sanity_checks", true}}}}),
        1, tiny_model()};
    on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator& comm) {
      EXPECT_TRUE(engine.train_batch().applied);
      zero::TrainState& state = train_state(*engine.model());
      if (comm.rank() == 1) state.arrays().flat.masters.memory().data<float>()[3] = 1e3f;
      const auto check = [&] {
        ThreadPool pool(1);
        zero::check_weights({engine.model()->device(), &pool}, state.arrays(), state.weights());
      };
      if (comm.rank() == 1) {
        EXPECT_THAT(error_of(Code::kState, check), HasSubstr("are not their masters"));
      } else {
        check();
      }
    });
  }
}

}  // namespace
}  // namespace ds::gpu_zero
