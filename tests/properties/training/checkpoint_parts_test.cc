// What a checkpoint of several ranks consists of, and what of it comes back: nothing trained yet,
// an open step, frozen parameters, groups in another order, another schedule, many ranks.
#include <fstream>
#include <numeric>

#include "checkpoint/reader.h"
#include "models/adapters.h"
#include "models/saved_model.h"
#include "models/weights.h"
#include "training_world.h"

namespace ds::properties {
namespace {

std::vector<fs::path> blobs_of(const fs::path& tag) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(tag)) {
    if (entry.path().filename().string().find("data-") == 0) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(CheckpointOf, AnUntrainedEngineLoads) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const Folder folder;
    const Job run{2, step_config(stage, 2)};
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto first = make_rank_engine(run, comm);
      first->save(folder.path(), "");
      EXPECT_TRUE(fs::exists(folder.path("global_step0")));
      Engine second(dump_json(run.config), make_rank_model(run, 9), comm);
      second.set_dataset(periodic_data());
      EXPECT_FALSE(same_bits(all_weights(second), all_weights(*first)));
      second.load(folder.path(), "");
      EXPECT_EQ(counters(second), counters(*first));
      for (int i = 0; i < 2; ++i) EXPECT_EQ(second.train_batch().loss, first->train_batch().loss);
      EXPECT_TRUE(same_bits(all_weights(second), all_weights(*first)));
    });
  }
}

// Loaded and saved again at once, also in the middle of a step, the files are the same bytes.
TEST(CheckpointOf, WhatWasLoadedIsTheSame) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool open : {false, true}) {
      SCOPED_TRACE(str_cat("stage ", stage, open ? ", open step" : ""));
      const Folder folder;
      const Job run{3, step_config(stage, 3, {{"gradient_accumulation_steps", 2}})};
      run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
        auto first = make_rank_engine(run, comm), second = make_rank_engine(run, comm);
        first->train_batch();
        if (open) micro_batch(*first, comm->rank(), 0);
        first->save(folder.path(), "a");
        second->load(folder.path(), "a");
        second->save(folder.path(), "b");
        if (open) {
          const StepReport a = micro_batch(*first, comm->rank(), 1),
                           b = micro_batch(*second, comm->rank(), 1);
          EXPECT_EQ(a.loss, b.loss);
          EXPECT_EQ(a.tokens, b.tokens);
        }
        EXPECT_TRUE(same_bits(all_weights(*first), all_weights(*second)));
      });
      const auto a = CheckpointReader::open(folder.path(), "a").manifest(),
                 b = CheckpointReader::open(folder.path(), "b").manifest();
      EXPECT_EQ(a.counters, b.counters);
      EXPECT_EQ(a.tensors, b.tensors);
      const auto files = blobs_of(folder.path("a"));
      ASSERT_EQ(files.size(), 3u);
      for (const fs::path& file : files) {
        EXPECT_TRUE(read_bytes(file) == read_bytes(fs::path(folder.path("b")) / file.filename()))
            << file;
      }
    }
  }
}

// Gradients of a step that is not complete are no part of an export.
TEST(CheckpointOf, AnOpenStepExportsTheWeightsBeforeIt) {
  const Folder folder;
  const auto engine = make_engine(with(base_config(), {{"scheduler", nullptr}}));
  engine->train_batch();
  const auto exported = [&](const char* tag) {
    engine->save(folder.path("saves"), tag);
    const auto model = models::open_saved_model(folder.path("saves") + "/" + tag);
    models::export_model(*model, folder.path(tag), DType::kBFloat16);
    return read_bytes(fs::path(folder.path(tag)) / "model.safetensors");
  };
  const std::string before = exported("before");
  EXPECT_FALSE(micro_batch(*engine, 0, 0, 4).applied);
  EXPECT_TRUE(exported("open") == before);
  EXPECT_TRUE(micro_batch(*engine, 0, 1, 4).applied);
  EXPECT_FALSE(exported("after") == before);
}

