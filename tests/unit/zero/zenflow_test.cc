// ZenFlow in whole engines: the same bits at every stage, over one and two ranks, in memory and in
// files; as plain training where nothing waits; saved and gone on with anywhere; and what users
// see of it.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "fresh_seed.h"
#include "models/adapters.h"
#include "models/lora.h"
#include "stored_jobs.h"

namespace ds::zero_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Json flow(const Json& more = Json::object()) {
  return with({{"topk_ratio", 0.2},
               {"update_interval", 3},
               {"select_strategy", "step"},
               {"select_interval", 4}},
              more);
}

// Of two micro batches a step, in memory.
Job zenflow_job(int world, int stage, const Json& zenflow, const Json& more = Json::object()) {
  Job out = job(world, stage, more);
  out.config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
  if (!zenflow.is_null()) out.config["zero_optimization"]["zenflow"] = zenflow;
  out.steps = 7;
  return out;
}

const Kind kPrecisions[] = {
    {"Fp32", {{"gradient_clipping", 0.5}}},
    {"Bf16", {{"bf16", {{"enabled", true}}}}},
    {"Split", {{"bf16", {{"enabled", true}, {"split_master", true}}}}},
    {"Rounded", {{"bf16", {{"enabled", true}, {"bf16_master_weights_and_grads", true}}}}},
    {"Bf16States", {{"bf16", {{"enabled", true}}}, {"optimizer", {{"state_dtype", "bf16"}}}}},
    {"Fp16", {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}}},
};

class ZenFlowJobs : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Precisions, ZenFlowJobs, ::testing::ValuesIn(kPrecisions),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(ZenFlowJobs, HaveTheSameBitsAtEveryStageAndInFiles) {
  const Json& more = GetParam().more;
  const Folder folder;
  for (const bool overlap : {false, true}) {
    const Json zenflow = flow({{"overlap_step", overlap}});
    const Trained one = train(zenflow_job(1, 1, zenflow, more));
    const Trained two = train(zenflow_job(2, 1, zenflow, more));
    EXPECT_FALSE(same_bits(one.weights, train(zenflow_job(1, 1, nullptr, more)).weights));
    for (int stage = 1; stage <= 3; ++stage) {
      SCOPED_TRACE(str_cat("overlap ", overlap, ", stage ", stage));
      if (stage > 1) expect_same(train(zenflow_job(2, stage, zenflow, more)), two);
      // Rounded masters are the weights, which rest with the optimizer's state on the host alone.
      if (GetParam().name == std::string("Rounded")) continue;
      expect_same(train(in_files(zenflow_job(2, stage, zenflow, more), folder)), two);
      expect_same(train(in_files(zenflow_job(1, stage, zenflow, more), folder)), one);
    }
  }
}

TEST_P(ZenFlowJobs, ArePlainTrainingWhereNothingWaits) {
  const Json& more = GetParam().more;
  const Trained plain = train(zenflow_job(2, 2, nullptr, more));
  expect_same(train(zenflow_job(2, 2, flow({{"topk_ratio", 1}}), more)), plain);
  expect_same(
      train(zenflow_job(2, 3, flow({{"update_interval", 1}, {"select_interval", 2}}), more)),
      plain);
  expect_same(train(zenflow_job(2, 2, flow({{"full_warm_up_rounds", 100}}), more)), plain);
}

