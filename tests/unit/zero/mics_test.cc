// MiCS: shard groups hold one copy of the state each, and agree on gradients before they are used.
#include "traffic_world.h"

namespace ds::zero_test {
namespace {

const Json kSmall = {{"reduce_bucket_size", 5000},
                     {"stage3_param_persistence_threshold", 40},
                     {"stage3_max_live_parameters", 12000},
                     {"stage3_max_reuse_distance", 0}};

Json mics(int shard, const Json& more = Json::object()) {
  return with(with(kSmall, {{"mics_shard_size", shard}}), more);
}

// One shard group of all ranks is stage 3; two ranks that hold everything each add the same two
// numbers.
TEST(Mics, HasTheBitsOfStageThreeWhereSumsAreTheSame) {
  const struct { int world, shard, accumulation; } variants[] = {{4, 4, 2}, {2, 1, 1}, {3, 3, 1}};
  for (const auto& [world, shard, accumulation] : variants) {
    SCOPED_TRACE(str_cat(shard, " of ", world));
    const Json more = {{"gradient_accumulation_steps", accumulation}};
    const Trained plain = train({world, zero_config(3, kSmall, more)});
    const Trained other = train({world, zero_config(3, mics(shard), more)});
    EXPECT_TRUE(same_bits(other.weights, plain.weights));
    EXPECT_EQ(other.losses, plain.losses);
    EXPECT_EQ(other.norms, plain.norms);
  }
}

TEST(Mics, AgreesWithStageThree) {
  const Json precisions[] = {Json::object(),
                             {{"bf16", {{"enabled", true}}}},
                             {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}}};
  for (const Json& precision : precisions) {
    const bool fp32 = precision.empty();
    const Json more = with(precision, {{"gradient_accumulation_steps", 2}});
    const Trained plain = train({4, zero_config(3, kSmall, more)});
    for (const int shard : {1, 2}) {
      SCOPED_TRACE(str_cat(shard, " ranks, ", dump_json(more)));
      const Trained other = train({4, zero_config(3, mics(shard), more)});
      for (size_t i = 0; i < plain.losses.size(); ++i) {
        const double bound = fp32 ? 1e-5 : 1e-2;
        EXPECT_NEAR(other.losses[i], plain.losses[i], bound * plain.losses[i]);
        EXPECT_NEAR(other.norms[i], plain.norms[i], (fp32 ? 1e-4 : 3e-2) * plain.norms[i]);
      }
      // Adam's first steps turn a small gradient's sign into a whole step of the rate.
      if (fp32) {
        EXPECT_LT(largest_difference(other.weights, plain.weights), 2e-3);
      }
    }
  }
}

// A shard group on one node asks nobody else for weights, and gradients cross nodes once a step.
TEST(Mics, StaysWithinItsNode) {
  const Json more = {{"gradient_accumulation_steps", 4}};
  const Measured plain = measure({4, zero_config(3, kSmall, more)});
  const Measured other = measure({4, zero_config(3, mics(2), more)});
  EXPECT_GT(plain.sent(Collective::kAllGather).across_nodes, 0);
  EXPECT_EQ(other.sent(Collective::kAllGather).across_nodes, 0);
  EXPECT_GT(plain.sent(Collective::kReduceScatter).across_nodes, 0);
  EXPECT_EQ(other.sent(Collective::kReduceScatter).across_nodes, 0);
  EXPECT_LT(other.sent(Collective::kAllReduce).across_nodes,
            plain.sent(Collective::kReduceScatter).across_nodes / 2);
}

// Across nodes first: the same weights, fewer bytes between nodes.
TEST(Mics, GathersByNode) {
  for (const bool coded : {false, true}) {
    const Json keys = mics(4, {{"zero_quantized_weights", coded}});
    const Measured flat = measure({4, zero_config(3, keys)});
    const Measured by_node =
        measure({4, zero_config(3, with(keys, {{"mics_hierarchical_params_gather", true}}))});
    EXPECT_EQ(by_node.trained.losses, flat.trained.losses);
    EXPECT_EQ(by_node.trained.norms, flat.trained.norms);
    EXPECT_EQ(2 * by_node.sent(Collective::kAllGather).across_nodes,
              flat.sent(Collective::kAllGather).across_nodes);
  }
}

TEST(Mics, MemoryFollowsTheShardGroup) {
  const Json model = with(model_config(0), {{"n_embd", 64}, {"n_layer", 4}, {"vocab_size", 640}});
  for (const int shard : {1, 2, 4}) {
    const Job run{4, zero_config(3, mics(shard), {{"bf16", {{"enabled", true}}}}), 1, model};
    run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      engine->train_batch();
      const double p = static_cast<double>(engine->model()->parameters().elements());
      const MemoryAccount& account = engine->model()->device()->account();
      EXPECT_NEAR(static_cast<double>(account.now(MemoryTag::kOptimizer)) / p * shard, 8, 0.5);
      EXPECT_NEAR(static_cast<double>(account.now(MemoryTag::kParameters)) / p * shard, 6, 0.5);
    });
  }
}

TEST(Mics, OverflowIsSkippedByAll) {
  const Job run{
      4,
      zero_config(3, mics(2),
                  {{"fp16", {{"enabled", true}, {"initial_scale_power", 40}, {"hysteresis", 1}}}})};
  run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    const std::vector<float> before = all_weights(*engine);
    const StepReport report = engine->train_batch();
    EXPECT_FALSE(report.applied);
    EXPECT_FALSE(report.first_bad_tensor.empty());
    EXPECT_TRUE(same_bits(all_weights(*engine), before));
  });
}