// The export of a checkpoint by several ranks is what a live gather gives, tensor by tensor.
TEST(CheckpointOf, ManyRanksExportsWhatTheyGather) {
  const Json precisions[] = {Json::object(), {{"bf16", {{"enabled", true}}}}};
  for (const Json& precision : precisions) {
    const Folder folder;
    const Job run{3, step_config(3, 3, precision)};
    std::vector<std::vector<float>> gathered;
    run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      for (int i = 0; i < 3; ++i) engine->train_batch();
      engine->save(folder.path("saves"), "");
      std::vector<int64_t> ids(static_cast<size_t>(engine->model()->parameters().size()));
      std::iota(ids.begin(), ids.end(), 0);
      const std::vector<Tensor> all = engine->scopes().gather(ids);
      if (comm->rank() == 0) {
        for (const Tensor& one : all) gathered.push_back(flat(one));
      }
      engine->scopes().scatter(ids, -1);
    });
    const auto model = models::open_saved_model(folder.path("saves"));
    models::export_model(*model, folder.path("export"), DType::kFloat32);
    const auto read = models::open_model(folder.path("export"));
    ASSERT_EQ(static_cast<size_t>(read->parameters().size()), gathered.size());
    for (nn::ParamId id = 0; id < read->parameters().size(); ++id) {
      const std::string& name = read->parameters()[id].name;
      EXPECT_TRUE(same_bits(flat(read->get(name)), gathered[static_cast<size_t>(id)])) << name;
    }
  }
}

// Frozen parameters between trained ones shift nobody's state, whoever loads; left out on request,
// their names are not there and the checkpoint is smaller.
TEST(CheckpointOf, FrozenParametersLoadsAnywhere) {
  for (const int stage : {1, 2, 3}) {
    for (const bool excluded : {false, true}) {
      SCOPED_TRACE(str_cat("stage ", stage, excluded ? ", without frozen ones" : ""));
      const Folder folder;
      const auto job = [&](int one_stage, int world) {
        Job run{world, step_config(one_stage, world,
                                   {{"scheduler", nullptr},
                                    {"checkpoint", {{"exclude_frozen_parameters", excluded}}}})};
        run.prepare = [](models::Model& model) {
          models::set_trainable(model, {"wpe.*", "h.0.*"}, false);
        };
        return run;
      };
      AgreedState weights, values, later;
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(job(stage, 2), comm);
        for (int i = 0; i < 2; ++i) engine->train_batch();
        engine->save(folder.path(), "");
        weights.give(comm->rank(), all_weights(*engine));
        values.give(comm->rank(), optimizer_values(*engine));
        engine->train_batch();
        later.give(comm->rank(), all_weights(*engine));
      });
      const CheckpointReader reader = CheckpointReader::open(folder.path());
      EXPECT_EQ(reader.find("wpe.weight", TensorKind::kMaster) == nullptr, excluded);
      EXPECT_NE(reader.find("h.1.ln_1.weight", TensorKind::kMaster), nullptr);
      for (const int world : {1, 2, 3}) {
        run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
          auto engine = make_rank_engine(job(world == 3 ? 3 : stage, world), comm);
          engine->load(folder.path(), "");
          EXPECT_TRUE(same_bits(all_weights(*engine), weights.values())) << world;
          EXPECT_TRUE(same_bits(optimizer_values(*engine), values.values())) << world;
          engine->train_batch();
          const std::vector<float> now = all_weights(*engine);
          EXPECT_LT(largest_difference(now, later.values()), world == 2 ? 1e-12 : 2e-3) << world;
        });
      }
    }
  }
}

// Names of files are numbers of ranks, also above nine; all of them hold about the same.
TEST(CheckpointOf, TwelveRanksIsCutEvenly) {
  for (const int stage : {0, 2}) {
    const Folder folder;
    const Job run{
        12,
        zero_config(stage, {{"reduce_bucket_size", 4000}}, {{"train_micro_batch_size_per_gpu", 1}}),
        0, with(model_config(0), {{"n_embd", 64}})};
    AgreedState weights;
    run_ranks(12, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      for (int i = 0; i < 2; ++i) engine->train_batch();
      engine->save(folder.path(), "a");
      weights.give(comm->rank(), all_weights(*engine));
    });
    const auto blobs = blobs_of(folder.path("a"));
    ASSERT_EQ(blobs.size(), 12u);
    EXPECT_EQ(blobs[10].filename(), "data-00010.bin");
    double total = 0, most = 0;
    for (const fs::path& blob : blobs) {
      const auto bytes = static_cast<double>(fs::file_size(blob));
      total += bytes;
      most = std::max(most, bytes);
    }
    // Every slice begins at a block of its own, which small tensors feel.
    EXPECT_LT(most, 1.25 * total / 12) << "stage " << stage;
    const auto engine = make_engine(base_config(), run.model);
    engine->load(folder.path(), "a");
    EXPECT_TRUE(same_bits(weights_of(*engine), weights.values()));
  }
}

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(CheckpointOf, ManySavesLeavesNoOpenFiles) {
  for (const bool decoupled : {false, true}) {
    const Folder folder;
    const Json change = {{"checkpoint", {{"keep", 2}, {"writer", {{"decoupled", decoupled}}}}}};
    const auto engine = make_engine(with(base_config(), change));
    engine->save(folder.path(), "first");
    engine->wait_for_save();
    const size_t before = open_descriptors();
    for (int i = 0; i < 20; ++i) {
      engine->train_batch();
      engine->save(folder.path(), "");
    }
    engine->wait_for_save();
    engine->load(folder.path(), "");
    EXPECT_EQ(open_descriptors(), before) << decoupled;
  }
}