// From equal gradients, which every rank sets.
TEST(ZenFlow, TwoRanksChooseWhatOneDoes) {
  const uint64_t seed = ds::fresh_seed();
  const auto trained = [&](int world, int stage, const Json& zenflow, const Json& zero = {}) {
    Job job = zenflow_job(world, stage, zenflow, {{"gradient_accumulation_steps", 1}});
    if (!zero.is_null()) job.config["zero_optimization"].merge_patch(zero);
    std::vector<float> out;
    run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(job, comm);
      const nn::ParameterSet& parameters = engine->model()->parameters();
      std::mt19937_64 random(seed);
      std::normal_distribution<float> normal;
      for (int step = 0; step < 9; ++step) {
        for (nn::ParamId id = 0; id < parameters.size(); ++id) {
          const Tensor value = Tensor::empty(engine->model()->device(), DType::kFloat32,
                                             parameters[id].shape, MemoryTag::kOther);
          std::generate_n(value.data<float>(), value.elements(), [&] { return normal(random); });
          engine->gradients().set(parameters[id].name, value);
        }
        engine->step();
      }
      const std::vector<float> weights = all_weights(*engine);
      if (comm->rank() == 0) out = weights;
    });
    return out;
  };
  for (const Json& zenflow :
       {flow(), flow({{"update_interval", "auto"}}), flow({{"overlap_step", true}})}) {
    const std::vector<float> one = trained(1, 1, zenflow);
    for (int stage = 1; stage <= 3; ++stage) {
      EXPECT_TRUE(same_bits(trained(stage == 1 ? 3 : 2, stage, zenflow), one))
          << dump_json(zenflow) << ", stage " << stage << ", seed " << seed;
    }
    for (const char* groups : {"mics_shard_size", "zero_hpz_partition_size"}) {
      EXPECT_TRUE(same_bits(trained(4, 3, zenflow, {{groups, 2}}), one))
          << dump_json(zenflow) << ", " << groups << ", seed " << seed;
    }
  }
}

TEST(ZenFlow, WeightsInFilesTrainToo) {
  const Folder folder;
  for (const Kind& kind : {kPrecisions[0], kPrecisions[1], kPrecisions[2]}) {
    SCOPED_TRACE(kind.name);
    Job stored = in_files(zenflow_job(2, 3, flow(), kind.more), folder);
    stored.config["zero_optimization"]["offload_param"] = {
        {"device", "nvme"}, {"nvme_path", folder.path()}, {"max_in_cpu", 1000}};
    expect_same(train(stored), train(zenflow_job(2, 3, flow(), kind.more)));
    stored.config["zero_optimization"]["zenflow"]["overlap_step"] = true;
    if (kind.name == std::string("Bf16")) {
      expect_same(train(stored),
                  train(zenflow_job(2, 3, flow({{"overlap_step", true}}), kind.more)));
    } else {
      EXPECT_THAT(error_of(Code::kUnsupported, [&] { train(stored); }),
                  AllOf(HasSubstr("overlap_step"), HasSubstr("one file")));
    }
  }
}

TEST(ZenFlow, AdaptersTrainToo) {
  const auto adapted = [](int world, int stage) {
    Job out = zenflow_job(world, stage, flow({{"topk_ratio", 0.5}}));
    out.prepare = [](models::Model& model) {
      models::LoraOptions lora;
      lora.r = 3;
      lora.target_modules = {"all-linear"};
      lora.seed = 5;
      models::add_lora(model, lora);
    };
    return out;
  };
  const Trained two = train(adapted(2, 1));
  expect_same(train(adapted(2, 3)), two);
  const Folder folder;
  expect_same(train(in_files(adapted(2, 2), folder)), two);
}

// A program's own parameters, one of them in three dimensions, which is chosen as a whole.
TEST(ZenFlow, OwnParametersTrainToo) {
  const Folder folder;
  const auto weights = [&](const Json& offload, const Json& zenflow) {
    nn::ParameterSet set;
    for (const Shape& shape : {Shape{40, 50}, Shape{3, 4, 5}, Shape{7}}) {
      nn::Parameter p;
      p.name = "w" + std::to_string(set.size());
      p.shape = shape;
      p.dtype = DType::kFloat32;
      set.add(std::move(p));
    }
    Json config = with(base_config(),
                       {{"train_micro_batch_size_per_gpu", 1}, {"gradient_accumulation_steps", 1}});
    config["zero_optimization"] = {{"stage", 1}, {"offload_optimizer", offload}};
    if (!zenflow.is_null()) config["zero_optimization"]["zenflow"] = zenflow;
    Engine engine(dump_json(config), models::Model::from_parameters(std::move(set)), nullptr, {});
    const nn::ParameterSet& parameters = engine.model()->parameters();
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    for (int step = 0; step < 5; ++step) {
      std::vector<Tensor> gradients;
      std::vector<const Tensor*> all;
      for (nn::ParamId id = 0; id < parameters.size(); ++id) {
        gradients.push_back(Tensor::empty(engine.model()->device(), DType::kFloat32,
                                          parameters[id].shape, MemoryTag::kOther));
        std::generate_n(gradients.back().data<float>(), gradients.back().elements(),
                        [&] { return normal(random); });
      }
      for (const Tensor& gradient : gradients) all.push_back(&gradient);
      engine.gradients().add({}, all);
      engine.step();
    }
    return all_weights(engine);
  };
  const Json memory = {{"device", "cpu"}};
  const Json files = {{"device", "nvme"}, {"nvme_path", folder.path()}};
  const std::vector<float> plain = weights(memory, nullptr), flowing = weights(memory, flow());
  EXPECT_FALSE(same_bits(flowing, plain));
  EXPECT_TRUE(same_bits(weights(files, flow()), flowing));
  EXPECT_TRUE(same_bits(weights(files, flow({{"topk_ratio", 1}})), plain));
}

