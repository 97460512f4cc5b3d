// State that ranks on GPUs share: saved and loaded by other worlds, read and set by callers, and
// where models may lie.
#include <gmock/gmock.h>

#include "attached_state.h"
#include "cuda/zero_world.h"
#include "fresh_seed.h"
#include "models/saved_model.h"
#include "models/weights.h"
#include "zero/weight_checks.h"

namespace ds::gpu_zero {
namespace {

using ::testing::HasSubstr;

// ---- checkpoints ----

struct Saved {
  int stage, world;
};
class GpuZeroCheckpoints : public GpuZero, public ::testing::WithParamInterface<Saved> {};

Job saving_job(int stage, int world, bool bf16) {
  // A step is four samples, whatever the world.
  Json more = {{"train_micro_batch_size_per_gpu", 4 / world}};
  if (bf16) more.update(kBf16);
  return {world, zero_config(stage, fine(), more), 2, tiny_model()};
}

TEST_P(GpuZeroCheckpoints, GoToOtherWorldsStagesAndDevices) {
  const Saved& saved = GetParam();
  if (gpus_ < 4) GTEST_SKIP() << "needs four GPUs";
  for (const bool bf16 : {false, true}) {
    const Folder folder;
    Trained before;
    double next = 0;
    on_ranks(Where::kGpus, saving_job(saved.stage, saved.world, bf16),
             [&](Engine& engine, Communicator& comm) {
               Trained mine = train_steps(engine, 2);
               engine.save(folder.path(), "");
               const double loss = engine.train_batch().loss;
               if (comm.rank() == 0) {
                 before = std::move(mine);
                 next = loss;
               }
             });
    struct Target {
      Where where;
      int stage, world;
    };
    for (const Target& target :
         {Target{Where::kGpus, saved.stage, saved.world}, Target{Where::kGpus, 3, 3},
          Target{Where::kGpus, 1, 2}, Target{Where::kGpus, 0, 1}, Target{Where::kCpu, 2, 2},
          Target{Where::kCpu, 3, 4}, Target{Where::kCpu, 0, 1}}) {
      SCOPED_TRACE(str_cat(bf16 ? "bf16" : "fp32", ", loaded at stage ", target.stage, " by ",
                           target.world, target.where == Where::kCpu ? " on the CPU" : ""));
      on_ranks(target.where, saving_job(target.stage, target.world, bf16),
               [&](Engine& engine, Communicator&) {
                 engine.load(folder.path(), "");
                 EXPECT_TRUE(same_bits(weights_of(engine), before.weights));
                 EXPECT_TRUE(same_bits(states_of(engine), before.states));
                 if (4 % target.world != 0) return;  // another batch
                 const double loss = engine.train_batch().loss;
                 const bool same = target.where == Where::kGpus && target.world == saved.world;
                 EXPECT_NEAR(loss, next, (same ? 0 : bf16 ? 2e-2 : 1e-5) * next);
               });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, GpuZeroCheckpoints,
                         ::testing::Values(Saved{3, 4}, Saved{0, 2}, Saved{2, 2}),
                         [](const auto& test) {
                           return str_cat("Stage", test.param.stage, "By", test.param.world);
                         });

// One of the CPU goes to GPUs, open micro batches included.
TEST_F(GpuZero, ACheckpointOfTheCpuGoesOn) {
  const Folder folder;
  Job run{2, zero_config(2, fine(), {{"gradient_accumulation_steps", 2}}), 2, tiny_model()};
  const auto batch = [](int rank) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 16; ++i) ids.push_back((i * 7 + rank * 5) % 61);
    const Tensor tensor = ids_tensor(ids, 2);
    return MicroBatch{tensor, tensor, {}, {}, {}};
  };
  const auto one = [&](Engine& engine, int rank) {
    engine.backward(engine.forward(batch(rank)));
    return engine.step();
  };
  double norm = 0;
  on_ranks(Where::kCpu, run, [&](Engine& engine, Communicator& comm) {
    for (int i = 0; i < 3; ++i) one(engine, comm.rank());
    engine.save(folder.path(), "open");
    const StepReport report = one(engine, comm.rank());
    if (comm.rank() == 0) norm = report.grad_norm;
  });
  on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator& comm) {
    engine.load(folder.path(), "open");
    const StepReport report = one(engine, comm.rank());
    EXPECT_TRUE(report.applied);
    EXPECT_NEAR(report.grad_norm, norm, 1e-4 * norm);
  });
}

// ---- what callers read and set ----