TEST(CheckpointOf, NoFolderIsRefusedByAllRanks) {
  const Job run{2, step_config(2, 2)};
  const Folder folder;
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    engine->train_batch();
    EXPECT_THROW(engine->save("", "a"), Error);
    EXPECT_THROW(engine->load("", "a"), Error);
    EXPECT_TRUE(engine->train_batch().applied);
    engine->save(folder.path(), "a");
  });
  EXPECT_TRUE(fs::exists(folder.path("a")));
}

Json groups_config(std::vector<int> order, const Json& more = Json::object()) {
  const Json all[] = {{{"name", "norms"}, {"match", {"*ln_*"}}, {"lr", 3e-3}, {"weight_decay", 0}},
                      {{"name", "ends"}, {"match", {"wte.*", "wpe.*"}}, {"lr", 5e-3}}};
  Json groups = Json::array();
  for (const int i : order) groups.push_back(all[i]);
  return with(
      with(base_config(), {{"scheduler", nullptr}}),
      with(optimizer("AdamW", {{"lr", 1e-2}, {"weight_decay", 0.1}}, {{"param_groups", groups}}),
           more));
}

// States belong to tensors and rates to groups, whatever the order of groups is.
TEST(CheckpointOf, GroupsInAnotherOrderGoOn) {
  const Folder folder;
  const auto first = make_engine(groups_config({0, 1}));
  for (int i = 0; i < 3; ++i) first->train_batch();
  first->save(folder.path(), "a");
  const auto second = make_engine(groups_config({1, 0}));
  second->load(folder.path(), "a");
  EXPECT_EQ(second->rates(), (std::vector<double>{1e-2, 5e-3, 3e-3}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(first->train_batch().loss, second->train_batch().loss);
  EXPECT_TRUE(same_bits(weights_of(*first), weights_of(*second)));
}

// The configuration at hand wins over the saved one: its schedule, at the step that was saved; what
// the loss scale has become stays. Whoever wants the saved one makes the engine with that.
TEST(CheckpointOf, ARunWithAnotherScheduleOrItsOwn) {
  const Json fp16 = {
      {"fp16", {{"enabled", true}, {"initial_scale_power", 10}, {"loss_scale_window", 2}}}};
  const Json warmup = {
      {"scheduler",
       {{"type", "WarmupLR"}, {"params", {{"warmup_max_lr", 2e-3}, {"warmup_num_steps", 9}}}}}};
  Json other = with(base_config(), fp16);
  other["scheduler"] = warmup["scheduler"];
  const Folder folder;
  const auto saver = make_engine(with(base_config(), fp16)), plain = make_engine(other);
  for (int i = 0; i < 5; ++i) {
    saver->train_batch();
    plain->train_batch();
  }
  ASSERT_NE(saver->loss_scale(), 1024);
  saver->set_lr(7e-3);
  saver->save(folder.path(), "a");
  const auto configured = make_engine(other);
  configured->load(folder.path(), "a");
  EXPECT_EQ(configured->rates(), plain->rates());
  EXPECT_EQ(configured->loss_scale(), saver->loss_scale());
  configured->train_batch();
  plain->train_batch();
  EXPECT_EQ(configured->rates(), plain->rates());

  const Json saved = CheckpointReader::open(folder.path(), "a").state_json("ds_config");
  const auto own = make_engine(saved);
  own->load(folder.path(), "a");
  EXPECT_EQ(own->rates(), std::vector<double>{7e-3}) << "as set, not as scheduled";
  own->train_batch();
  saver->train_batch();
  EXPECT_EQ(own->rates(), saver->rates());
}

}  // namespace
}  // namespace ds::properties