// Whole gradients and moments are those of stage 3; what is written is read again.
TEST(Mics, StateIsReachable) {
  std::map<std::string, std::vector<float>> gradients, moments;
  for (const int shard : {4, 2, 1}) {
    const Job run{4, zero_config(3, mics(shard), {{"gradient_accumulation_steps", 2}})};
    std::mutex mutex;
    run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      for (int i = 0; i < 2; ++i) {
        engine->backward(engine->forward(random_batch(comm->rank() + 4 * i)));
        if (i == 0) engine->step();
      }
      const auto near = [&](auto& all, const std::string& name, const Tensor& tensor) {
        const std::vector<float> values = flat(tensor);
        const std::lock_guard lock(mutex);
        if (shard == 4) {
          all[name] = values;
        } else {
          EXPECT_LT(largest_difference(values, all[name]), 1e-6) << name;
        }
      };
      for (const nn::Parameter& p : named_parameters(*engine)) {
        near(gradients, p.name, engine->gradients().get(p.name));
      }
      const std::string name = "h.1.mlp.c_fc.weight";
      Tensor value = engine->gradients().get(name);
      value.data<float>()[5] += 1;
      engine->gradients().set(name, value);
      EXPECT_TRUE(same_bits(flat(engine->gradients().get(name)), flat(value)));
      engine->step();
      near(moments, name, engine->values().optimizer_state(name, "exp_avg"));
      Tensor moment = engine->values().optimizer_state(name, "exp_avg");
      moment.data<float>()[3] += 1;
      engine->values().set_optimizer_state(name, "exp_avg", moment);
      EXPECT_TRUE(same_bits(flat(engine->values().optimizer_state(name, "exp_avg")), flat(moment)));
    });
  }
}

// A checkpoint in the middle of a step goes on at any stage and number of ranks.
TEST(Mics, CheckpointsLoadAnywhere) {
  struct State {
    std::vector<float> weights;
    std::vector<double> next;
  };
  // The same for every rank, so that the mean is, whatever the world.
  const auto batch = [] { return random_batch(0); };
  const auto config = [](int stage, const Json& zero) {
    return zero_config(stage, zero, {{"gradient_accumulation_steps", 2}});
  };
  for (const int shard : {1, 2}) {
    Folder folder;
    State saved;
    const auto go_on = [&](Engine& engine) {
      State out;
      out.weights = all_weights(engine);
      for (int i = 1; i < 4; ++i) {
        const Tensor loss = engine.forward(batch());
        out.next.push_back(*loss.data<float>());
        engine.backward(loss);
        engine.step();
      }
      return out;
    };
    std::mutex mutex;
    run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine({4, config(3, mics(shard)), 0, model_config(0)}, comm);
      for (int i = 0; i < 3; ++i) {
        engine->backward(engine->forward(batch()));
        engine->step();
      }
      engine->save(folder.path(), "");
      const State mine = go_on(*engine);
      const std::lock_guard lock(mutex);
      if (comm->rank() == 0) saved = mine;
    });
    const struct {
      int world, stage;
      Json zero;
    } loads[] = {{1, 0, kSmall},  {2, 2, kSmall},  {4, 3, kSmall},
                 {4, 3, mics(2)}, {4, 3, mics(1)}, {2, 3, mics(1)}};
    for (const auto& load : loads) {
      SCOPED_TRACE(str_cat("shard ", shard, ", loaded at stage ", load.stage, " by ", load.world));
      run_ranks(load.world, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine =
            make_rank_engine({load.world, config(load.stage, load.zero), 0, model_config(0)}, comm);
        engine->load(folder.path(), "");
        const State mine = go_on(*engine);
        EXPECT_TRUE(same_bits(mine.weights, saved.weights));
        for (size_t i = 0; i < saved.next.size(); ++i) {
          EXPECT_NEAR(mine.next[i], saved.next[i], 1e-5 * saved.next[i]) << i;
        }
      });
    }
  }
}

TEST(Mics, Refuses) {
  using ::testing::HasSubstr;
  const auto refused = [](int stage, const Json& zero) {
    std::string text;
    std::mutex mutex;
    run_ranks(
        4,
        [&](const std::shared_ptr<Communicator>& comm) {
          const Job run{4, zero_config(stage, zero)};
          const std::string mine = error_of(Code::kConfig, [&] { make_rank_engine(run, comm); });
          const std::lock_guard lock(mutex);
          text = mine;
        },
        two_nodes());
    return text;
  };
  EXPECT_THAT(refused(2, mics(2)), HasSubstr("needs ZeRO stage 3"));
  EXPECT_THAT(refused(3, mics(3)), HasSubstr("3 does not divide the 4"));
  EXPECT_THAT(refused(3, mics(8)), HasSubstr("8 does not divide the 4"));
  EXPECT_THAT(refused(3, mics(0)), HasSubstr("use -1"));
  EXPECT_THAT(refused(3, mics(2, {{"zero_hpz_partition_size", 2}})), HasSubstr("contradicts"));
  EXPECT_THAT(refused(3, {{"mics_hierarchical_params_gather", true}}),
              HasSubstr("needs mics_shard_size"));
  EXPECT_THAT(refused(3, mics(2, {{"mics_hierarchical_params_gather", true}})),
              HasSubstr("several nodes"));
}

}  // namespace
}  // namespace ds::zero_test
