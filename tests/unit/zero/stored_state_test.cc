// Training state in files (../optim/file_store.h): it trains with the bits of memory, whatever the
// stage, the precision and the optimizer; is read, set, saved and loaded as in memory; and needs
// memory for what is mapped at a time alone. stored_state_faults_test.cc has what fails.
#include <gmock/gmock.h>

#include <array>
#include <functional>

#include "../optim/file_store.h"
#include "models/adapters.h"
#include "own_world.h"
#include "stored_jobs.h"

namespace ds::zero_test {
namespace {

using ds::testing::FileFactory;
using optim::ArrayRole;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<optim::ArrayFactory> files() { return std::make_shared<FileFactory>(kPart); }

const Kind kRounded = {"RoundedMasters",
                       {{"bf16", {{"enabled", true}, {"bf16_master_weights_and_grads", true}}},
                        {"zero_optimization", {{"offload_optimizer", {{"device", "cpu"}}}}}}};

class StoredKinds : public ::testing::TestWithParam<Kind> {
 protected:
  static Job job(int world, int stage) {
    const Json zero = {{"reduce_bucket_size", 5000}, {"stage3_param_persistence_threshold", 40}};
    Job out{world, zero_config(stage, zero, {{"gradient_accumulation_steps", 2}})};
    out.config.merge_patch(GetParam().more);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, StoredKinds, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });
INSTANTIATE_TEST_SUITE_P(Rounded, StoredKinds, ::testing::Values(kRounded),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(StoredKinds, TrainWithTheBitsOfMemory) {
  // Masters that are the weights begin at stage 1; blocks of 8-bit states follow from the stage.
  const int first = GetParam().name == std::string("RoundedMasters") ? 1 : 0;
  const bool blocks = GetParam().name == std::string("States8Bit");
  Job alone = job(1, first);
  const Trained plain = train(alone);
  alone.arrays = files;
  expect_same(train(alone), plain);
  const Trained two = train(job(2, first));
  for (int stage = first; stage <= 3; ++stage) {
    SCOPED_TRACE(str_cat("two ranks, stage ", stage));
    Job shared = job(2, stage);
    const Trained expected = blocks ? train(shared) : two;
    shared.arrays = files;
    expect_same(train(shared), expected);
  }
}

// Each role by itself: no array depends on where the others lie.
TEST(StoredState, RolesLieWhereTheyAreToEachByItself) {
  for (const bool split : {false, true}) {
    const Json more = {{"gradient_accumulation_steps", 2},
                       {"bf16", {{"enabled", split}, {"split_master", split}}},
                       {"optimizer", {{"state_dtype", "int8"}}}};
    for (const int world : {1, 2}) {
      Job job{world, zero_config(world == 1 ? 0 : 2, {{"reduce_bucket_size", 5000}}, more)};
      const Trained plain = train(job);
      for (const ArrayRole role : FileFactory::all_roles()) {
        SCOPED_TRACE(
            str_cat("world ", world, ", role ", static_cast<int>(role), ", split ", split));
        job.arrays = [role] {
          return std::make_shared<FileFactory>(kPart, FileFactory::Roles{role});
        };
        expect_same(train(job), plain);
      }
    }
  }
}

TEST(StoredState, ReplicasOfShardGroupsAgree) {
  Job job{4, zero_config(3, {{"mics_shard_size", 2}, {"reduce_bucket_size", 5000}},
                         {{"gradient_accumulation_steps", 2}})};
  const Trained plain = train(job);
  job.arrays = files;
  expect_same(train(job), plain);
}

// Recomputed blocks, adapters over a frozen base, and tiles.
TEST(StoredState, OtherWaysToTrainAgree) {
  Job recomputed{1, with(base_config(), {{"activation_checkpointing", {{"enabled", true}}}})};
  Job adapted{2, zero_config(3, {{"reduce_bucket_size", 3000}})};
  adapted.prepare = [](models::Model& model) {
    models::LoraOptions lora;
    lora.r = 3;
    lora.target_modules = {"all-linear"};
    lora.seed = 5;
    models::add_lora(model, lora);
  };
  Job tiled{2, zero_config(3, {{"stage3_tile_size", 1500}, {"reduce_bucket_size", 3000}})};
  for (Job* const job : {&recomputed, &adapted, &tiled}) {
    SCOPED_TRACE(dump_json(job->config));
    const Trained plain = train(*job);
    job->arrays = files;
    expect_same(train(*job), plain);
  }
}

// ---- the caller's own parameters ----

// Some in fp32 beside others in bf16. Their gradients are the caller's to write as memory.
TEST(StoredState, TheCallersParametersTrainWithTheBitsOfMemory) {
  for (const int world : {1, 2}) {
    for (const int stage : {0, 2, 3}) {
      SCOPED_TRACE(str_cat("world ", world, ", stage ", stage));
      OwnJob job{world, with(zero_config(stage, {{"reduce_bucket_size", 900}}),
                             {{"bf16", {{"enabled", true}}}})};
      job.change = [](nn::Parameter& p) {
        p.dtype = p.name.ends_with(".bias") ? DType::kFloat32 : DType::kBFloat16;
        return true;
      };
      std::vector<float> weights[2];
      for (const bool stored : {false, true}) {
        std::mutex mutex;
        run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
          FileFactory::Roles roles = FileFactory::all_roles();
          roles.erase(ArrayRole::kGradients);
          const auto arrays = stored ? std::make_shared<FileFactory>(kPart, roles) : nullptr;
          Engine engine(dump_json(job.config), own_model(job), comm, {}, arrays);
          for (int step = 0; step < 3; ++step) {
            run_own_batch(engine, job, comm->rank(), step);
            EXPECT_TRUE(engine.step().applied);
          }
          const std::vector<float> mine = all_weights(engine);
          const std::lock_guard lock(mutex);
          if (comm->rank() == 0) weights[stored] = mine;
        });
      }
      EXPECT_TRUE(same_bits(weights[1], weights[0]));
    }
  }
}

TEST(StoredState, GradientsThatTheCallerWritesMustBeMemory) {
  const OwnJob job{1, zero_config(0)};
  EXPECT_THAT(
      error_of(Code::kUnsupported,
               [&] { Engine(dump_json(job.config), own_model(job), nullptr, {}, files()); }),
      HasSubstr("must lie there"));
  // A model that computes its own has no views of them then.
  Job built_in{1, zero_config(0)};
  built_in.arrays = files;
  const auto engine = make_rank_engine(built_in, nullptr);
  EXPECT_THAT(error_of(Code::kUnsupported, [&] { engine->gradients().view("ln_f.bias"); }),
              HasSubstr("must lie there"));
}

// ---- reading and setting ----

// The first steps of the schedule have a rate of zero.
void train_warm(Engine& engine) {
  for (int i = 0; i < 3; ++i) engine.train_batch();
  EXPECT_GT(engine.rates()[0], 1e-3);
}

// Values, gradients and states of every parameter, all and what the rank owns.
std::vector<float> everything(Engine& engine) {
  std::vector<float> out = all_weights(engine);
  const auto add = [&](const Tensor& x) {
    const std::vector<float> one = flat(x);
    out.insert(out.end(), one.begin(), one.end());
  };
  for (nn::ParamId id = 0; id < engine.model()->parameters().size(); ++id) {
    const std::string& name = engine.model()->parameters()[id].name;
    add(engine.gradients().get(name));
    add(engine.values().local(name, "parameter"));
    add(engine.values().local(name, "gradient"));
    for (const std::string& state : engine.values().optimizer_states(name)) {
      add(engine.values().optimizer_state(name, state));
      add(engine.values().local(name, state));
    }
  }
  return out;
}

void set_everything(Engine& engine) {
  const std::shared_ptr<Device> device = make_cpu_device();
  int64_t number = 0;
  const auto numbers = [&](const Shape& shape) {
    Tensor out = Tensor::empty(device, DType::kFloat32, shape, MemoryTag::kOther);
    ++number;
    for (int64_t i = 0; i < out.elements(); ++i) {
      out.data<float>()[i] = 0.1f + 0.05f * noise(number, i);
    }
    return out;
  };
  for (nn::ParamId id = 0; id < engine.model()->parameters().size(); ++id) {
    const nn::Parameter& p = engine.model()->parameters()[id];
    engine.model()->set(p.name, numbers(p.shape));
    for (const std::string& state : engine.values().optimizer_states(p.name)) {
      engine.values().set_optimizer_state(p.name, state, numbers(p.shape));
    }
    engine.gradients().set(p.name, numbers(p.shape));
  }
  for (const char* const name : {"ln_f.weight", "h.0.attn.c_attn.weight"}) {
    const zero::FlatRange range = engine.values().local_range(name);
    for (const char* const what : {"parameter", "gradient", "exp_avg"}) {
      engine.values().set_local(name, what, numbers({range.elements()}));
    }
  }
}

TEST(StoredState, ValuesGradientsAndStatesAreReadAndSet) {
  for (const Json& more : {Json::object(), Json{{"bf16", {{"enabled", true}}}},
                           Json{{"bf16", {{"enabled", true}, {"split_master", true}}},
                                {"optimizer", {{"state_dtype", "int8"}}}}}) {
    for (const auto& [world, stage] : {std::pair{1, 0}, {2, 0}, {2, 1}, {2, 3}}) {
      SCOPED_TRACE(str_cat(dump_json(more), ", world ", world, ", stage ", stage));
      Job job{world, zero_config(stage, {{"reduce_bucket_size", 5000}}, more)};
      std::vector<std::vector<float>> seen[2];
      for (const bool stored : {false, true}) {
        if (stored) job.arrays = files;
        seen[stored].resize(static_cast<size_t>(world));
        run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
          auto engine = make_rank_engine(job, comm);
          train_warm(*engine);
          std::vector<float>& mine = seen[stored][static_cast<size_t>(comm->rank())];
          mine = everything(*engine);
          set_everything(*engine);
          const std::vector<float> set = everything(*engine);
          mine.insert(mine.end(), set.begin(), set.end());
          mine.push_back(static_cast<float>(engine->step().grad_norm));
          const std::vector<float> after = all_weights(*engine);
          mine.insert(mine.end(), after.begin(), after.end());
        });
      }
      for (size_t rank = 0; rank < seen[0].size(); ++rank) {
        EXPECT_TRUE(same_bits(seen[1][rank], seen[0][rank])) << "rank " << rank;
      }
    }
  }
}

