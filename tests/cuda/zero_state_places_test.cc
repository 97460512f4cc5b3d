// Training state in files beside GPUs (offload_optimizer and offload_param of device nvme), and
// state that a GPU shares with its host (Twin-Flow, a ratio below 1): what is computed is what
// state in the hosts' memory computes, to the bit; what lies elsewhere is not in that memory; and
// what fails is reported, and leaves something to go on with.
#include <gmock/gmock.h>

#include "attached_state.h"
#include "cuda/zero_world.h"
#include "fresh_seed.h"
#include "full_run.h"
#include "ops/elementwise.h"
#include "unit/optim/file_store.h"

namespace ds::gpu_zero {
namespace {

using ds::testing::FileFactory;
using ds::testing::in_sample;
using ::testing::AllOf;
using ::testing::HasSubstr;

const Json kFp32 = Json::object();

// Where the optimizer's state and the weights rest; null: they stay on the GPU. Of the state the
// share that rests there; beside memory the rest stays on the GPU, beside files in memory.
struct Places {
  const char* optimizer;
  const char* weights = nullptr;
  double share = 1;
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
  if (places.share < 1) all["offload_optimizer"]["ratio"] = places.share;
  if (places.weights != nullptr) {
    all["offload_param"] =
        with(device(places.weights, folder), {{"max_in_cpu", 0}, {"pin_memory", false}});
  }
  return zero_config(stage, all, more);
}

struct PlacesKind {
  const char* name;
  int stage = 3;
  Places places;
  Json more = Json::object(), zero = Json::object();
  int world = 2;
  std::function<void(models::Model&)> prepare = [](models::Model&) {};
};
void PrintTo(const PlacesKind& kind, std::ostream* out) { *out << kind.name; }

class StatePlaces : public GpuZero, public ::testing::WithParamInterface<PlacesKind> {
 protected:
  int least_gpus() const override { return 1; }
  // Against the same in the hosts' memory.
  void compare(const PlacesKind& kind) const;
};
class HostFiles : public StatePlaces {};
class TwinFlow : public StatePlaces {};

// Bytes of state that a rank's process holds in memory.
int64_t state_in_memory(const Engine& engine) {
  const MemoryAccount& account = engine.model()->host()->account();
  return account.now(MemoryTag::kParameters) + account.now(MemoryTag::kGradients) +
         account.now(MemoryTag::kOptimizer);
}

// Whether a share of an array lies on the GPU and the rest on the host, or all in one place.
bool is_shared(const StoredArray& array) {
  return array.device_elements() > 0 && array.device_elements() < array.elements();
}

void StatePlaces::compare(const PlacesKind& kind) const {
  if (gpus_ < kind.world) GTEST_SKIP() << "needs " << kind.world << " GPUs";
  const Folder folder;
  Trained trained[2];
  int64_t held[2] = {0, 0};
  for (const bool elsewhere : {false, true}) {
    const Places memory = {"cpu", kind.places.weights == nullptr ? nullptr : "cpu"};
    // Pageable, so that the process counts it where files are counted.
    const Json pageable = {{"offload_optimizer", {{"pin_memory", false}}}};
    const Json zero = with(pageable, kind.zero);
    const Places places = elsewhere ? kind.places : memory;
    const Job run{kind.world, placed(kind.stage, places, folder, zero, kind.more), 0, tiny_model(),
                  kind.prepare};
    on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator& comm) {
      const zero::StateArrays& arrays = train_state(*engine.model()).arrays();
      const bool state_in_files = places.optimizer == std::string("nvme");
      const bool shared = places.share < 1 && !state_in_files;
      const optim::FlatTensor& masters =
          arrays.flat.low_halves ? arrays.flat.low_halves : arrays.flat.masters;
      for (const optim::FlatTensor* const array : {&arrays.flat.gradients, &masters}) {
        EXPECT_EQ(array->in_memory(), !state_in_files && !shared);
        EXPECT_EQ(is_shared(*array), shared);
      }
      const bool weights = places.weights != nullptr && places.weights == std::string("nvme");
      EXPECT_EQ(arrays.weights().in_memory(), !weights);
      Trained mine = train_steps(engine, 4);
      if (comm.rank() != 0) return;
      trained[elsewhere] = std::move(mine);
      held[elsewhere] = state_in_memory(engine);
    });
  }
  expect_same(trained[1], trained[0]);
  EXPECT_LT(held[1], held[0]);
}

TEST_P(HostFiles, TrainWithTheBitsOfMemory) { compare(GetParam()); }
TEST_P(TwinFlow, TrainsWithTheBitsOfTheHost) { compare(GetParam()); }

const Json kTwice = {{"gradient_accumulation_steps", 2}};
const Json kThrice = {{"gradient_accumulation_steps", 3}};
const Json kAhead = {{"offload_optimizer", {{"pipeline_read", true}, {"pipeline_write", true}}}};

