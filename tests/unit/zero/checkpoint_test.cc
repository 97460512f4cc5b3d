// Checkpoints of several ranks load at any number of ranks and any stage.
#include "attached_state.h"
#include "zero_world.h"

#include <array>
#include <fstream>

#include "../engine/log_lines.h"

namespace ds::zero_test {
namespace {

Json saving_config(int stage, int world) {
  // A step is eight samples, whatever the world.
  return zero_config(
      stage, {{"reduce_bucket_size", 4000}, {"stage3_param_persistence_threshold", 40}},
      {{"train_micro_batch_size_per_gpu", 8 / world}, {"gradient_accumulation_steps", 1}});
}

struct State {
  std::vector<float> weights, moments;
  std::vector<double> next_losses;
};

State state_of(Engine& engine) {
  State out;
  out.weights = all_weights(engine);
  for (nn::ParamId id = 0; id < engine.model()->parameters().size(); ++id) {
    const nn::Parameter& p = engine.model()->parameters()[id];
    for (const std::string& name : engine.values().optimizer_states(p.name)) {
      const std::vector<float> one = flat(engine.values().optimizer_state(p.name, name));
      out.moments.insert(out.moments.end(), one.begin(), one.end());
    }
  }
  return out;
}

// Trains two steps, saves, and trains two more.
State save_run(const std::string& folder, int stage, int world) {
  State out;
  std::mutex mutex;
  const Job run{world, saving_config(stage, world)};
  run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    for (int i = 0; i < 2; ++i) engine->train_batch();
    engine->save(folder, "");
    State mine = state_of(*engine);
    for (int i = 0; i < 2; ++i) mine.next_losses.push_back(engine->train_batch().loss);
    const std::lock_guard lock(mutex);
    if (comm->rank() == 0) out = std::move(mine);
  });
  return out;
}

State load_run(const std::string& folder, int stage, int world) {
  State out;
  std::mutex mutex;
  const Job run{world, saving_config(stage, world)};
  run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    engine->load(folder, "");
    State mine = state_of(*engine);
    for (int i = 0; i < 2; ++i) mine.next_losses.push_back(engine->train_batch().loss);
    const std::lock_guard lock(mutex);
    if (comm->rank() == 0) out = std::move(mine);
  });
  return out;
}

TEST(ManyRankCheckpoint, LoadsAtAnyWorldAndStage) {
  for (const auto& [saved_stage, saved_world] : {std::pair{3, 4}, {0, 2}, {2, 1}}) {
    Folder folder;
    const State saved = save_run(folder.path(), saved_stage, saved_world);
    for (const int world : {1, 2, 3, 4, 8}) {
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(str_cat("saved at stage ", saved_stage, " by ", saved_world, ", loaded at ",
                             stage, " by ", world));
        const State loaded = load_run(folder.path(), stage, world);
        EXPECT_TRUE(same_bits(loaded.weights, saved.weights));
        EXPECT_TRUE(same_bits(loaded.moments, saved.moments));
        if (8 % world != 0) continue;  // steps of other samples
        for (size_t i = 0; i < saved.next_losses.size(); ++i) {
          const double bound = world == saved_world ? 0 : 1e-5;  // sums in another order
          EXPECT_NEAR(loaded.next_losses[i], saved.next_losses[i], bound * saved.next_losses[i]);
        }
      }
    }
  }
}

void flip_a_bit(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const char before = static_cast<char>(file.peek());
  file.seekp(middle);
  file.put(static_cast<char>(before ^ 0x40));
}

TEST(ManyRankCheckpoint, DamageIsNamedByEveryRank) {
  Folder folder;
  save_run(folder.path(), 3, 4);
  std::vector<fs::path> blobs;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.is_regular_file() &&
        entry.path().filename().string().find("data-") != std::string::npos) {
      blobs.push_back(entry.path());
    }
  }
  ASSERT_EQ(blobs.size(), 4u);
  for (const fs::path& blob : blobs) {
    for (const bool remove : {false, true}) {
      SCOPED_TRACE(str_cat(blob.filename().string(), remove ? " removed" : " damaged"));
      const fs::path kept = folder.path("kept");
      fs::copy_file(blob, kept, fs::copy_options::overwrite_existing);
      if (remove) {
        fs::remove(blob);
      } else {
        flip_a_bit(blob);
      }
      const Job run{2, saving_config(2, 2)};
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(run, comm);
        try {
          engine->load(folder.path(), "global_step2");
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_NE(error.message().find(blob.filename().string()), std::string::npos)
              << error.message();
        }
      });
      fs::copy_file(kept, blob, fs::copy_options::overwrite_existing);
    }
  }
}