TEST_F(GpuZero, StateIsReachable) {
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Job run{2, zero_config(stage, fine(), {{"gradient_accumulation_steps", 2}}), 1,
                  tiny_model()};
    const uint64_t seed = ds::fresh_seed();
    const Folder folder;
    on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator& comm) {
      engine.train_batch();
      const std::string name = "h.1.mlp.c_fc.weight";
      const nn::ParamId id = engine.model()->parameters().find(name);
      const Shape shape = engine.model()->parameters()[id].shape;
      std::mt19937_64 random(seed);
      const Tensor value = random_tensor(random, shape);
      engine.model()->set(name, value);
      EXPECT_TRUE(same_bits(flat(engine.model()->get(name)), flat(value)));
      engine.values().set_optimizer_state(name, "exp_avg", value);
      EXPECT_TRUE(same_bits(flat(engine.values().optimizer_state(name, "exp_avg")), flat(value)));
      engine.gradients().set(name, value);
      EXPECT_TRUE(same_bits(flat(engine.gradients().get(name)), flat(value)));
      engine.discard_gradients();
      // This rank's part, and all of it in a scope.
      const zero::FlatRange own = engine.values().local_range(name);
      for (const char* const what : {"parameter", "exp_avg"}) {
        const std::vector<float> part = flat(engine.values().local(name, what));
        const std::vector<float> all = flat(value);
        EXPECT_TRUE(same_bits(part, {all.begin() + own.begin, all.begin() + own.end})) << what;
      }
      const int64_t index = id;
      const std::vector<Tensor> whole = engine.scopes().gather({&index, 1});
      EXPECT_TRUE(same_bits(flat(whole[0]), flat(value)));
      whole[0].data<float>()[7] = 42;
      engine.scopes().scatter({&index, 1}, 1);
      EXPECT_EQ(engine.model()->get(name).data<float>()[7], 42);
      // Every rank helps, and the first one writes.
      const std::vector<float> weights = weights_of(engine);
      models::export_model(*engine.model(), folder.path("hf"), DType::kFloat32);
      comm.barrier();
      EXPECT_TRUE(same_bits(weights_of(*models::open_model(folder.path("hf"))), weights));
    });
  }
}

// Whole gradients of the caller, each rank's own, are averaged.
TEST_F(GpuZero, GradientsOfTheCaller) {
  const uint64_t seed = ds::fresh_seed();
  for (const int stage : {0, 2}) {
    const Job run{2, zero_config(stage, fine()), 0, tiny_model()};
    const auto train_with = [&](Where where) {
      std::vector<float> out;
      on_ranks(where, run, [&](Engine& engine, Communicator& comm) {
        std::mt19937_64 random(seed + static_cast<uint64_t>(comm.rank()));
        const nn::ParameterSet& parameters = engine.model()->parameters();
        for (int step = 0; step < 3; ++step) {
          std::vector<Tensor> gradients;
          std::vector<const Tensor*> pointers;
          for (nn::ParamId id = 0; id < parameters.size(); ++id) {
            gradients.push_back(random_tensor(random, parameters[id].shape));
          }
          for (const Tensor& gradient : gradients) pointers.push_back(&gradient);
          engine.gradients().add({}, pointers);
          EXPECT_TRUE(engine.step().applied);
        }
        const std::vector<float> weights = weights_of(engine);
        if (comm.rank() == 0) out = weights;
      });
      return out;
    };
    EXPECT_LT(largest_difference(train_with(Where::kGpus), train_with(Where::kCpu)), 1e-5)
        << "stage " << stage << ", seed " << seed;
  }
}

// A model that has weights before the engine comes gives those of rank 0 to all.
TEST_F(GpuZero, RanksBeginWithTheWeightsOfTheFirst) {
  for (const int stage : {1, 3}) {
    Job run{2, zero_config(stage, fine()), 0, tiny_model()};
    std::vector<std::vector<float>> weights(2);
    std::vector<float> expected;
    run_ranks(
        2,
        [&](const std::shared_ptr<Communicator>& comm) {
          auto model = models::Model::create(run.model, 3 + static_cast<uint64_t>(comm->rank()));
          model->set_device(make_cuda_device(comm->rank()));
          if (comm->rank() == 0) expected = weights_of(*model);
          Engine engine(dump_json(run.config), model, comm);
          weights[static_cast<size_t>(comm->rank())] = weights_of(engine);
        },
        nccl_options());
    for (const auto& one : weights) EXPECT_TRUE(same_bits(one, expected)) << "stage " << stage;
  }
}

