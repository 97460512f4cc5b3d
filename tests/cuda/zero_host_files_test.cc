// Training state in files beside GPUs (offload_optimizer and offload_param of device nvme): what is
// computed is what state in the hosts' memory computes, to the bit; what lies in files is not in
// memory; and what fails is reported, and leaves something to go on with.
#include <gmock/gmock.h>

#include "attached_state.h"
#include "cuda/zero_world.h"
#include "ops/elementwise.h"
#include "unit/optim/file_store.h"

namespace ds::gpu_zero {
namespace {

using ds::testing::FileFactory;
using ::testing::AllOf;
using ::testing::HasSubstr;

const Json kFp32 = Json::object();
const Json kBf16 = {{"bf16", {{"enabled", true}}}};
const Json kSplit = {{"bf16", {{"enabled", true}, {"split_master", true}}}};

// Where the optimizer's state and the weights rest; null: they stay on the GPU.
struct Places {
  const char* optimizer;
  const char* weights = nullptr;
};

Json device(const char* name, const Folder& folder) {
  Json out = {{"device", name}};
  if (name == std::string("nvme")) out["nvme_path"] = folder.path();
  return out;
}

Json placed(int stage, const Places& places, const Folder& folder, const Json& zero,
            const Json& more) {
  Json all = with(fine({{"reduce_scatter", false}, {"sub_group_size", 3000}}), zero);
  all["offload_optimizer"].merge_patch(device(places.optimizer, folder));
  if (places.weights != nullptr) {
    all["offload_param"] =
        with(device(places.weights, folder), {{"max_in_cpu", 0}, {"pin_memory", false}});
  }
  return zero_config(stage, all, more);
}

struct Kind {
  const char* name;
  int stage = 3;
  Places places;
  Json more = Json::object(), zero = Json::object();
  int world = 2;
  std::function<void(models::Model&)> prepare = [](models::Model&) {};
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class HostFiles : public GpuZero, public ::testing::WithParamInterface<Kind> {
 protected:
  int least_gpus() const override { return 1; }
};

// Bytes of state that a rank's process holds in memory.
int64_t state_in_memory(const Engine& engine) {
  const MemoryAccount& account = engine.model()->host()->account();
  return account.now(MemoryTag::kParameters) + account.now(MemoryTag::kGradients) +
         account.now(MemoryTag::kOptimizer);
}

TEST_P(HostFiles, TrainWithTheBitsOfMemory) {
  const Kind& kind = GetParam();
  if (gpus_ < kind.world) GTEST_SKIP() << "needs " << kind.world << " GPUs";
  const Folder folder;
  Trained trained[2];
  int64_t held[2] = {0, 0};
  for (const bool files : {false, true}) {
    const Places memory = {"cpu", kind.places.weights == nullptr ? nullptr : "cpu"};
    // Pageable, so that the process counts it where files are counted.
    Json zero = with(kind.zero, {{"offload_optimizer", {{"pin_memory", false}}}});
    const Places places = files ? kind.places : memory;
    const Job run{kind.world, placed(kind.stage, places, folder, zero, kind.more), 0, tiny_model(),
                  kind.prepare};
    on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator& comm) {
      const zero::StateArrays& arrays = train_state(*engine.model()).arrays();
      const bool state = places.optimizer == std::string("nvme");
      EXPECT_EQ(arrays.flat.gradients.in_memory(), !state);
      EXPECT_EQ((arrays.flat.low_halves ? arrays.flat.low_halves : arrays.flat.masters).in_memory(),
                !state);
      const bool weights = places.weights != nullptr && places.weights == std::string("nvme");
      EXPECT_EQ(arrays.weights().in_memory(), !weights);
      Trained mine = train_steps(engine, 4);
      if (comm.rank() != 0) return;
      trained[files] = std::move(mine);
      held[files] = state_in_memory(engine);
    });
  }
  expect_same(trained[1], trained[0]);
  EXPECT_LT(held[1], held[0]);
}

const Json kTwice = {{"gradient_accumulation_steps", 2}};

INSTANTIATE_TEST_SUITE_P(
    Kinds, HostFiles,
    ::testing::Values(
        Kind{"Fp32", 2, {"nvme"}, {{"gradient_clipping", 0.5}}}, Kind{"Bf16", 1, {"nvme"}, kBf16},
        Kind{"SplitMasters", 2, {"nvme"}, with(kSplit, kTwice)},
        Kind{"Fp16", 3, {"nvme"}, {{"fp16", {{"enabled", true}, {"initial_scale_power", 4}}}}},
        Kind{"Bf16Gradients",
             2,
             {"nvme"},
             with(kBf16, with(kTwice, {{"data_types", {{"grad_accum_dtype", "bf16"}}}}))},
        Kind{"Share", 2, {"nvme"}, kBf16, {{"offload_optimizer", {{"ratio", 0.3}}}}},
        Kind{"States8Bit", 2, {"nvme"}, with(kBf16, {{"optimizer", {{"state_dtype", "int8"}}}})},
        Kind{"Alone", 2, {"nvme"}, with(kBf16, kTwice), Json::object(), 1},
        Kind{"AloneFp32", 1, {"nvme"}, kTwice, Json::object(), 1},
        Kind{"AloneSplit", 2, {"nvme"}, kSplit, Json::object(), 1},
        Kind{"Four", 2, {"nvme"}, kBf16, Json::object(), 4},
        Kind{"WeightsToo", 3, {"nvme", "nvme"}, with(kBf16, kTwice)},
        Kind{"WeightsTooFp32", 3, {"nvme", "nvme"}, {{"gradient_clipping", 0.5}}},
        Kind{"WeightsTooSplit", 3, {"nvme", "nvme"}, kSplit},
        Kind{"WeightsTooAlone", 3, {"nvme", "nvme"}, with(kBf16, kTwice), Json::object(), 1},
        Kind{"WeightsTooAloneFp32", 3, {"nvme", "nvme"}, kFp32, Json::object(), 1},
        Kind{"WeightsInMemory", 3, {"nvme", "cpu"}, kBf16},
        Kind{"WeightsInMemoryFp32", 3, {"nvme", "cpu"}, kTwice},
        Kind{"WeightsInMemorySplit", 3, {"nvme", "cpu"}, kSplit},
        Kind{"WeightsAlone", 3, {"cpu", "nvme"}, with(kBf16, kTwice)},
        Kind{"WeightsAloneSplit", 3, {"cpu", "nvme"}, kSplit},
        Kind{"Fp8", 3, {"nvme", "nvme"}, with(kBf16, {{"fp8", {{"enabled", true}}}})},
        Kind{"Tiles", 3, {"nvme", "nvme"}, kBf16, {{"stage3_tile_size", 400}}},
        Kind{"SecondCopies", 3, {"nvme", "nvme"}, kFp32, {{"zero_hpz_partition_size", 2}}, 4},
        Kind{"ShardGroups",
             3,
             {"nvme", "nvme"},
             kFp32,
             {{"mics_shard_size", 2}, {"mics_hierarchical_params_gather", false}},
             4},
        Kind{"Quantized", 3, {"nvme", "nvme"}, kBf16, {{"zero_quantized_weights", true}}},
        Kind{"Recomputed",
             3,
             {"nvme", "nvme"},
             with(kBf16, {{"activation_checkpointing", {{"enabled", true}}}})},
        Kind{"ZenFlow",
             2,
             {"nvme"},
             kBf16,
             {{"zenflow",
               {{"topk_ratio", 0.3},
                {"update_interval", 2},
                {"select_strategy", "step"},
                {"select_interval", 2},
                {"overlap_step", false}}}}},
        Kind{"ZenFlowBeside",
             2,
             {"nvme"},
             kBf16,
             {{"zenflow",
               {{"topk_ratio", 0.3},
                {"update_interval", 2},
                {"select_strategy", "step"},
                {"select_interval", 2},
                {"overlap_step", true}}}}},
        Kind{"Adapters", 3, {"nvme", "nvme"}, kBf16, Json::object(), 2, add_adapters}),
    [](const auto& one) { return std::string(one.param.name); });

// What is saved does not depend on where state rests, and is loaded everywhere.
TEST_F(GpuZero, FilesOfHostsGoToOtherPlacesAndBack) {
  const Folder files;
  for (const Json& precision : {kFp32, kBf16, kSplit}) {
    SCOPED_TRACE(dump_json(precision));
    const Folder folder;
    const auto config = [&](const Places& places) {
      return placed(3, places, files, Json::object(), precision);
    };
    Trained saved, later;
    on_ranks(Where::kGpus, {2, config({"nvme", "nvme"}), 0, tiny_model(0)},
             [&](Engine& engine, Communicator& comm) {
               for (int i = 0; i < 2; ++i) engine.train_batch();
               engine.save(folder.path("0"), "two");
               Trained mine;
               mine.weights = weights_of(engine);
               mine.states = states_of(engine);
               Trained next = train_steps(engine, 2);
               if (comm.rank() != 0) return;
               saved = std::move(mine);
               later = std::move(next);
             });
    struct Target {
      Where where;
      int world;
      Places places;
    };
    for (const Target& to :
         {Target{Where::kGpus, 2, {"nvme", "nvme"}}, Target{Where::kGpus, 2, {"cpu", "cpu"}},
          Target{Where::kGpus, 2, {"nvme"}}, Target{Where::kGpus, 1, {"nvme", "nvme"}},
          Target{Where::kCpu, 2, {"nvme", "nvme"}}}) {
      on_ranks(to.where, {to.world, config(to.places), 0, tiny_model(0)},
               [&](Engine& engine, Communicator&) {
                 engine.train_batch();
                 engine.load(folder.path("0"), "two");
                 EXPECT_TRUE(same_bits(weights_of(engine), saved.weights));
                 EXPECT_TRUE(same_bits(states_of(engine), saved.states));
                 if (to.where != Where::kGpus || to.world != 2) return;
                 expect_same(train_steps(engine, 2), later);
               });
    }
  }
}

// Values that callers set are those that passes see, and the model keeps all when the engine ends.
TEST_F(GpuZero, FilesOfHostsFollowValuesAndGiveThemBack) {
  const Folder folder;
  const std::string name = "h.1.mlp.c_fc.weight";
  for (const Places& places : {Places{"nvme"}, Places{"nvme", "nvme"}}) {
    for (const Json& precision : {kFp32, kBf16, kSplit}) {
      SCOPED_TRACE(dump_json(precision));
      const Job run{
          1, placed(places.weights == nullptr ? 2 : 3, places, folder, Json::object(), precision)};
      auto model = zero_test::make_rank_model({1, run.config, 0, tiny_model()});
      model->set_device(make_cuda_device(0));
      std::vector<float> last;
      {
        Engine engine(dump_json(run.config), model, nullptr);
        engine.set_dataset(periodic_data(8));
        for (int i = 0; i < 2; ++i) engine.train_batch();
        const nn::ParamId id = model->parameters().find(name);
        Tensor value = Tensor::empty(model->host(), DType::kFloat32, model->parameters()[id].shape,
                                     MemoryTag::kOther);
        std::fill_n(value.data<float>(), value.elements(), 0.5f);
        model->set(name, value);
        EXPECT_TRUE(same_bits(flat(model->get(name)), flat(value)));
        zero::Weights& weights = train_state(*model).weights();
        const Tensor here = copied_to_host(weights.acquire(id), model->host());
        weights.release(id);
        ThreadPool pool(1);
        const OpContext host{model->host(), &pool};
        Tensor wide = host.workspace(DType::kFloat32, here.shape());
        ops::cast(host, here, wide);
        EXPECT_TRUE(same_bits(flat(wide), flat(value)));
        EXPECT_TRUE(engine.train_batch().applied);
        last = weights_of(engine);
      }
      std::vector<float> after;
      for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
        const std::vector<float> one = flat(model->get(model->parameters()[id].name));
        after.insert(after.end(), one.begin(), one.end());
      }
      EXPECT_TRUE(same_bits(after, last));
    }
  }
}

