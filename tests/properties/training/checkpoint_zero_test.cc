// Checkpoints of runs at ZeRO stage 3 that keep second copies, and loads of a part of the state by
// several ranks.
#include <gmock/gmock.h>

#include <fstream>

#include "attached_state.h"
#include "checkpoint/reader.h"
#include "models/saved_model.h"
#include "models/weights.h"
#include "training_world.h"
#include "unit/zero/traffic_world.h"

namespace ds::properties {
namespace {

// Masters follow the weights that were loaded; moments, counters and the schedule are a new run's.
TEST(PartsOfACheckpoint, WeightsAloneForSeveralRanks) {
  const Form precisions[] = {{"fp32"}, {"bf16", {{"bf16", {{"enabled", true}}}}}};
  for (const Form& precision : precisions) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(str_cat(precision.name, ", stage ", stage));
      const Folder folder;
      const Job run{2, step_config(stage, 2, precision.change)};
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        auto saver = make_rank_engine(run, comm), fresh = make_rank_engine(run, comm);
        for (int i = 0; i < 3; ++i) saver->train_batch();
        saver->save(folder.path(), "a");
        auto engine = make_rank_engine(run, comm);
        engine->load(folder.path(), "a", {.module_only = true});
        EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*saver)));
        EXPECT_TRUE(same_bits(optimizer_values(*engine), optimizer_values(*fresh)));
        EXPECT_EQ(counters(*engine), counters(*fresh));
        auto states = make_rank_engine(run, comm);
        states->load(folder.path(), "a", {.optimizer_states = false});
        EXPECT_TRUE(same_bits(all_weights(*states), all_weights(*saver)));
        EXPECT_TRUE(same_bits(optimizer_values(*states), optimizer_values(*fresh)));
        EXPECT_EQ(states->progress().steps, 3);
        // With a rate, both train on from the loaded masters: the first update of Adam is of the
        // size of the rate, from there.
        const std::vector<float> before = all_weights(*engine);
        engine->set_lr(1e-3);
        engine->train_batch();
        const std::vector<float> after = all_weights(*engine);
        EXPECT_FALSE(same_bits(after, before));
        EXPECT_LT(largest_difference(after, before), 2e-3);
      });
    }
  }
}

Json mics(int shard) {
  return {{"mics_shard_size", shard}, {"stage3_param_persistence_threshold", 40}};
}

// Copies of the same state are not written twice, and moments stay where a load leaves them out.
TEST(PartsOfACheckpoint, MicsWritesOneShardGroup) {
  const Folder folder;
  const Job run{4, zero_config(3, mics(2))};
  run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
    auto saver = make_rank_engine(run, comm), fresh = make_rank_engine(run, comm);
    for (int i = 0; i < 3; ++i) saver->train_batch();
    saver->save(folder.path(), "a");
    auto engine = make_rank_engine(run, comm);
    engine->load(folder.path(), "a", {.optimizer_states = false});
    EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*saver)));
    EXPECT_TRUE(same_bits(optimizer_values(*engine), optimizer_values(*fresh)));
    EXPECT_TRUE(engine->train_batch().applied);
  });
  size_t elements = 0;
  int64_t blobs = 0;
  const auto reader = CheckpointReader::open(folder.path(), "a");
  for (const TensorRecord& tensor : reader.manifest().tensors) {
    if (tensor.meta.kind != TensorKind::kMaster) continue;
    for (const TensorSlice& slice : tensor.slices) {
      elements += slice.range.length / sizeof(float);
      blobs = std::max<int64_t>(blobs, slice.range.blob);
    }
  }
  EXPECT_EQ(elements, static_cast<size_t>(make_rank_model(run)->parameters().elements()));
  EXPECT_EQ(blobs, 1) << "ranks 0 and 1 write";
}

// The second copies of hpZ hold what a load brought, from the first forward pass on.
TEST(SecondCopies, AreThoseThatWereLoaded) {
  const Json zero = {{"zero_hpz_partition_size", 2},
                     {"stage3_param_persistence_threshold", 0},
                     {"stage3_max_live_parameters", 0},
                     {"stage3_max_reuse_distance", 0}};
  for (const bool coded : {false, true}) {
    Json keys = zero;
    if (coded) keys["zero_quantized_weights"] = true;
    const Job run{4, zero_config(3, keys), 1, model_config(0)};
    const Folder folder;
    run_ranks(
        4,
        [&](const std::shared_ptr<Communicator>& comm) {
          const auto data = periodic_data();
          auto saver = make_rank_engine(run, comm);
          for (int i = 0; i < 3; ++i) saver->train_batch();
          saver->save(folder.path(), "a");
          const double wanted = saver->evaluate(*data, 2);
          Engine engine(dump_json(run.config), make_rank_model(run, 9), comm);
          engine.set_dataset(data);
          engine.train_batch();  // fills the copies with other weights
          EXPECT_NE(engine.evaluate(*data, 2), wanted);
          engine.load(folder.path(), "a");
          EXPECT_EQ(engine.evaluate(*data, 2), wanted) << "coded " << coded;
          // A change by one rank after the load reaches them too.
          const std::vector<int64_t> ids = {0};
          const std::vector<Tensor> whole = engine.scopes().gather(ids);
          if (comm->rank() == 1) {
            for (int64_t i = 0; i < whole[0].elements(); ++i) whole[0].data<float>()[i] = 0;
          }
          engine.scopes().scatter(ids, 1);
          EXPECT_NE(engine.evaluate(*data, 2), wanted);
          engine.load(folder.path(), "a");
          EXPECT_EQ(engine.train_batch().loss, saver->train_batch().loss);
        },
        two_nodes());
  }
}