std::vector<float> owned_weights(Engine& engine) {
  zero::TrainState& state = train_state(*engine.model());
  ThreadPool pool(1);
  const OpContext ctx{engine.model()->device(), &pool};
  std::vector<float> out;
  for (nn::ParamId id = 0; id < state.parameters().size(); ++id) {
    const std::vector<float> one = flat(state.masters().read_owned(ctx, id));
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

// One rank cannot read its part. With pipeline_loading_checkpoint those before it have read theirs
// by then, and those behind it have not begun; without it all others have read.
TEST(ManyRankCheckpoint, IsReadByOneRankAfterAnotherWhereAskedTo) {
  constexpr int kWorld = 4, kBroken = 1;
  for (const int stage : {2, 3}) {
    Folder folder;
    Job run{kWorld, saving_config(stage, kWorld)};
    std::vector<std::vector<float>> saved(kWorld);
    run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      for (int i = 0; i < 4; ++i) engine->train_batch();  // the first two have no rate
      saved[static_cast<size_t>(comm->rank())] = owned_weights(*engine);
      engine->save(folder.path(), "saved");
    });
    std::vector<fs::path> blobs;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path("saved"))) {
      if (entry.path().filename().string().find("data-") == 0) blobs.push_back(entry.path());
    }
    std::sort(blobs.begin(), blobs.end());
    ASSERT_EQ(blobs.size(), static_cast<size_t>(kWorld));
    for (const bool in_turn : {false, true}) {
      run.config["zero_optimization"]["pipeline_loading_checkpoint"] = in_turn;
      const auto load = [&](bool broken) {
        run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
          SCOPED_TRACE(str_cat("stage ", stage, ", in turn ", in_turn, ", rank ", comm->rank()));
          auto engine = make_rank_engine(run, comm);
          const std::vector<float> fresh = owned_weights(*engine);
          const std::vector<float>& wanted = saved[static_cast<size_t>(comm->rank())];
          EXPECT_FALSE(same_bits(fresh, wanted));
          if (!broken) {
            engine->load(folder.path(), "saved");
            EXPECT_TRUE(same_bits(owned_weights(*engine), wanted));
            return;
          }
          EXPECT_THROW(engine->load(folder.path(), "saved"), Error);
          if (comm->rank() == kBroken) return;
          const bool reads = !in_turn || comm->rank() < kBroken;
          EXPECT_TRUE(same_bits(owned_weights(*engine), reads ? wanted : fresh));
        });
      };
      load(false);
      flip_a_bit(blobs[kBroken]);
      load(true);
      flip_a_bit(blobs[kBroken]);
    }
  }
}

// Ranks that read what is whole put it back when another rank's is not, and train on as if nothing
// had been loaded, although copies lay in the memory of their gradients.
TEST(ManyRankCheckpoint, AFailingLoadLeavesTrainedRanksAsTheyWere) {
  constexpr int kWorld = 2;
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    Folder folder;
    const Job run{kWorld, with(saving_config(stage, kWorld), {{"gradient_clipping", 0.1}})};
    std::array<std::array<State, kWorld>, 2> states;
    for (const bool loads : {false, true}) {
      run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(run, comm);
        for (int i = 0; i < 3; ++i) engine->train_batch();
        engine->save(folder.path(), loads ? "b" : "a");
        engine->train_batch();
        if (loads) {
          comm->barrier();
          if (comm->rank() == 0) flip_a_bit(folder.path("b/data-00001.bin"));
          comm->barrier();
          try {
            engine->load(folder.path(), "b");
            ADD_FAILURE() << "no error";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Code::kCorrupt);
            EXPECT_EQ(error.message().find("can only load"), std::string::npos) << error.message();
          }
        }
        State mine = state_of(*engine);
        mine.next_losses = {engine->train_batch().loss, engine->train_batch().loss};
        states[loads ? 1 : 0][static_cast<size_t>(comm->rank())] = std::move(mine);
      });
    }
    for (size_t rank = 0; rank < kWorld; ++rank) {
      EXPECT_TRUE(same_bits(states[1][rank].weights, states[0][rank].weights));
      EXPECT_TRUE(same_bits(states[1][rank].moments, states[0][rank].moments));
      EXPECT_EQ(states[1][rank].next_losses, states[0][rank].next_losses);
    }
  }
}

// The number tells micro batches apart. Ranks count different numbers of labels.
StepReport micro_batch(Engine& engine, int rank, int64_t number) {
  std::vector<int64_t> ids(2 * 8), labels;
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(i * static_cast<size_t>(5 + number + 3 * rank) % 61);
  }
  labels = ids;
  for (int i = 0; i <= 2 * rank; ++i) labels[static_cast<size_t>(3 + i)] = kNoLabel;
  engine.backward(engine.forward({ids_tensor(ids, 2), ids_tensor(labels, 2), {}, {}, {}}));
  return engine.step();
}