// ---- what fails ----

// Of every array the writes and reads of a step: what fails half way is said, and a load goes on;
// before the update begins the next step is as if nothing had been tried.
TEST_F(GpuZero, AFileThatFailsBesideAGpuIsReportedAndALoadGoesOn) {
  const Folder folder;
  for (const bool weights : {false, true}) {
    Json zero = fine({{"sub_group_size", 3000}, {"offload_optimizer", {{"device", "cpu"}}}});
    if (weights) zero["offload_param"] = {{"device", "cpu"}};
    const Job run{1, zero_config(weights ? 3 : 2, zero, with(kBf16, kTwice)), 0, tiny_model(0)};
    const auto make = [&](const std::shared_ptr<optim::ArrayFactory>& arrays) {
      auto model = zero_test::make_rank_model(run);
      model->set_device(make_cuda_device(0));
      auto engine =
          std::make_unique<Engine>(dump_json(run.config), model, nullptr, ReadOptions{}, arrays);
      engine->set_dataset(periodic_data(8));
      return engine;
    };
    const auto plain = make(nullptr);
    for (int i = 0; i < 3; ++i) plain->train_batch();
    for (const bool late : {false, true}) {
      const auto arrays = std::make_shared<FileFactory>(1000);
      arrays->counts->late = late;
      const auto engine = make(arrays);
      for (int i = 0; i < 2; ++i) engine->train_batch();
      engine->save(folder.path("0"), "two");
      std::vector<const char*> files = {"gradients", "masters", "exp_avg_sq"};
      if (weights) files.push_back("weights");
      for (const char* const file : files) {
        SCOPED_TRACE(str_cat(file, late ? ", late" : ""));
        arrays->counts->fault = [&](const std::string& name, int64_t bytes) {
          return name.starts_with(file) ? std::pair(int64_t{12}, EIO) : std::pair(bytes, 0);
        };
        EXPECT_THAT(
            error_of(Code::kIo, [&] { engine->train_batch(); }),
            AllOf(HasSubstr((arrays->folder() / file).string()), HasSubstr("Input/output error")));
        arrays->counts->fault = {};
        EXPECT_EQ(arrays->counts->mapped, 0);
        engine->load(folder.path("0"), "two");
      }
      engine->train_batch();
      EXPECT_TRUE(same_bits(weights_of(*engine), weights_of(*plain)));
    }
  }
}