// ---- checkpoints ----

// At every step of an interval and of the time that an update beside takes.
TEST(ZenFlow, ACheckpointGoesOnAnywhere) {
  const Folder files;
  const Json zenflow = flow({{"overlap_step", true}, {"full_warm_up_rounds", 1}});
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  const Job places[] = {zenflow_job(2, 1, zenflow, bf16), zenflow_job(2, 3, zenflow, bf16),
                        in_files(zenflow_job(2, 2, zenflow, bf16), files)};
  for (int stop = 1; stop <= 6; ++stop) {
    for (size_t from = 0; from < std::size(places); ++from) {
      const Folder checkpoints;
      std::vector<float> whole;
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(places[from], comm);
        for (int i = 0; i < stop; ++i) engine->train_batch();
        engine->save(checkpoints.path(), "here");
        for (int i = 0; i < 4; ++i) engine->train_batch();
        const std::vector<float> weights = all_weights(*engine);
        if (comm->rank() == 0) whole = weights;
      });
      const Job& to = places[(from + static_cast<size_t>(stop)) % std::size(places)];
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(to, comm);
        engine->train_batch();  // which the load forgets
        engine->load(checkpoints.path(), "here");
        for (int i = 0; i < 4; ++i) engine->train_batch();
        const std::vector<float> weights = all_weights(*engine);
        if (comm->rank() == 0) {
          EXPECT_TRUE(same_bits(weights, whole)) << "stop " << stop << " from " << from;
        }
      });
    }
  }
}

TEST(ZenFlow, ACheckpointOfPlainTrainingGoesOnAndBack) {
  const Folder checkpoints;
  auto plain = make_rank_engine(zenflow_job(1, 1, nullptr), nullptr);
  for (int i = 0; i < 2; ++i) plain->train_batch();
  plain->save(checkpoints.path(), "plain");
  plain->train_batch();
  // Nothing waits in the first step, and with an interval of one never.
  auto engine = make_rank_engine(
      zenflow_job(1, 1, flow({{"update_interval", 1}, {"select_interval", 1}})), nullptr);
  engine->load(checkpoints.path(), "plain");
  engine->train_batch();
  EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*plain)));
  engine->save(checkpoints.path(), "flow");
  plain->load(checkpoints.path(), "flow");
  EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*plain)));
  LoadOptions strict;
  strict.strict = true;
  EXPECT_THAT(error_of(Code::kConfig, [&] { engine->load(checkpoints.path(), "plain", strict); }),
              HasSubstr("/zero_optimization/zenflow was null"));
}

TEST(ZenFlow, AnUpdateThatWaitsNeedsOverlap) {
  const Folder checkpoints;
  auto engine = make_rank_engine(
      zenflow_job(1, 1, flow({{"overlap_step", true}, {"update_interval", 1}})), nullptr);
  engine->train_batch();
  engine->save(checkpoints.path(), "one");
  auto other = make_rank_engine(zenflow_job(1, 1, flow()), nullptr);
  const std::vector<float> before = all_weights(*other);
  EXPECT_THAT(error_of(Code::kConfig, [&] { other->load(checkpoints.path(), "one"); }),
              HasSubstr("overlap_step true"));
  EXPECT_TRUE(same_bits(all_weights(*other), before)) << "nothing is changed by it";
}

// ---- what users see ----

