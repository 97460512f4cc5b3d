// Models of several ranks that no rank ever holds whole: made from a seed, from files and from
// checkpoints, part by part, with the bits that making them whole gives.
#include <fstream>

#include "attached_state.h"
#include "models/adapters.h"
#include "models/saved_model.h"
#include "models/weights.h"
#include "zero_world.h"

namespace ds::zero_test {
namespace {

constexpr int kRanks = 4;

// About 1.1 million parameters.
Json larger_model() {
  return with(model_config(0), {{"n_embd", 128}, {"n_layer", 5}, {"vocab_size", 640}});
}

Json stage_config(int stage, const Json& more = Json::object()) {
  return zero_config(
      stage, {{"reduce_bucket_size", 40000}, {"stage3_param_persistence_threshold", 0}}, more);
}

// Ways to begin with a model, each with files below a folder that `write` made.
struct Beginning {
  const char* name;
  std::function<void(const std::string& folder)> write;
  std::function<std::shared_ptr<models::Model>(const std::string& folder)> begin;
};

std::vector<Beginning> beginnings() {
  const auto open = [](const std::string& folder) { return models::open_model(folder); };
  return {
      {"Seed", [](const std::string&) {},
       [](const std::string&) { return models::Model::create(larger_model(), 7); }},
      {"SeedWithAdapters", [](const std::string&) {},
       [](const std::string&) {
         auto model = models::Model::create(larger_model(), 7);
         models::LoraOptions lora;
         lora.r = 5;
         lora.target_modules = {"all-linear"};
         models::add_lora(*model, lora);
         return model;
       }},
      // GPT-2's files hold projections transposed.
      {"Files",
       [](const std::string& folder) {
         models::export_model(*models::Model::create(larger_model(), 8), folder, DType::kBFloat16,
                              400'000);
       },
       open},
      {"Checkpoint",
       [](const std::string& folder) {
         auto model = models::Model::create(larger_model(), 9);
         models::set_trainable(*model, {"wpe.weight"}, false);
         models::save_model(*model, folder, "weights", "test");
       },
       open},
  };
}

class NeverWhole : public ::testing::TestWithParam<Beginning> {};

TEST_P(NeverWhole, RanksMakeTheirParts) {
  const Folder folder;
  GetParam().write(folder.path("model"));
  const auto begin = [&] { return GetParam().begin(folder.path("model")); };
  std::vector<float> whole;
  {
    const auto model = begin();
    const models::Model::Use use(*model);
    for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
      const std::vector<float> one = flat(master_of(*model, id));
      whole.insert(whole.end(), one.begin(), one.end());
    }
  }
  for (const int stage : {0, 1, 3}) {
    for (const std::string form : {"fp32", "bf16", "split"}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", ", form));
      const bool bf16 = form != "fp32", split = form == "split";
      run_ranks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
        const auto model = begin();
        const MemoryAccount& account = model->device()->account();
        const Json precision = {{"enabled", bf16}, {"split_master", split}};
        Engine engine(dump_json(stage_config(stage, {{"bf16", precision}})), model, comm);
        const double p = static_cast<double>(model->parameters().elements());
        double trainable = 0;
        for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
          const nn::Parameter& one = model->parameters()[id];
          if (one.trainable) trainable += static_cast<double>(one.shape.elements());
        }
        // What the stage leaves on a rank: masters, and the copy that is computed with.
        const double share = 1.0 / kRanks;
        const double beside = split ? 2 : 4;
        const double weights = p * (bf16 ? (stage == 0   ? 2 + beside
                                            : stage == 1 ? 2 + beside * share
                                                         : (2 + beside) * share)
                                         : (stage == 3 ? 4 * share : 4));
        // Gradients and moments are made with the engine.
        const double all = weights + trainable * (stage == 0 ? 1 : share) * 12;
        EXPECT_LT(static_cast<double>(account.peak(MemoryTag::kParameters)), weights + 0.2 * p);
        EXPECT_LT(static_cast<double>(account.total_peak()), all * 1.05 + 0.2 * p);
        EXPECT_TRUE(same_bits(all_weights(engine), whole));
      });
    }
  }
}