// A step whose gradients are not finite is left out, and the parameter is named.
TEST(StoredState, TheFirstBadGradientIsFound) {
  Job job{1, zero_config(0)};
  job.arrays = files;
  const auto engine = make_rank_engine(job, nullptr);
  engine->train_batch();
  const std::vector<float> before = all_weights(*engine);
  Tensor bad = engine->gradients().get("h.1.mlp.c_fc.weight");
  bad.data<float>()[2345] = std::numeric_limits<float>::infinity();
  engine->gradients().set("h.1.mlp.c_fc.weight", bad);
  const StepReport report = engine->step();
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.first_bad_tensor, "h.1.mlp.c_fc.weight");
  EXPECT_EQ(report.first_bad_element, 2345);
  EXPECT_TRUE(same_bits(all_weights(*engine), before));
}

// ---- checkpoints ----

// Saves within a step, so that gradients are part of it, and goes on.
struct Place {
  bool stored;
  int world, stage;
};

Job saving_job(const Place& place, bool background) {
  // A micro step is eight samples, whatever the world.
  Job job{place.world, zero_config(place.stage, {{"reduce_bucket_size", 4000}},
                                   {{"train_micro_batch_size_per_gpu", 8 / place.world},
                                    {"gradient_accumulation_steps", 2},
                                    {"bf16", {{"enabled", true}}},
                                    {"optimizer", {{"state_dtype", "bf16"}}},
                                    {"checkpoint", {{"writer", {{"decoupled", background}}}}}})};
  if (place.stored) job.arrays = files;
  return job;
}