// A tied parameter of the caller's own is stored once, and found by both of its names.
TEST(TiedOwnParameters, AreStoredOnceUnderBothNames) {
  const Folder folder;
  const auto make = [] {
    nn::ParameterSet set;
    nn::Parameter p;
    p.name = "embedding";
    p.shape = Shape{7, 5};
    p.aliases = {"head"};
    set.add(p);
    p.name = "bias";
    p.shape = Shape{3};
    p.aliases = {};
    set.add(p);
    auto model = models::Model::from_parameters(std::move(set));
    for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
      const Tensor master = master_of(*model, id);
      for (int64_t i = 0; i < master.elements(); ++i) master.data<float>()[i] = noise(id, i);
    }
    return model;
  };
  std::vector<float> trained;
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(own_config(3)), make(), comm);
    for (int i = 0; i < 2; ++i) engine.step();
    engine.save(folder.path(), "a");
    const std::vector<float> all = all_weights(engine);
    if (comm->rank() == 0) trained.assign(all.begin(), all.begin() + 35);
  });
  const CheckpointReader reader = CheckpointReader::open(folder.path(), "a");
  size_t stored = 0;
  for (const TensorRecord& tensor : reader.manifest().tensors) {
    stored += tensor.meta.kind == TensorKind::kMaster ? 1 : 0;
  }
  EXPECT_EQ(stored, 2u);
  const auto opened = models::open_saved_model(folder.path());
  EXPECT_TRUE(same_bits(flat(opened->get("embedding")), trained));
  EXPECT_TRUE(same_bits(flat(opened->get("head")), trained));
}

void turn_last_bit(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(byte);
  ASSERT_TRUE(file.flush().good());
}

// A folder without checkpoints is a beginning where the caller says so; damage never is.
TEST(MissingCheckpoints, MayBeABeginning) {
  const Folder folder;
  const Job run{2, step_config(1, 2)};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    engine->train_batch();
    const Counters before = counters(*engine);
    const std::vector<float> weights = all_weights(*engine);
    for (const char* name : {"", "nowhere"}) {
      error_of(Code::kNotFound, [&] { engine->load(folder.path(name), ""); });
      engine->load(folder.path(name), "", {.may_be_missing = true});
      error_of(Code::kNotFound,
               [&] { engine->load(folder.path(name), "tag", {.may_be_missing = true}); });
    }
    EXPECT_EQ(counters(*engine), before);
    EXPECT_TRUE(same_bits(all_weights(*engine), weights));
    engine->save(folder.path(), "a");
    engine->train_batch();
    engine->load(folder.path(), "", {.may_be_missing = true});
    EXPECT_EQ(counters(*engine), before);
    if (comm->rank() == 0) fs::resize_file(folder.path("a/manifest.dsm"), 10);
    comm->barrier();
    error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "", {.may_be_missing = true}); });
  });
}

// Damage in what one rank reads: every rank hears of it, and all train on as if nobody had loaded.
TEST(DamagedCheckpoints, LeaveTrainedRanksAsTheyWere) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const Job run{2, step_config(stage, 2)};
    std::vector<float> undisturbed, loaded;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      for (int step = 0; step < 3; ++step) engine->train_batch();
      const std::vector<float> all = all_weights(*engine);
      if (comm->rank() == 0) undisturbed = all;
    });
    const Folder folder;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      engine->train_batch();
      engine->save(folder.path(), "a");
      engine->train_batch();
      comm->barrier();
      for (const char* name : {"a/data-00000.bin", "a/data-00001.bin"}) {
        const fs::path file = folder.path(name);
        if (!fs::exists(file)) continue;
        const auto turn_bit = [&] {
          comm->barrier();
          if (comm->rank() == 0) turn_last_bit(file);
          comm->barrier();
        };
        turn_bit();
        error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "a"); });
        turn_bit();
      }
      engine->train_batch();
      const std::vector<float> all = all_weights(*engine);
      if (comm->rank() == 0) loaded = all;
    });
    EXPECT_TRUE(same_bits(loaded, undisturbed));
  }
}

// Where every rank gives its training up, nothing is kept or read beforehand: damage is found when
// it is too late for anything but another load, which brings what was saved. One rank that keeps
// its training does so for all.
TEST(DamagedCheckpoints, MayCostATrainingThatIsGivenUp) {
  for (const bool all_give_up : {true, false}) {
    SCOPED_TRACE(all_give_up);
    const Folder folder;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine({2, step_config(2, 2)}, comm);
      engine->train_batch();
      engine->save(folder.path(), "a");
      const std::vector<float> saved = all_weights(*engine);
      engine->train_batch();
      const std::vector<float> trained = all_weights(*engine);
      const auto turn_bit = [&] {
        comm->barrier();
        if (comm->rank() == 0) turn_last_bit(folder.path("a/data-00001.bin"));
        comm->barrier();
      };
      const LoadOptions options{.restore_on_failure = !all_give_up && comm->rank() == 0};
      turn_bit();
      error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "a", options); });
      turn_bit();
      if (all_give_up) {
        EXPECT_THAT(error_of(Code::kState, [&] { engine->train_batch(); }),
                    testing::HasSubstr("failed half way"));
      } else {
        EXPECT_TRUE(same_bits(all_weights(*engine), trained));
        engine->train_batch();
      }
      engine->load(folder.path(), "a", options);
      EXPECT_TRUE(same_bits(all_weights(*engine), saved));
      engine->train_batch();
      EXPECT_TRUE(same_bits(all_weights(*engine), trained));
    });
  }
}

}  // namespace
}  // namespace ds::properties
