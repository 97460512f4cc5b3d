// The state of ranks that share experts: offloaded, saved and loaded in other places, exported,
// read and set as that of one rank.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "expert_parallel_world.h"
#include "models/weights.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

TEST(ExpertParallelState, OffloadedTrainsWithTheSameBits) {
  const Folder folder;
  for (const Json& precision : {Json::object(), Json{{"bf16", {{"enabled", true}}}},
                                Json{{"bf16", {{"enabled", true}, {"split_master", true}}}}}) {
    const auto trained = [&](int stage, const Json& zero) {
      Job job;
      job.world = 4;
      job.model = mixtral();
      job.config = zero_config(stage, with({{"reduce_bucket_size", 3000}}, zero),
                               with(precision, {{"gradient_accumulation_steps", 2}}));
      job.config.merge_patch(shared_by(2));
      return train(job);
    };
    const Trained plain = trained(1, Json::object());
    const Json files = {{"device", "nvme"}, {"nvme_path", folder.path()}};
    const Json offloads[] = {
        {{"offload_optimizer", {{"device", "cpu"}}}},
        {{"offload_optimizer", files}, {"sub_group_size", 2000}},
        {{"offload_optimizer", files}, {"offload_param", files}, {"sub_group_size", 2000}}};
    for (const Json& zero : offloads) {
      for (const int stage : {1, 2, 3}) {
        if (zero.contains("offload_param") && stage < 3) continue;
        SCOPED_TRACE(str_cat("stage ", stage, ", ", dump_json(zero), ", ", dump_json(precision)));
        const Trained other = trained(stage, zero);
        EXPECT_TRUE(same_bits(other.weights, plain.weights));
        EXPECT_EQ(other.losses, plain.losses);
      }
    }
  }
}

// Weights that exist already are sent by the first rank; others each rank makes.
TEST(ExpertParallelState, BeginsWithWeightsThatExist) {
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    Job job = free_job(4, 2, 2, 1, stage);
    job.steps = 2;
    const Trained fresh = train(job);
    job.prepare = [](models::Model& model) { model.weights().make(model.context()); };
    EXPECT_TRUE(same_bits(train(job).weights, fresh.weights));
  }
}

// What is left of the model when its engine ends is a part of it.
TEST(ExpertParallelState, IsLostWithItsEngine) {
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(free_job(2, 2, 2, 1, 0), comm);
    const std::shared_ptr<models::Model> model = engine->model();
    engine->train_batch();
    engine.reset();
    EXPECT_THAT(error_of(Code::kState, [&] { model->get("h.0.ln_1.weight"); }),
                HasSubstr("spread over ranks"));
  });
}

// Of every parameter its value and its moments (every rank).
std::map<std::string, std::vector<float>> state_of(Engine& engine) {
  std::map<std::string, std::vector<float>> out;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const std::string& name = parameters[id].name;
    out[name] = flat(engine.model()->read(engine.model()->context(), id));
    for (const std::string& state : engine.values().optimizer_states(name)) {
      out[str_cat(name, ": ", state)] = flat(engine.values().optimizer_state(name, state));
    }
  }
  return out;
}

struct Place {
  int world, ranks, stage;
};

void check_checkpoints(const std::vector<Place>& places, const std::vector<Place>& other_places,
                       const Json& more) {
  const auto job_at = [&](const Place& place) {
    Job job;
    job.world = place.world;
    job.model = free_model();
    job.config = zero_config(place.stage, {{"reduce_bucket_size", 3000}},
                             with(more, {{"train_micro_batch_size_per_gpu", 8 / place.world}}));
    if (place.ranks > 1) job.config.merge_patch(shared_by(place.ranks));
    return job;
  };
  for (const Place& from : places) {
    const Folder folder;
    std::map<std::string, std::vector<float>> saved;
    double next = 0;
    run_ranks(from.world, [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = make_rank_engine(job_at(from), comm);
      for (int i = 0; i < 2; ++i) engine->train_batch();
      engine->save(folder.path(), "here");
      engine->wait_for_save();
      auto state = state_of(*engine);
      const double loss = engine->train_batch().loss;
      if (comm->rank() != 0) return;
      saved = std::move(state);
      next = loss;
    });
    for (const Place& to : other_places) {
      SCOPED_TRACE(str_cat("from ", from.ranks, " of ", from.world, " at stage ", from.stage,
                           " to ", to.ranks, " of ", to.world, " at stage ", to.stage));
      run_ranks(to.world, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(job_at(to).config), models::Model::create(free_model(), 99), comm);
        engine.set_dataset(periodic_data());
        engine.load(folder.path(), "here");
        const auto state = state_of(engine);
        ASSERT_EQ(state.size(), saved.size());
        for (const auto& [name, values] : saved) {
          EXPECT_TRUE(same_bits(state.at(name), values)) << name;
        }
        EXPECT_NEAR(engine.train_batch().loss, next, 1e-5);
      });
    }
  }
}

TEST(ExpertParallelState, CheckpointsGoFromAnyPlaceToAnyOther) {
  check_checkpoints({{4, 4, 0}, {4, 4, 3}, {4, 2, 1}, {2, 1, 2}},
                    {{1, 1, 0}, {2, 2, 3}, {4, 2, 2}, {4, 4, 1}, {8, 8, 1}, {8, 4, 3}, {4, 1, 3}},
                    Json::object());
}