const Place kPlaces[] = {{false, 1, 0}, {true, 1, 0}, {true, 2, 0}, {false, 2, 2}, {true, 2, 3}};

std::string name_of(const Place& place) {
  return str_cat(place.stored ? "Files" : "Memory", "World", place.world, "Stage", place.stage);
}

class StoredPlaces : public ::testing::TestWithParam<Place> {};
INSTANTIATE_TEST_SUITE_P(Saved, StoredPlaces, ::testing::ValuesIn(kPlaces),
                         [](const auto& place) { return name_of(place.param); });

TEST_P(StoredPlaces, CheckpointsLoadAnywhere) {
  const Place& from = GetParam();
  const Folder folder;
  Trained saved;
  run_ranks(from.world, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(saving_job(from, from.stored), comm);
    train_warm(*engine);
    run_micro_batch(*engine);
    engine->save(folder.path(), "half");
    engine->wait_for_save();
    const std::vector<float> weights = all_weights(*engine);
    run_micro_batch(*engine);
    const std::vector<float> after = all_weights(*engine);
    if (comm->rank() != 0) return;
    saved.weights = weights;
    saved.weights.insert(saved.weights.end(), after.begin(), after.end());
  });
  for (const Place& to : kPlaces) {
    SCOPED_TRACE("to " + name_of(to));
    Trained loaded;
    run_ranks(to.world, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(saving_job(to, false), comm);
      engine->load(folder.path(), "half");
      const std::vector<float> weights = all_weights(*engine);
      run_micro_batch(*engine);
      const std::vector<float> after = all_weights(*engine);
      if (comm->rank() != 0) return;
      loaded.weights = weights;
      loaded.weights.insert(loaded.weights.end(), after.begin(), after.end());
    });
    const auto half = static_cast<std::ptrdiff_t>(saved.weights.size() / 2);
    const auto first = [&](const Trained& of) {
      return std::vector<float>(of.weights.begin(), of.weights.begin() + half);
    };
    EXPECT_TRUE(same_bits(first(loaded), first(saved)));
    if (to.world == from.world) {
      EXPECT_TRUE(same_bits(loaded.weights, saved.weights));
    }
  }
}