INSTANTIATE_TEST_SUITE_P(
    Kinds, HostFiles,
    ::testing::Values(
        PlacesKind{"Fp32", 2, {"nvme"}, {{"gradient_clipping", 0.5}}},
        PlacesKind{"Bf16", 1, {"nvme"}, kBf16},
        PlacesKind{"SplitMasters", 2, {"nvme"}, with(kSplit, kTwice)},
        PlacesKind{
            "Fp16", 3, {"nvme"}, {{"fp16", {{"enabled", true}, {"initial_scale_power", 4}}}}},
        PlacesKind{"Bf16Gradients",
                   2,
                   {"nvme"},
                   with(kBf16, with(kTwice, {{"data_types", {{"grad_accum_dtype", "bf16"}}}}))},
        PlacesKind{"Share", 2, {"nvme", nullptr, 0.3}, kBf16},
        PlacesKind{
            "States8Bit", 2, {"nvme"}, with(kBf16, {{"optimizer", {{"state_dtype", "int8"}}}})},
        PlacesKind{"Alone", 2, {"nvme"}, with(kBf16, kTwice), Json::object(), 1},
        PlacesKind{"ReadAhead", 2, {"nvme"}, with(kBf16, kThrice), kAhead},
        PlacesKind{"ReadAheadAlone", 2, {"nvme"}, with(kSplit, kThrice), kAhead, 1},
        PlacesKind{"AloneFp32", 1, {"nvme"}, kTwice, Json::object(), 1},
        PlacesKind{"AloneSplit", 2, {"nvme"}, kSplit, Json::object(), 1},
        PlacesKind{"Four", 2, {"nvme"}, kBf16, Json::object(), 4},
        PlacesKind{"WeightsToo", 3, {"nvme", "nvme"}, with(kBf16, kTwice)},
        PlacesKind{"WeightsTooFp32", 3, {"nvme", "nvme"}, {{"gradient_clipping", 0.5}}},
        PlacesKind{"WeightsTooSplit", 3, {"nvme", "nvme"}, kSplit},
        PlacesKind{"WeightsTooAlone", 3, {"nvme", "nvme"}, with(kBf16, kTwice), Json::object(), 1},
        PlacesKind{"WeightsTooAloneFp32", 3, {"nvme", "nvme"}, kFp32, Json::object(), 1},
        PlacesKind{"WeightsInMemory", 3, {"nvme", "cpu"}, kBf16},
        PlacesKind{"WeightsInMemoryFp32", 3, {"nvme", "cpu"}, kTwice},
        PlacesKind{"WeightsInMemorySplit", 3, {"nvme", "cpu"}, kSplit},
        PlacesKind{"WeightsAlone", 3, {"cpu", "nvme"}, with(kBf16, kTwice)},
        PlacesKind{"WeightsAloneSplit", 3, {"cpu", "nvme"}, kSplit},
        PlacesKind{"Fp8", 3, {"nvme", "nvme"}, with(kBf16, {{"fp8", {{"enabled", true}}}})},
        PlacesKind{"Tiles", 3, {"nvme", "nvme"}, kBf16, {{"stage3_tile_size", 400}}},
        PlacesKind{"SecondCopies", 3, {"nvme", "nvme"}, kFp32, {{"zero_hpz_partition_size", 2}}, 4},
        PlacesKind{"ShardGroups",
                   3,
                   {"nvme", "nvme"},
                   kFp32,
                   {{"mics_shard_size", 2}, {"mics_hierarchical_params_gather", false}},
                   4},
        PlacesKind{"Quantized", 3, {"nvme", "nvme"}, kBf16, {{"zero_quantized_weights", true}}},
        PlacesKind{"Recomputed",
                   3,
                   {"nvme", "nvme"},
                   with(kBf16, {{"activation_checkpointing", {{"enabled", true}}}})},
        PlacesKind{"ZenFlow",
                   2,
                   {"nvme"},
                   kBf16,
                   {{"zenflow",
                     {{"topk_ratio", 0.3},
                      {"update_interval", 2},
                      {"select_strategy", "step"},
                      {"select_interval", 2},
                      {"overlap_step", false}}}}},
        PlacesKind{"ZenFlowBeside",
                   2,
                   {"nvme"},
                   kBf16,
                   {{"zenflow",
                     {{"topk_ratio", 0.3},
                      {"update_interval", 2},
                      {"select_strategy", "step"},
                      {"select_interval", 2},
                      {"overlap_step", true}}}}},
        PlacesKind{"Adapters", 3, {"nvme", "nvme"}, kBf16, Json::object(), 2, add_adapters}),
    [](const auto& one) { return std::string(one.param.name); });