// One rank's file fails in the middle of a step: the others learn of it where they next wait for
// that rank, in this step or the next.
TEST_F(GpuZero, AFileOfOneHostEndsTheGroup) {
  const Json cpu = {{"device", "cpu"}};
  const Json zero = fine({{"offload_optimizer", cpu}, {"offload_param", cpu}});
  const Job run{2, zero_config(3, zero, kBf16), 0, tiny_model(0)};
  for (const char* const file : {"gradients", "masters", "weights"}) {
    SCOPED_TRACE(file);
    std::string texts[2];
    run_ranks(
        2,
        [&](const std::shared_ptr<Communicator>& comm) {
          const auto arrays = std::make_shared<FileFactory>(1000);
          const auto model = zero_test::make_rank_model(run);
          model->set_device(make_cuda_device(comm->rank()));
          Engine engine(dump_json(run.config), model, comm, {}, arrays);
          engine.set_dataset(periodic_data(8));
          engine.train_batch();
          if (comm->rank() == 1) {
            arrays->counts->fault = [&](const std::string& name, int64_t bytes) {
              return name.starts_with(file) ? std::pair(int64_t{0}, EIO) : std::pair(bytes, 0);
            };
          }
          const Code code = comm->rank() == 1 ? Code::kIo : Code::kAborted;
          texts[comm->rank()] = error_of(code, [&] {
            for (int i = 0; i < 2; ++i) engine.train_batch();
          });
        },
        options_of(Where::kGpus));
    EXPECT_THAT(texts[1], AllOf(HasSubstr(file), HasSubstr("Input/output error")));
    EXPECT_THAT(texts[0], AllOf(HasSubstr(file), HasSubstr("rank 1")));
  }
}

