// offload_optimizer.super_offload in whole engines: the bits of plain training, whether updates
// ahead of the step are kept or undone, whoever looks at the run meanwhile, and from any
// checkpoint.
#include <gmock/gmock.h>

#include <limits>
#include <thread>

#include "stored_jobs.h"

namespace ds::zero_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;

Job ahead_job(int world, int stage, bool ahead, const Json& more = Json::object()) {
  Job out =
      job(world, stage, with({{"bf16", {{"enabled", true}}}, {"gradient_clipping", 0}}, more));
  out.config["zero_optimization"].merge_patch(
      {{"sub_group_size", 32768},
       {"offload_optimizer", {{"device", "cpu"}, {"super_offload", ahead}}}});
  out.steps = 6;
  return out;
}

constexpr double kSometimes = 1.4;  // some norms are above it

const Kind kRuns[] = {
    {"Bf16", {{"gradient_clipping", 0}}},
    {"Clipped", {{"gradient_clipping", 0.1}}},
    {"SometimesClipped", {{"gradient_clipping", kSometimes}}},
    {"OneMicroBatch", {{"gradient_accumulation_steps", 1}, {"gradient_clipping", 0}}},
    // The scale grows until a step overflows.
    {"Fp16",
     {{"bf16", {{"enabled", false}}},
      {"fp16", {{"enabled", true}, {"initial_scale_power", 21}, {"loss_scale_window", 2}}}}},
    {"Bf16Gradients", {{"data_types", {{"grad_accum_dtype", "bf16"}}}}},
    {"States8Bit", {{"optimizer", {{"state_dtype", "int8"}}}}},
    {"Lion", optimizer("Lion", {{"lr", 1e-3}, {"weight_decay", 0.01}})},
};

class SuperOffloadRuns : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Runs, SuperOffloadRuns, ::testing::ValuesIn(kRuns),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(SuperOffloadRuns, HaveTheBitsOfPlainTraining) {
  for (const int world : {1, 2}) {
    for (int stage = 1; stage <= 3; ++stage) {
      SCOPED_TRACE(str_cat(world, " ranks, stage ", stage));
      const Json& more = GetParam().more;
      const Trained plain = train(ahead_job(world, stage, false, more));
      expect_same(train(ahead_job(world, stage, true, more)), plain);
      // Both kinds of steps occur.
      if (GetParam().name == std::string("Fp16")) {
        EXPECT_THAT(plain.norms, AllOf(Contains(-1.0), Contains(Gt(0.0))));
      }
      if (GetParam().name == std::string("SometimesClipped")) {
        EXPECT_THAT(plain.norms, AllOf(Contains(Lt(kSometimes)), Contains(Gt(kSometimes))));
      }
    }
  }
}