// One process makes its masters in the form that they stay in: none in fp32 comes before smaller
// ones.
TEST_P(NeverWhole, OneProcessMakesMastersInTheirForm) {
  const Folder folder;
  GetParam().write(folder.path("model"));
  const auto begin = [&] { return GetParam().begin(folder.path("model")); };
  std::vector<float> whole, rounded;
  {
    const auto model = begin();
    const models::Model::Use use(*model);
    for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
      for (const float x : flat(master_of(*model, id))) {
        whole.push_back(x);
        rounded.push_back(to_float(to_bfloat16(x)));
      }
    }
  }
  struct Form {
    const char* name;
    Json bf16;
    double bytes;  // per parameter, of masters and weights
  };
  const Json enabled = {{"enabled", true}};
  for (const Form& form : {Form{"fp32 beside bf16", enabled, 6},
                           Form{"split", with(enabled, {{"split_master", true}}), 4},
                           Form{"rounded",
                                with(enabled, {{"bf16_master_weights_and_grads", true},
                                               {"bf16_optimizer_states", true}}),
                                2}}) {
    SCOPED_TRACE(form.name);
    const auto model = begin();
    const MemoryAccount& account = model->device()->account();
    Engine engine(dump_json(stage_config(1, {{"bf16", form.bf16}})), model, nullptr);
    const auto p = static_cast<double>(model->parameters().elements());
    EXPECT_LT(static_cast<double>(account.peak(MemoryTag::kParameters)), (form.bytes + 0.2) * p);
    EXPECT_TRUE(same_bits(all_weights(engine), form.bytes == 2 ? rounded : whole));
  }
}

INSTANTIATE_TEST_SUITE_P(From, NeverWhole, ::testing::ValuesIn(beginnings()),
                         [](const auto& one) { return std::string(one.param.name); });

// Ranks that begin with different weights, made or not, all go on with those of rank 0.
TEST(NeverWholeModels, RankZeroDecidesWhereSourcesDiffer) {
  const Json config = larger_model();
  std::vector<float> first;
  {
    Engine alone(dump_json(with(stage_config(0), {{"zero_optimization", {{"stage", 0}}}})),
                 models::Model::create(config, 40), nullptr);
    first = all_weights(alone);
  }
  for (const bool made : {false, true}) {
    for (const int stage : {0, 2, 3}) {
      SCOPED_TRACE(str_cat("made ", made, ", stage ", stage));
      run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
        const auto model = models::Model::create(config, 40 + static_cast<uint64_t>(comm->rank()));
        if (made && comm->rank() == 0) (void)model->reader();
        Engine engine(dump_json(stage_config(stage)), model, comm);
        EXPECT_TRUE(same_bits(all_weights(engine), first));
      });
    }
  }
}

// Reading is put off, and so is what it finds: every rank is told.
TEST(NeverWholeModels, DamagedFilesFailEveryRank) {
  const Folder folder;
  models::save_model(*models::Model::create(larger_model(), 9), folder.path(), "weights", "test");
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file() || entry.file_size() < 1'000'000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file.put('!').put('?');
  }
  run_ranks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
    const auto model = models::open_model(folder.path());
    const std::string text =
        error_of(Code::kCorrupt, [&] { Engine(dump_json(stage_config(3)), model, comm); });
    EXPECT_NE(text.find("checksum"), std::string::npos) << text;
  });
}

// What an engine of stage 3 held in pieces is gone with it, and says so.
TEST(NeverWholeModels, WeightsInPiecesEndWithTheEngine) {
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto model = models::Model::create(model_config(), 3);
    const auto make = [&] { Engine(dump_json(stage_config(3)), model, comm); };
    make();
    error_of(Code::kState, [&] { model->get("wpe.weight"); });
    error_of(Code::kState, [&] { (void)model->reader(); });
    error_of(Code::kState, [&] { models::set_trainable(*model, {"*"}, false); });
    error_of(Code::kState, make);
    EXPECT_EQ(model->device()->account().now(MemoryTag::kParameters), 0);
  });
}

// A load goes to each rank's own memory.
TEST(NeverWholeModels, LoadingTakesNoMoreThanABuffer) {
  const Folder folder;
  const Json more = {{"bf16", {{"enabled", true}}}};
  Job run{kRanks, stage_config(3, more), 1, larger_model()};
  run_ranks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    engine->train_batch();
    engine->save(folder.path(), "one");
  });
  run_ranks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    Device& device = *engine->model()->device();
    const int64_t before = device.account().total_now();
    device.account().reset_peaks();
    engine->load(folder.path(), "one");
    EXPECT_LT(device.account().total_peak() - before,
              4 * engine->model()->parameters().elements() / kRanks / 4);
  });
}

}  // namespace
}  // namespace ds::zero_test