// A rule that divides nowhere has the same bits on a GPU as on the host.
Json lion(const Json& more, const Json& zero = Json::object()) {
  Json optimizer = {{"type", "Lion"}, {"params", {{"lr", 1e-2}, {"weight_decay", 0.1}}}};
  optimizer.merge_patch(zero);
  return with(with(more, {{"zero_allow_untested_optimizer", true}}), {{"optimizer", optimizer}});
}

constexpr Places kHalf = {"cpu", nullptr, 0.5}, kHalfAndWeights = {"cpu", "cpu", 0.5};

INSTANTIATE_TEST_SUITE_P(
    Kinds, TwinFlow,
    ::testing::Values(
        PlacesKind{"Fp32", 2, kHalf, lion({{"gradient_clipping", 0.5}})},
        PlacesKind{"Bf16", 1, {"cpu", nullptr, 0.3}, lion(kBf16)},
        PlacesKind{"SplitMasters", 2, kHalf, lion(with(kSplit, kTwice))},
        PlacesKind{"Fp16", 3, kHalf,
                   lion({{"fp16", {{"enabled", true}, {"initial_scale_power", 4}}}})},
        PlacesKind{
            "Bf16Gradients",
            2,
            {"cpu", nullptr, 0.7},
            lion(with(kBf16, with(kTwice, {{"data_types", {{"grad_accum_dtype", "bf16"}}}})))},
        PlacesKind{"States8Bit", 2, kHalf, lion(kBf16, {{"state_dtype", "int8"}})},
        PlacesKind{"StatesBf16", 2, kHalf, lion(kBf16, {{"state_dtype", "bf16"}})},
        PlacesKind{"Alone", 2, {"cpu", nullptr, 0.4}, lion(with(kBf16, kTwice)), Json::object(), 1},
        PlacesKind{"AloneFp32", 1, {"cpu", nullptr, 0.4}, lion(kTwice), Json::object(), 1},
        PlacesKind{"AloneSplit", 2, {"cpu", nullptr, 0.4}, lion(kSplit), Json::object(), 1},
        PlacesKind{"Four", 2, kHalf, lion(kBf16), Json::object(), 4},
        PlacesKind{"LargeParts", 2, kHalf, lion(kBf16), {{"sub_group_size", 1000000}}, 1},
        PlacesKind{"WeightsToo", 3, kHalfAndWeights, lion(with(kBf16, kTwice))},
        PlacesKind{"WeightsTooFp32", 3, kHalfAndWeights, lion(kFp32)},
        PlacesKind{"WeightsTooSplit", 3, kHalfAndWeights, lion(kSplit)},
        PlacesKind{"WeightsInFiles", 3, {"cpu", "nvme", 0.5}, lion(kBf16)},
        PlacesKind{"WeightsInFilesSplit", 3, {"cpu", "nvme", 0.5}, lion(kSplit)},
        PlacesKind{"Fp8", 3, kHalf, lion(with(kBf16, {{"fp8", {{"enabled", true}}}}))},
        PlacesKind{"Tiles", 3, kHalf, lion(kBf16), {{"stage3_tile_size", 400}}},
        PlacesKind{"SecondCopies", 3, kHalf, lion(kFp32), {{"zero_hpz_partition_size", 2}}, 4},
        PlacesKind{"ShardGroups",
                   3,
                   kHalf,
                   lion(kFp32),
                   {{"mics_shard_size", 2}, {"mics_hierarchical_params_gather", false}},
                   4},
        PlacesKind{"Adapters", 3, kHalf, lion(kBf16), Json::object(), 2, add_adapters}),
    [](const auto& one) { return std::string(one.param.name); });