// The gradients of an open step carry what they were divided by.
TEST(StoredState, AnOpenStepGoesOnWithOtherAccumulation) {
  const Folder folder;
  {
    const auto engine = make_rank_engine(saving_job({false, 1, 0}, false), nullptr);
    train_warm(*engine);
    run_micro_batch(*engine);
    engine->save(folder.path(), "half");
  }
  std::vector<float> weights[2];
  for (const bool stored : {false, true}) {
    Job job = saving_job({stored, 1, 0}, false);
    job.config["gradient_accumulation_steps"] = 4;
    const auto engine = make_rank_engine(job, nullptr);
    engine->load(folder.path(), "half");
    for (int i = 0; i < 3; ++i) run_micro_batch(*engine);
    weights[stored] = all_weights(*engine);
  }
  EXPECT_TRUE(same_bits(weights[1], weights[0]));
}

// ---- memory ----

// All that an engine does, with files for everything, maps a few parts or a whole tensor; and no
// memory of state is left but the weights'.
TEST(StoredState, MemoryIsForWhatIsMappedAtATime) {
  const Json model = with(model_config(0), {{"n_embd", 64}, {"n_layer", 4}, {"vocab_size", 640}});
  constexpr int64_t kLargest = 640 * 64;  // the embedding
  for (const char* const precision : {"fp32", "bf16"}) {
    const bool bf16 = precision == std::string("bf16");
    const auto arrays = std::make_shared<FileFactory>(kPart);
    const auto counts = arrays->counts;
    Job job{1, zero_config(0, Json::object(), {{"bf16", {{"enabled", bf16}}}}), 1, model};
    job.arrays = [&] { return arrays; };
    const auto engine = make_rank_engine(job, nullptr);
    const Folder folder;
    EXPECT_LE(counts->most_mapped, 4 * kPart);  // making it takes a part at a time
    engine->train_batch();
    engine->save(folder.path(), "here");
    engine->load(folder.path(), "here");
    run_micro_batch(*engine);
    // Backward adds to the embedding's gradient from its beginning to its end. An update maps
    // masters, gradients and two states of a sub-group, which is a chunk at least.
    EXPECT_EQ(counts->most_elements, kLargest);
    EXPECT_LE(counts->most_mapped, 4 * kernels::kUpdateChunk * int64_t{sizeof(float)});
    EXPECT_EQ(counts->dropped_writes, 0);
    const MemoryAccount& account = engine->model()->device()->account();
    const int64_t p = engine->model()->parameters().elements();
    EXPECT_GT(p, 7 * kernels::kUpdateChunk);  // of each of the four
    EXPECT_EQ(account.now(MemoryTag::kOptimizer), 0);
    EXPECT_LT(account.now(MemoryTag::kGradients), p / 10);
    EXPECT_NEAR(static_cast<double>(account.now(MemoryTag::kParameters)),
                static_cast<double>((bf16 ? 2 : 4) * p), 0.05 * static_cast<double>(p));
  }
}

// After the engine the model holds its masters in memory again, and the files are gone.
TEST(StoredState, TheModelGetsItsMastersBack) {
  for (const char* const precision : {"fp32", "bf16", "split"}) {
    const bool split = precision == std::string("split");
    Job job{
        1,
        zero_config(
            0, Json::object(),
            {{"bf16", {{"enabled", precision != std::string("fp32")}, {"split_master", split}}}})};
    auto arrays = std::make_shared<FileFactory>(kPart);
    const fs::path folder = arrays->folder();
    const auto model = make_rank_model(job);
    std::vector<float> trained;
    {
      Engine engine(dump_json(job.config), model, nullptr, {}, arrays);
      engine.set_dataset(periodic_data());
      engine.train_batch();
      trained = all_weights(engine);
      EXPECT_FALSE(fs::is_empty(folder));
    }
    EXPECT_TRUE(fs::is_empty(folder));
    arrays.reset();
    EXPECT_FALSE(fs::exists(folder));
    std::vector<float> after;
    for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
      const std::vector<float> one = flat(model->read(model->context(), id));
      after.insert(after.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(same_bits(after, trained));
    Engine again(dump_json(job.config), model, nullptr);
    EXPECT_TRUE(same_bits(all_weights(again), trained));
  }
}

}  // namespace
}  // namespace ds::zero_test