// Losses and tokens of an open step are every rank's own: a resume must not count rank 0's twice.
TEST(ManyRankCheckpoint, AnOpenStepKeepsTheSumsOfAllRanks) {
  // Without dropout a micro batch does not depend on its place in the step: see the last part.
  for (const auto& [stage, dropout] : {std::pair{0, 0.0}, {2, 0.0}, {3, 0.0}, {2, 0.1}}) {
    SCOPED_TRACE(str_cat(stage, " ", dropout));
    Folder folder;
    Job job{2, with(saving_config(stage, 2), {{"gradient_accumulation_steps", 2}})};
    job.model = model_config(dropout);
    std::mutex mutex;
    std::vector<StepReport> wanted(2), resumed(2);
    std::vector<float> weights_wanted, weights_resumed;
    double first_sum = 0;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(job, comm);
      const double first = micro_batch(*engine, comm->rank(), 0).loss;
      engine->save(folder.path(), "a");
      const StepReport report = micro_batch(*engine, comm->rank(), 1);
      const std::vector<float> all = all_weights(*engine);
      const std::lock_guard lock(mutex);
      first_sum += first;
      wanted[static_cast<size_t>(comm->rank())] = report;
      weights_wanted = all;
    });
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(job, comm);
      engine->load(folder.path(), "");
      const StepReport report = micro_batch(*engine, comm->rank(), 1);
      const std::vector<float> all = all_weights(*engine);
      const std::lock_guard lock(mutex);
      resumed[static_cast<size_t>(comm->rank())] = report;
      weights_resumed = all;
    });
    EXPECT_TRUE(same_bits(weights_resumed, weights_wanted));
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(resumed[rank].loss, wanted[rank].loss) << rank;
      EXPECT_EQ(resumed[rank].grad_norm, wanted[rank].grad_norm) << rank;
      EXPECT_EQ(resumed[rank].tokens, wanted[rank].tokens) << rank;
      EXPECT_EQ(resumed[rank].progress.tokens, wanted[rank].progress.tokens) << rank;
    }
    // Both ranks' counted labels: 16 less the last position of each row and those left out.
    const int64_t tokens = wanted[0].tokens;

    if (dropout > 0) continue;
    // One rank alone goes on with the mean loss of both and all of their tokens.
    Job alone = job;
    alone.world = 1;
    run_ranks(1, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(alone, comm);
      engine->load(folder.path(), "");
      auto other = make_rank_engine(alone, comm);
      const double own = micro_batch(*other, 0, 1).loss;
      const StepReport report = micro_batch(*engine, 0, 1);
      EXPECT_NEAR(report.loss, (first_sum / 2 + own) / 2, 1e-6 * report.loss);
      EXPECT_EQ(report.tokens, tokens / 2 + micro_batch(*other, 0, 1).tokens / 2);
      EXPECT_EQ(report.progress.tokens, report.tokens);
    });
  }
}

TEST(ManyRankCheckpoint, RanksLoadOneTag) {
  Folder folder;
  const Job job{2, saving_config(1, 2)};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(job, comm);
    engine->train_batch();
    engine->save(folder.path(), "tag0");
    engine->train_batch();
    engine->save(folder.path(), "tag1");
    const std::string why = error_of(
        Code::kInvalidArgument, [&] { engine->load(folder.path(), str_cat("tag", comm->rank())); });
    EXPECT_NE(why.find("tag1"), std::string::npos) << why;
    engine->load(folder.path(), "tag0");
    EXPECT_EQ(engine->progress().steps, 1);
  });
}

TEST(ManyRankCheckpoint, TagsMustAgree) {
  Folder folder;
  Job run{2, saving_config(1, 2)};
  run.config["checkpoint"] = {{"tag_validation", "Fail"}};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    engine->train_batch();
    error_of(Code::kInvalidArgument,
             [&] { engine->save(folder.path(), str_cat("tag", comm->rank())); });
    engine->save(folder.path(), "same");
  });
  EXPECT_TRUE(fs::exists(folder.path("same")));
}

// Warned of or not, the tag is rank 0's, and there is one checkpoint.
TEST(ManyRankCheckpoint, TagsThatNeedNotAgreeAreThatOfTheFirstRank) {
  for (const char* how : {"Warn", "Ignore"}) {
    SCOPED_TRACE(how);
    Folder folder;
    Job run{2, saving_config(1, 2)};
    run.config["checkpoint"] = {{"tag_validation", how}};
    LogLines log;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      engine->train_batch();
      engine->save(folder.path(), str_cat("tag", comm->rank()));
      engine->load(folder.path(), "tag0");
    });
    EXPECT_TRUE(fs::exists(folder.path("tag0")));
    EXPECT_FALSE(fs::exists(folder.path("tag1")));
    EXPECT_EQ(log.take("give every rank the same tag").size(), how[0] == 'W' ? 1u : 0u);
  }
}

}  // namespace
}  // namespace ds::zero_test