// Of the same gradients each element of a rule that divides has the bits of where it is updated.
// They differ where the host estimates reciprocals (AVX-512); elsewhere no place can be told from
// the other.
TEST_F(GpuZero, OfTwinFlowEachPlaceUpdatesItsElements) {
  const Folder none;
  const uint64_t seed = ds::fresh_seed();
  const auto train = [&](const Places* places, const Json& more) {
    Trained out;
    const Json config = places == nullptr ? zero_config(2, fine({{"reduce_scatter", false}}), more)
                                          : placed(2, *places, none, Json::object(), more);
    on_ranks(Where::kGpus, {2, config, 0, tiny_model()}, [&](Engine& engine, Communicator& comm) {
      std::mt19937_64 random(seed);
      const nn::ParameterSet& parameters = engine.model()->parameters();
      for (int step = 0; step < 3; ++step) {
        for (nn::ParamId id = 0; id < parameters.size(); ++id) {
          engine.gradients().set(parameters[id].name, random_tensor(random, parameters[id].shape));
        }
        EXPECT_TRUE(engine.step().applied);
      }
      Trained mine;
      mine.weights = weights_of(engine);
      mine.states = states_of(engine);
      if (comm.rank() == 0) out = std::move(mine);
    });
    return out;
  };
  const Json clipped = {{"gradient_clipping", 0.5}};
  bool places_differ = false;
  for (const Json& more :
       {clipped, kBf16, kSplit, with(kBf16, {{"optimizer", {{"state_dtype", "bf16"}}}}),
        Json{{"optimizer", {{"type", "Adagrad"}, {"params", {{"lr", 1e-2}}}}},
             {"zero_allow_untested_optimizer", true}}}) {
    SCOPED_TRACE(str_cat(dump_json(more), ", seed ", seed));
    const Places whole = {"cpu"};
    const Trained both = train(&kHalf, more), host = train(&whole, more),
                  gpu = train(nullptr, more);
    const auto compare = [](const std::vector<float>& x, const std::vector<float>& on_host,
                            const std::vector<float>& on_gpu) {
      int64_t neither = 0, of_host = 0, of_gpu = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const bool h = same_bits({x[i]}, {on_host[i]}), g = same_bits({x[i]}, {on_gpu[i]});
        neither += !h && !g;
        of_host += h && !g;
        of_gpu += g && !h;
      }
      EXPECT_EQ(neither, 0);
      return std::min(of_host, of_gpu);
    };
    const int64_t of_the_rarer_place = compare(both.weights, host.weights, gpu.weights);
    compare(both.states, host.states, gpu.states);
    if (same_bits(host.weights, gpu.weights)) continue;
    places_differ = true;
    EXPECT_GT(of_the_rarer_place, 0);
  }
  if (!places_differ) GTEST_SKIP() << "the updates of this CPU have the bits of the GPU's";
}

// Its ratios are of whole tensors, wherever their elements lie.
TEST_F(GpuZero, LambSharesItsStateWithTheHost) {
  const Folder none;
  const Json lamb = {{"optimizer", {{"type", "Lamb"}, {"params", {{"lr", 1e-2}}}}},
                     {"zero_allow_untested_optimizer", true}};
  for (const Json& precision : {kFp32, kBf16}) {
    const auto config = [&](const Places& places) {
      return placed(2, places, none, Json::object(), with(precision, lamb));
    };
    const Trained host = train(Where::kGpus, {2, config({"cpu"}), 4, tiny_model()});
    const Trained both = train(Where::kGpus, {2, config(kHalf), 4, tiny_model()});
    expect_near(both, host, 1e-5, 1e-5);
  }
}

// What is saved does not depend on where state rests, and is loaded everywhere.
TEST_F(GpuZero, StateOfHostsGoesToOtherPlacesAndBack) {
  const Folder files;
  const Json precisions[] = {kFp32, kBf16, kSplit};
  const Places starts[] = {{"nvme", "nvme"}, {"cpu", nullptr, 0.5}};
  for (int turn = 0; turn < 6; ++turn) {
    const Json& precision = precisions[turn / 2];
    const Places& from = starts[turn % 2];
    SCOPED_TRACE(str_cat(dump_json(precision), " from ", from.optimizer));
    const Folder folder;
    const auto config = [&](const Places& places) {
      return placed(3, places, files, Json::object(), precision);
    };
    Trained saved, later;
    on_ranks(Where::kGpus, {2, config(from), 0, tiny_model(0)},
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
    int index = 0;
    for (const Target& to :
         {Target{Where::kGpus, 2, {"nvme", "nvme"}}, Target{Where::kGpus, 2, {"cpu", "cpu"}},
          Target{Where::kGpus, 2, {"nvme"}}, Target{Where::kGpus, 1, {"nvme", "nvme"}},
          Target{Where::kCpu, 2, {"nvme", "nvme"}}, Target{Where::kGpus, 2, {"cpu", nullptr, 0.5}},
          Target{Where::kGpus, 1, {"cpu", "cpu", 0.4}}}) {
      if (!in_sample(turn % 2 + turn / 2 + index++)) continue;
      on_ranks(to.where, {to.world, config(to.places), 0, tiny_model(0)},
               [&](Engine& engine, Communicator&) {
                 engine.train_batch();
                 engine.load(folder.path("0"), "two");
                 EXPECT_TRUE(same_bits(weights_of(engine), saved.weights));
                 EXPECT_TRUE(same_bits(states_of(engine), saved.states));
                 const bool alike = (to.places.share < 1) == (from.share < 1);  // the same updates
                 if (to.where != Where::kGpus || to.world != 2 || !alike) return;
                 expect_same(train_steps(engine, 2), later);
               });
    }
  }
}

// Values that callers set are those that passes see, and the model keeps all when the engine ends.
TEST_F(GpuZero, StateOfHostsFollowsValuesAndGivesThemBack) {
  const Folder folder;
  const std::string name = "h.1.mlp.c_fc.weight";
  for (const Places& places :
       {Places{"nvme"}, Places{"nvme", "nvme"}, Places{"cpu", nullptr, 0.5}}) {
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