// A step with an overflow adds nothing to what waits, and no column is chosen by it.
TEST(ZenFlow, ASkippedStepChangesNothing) {
  const std::string name = "h.0.mlp.c_fc.weight";
  auto engine =
      make_rank_engine(zenflow_job(1, 1, flow(), {{"gradient_accumulation_steps", 1}}), nullptr);
  const auto skip = [&] {
    const Tensor bad = engine->values().local(name, "gradient");
    std::fill_n(bad.data<float>(), bad.elements(), std::numeric_limits<float>::infinity());
    engine->values().set_local(name, "gradient", bad);
    EXPECT_FALSE(engine->step().applied);
  };
  const auto waiting = [&] {
    return flat(engine->values().optimizer_state(name, "waiting_gradient"));
  };
  skip();
  for (int i = 0; i < 2; ++i) engine->train_batch();
  const std::vector<float> before = waiting(), zeros(before.size());
  const std::vector<float> weights = all_weights(*engine);
  EXPECT_NE(before, zeros);
  skip();
  EXPECT_TRUE(same_bits(waiting(), before));
  EXPECT_TRUE(same_bits(all_weights(*engine), weights));
  engine->train_batch();
  EXPECT_EQ(waiting(), zeros) << "the third step updates them";
}

TEST(ZenFlow, ParametersAreNotSetUnderAnUpdateBeside) {
  auto engine = make_rank_engine(
      zenflow_job(1, 1, flow({{"overlap_step", true}, {"update_interval", 1}})), nullptr);
  const std::string name = "ln_f.weight";
  const auto set = [&] {
    const Tensor value = engine->values().local(name, "parameter");
    engine->values().set_local(name, "parameter", value);
  };
  set();
  engine->train_batch();
  EXPECT_THAT(error_of(Code::kUnsupported, set),
              AllOf(HasSubstr("setting parameters"), HasSubstr("overlap_step")));
}

// What a monitor wrote of a value, step by step.
std::vector<double> monitored(const Folder& folder, const std::string& tag) {
  std::vector<double> out;
  std::ifstream file(std::filesystem::path(folder.path("run")) /
                     ("Train_Samples_zenflow_" + tag + ".csv"));
  EXPECT_TRUE(file) << tag;
  std::string line;
  std::getline(file, line);  // names
  while (std::getline(file, line)) out.push_back(std::stod(line.substr(line.find(',') + 1)));
  return out;
}

TEST(ZenFlow, MonitorsTellWhatWasUpdated) {
  const Folder folder;
  Job job = zenflow_job(1, 1, flow());
  job.config["csv_monitor"] = {
      {"enabled", true}, {"output_path", folder.path()}, {"job_name", "run"}};
  {
    auto engine = make_rank_engine(job, nullptr);
    for (int i = 0; i < 4; ++i) engine->train_batch();
  }
  EXPECT_THAT(monitored(folder, "waiting_steps"), ::testing::ElementsAre(1, 2, 0, 1));
  EXPECT_THAT(monitored(folder, "chosen_anew"), ::testing::ElementsAre(1, 0, 0, 0));
  const std::vector<double> share = monitored(folder, "updated_share");
  ASSERT_EQ(share.size(), 4u);
  EXPECT_EQ(share[2], 1);
  EXPECT_GT(share[0], 0.15);
  EXPECT_LT(share[0], 0.3);
}

TEST(ZenFlow, EpochsAreThoseOfTheDataSet) {
  Job job = zenflow_job(
      1, 1,
      flow({{"select_strategy", "auto"}, {"select_interval", "auto"}, {"update_interval", 1}}));
  const Folder folder;
  job.config["csv_monitor"] = {
      {"enabled", true}, {"output_path", folder.path()}, {"job_name", "run"}};
  job.config["train_micro_batch_size_per_gpu"] = 40;
  {
    auto engine = make_rank_engine(job, nullptr);
    for (int i = 0; i < 6; ++i) engine->train_batch();
  }
  const int64_t epoch = periodic_data()->sample_count() / 80;
  ASSERT_GE(epoch, 2);
  ASSERT_LE(epoch, 4);
  const std::vector<double> chosen = monitored(folder, "chosen_anew");
  EXPECT_EQ(std::count(chosen.begin(), chosen.end(), 1.0), (6 + epoch - 1) / epoch);
}

}  // namespace
}  // namespace ds::zero_test