TEST_F(GpuZero, OverflowIsSkippedByAll) {
  for (const int stage : {0, 2, 3}) {
    const Job run{
        2,
        zero_config(
            stage, fine(),
            {{"fp16", {{"enabled", true}, {"initial_scale_power", 40}, {"hysteresis", 1}}}}),
        1, tiny_model()};
    on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator&) {
      const std::vector<float> before = weights_of(engine);
      const StepReport report = engine.train_batch();
      EXPECT_FALSE(report.applied);
      EXPECT_FALSE(report.first_bad_tensor.empty());
      EXPECT_TRUE(same_bits(weights_of(engine), before));
    });
  }
}

// The checks of enable_sanity_checks read weights that lie on the GPU.
TEST_F(GpuZero, SanityChecks) {
  for (const int stage : {0, 3}) {
    const Job run{2, zero_config(stage, fine({{"enable_sanity_checks", true}}), kBf16), 1,
                  tiny_model()};
    on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator& comm) {
      EXPECT_TRUE(engine.train_batch().applied);
      zero::TrainState& state = train_state(*engine.model());
      if (comm.rank() == 1) {
        const Tensor one = state.arrays().flat.masters.memory().slice(0, 3, 4);
        const float value = 1e3f;
        copy_from_host(&value, one);
      }
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

// A rank without further batches takes part in the steps of the others.
TEST_F(GpuZero, RanksWithFewerBatchesJoin) {
  for (const int stage : {0, 3}) {
    const Job run{2, zero_config(stage, fine()), 0, tiny_model(0)};
    const auto train_unevenly = [&](Where where) {
      Trained out;
      on_ranks(where, run, [&](Engine& engine, Communicator& comm) {
        for (int i = 0; i < (comm.rank() == 0 ? 3 : 1); ++i) {
          const Tensor ids = ids_tensor({1, 2, 3, 4, 5, 6, 7, 8 + i + comm.rank()}, 1);
          engine.backward(engine.forward({ids, ids, {}, {}, {}}));
          EXPECT_TRUE(engine.step().applied);
        }
        engine.join();
        const std::vector<float> weights = weights_of(engine);
        if (comm.rank() == 0) out.weights = weights;
      });
      return out.weights;
    };
    EXPECT_LT(largest_difference(train_unevenly(Where::kGpus), train_unevenly(Where::kCpu)), 2e-4)
        << "stage " << stage;
  }
}

// ---- what is refused ----

class GpuZeroOnOne : public GpuZero {
 protected:
  int least_gpus() const override { return 1; }
};

TEST_F(GpuZeroOnOne, GroupsThatMoveNoGpuMemoryAreRefused) {
  for (const auto& comm : make_local_group(2)) {  // each rank by itself: it waits for nobody
    auto model = models::Model::create(tiny_model(), 3);
    model->set_device(make_cuda_device(0));
    EXPECT_THAT(
        error_of(Code::kUnsupported, [&] { Engine(dump_json(zero_config(2)), model, comm); }),
        ::testing::AllOf(HasSubstr("2 ranks are to train it over transport \"shm\""),
                         HasSubstr("\"nccl\"")));
  }
}

TEST_F(GpuZero, ModelsInDifferentPlacesAreRefused) {
  const auto refused = [](const std::function<int(int)>& gpu_of, const char* text) {
    run_ranks(
        2,
        [&](const std::shared_ptr<Communicator>& comm) {
          auto model = models::Model::create(tiny_model(), 3);
          const int gpu = gpu_of(comm->rank());
          if (gpu >= 0) model->set_device(make_cuda_device(gpu));
          EXPECT_THAT(
              error_of(Code::kUnsupported, [&] { Engine(dump_json(zero_config(1)), model, comm); }),
              HasSubstr(text));
        },
        nccl_options());
  };
  refused([](int rank) { return rank - 1; },
          "the model of rank 0 is on cpu, that of rank 1 on cuda:0");
  refused([](int) { return 1; }, "the models of ranks 0 and 1 are on one GPU, cuda:1");
}

// Models on the CPU may use the same group: all of it goes over the group below.
TEST_F(GpuZero, ModelsOnTheCpuTrainToo) {
  const Job run{2, zero_config(3, fine()), 2, tiny_model()};
  std::vector<float> weights;
  run_ranks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = make_rank_engine(Where::kCpu, run, comm);
        const Trained mine = train_steps(*engine, 2);
        if (comm->rank() == 0) weights = mine.weights;
      },
      nccl_options());
  EXPECT_TRUE(same_bits(weights, train(Where::kCpu, run).weights));
}

}  // namespace
}  // namespace ds::gpu_zero