TEST(ExpertParallelState, CheckpointsOfGroupsThatHoldCopiesDoToo) {
  check_checkpoints({{8, 2, 3}}, {{8, 4, 3}, {8, 2, 3}},
                    {{"zero_optimization", {{"mics_shard_size", 4}}}});
}

TEST(ExpertParallelState, CheckpointsOfOptimizersOfWholeTensorsDoToo) {
  for (const Json& more : kWholeTensors) {
    check_checkpoints({{4, 2, 1}, {2, 2, 3}}, {{1, 1, 0}, {4, 2, 3}, {4, 4, 1}}, more);
  }
}

// In the middle of a step, with what of its gradients there is.
TEST(ExpertParallelState, AnOpenStepGoesOnElsewhere) {
  const auto config = [](int ranks, int stage) {
    Json out =
        zero_config(stage, {{"reduce_bucket_size", 3000}}, {{"gradient_accumulation_steps", 2}});
    return ranks > 1 ? with(out, shared_by(ranks)) : out;
  };
  const Folder folder;
  double loss = 0;
  const auto pass = [](Engine& engine, int rank, int index) {
    engine.backward(engine.forward(batch_of(4 * index + 2 * rank, 2)));
    return engine.step();
  };
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config(2, 1)), models::Model::create(free_model(), 3), comm);
    pass(engine, comm->rank(), 0);
    engine.save(folder.path(), "open");
    for (const int index : {1, 2}) pass(engine, comm->rank(), index);
    const StepReport report = pass(engine, comm->rank(), 3);
    if (comm->rank() == 0) loss = report.loss;
  });
  for (const auto& [ranks, stage] : {std::pair{1, 1}, {2, 3}, {2, 0}}) {
    SCOPED_TRACE(str_cat(ranks, " share experts, stage ", stage));
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(config(ranks, stage)), models::Model::create(free_model(), 99), comm);
      engine.load(folder.path(), "open");
      EXPECT_TRUE(pass(engine, comm->rank(), 1).applied);
      pass(engine, comm->rank(), 2);
      EXPECT_NEAR(pass(engine, comm->rank(), 3).loss, loss, 1e-5);
    });
  }
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ExpertParallelState, ExportsAreThoseOfOneRank) {
  Json model = mixtral();
  model["output_router_logits"] = false;
  const Folder folder;
  const auto export_of = [&](int world, int ranks, int stage) {
    const std::string to = folder.path(str_cat("of_", ranks, "_at_", stage).c_str());
    run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
      Json config = zero_config(stage);
      if (ranks > 1) config.merge_patch(shared_by(ranks));
      Engine engine(dump_json(config), models::Model::create(model, 3), comm);
      const models::Model::Use use(*engine.model());
      models::export_model(*engine.model(), to, DType::kFloat32);
    });
    return text_of(std::filesystem::path(to) / "model.safetensors");
  };
  const std::string alone = export_of(1, 1, 0);
  EXPECT_GT(alone.size(), 10000u);
  for (const auto& [world, ranks, stage] : {std::tuple{4, 4, 0}, {4, 2, 1}, {2, 2, 3}}) {
    EXPECT_EQ(export_of(world, ranks, stage), alone) << ranks << " share experts, stage " << stage;
  }
}

// Values, gradients and states are read and set whole, whoever holds them.
TEST(ExpertParallelState, IsReadAndSetByEveryRank) {
  const std::string name = "h.1.mlp.experts.5.c_fc.weight";
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    std::atomic<int64_t> held = 0;
    run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
      Job job = free_job(4, 2, 2, 1, stage);
      job.config["optimizer"] = {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}};
      const auto engine = make_rank_engine(job, comm);
      engine->train_batch();
      const nn::ParamId id = engine->model()->parameters().find(name);
      const auto read = [&] { return engine->model()->read(engine->model()->context(), id); };
      const Tensor value = copied_to_host(read(), engine->model()->host());
      std::fill_n(value.data<float>(), value.elements(), 0.25f);
      engine->model()->set(name, value);
      EXPECT_TRUE(same_bits(flat(read()), flat(value)));
      engine->values().set_optimizer_state(name, "exp_avg", value);
      EXPECT_TRUE(same_bits(flat(engine->values().optimizer_state(name, "exp_avg")), flat(value)));
      engine->backward(engine->forward(batch_of(2 * comm->rank(), 2)));
      engine->gradients().set(name, value);
      EXPECT_TRUE(same_bits(flat(engine->gradients().get(name)), flat(value)));
      // What each rank has of it makes the whole.
      const zero::FlatRange range = engine->values().local_range(name);
      for (const char* what : {"parameter", "gradient", "exp_avg"}) {
        const Tensor local = engine->values().local(name, what);
        EXPECT_EQ(local.elements(), range.elements());
        for (const float one : flat(local)) EXPECT_EQ(one, 0.25f);
        engine->values().set_local(name, what, local);
      }
      // Expert 5 of 8 is with the second rank of each pair.
      if (comm->rank() % 2 == 0) {
        EXPECT_EQ(range.elements(), 0);
      }
      held += range.elements();
      EXPECT_TRUE(engine->step().applied);
    });
    EXPECT_EQ(held, 32 * 128 * (stage == 0 ? 2 : 1));
  }
}

}  // namespace
}  // namespace ds::zero_test