TEST(SuperOffload, QuantizedAndTiledStagesHaveTheSameBits) {
  for (const Json& zero :
       {Json{{"zero_quantized_weights", true}}, Json{{"zero_hpz_partition_size", 2}},
        Json{{"mics_shard_size", 1}}, Json{{"stage3_tile_size", 10'000}}}) {
    SCOPED_TRACE(dump_json(zero));
    const Json more = {{"zero_optimization", zero}};
    expect_same(train(ahead_job(2, 3, true, more)), train(ahead_job(2, 3, false, more)));
  }
}

// ---- what comes between backward and step ----

class Pair {
 public:
  explicit Pair(const Json& more = Json::object())
      : plain_(make_rank_engine(ahead_job(1, 2, false, once(more)), nullptr)),
        ahead_(make_rank_engine(ahead_job(1, 2, true, once(more)), nullptr)) {}
  static Json once(const Json& more) {
    return with({{"gradient_accumulation_steps", 1}, {"gradient_clipping", 0}}, more);
  }

  template <class Body>
  void both(const Body& body) {
    for (Engine* const engine : {plain_.get(), ahead_.get()}) body(*engine);
  }
  void passes() {
    ++batch_;
    both([this](Engine& engine) {
      std::vector<int64_t> ids;
      for (int64_t i = 0; i < 8 * 16; ++i) ids.push_back((i * i + batch_ * 7) % 61);
      MicroBatch batch;
      batch.ids = ids_tensor(ids, 8);
      batch.labels = batch.ids;
      engine.backward(engine.forward(batch));
    });
  }
  // Until everything is updated that can be.
  void wait() const {
    while (ahead_->updated_ahead() < 1) std::this_thread::yield();
  }
  void step() {
    both([](Engine& engine) { engine.step(); });
  }
  double share() const { return ahead_->updated_ahead(); }
  void expect_alike(const char* when) {
    EXPECT_TRUE(same_bits(all_weights(*ahead_), all_weights(*plain_))) << when;
    const std::string name = "h.1.mlp.c_fc.weight";
    for (const char* state : {"exp_avg", "exp_avg_sq"}) {
      EXPECT_TRUE(same_bits(flat(ahead_->values().optimizer_state(name, state)),
                            flat(plain_->values().optimizer_state(name, state))))
          << when << ": " << state;
    }
  }
  Engine& ahead() { return *ahead_; }
  Engine& plain() { return *plain_; }

 private:
  std::unique_ptr<Engine> plain_, ahead_;
  int64_t batch_ = 0;
};

TEST(SuperOffload, EverythingIsUpdatedAheadAndTheStepKeepsIt) {
  Pair pair;
  for (int i = 0; i < 3; ++i) {
    pair.passes();
    pair.wait();
    pair.step();
    EXPECT_EQ(pair.share(), 1);
    pair.expect_alike("kept");
  }
}

TEST(SuperOffload, WhoLooksBetweenBackwardAndStepSeesTheLastStep) {
  const std::string name = "h.0.attn.c_attn.weight";
  using Look = std::function<void(Engine&)>;
  const std::pair<const char*, Look> looks[] = {
      {"weights", [](Engine& engine) { all_weights(engine); }},
      {"state", [&](Engine& engine) { engine.values().optimizer_state(name, "exp_avg"); }},
      {"set a weight",
       [&](Engine& engine) {
         const Tensor value = engine.values().local(name, "parameter");
         std::fill_n(value.data<float>(), 10, 0.5F);
         engine.values().set_local(name, "parameter", value);
       }},
      {"set a gradient",
       [&](Engine& engine) {
         const Tensor value = engine.gradients().get(name);
         std::fill_n(value.data<float>(), 10, 0.5F);
         engine.gradients().set(name, value);
       }},
      {"other learning rate", [](Engine& engine) { engine.set_lr(5e-4); }},
  };
  for (const auto& [what, look] : looks) {
    SCOPED_TRACE(what);
    Pair pair;
    for (int i = 0; i < 2; ++i) {
      pair.passes();
      pair.wait();
      pair.both(look);
      pair.step();
      EXPECT_EQ(pair.share(), 0);
      pair.expect_alike(what);
    }
  }
}

TEST(SuperOffload, AStepThatIsGivenUpLeavesNothing) {
  Pair pair;
  pair.passes();
  pair.step();
  pair.passes();
  pair.wait();
  pair.both([](Engine& engine) { engine.discard_gradients(); });
  pair.expect_alike("given up");
  pair.passes();
  pair.wait();
  pair.both([](Engine& engine) {
    const std::string name = "wte.weight";
    const Tensor bad = engine.gradients().get(name);
    bad.data<float>()[3] = std::numeric_limits<float>::infinity();
    engine.gradients().set(name, bad);
    engine.step();
  });
  pair.expect_alike("not finite");
}

// The caller decides later that more micro batches follow.
TEST(SuperOffload, AnotherMicroBatchUndoesWhatCameTooEarly) {
  Pair pair;
  for (int i = 0; i < 2; ++i) {
    pair.passes();
    pair.wait();
    pair.both([](Engine& engine) { engine.set_boundary(false); });
    pair.step();
    pair.expect_alike("more follow");
    pair.both([](Engine& engine) { engine.set_boundary(true); });
    pair.passes();
    pair.wait();
    pair.step();
    EXPECT_EQ(pair.share(), 1);
    pair.expect_alike("the step is made");
    pair.both([](Engine& engine) { engine.set_boundary({}); });
  }
}

// Twice as long as it is, an update that will be undone costs more than it can win.
TEST(SuperOffload, AfterAClippedStepItWaitsForOneThatIsNot) {
  Pair pair(Json{{"gradient_clipping", 1e-3}});
  pair.passes();
  pair.wait();
  pair.step();
  EXPECT_EQ(pair.share(), 0);
  pair.expect_alike("clipped");
  pair.passes();
  pair.step();
  EXPECT_EQ(pair.share(), 0);
  pair.expect_alike("clipped again");
}

TEST(SuperOffload, CheckpointsGoOnWithAndWithout) {
  const Json places[] = {ahead_job(2, 1, true).config, ahead_job(2, 3, false).config,
                         ahead_job(2, 3, true).config, ahead_job(2, 2, true).config};
  for (size_t from = 0; from < std::size(places); ++from) {
    const Folder checkpoints;
    std::vector<float> whole, again;
    Job first = ahead_job(2, 1, true), second = first;
    first.config = places[from];
    second.config = places[(from + 1) % std::size(places)];
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(first, comm);
      for (int i = 0; i < 2; ++i) engine->train_batch();
      engine->save(checkpoints.path(), "here");
      for (int i = 0; i < 2; ++i) engine->train_batch();
      const std::vector<float> weights = all_weights(*engine);
      if (comm->rank() == 0) whole = weights;
    });
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(second, comm);
      engine->train_batch();  // which the load forgets
      engine->load(checkpoints.path(), "here");
      for (int i = 0; i < 2; ++i) engine->train_batch();
      const std::vector<float> weights = all_weights(*engine);
      if (comm->rank() == 0) again = weights;
    });
    EXPECT_TRUE(same_bits(again, whole)) << "from " << from;
  }
}

// ---- what it does not work with ----

TEST(SuperOffload, RefusesWhatCannotBeUndone) {
  const Folder folder;
  const auto refusal = [&](const Json& more) {
    Job refused = ahead_job(1, 2, true);
    refused.config.merge_patch(more);
    return error_of(Code::kUnsupported, [&] { make_rank_engine(refused, nullptr); });
  };
  EXPECT_THAT(
      refusal({{"zero_optimization",
                {{"offload_optimizer", {{"device", "nvme"}, {"nvme_path", folder.path()}}}}}}),
      AllOf(HasSubstr("super_offload"), HasSubstr("use device cpu")));
  EXPECT_THAT(refusal(optimizer("Lamb", {{"lr", 1e-2}})), HasSubstr("LAMB and Muon"));
  EXPECT_THAT(refusal({{"zero_optimization",
                        {{"zenflow",
                          {{"topk_ratio", 0.2},
                           {"update_interval", 2},
                           {"select_interval", 2},
                           {"select_strategy", "step"}}}}}}),
              HasSubstr("zenflow"));
  EXPECT_THAT(refusal({{"bf16", nullptr}}), HasSubstr("bf16 or fp16 with fp32 masters"));
  EXPECT_THAT(refusal({{"bf16", {{"split_master", true}}}}), HasSubstr("fp32 masters"));
}

}  // namespace
}  // namespace ds::zero_test
