// offload_param with device nvme: weights that rest in files are read where they are used, by one
// process and by several, and training has the bits of weights in memory.
#include <gmock/gmock.h>

#include "attached_state.h"
#include "models/adapters.h"
#include "own_world.h"
#include "stored_jobs.h"

namespace ds::zero_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Of parameters so small that most would stay gathered, none does.
Job stage_3(int world, const Json& more = Json::object()) {
  Job out = job(world, 3, more);
  out.config["zero_optimization"].merge_patch({{"stage3_param_persistence_threshold", 40},
                                               {"stage3_max_live_parameters", 60'000},
                                               {"stage3_prefetch_bucket_size", 20'000}});
  return out;
}

Job with_weights_in_files(Job of, const Folder& folder, int64_t max_in_cpu = 0) {
  of.config["zero_optimization"]["offload_param"] = {
      {"device", "nvme"}, {"nvme_path", folder.path()}, {"max_in_cpu", max_in_cpu}};
  return of;
}

class WeightFilesKinds : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, WeightFilesKinds, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(WeightFilesKinds, TrainWithTheBitsOfMemory) {
  const Folder folder;
  const Json& more = GetParam().more;
  const Trained one = train(stage_3(1, more));
  const Trained two = train(stage_3(2, more));
  expect_same(train(with_weights_in_files(stage_3(1, more), folder)), one);
  expect_same(train(with_weights_in_files(stage_3(2, more), folder)), two);
  // With everything else in files, too, and some of the weights in memory.
  for (const int64_t in_memory : {int64_t{0}, int64_t{50'001}, int64_t{1'000'000'000}}) {
    SCOPED_TRACE(in_memory);
    expect_same(train(with_weights_in_files(in_files(stage_3(1, more), folder), folder, in_memory)),
                one);
  }
  expect_same(train(with_weights_in_files(in_files(stage_3(2, more), folder, false), folder)), two);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "files have names";
}

TEST(WeightFiles, MastersInTheWeightsTypeAreWeightsInFiles) {
  const Folder folder;
  const Json rounded = {{"bf16",
                         {{"enabled", true},
                          {"bf16_master_weights_and_grads", true},
                          {"bf16_optimizer_states", true}}},
                        {"data_types", {{"grad_accum_dtype", "bf16"}}}};
  for (const int world : {1, 2}) {
    SCOPED_TRACE(world);
    const Trained plain = train(stage_3(world, rounded));
    expect_same(train(with_weights_in_files(stage_3(world, rounded), folder)), plain);
    expect_same(train(with_weights_in_files(in_files(stage_3(world, rounded), folder), folder)),
                plain);
  }
}

// hpZ, quantised gathers, tiles: what ranks exchange does not depend on where their pieces rest.
TEST(WeightFiles, EveryWayOfGatheringReadsThem) {
  const Folder folder;
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  for (const Json& zero :
       {Json{{"zero_hpz_partition_size", 2}}, Json{{"zero_quantized_weights", true}},
        Json{{"stage3_tile_size", 4000}}, Json{{"mics_shard_size", 2}},
        Json{{"stage3_prefetch_bucket_size", 0}}}) {
    SCOPED_TRACE(dump_json(zero));
    for (const int world : {2, 4}) {
      Job plain = stage_3(world, bf16);
      plain.config["zero_optimization"].merge_patch(zero);
      expect_same(train(with_weights_in_files(plain, folder)), train(plain));
    }
  }
}

TEST(WeightFiles, TilesOfOneRankAreReadOneByOne) {
  const Folder folder;
  const Json bf16 = {{"bf16", {{"enabled", true}}}, {"gradient_accumulation_steps", 1}};
  Job tiled = with_weights_in_files(stage_3(1, bf16), folder);
  tiled.config["zero_optimization"]["stage3_tile_size"] = 4000;
  expect_same(train(tiled), train(stage_3(1, bf16)));
}

// Adapters beside a base that is frozen: what is never updated is read all the same.
TEST(WeightFiles, AFrozenBaseWithAdaptersTrains) {
  const Folder folder;
  for (const int world : {1, 2}) {
    for (const bool quantized : {false, true}) {
      SCOPED_TRACE(str_cat("world ", world, ", codes ", quantized));
      Job plain = stage_3(world, {{"bf16", {{"enabled", true}}}});
      if (world == 2) {
        plain.config["zero_optimization"]["zero_quantized_nontrainable_weights"] = quantized;
      }
      plain.prepare = [](models::Model& model) {
        models::LoraOptions lora;
        lora.r = 3;
        lora.target_modules = {"all-linear"};
        lora.seed = 5;
        models::add_lora(model, lora);
      };
      expect_same(train(with_weights_in_files(in_files(plain, folder), folder)), train(plain));
    }
  }
}

// A program's own parameters, some of them in fp32 beside others in bf16.
TEST(WeightFiles, AProgramsOwnParametersTrainWithTheBitsOfMemory) {
  const Folder folder;
  for (const int world : {1, 2}) {
    for (const int accumulation : {1, 2}) {
      SCOPED_TRACE(str_cat("world ", world, ", accumulation ", accumulation));
      OwnJob plain{world, own_config(3,
                                     {{"reduce_bucket_size", 900},
                                      {"stage3_param_persistence_threshold", 0},
                                      {"stage3_max_live_parameters", 2500},
                                      {"stage3_prefetch_bucket_size", 1500}},
                                     {{"bf16", {{"enabled", true}}},
                                      {"gradient_accumulation_steps", accumulation}})};
      plain.change = [](nn::Parameter& p) {
        p.dtype = p.name.ends_with(".bias") ? DType::kFloat32 : DType::kBFloat16;
        return true;
      };
      OwnJob stored = plain;
      stored.config["zero_optimization"]["offload_param"] = {
          {"device", "nvme"}, {"nvme_path", folder.path()}, {"max_in_cpu", 0}};
      const Trained expected = train_own(plain), found = train_own(stored);
      EXPECT_TRUE(same_bits(found.weights, expected.weights));
      EXPECT_EQ(found.norms, expected.norms);
    }
  }
}

// Whole values for a scope, the rank's parts, states, and an evaluation between steps.
TEST(WeightFiles, ValuesAreReadAndSetBetweenSteps) {
  const Folder folder;
  const auto run = [&](bool stored) {
    Job job = stage_3(1, {{"bf16", {{"enabled", true}, {"split_master", true}}}});
    if (stored) job = with_weights_in_files(in_files(job, folder), folder);
    auto engine = make_rank_engine(job, nullptr);
    engine->train_batch();
    std::vector<double> seen = {engine->evaluate(*periodic_data(), 1)};
    const nn::ParameterSet& set = engine->model()->parameters();
    const int64_t ids[] = {set.find("h.1.mlp.c_fc.weight")};
    const Tensor value = engine->scopes().gather(ids)[0];
    for (int64_t i = 0; i < value.elements(); ++i) value.data<float>()[i] += 0.125f;
    engine->scopes().scatter(ids, 0);
    const std::string name = "h.0.attn.c_attn.weight";
    const Tensor part = engine->values().local(name, "parameter");
    for (int64_t i = 0; i < part.elements(); ++i) part.data<float>()[i] *= 1.5f;
    engine->values().set_local(name, "parameter", part);
    engine->model()->set("ln_f.bias", engine->model()->get("ln_f.bias"));
    seen.push_back(engine->evaluate(*periodic_data(), 1));
    const StepReport report = engine->train_batch();
    seen.insert(seen.end(), {report.loss, report.grad_norm});
    const std::vector<float> moment = flat(engine->values().optimizer_state(name, "exp_avg"));
    seen.insert(seen.end(), moment.begin(), moment.end());
    const std::vector<float> weights = all_weights(*engine);
    seen.insert(seen.end(), weights.begin(), weights.end());
    return seen;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(WeightFiles, CheckpointsGoOnFromAnyPlaceToAnyOther) {
  const Folder files;
  const Json bf16 = {{"bf16", {{"enabled", true}, {"split_master", true}}}};
  const Job places[] = {stage_3(1, bf16), with_weights_in_files(stage_3(1, bf16), files),
                        with_weights_in_files(in_files(stage_3(1, bf16), files), files, 50'001)};
  std::vector<std::vector<float>> ends;
  for (const Job& from : places) {
    const Folder checkpoints;
    auto engine = make_rank_engine(from, nullptr);
    engine->train_batch();
    engine->save(checkpoints.path(), "one");
    for (const Job& to : places) {
      auto other = make_rank_engine(to, nullptr);
      other->load(checkpoints.path(), "one");
      other->train_batch();
      ends.push_back(all_weights(*other));
    }
  }
  for (const std::vector<float>& end : ends) EXPECT_TRUE(same_bits(end, ends.front()));
}

// What lies in memory between steps and while they run.
TEST(WeightFiles, MemoryIsForWhatIsUsed) {
  const Folder folder;
  const Job stored =
      with_weights_in_files(in_files(stage_3(1, {{"bf16", {{"enabled", true}}}}), folder), folder);
  auto engine = make_rank_engine(stored, nullptr);
  const MemoryAccount& account = engine->model()->device()->account();
  engine->train_batch();
  const int64_t elements = train_state(*engine->model()).layout().flat().elements();
  EXPECT_EQ(account.now(MemoryTag::kParameters), 0);
  EXPECT_EQ(account.now(MemoryTag::kGradients), 0);
  EXPECT_EQ(account.now(MemoryTag::kOptimizer), 0);
  // The largest parameter and what may be gathered beside it, not the model.
  EXPECT_LT(account.peak(MemoryTag::kCommunication), 4 * elements);
  const Json& zero = stored.config["zero_optimization"];
  EXPECT_LT(zero["stage3_max_live_parameters"].get<int64_t>(), elements);
}

// The end of training leaves the model with its weights, in memory again.
TEST(WeightFiles, TheModelHasItsWeightsAfterTheEngine) {
  const Folder folder;
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  const auto end = [&](const Job& run) {
    auto engine = make_rank_engine(run, nullptr);
    engine->train_batch();
    const std::shared_ptr<models::Model> model = engine->model();
    engine.reset();
    EXPECT_TRUE(model->weights().whole());
    Engine again(dump_json(job(1, 0).config), model, nullptr, {});
    return all_weights(again);
  };
  EXPECT_TRUE(
      same_bits(end(with_weights_in_files(stage_3(1, bf16), folder)), end(stage_3(1, bf16))));
}

TEST(WeightFiles, AFolderThatIsNotThereIsNamed) {
  const Folder folder;
  Job nowhere = with_weights_in_files(stage_3(1, {{"bf16", {{"enabled", true}}}}), folder);
  nowhere.config["zero_optimization"]["offload_param"]["nvme_path"] = "/dev/null/weights";
  try {
    make_rank_engine(nowhere, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("/dev/null/weights"), HasSubstr("offload_param.nvme_path")));
  }
}

// What cannot be written ends the step with an error that names the file; a load goes on.
TEST(WeightFiles, AFailedWriteEndsTheStepAndALoadGoesOn) {
  const Folder folder, checkpoints;
  const Job stored = with_weights_in_files(stage_3(1, {{"bf16", {{"enabled", true}}}}), folder);
  auto engine = make_rank_engine(stored, nullptr);
  engine->train_batch();
  engine->save(checkpoints.path(), "good");
  const std::vector<float> good = all_weights(*engine);
  const std::string message = error_of_full_files([&] { engine->train_batch(); });
  EXPECT_THAT(message, AllOf(HasSubstr(folder.path()), HasSubstr("weights")));
  engine->load(checkpoints.path(), "good");
  EXPECT_TRUE(same_bits(all_weights(*engine), good));
  engine->train_batch();
}

}  // namespace
}  // namespace ds::zero_test