// An array that cannot be made: the engine is not, and the model trains on.
TEST_F(GpuZero, AnEngineWhoseFilesCannotBeMadeLeavesTheModelAsItWas) {
  for (const Json& precision : {kFp32, kSplit}) {
    const Json zero = fine({{"offload_optimizer", {{"device", "cpu"}}}});
    const Job run{1, zero_config(2, zero, precision), 0, tiny_model(0)};
    const auto trained = [&](const std::shared_ptr<models::Model>& model) {
      Engine engine(dump_json(run.config), model, nullptr);
      engine.set_dataset(periodic_data(8));
      return train_steps(engine, 3);
    };
    const auto make = [&] {
      auto model = zero_test::make_rank_model(run);
      model->set_device(make_cuda_device(0));
      return model;
    };
    const Trained expected = trained(make());
    // Masters, or with them what they are split into; gradients, two states.
    const int64_t count = precision.empty() ? 4 : 6;
    for (int64_t i = 0; i < count; ++i) {
      SCOPED_TRACE(i);
      const auto model = make();
      const auto arrays = std::make_shared<FileFactory>(1000);
      arrays->refused = i;
      EXPECT_THAT(
          error_of(Code::kIo, [&] { Engine(dump_json(run.config), model, nullptr, {}, arrays); }),
          HasSubstr("no room for"));
      EXPECT_TRUE(fs::is_empty(arrays->folder()));
      expect_same(trained(model), expected);
    }
  }
}

}  // namespace
}  // namespace ds::gpu_zero
