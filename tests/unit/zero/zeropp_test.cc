// ZeRO++: quantised gathers (qwZ), second copies (hpZ) and quantised reductions (qgZ), with the
// bytes that they are for, on ranks that pretend to sit on two nodes.
#include <atomic>

#include "base/log.h"
#include "engine/plan.h"
#include "models/adapters.h"
#include "traffic_world.h"

namespace ds::zero_test {
namespace {

// Everything is gathered, and again for backward.
const Json kGatherAgain = {{"reduce_bucket_size", 9000},
                           {"stage3_param_persistence_threshold", 0},
                           {"stage3_max_live_parameters", 12000},
                           {"stage3_max_reuse_distance", 0}};

Json gather_again(const Json& more) { return with(kGatherAgain, more); }

const Json kBf16 = {{"bf16", {{"enabled", true}}}};

TEST(QuantizedWeights, HalfTheBytesAndNearlyTheLoss) {
  for (const Json& precision : {kBf16, Json{{"fp16", {{"enabled", true}}}}, Json::object()}) {
    SCOPED_TRACE(dump_json(precision));
    const Job plain{4, zero_config(3, kGatherAgain, precision), 4};
    Job coded = plain;
    coded.config["zero_optimization"]["zero_quantized_weights"] = true;
    const Measured before = measure(plain), after = measure(coded);
    const double item = precision.empty() ? 4 : 2;
    for (const auto part : {&Traffic::across_nodes, &Traffic::within_node}) {
      const auto bytes = static_cast<double>(before.sent(Collective::kAllGather).*part);
      EXPECT_GT(bytes, 0);
      EXPECT_LE(static_cast<double>(after.sent(Collective::kAllGather).*part),
                0.52 * 2 / item * bytes);
    }
    EXPECT_EQ(before.sent(Collective::kReduceScatter).across_nodes,
              after.sent(Collective::kReduceScatter).across_nodes);
    for (size_t i = 0; i < before.trained.losses.size(); ++i) {
      EXPECT_NEAR(after.trained.losses[i], before.trained.losses[i],
                  0.02 * before.trained.losses[i]);
    }
    EXPECT_NE(after.trained.losses, before.trained.losses);
  }
}

// A model whose embedding of 32 columns is frozen, on two nodes.
Measured train_without_embedding(int vocabulary, bool coded) {
  Job job{4, zero_config(3, {{"stage3_param_persistence_threshold", 0}}, kBf16), 2,
          with(model_config(0), {{"vocab_size", vocabulary}})};
  job.config["zero_optimization"]["zero_quantized_nontrainable_weights"] = coded;
  Measured out;
  run_ranks(
      4,
      [&](const std::shared_ptr<Communicator>& comm) {
        auto made = models::Model::create(job.model, 3);
        models::set_trainable(*made, {"wte.weight"}, false);
        Engine engine(dump_json(job.config), made, comm);
        engine.set_dataset(periodic_data());
        const TrafficTable start = comm->total_traffic();
        std::vector<double> losses;
        for (int i = 0; i < job.steps; ++i) losses.push_back(engine.train_batch().loss);
        out.add(start, *comm);
        if (comm->rank() == 0) out.trained.losses = losses;
      },
      two_nodes());
  return out;
}

// Large frozen weights travel as codes that are made once, all others as they are.
TEST(QuantizedWeights, FrozenOnesAlone) {
  const Measured before = train_without_embedding(16000, false),
                 after = train_without_embedding(16000, true);
  const auto bytes = static_cast<double>(before.sent(Collective::kAllGather).across_nodes);
  const double embedding = 512000.0 / (512000 + 32 * 32 + 2 * 12 * 32 * 32);
  EXPECT_NEAR(static_cast<double>(after.sent(Collective::kAllGather).across_nodes) / bytes,
              1 - embedding / 2, 0.02);
  for (size_t i = 0; i < before.trained.losses.size(); ++i) {
    EXPECT_NEAR(after.trained.losses[i], before.trained.losses[i], 0.01 * before.trained.losses[i]);
  }
}

// Below half a million elements, whatever a rank's share of them, they do not.
TEST(QuantizedWeights, FrozenOnesThatAreSmallTravelAsTheyAre) {
  const Measured before = train_without_embedding(1000, false),
                 after = train_without_embedding(1000, true);
  EXPECT_EQ(after.sent(Collective::kAllGather).across_nodes,
            before.sent(Collective::kAllGather).across_nodes);
  EXPECT_GT(after.sent(Collective::kAllGather).across_nodes, 0);
  EXPECT_EQ(after.trained.losses, before.trained.losses);
}

TEST(SecondShards, ChangeNoBits) {
  for (const Json& precision : {kBf16, Json::object()}) {
    const Json more = with(precision, {{"gradient_accumulation_steps", 2}});
    const Trained plain = train({4, zero_config(3, kGatherAgain, more)});
    for (const int size : {1, 2, 4}) {
      SCOPED_TRACE(str_cat(size, " ranks, ", dump_json(precision)));
      const Json zero = gather_again({{"zero_hpz_partition_size", size}});
      const Trained other = train({4, zero_config(3, zero, more)});
      EXPECT_TRUE(same_bits(other.weights, plain.weights));
      EXPECT_EQ(other.losses, plain.losses);
      EXPECT_EQ(other.norms, plain.norms);
    }
  }
}

// Only the first pass after an update goes far for weights; accumulation and evaluation live on
// what it brought.
TEST(SecondShards, NothingComesFromFarInBackward) {
  for (const bool coded : {false, true}) {
    for (const bool second : {false, true}) {
      SCOPED_TRACE(str_cat("quantised ", coded, ", second ", second));
      const Json zero = gather_again(
          {{"zero_quantized_weights", coded}, {"zero_hpz_partition_size", second ? 2 : 1}});
      const Job run{4, zero_config(3, zero, with(kBf16, {{"gradient_accumulation_steps", 2}}))};
      run_ranks(
          4,
          [&](const std::shared_ptr<Communicator>& comm) {
            auto engine = make_rank_engine(run, comm);
            const auto far = [&](const auto& body) {
              const int64_t before = gathered_across(*comm);
              body();
              return gathered_across(*comm) - before;
            };
            const MicroBatch batch = random_batch(comm->rank());
            Tensor loss;
            for (int step = 0; step < 2; ++step) {
              for (int micro = 0; micro < 2; ++micro) {
                const int64_t forward = far([&] { loss = engine->forward(batch); });
                const int64_t backward = far([&] { engine->backward(loss); });
                const int64_t update = far([&] { engine->step(); });
                // The evaluation before the second step has brought everything already.
                EXPECT_EQ(forward > 0, !second || (step == 0 && micro == 0)) << step << micro;
                EXPECT_EQ(backward > 0, !second) << micro;
                EXPECT_EQ(update, 0);
              }
              const auto evaluate = [&] { engine->evaluate(*periodic_data(), 2); };
              EXPECT_GT(far(evaluate), 0);  // the weights are new
              EXPECT_EQ(far(evaluate) > 0, !second);
            }
          },
          two_nodes());
    }
  }
}

TEST(SecondShards, TakeTheirShareOfMemory) {
  const Json model = with(model_config(0), {{"n_embd", 64}, {"vocab_size", 640}});
  std::map<int, double> bytes;
  double elements = 0;
  for (const int size : {1, 2, 4}) {
    const Json zero = gather_again({{"zero_hpz_partition_size", size}});
    const Job run{4, zero_config(3, zero, kBf16), 1, model};
    std::mutex mutex;
    run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      engine->train_batch();
      const std::lock_guard lock(mutex);
      elements = static_cast<double>(engine->model()->parameters().elements());
      bytes[size] =
          static_cast<double>(engine->model()->device()->account().now(MemoryTag::kParameters));
    });
  }
  for (const int size : {2, 4}) {
    const double expected = 2 * elements / size;
    EXPECT_NEAR((bytes[size] - bytes[1]) / expected, 1, 0.05) << size;
  }
}

// At most 0.27 of what a reduce-scatter in bf16 sends across nodes, and the true mean.
TEST(QuantizedGradients, AQuarterOfTheBytesAndTheTrueMean) {
  const Json model = with(model_config(0), {{"n_embd", 64}});
  const struct {
    int per_node;
    Json precision;
  } variants[] = {{2, kBf16},
                  {1, kBf16},
                  {2, {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}}},
                  {2, Json::object()}};
  for (const auto& [per_node, precision] : variants) {
    SCOPED_TRACE(str_cat(per_node, " ranks per node, ", dump_json(precision)));
    const Json zero = {{"reduce_bucket_size", 30000}};
    const Json in_bf16 = with(precision, {{"communication_data_type", "bf16"}});
    const Job plain{4, zero_config(3, zero, in_bf16), 2, model};
    const Job coded{4, zero_config(3, with(zero, {{"zero_quantized_gradients", true}}), in_bf16), 2,
                    model};
    CommOptions nodes;
    nodes.ranks_per_node = per_node;
    const Measured before = measure(plain, nodes), after = measure(coded, nodes);
    const int64_t all = before.sent(Collective::kReduceScatter).across_nodes;
    EXPECT_GT(all, 0);
    EXPECT_LE(static_cast<double>(after.sent(Collective::kReduceScatter).across_nodes +
                                  after.sent(Collective::kAllToAll).across_nodes),
              0.27 * static_cast<double>(all));
    EXPECT_GT(after.sent(Collective::kAllToAll).across_nodes, 0);
    for (size_t i = 0; i < before.trained.norms.size(); ++i) {
      EXPECT_NEAR(after.trained.norms[i] / before.trained.norms[i], 1, 0.05);
    }
    EXPECT_NE(after.trained.norms, before.trained.norms);
  }
}

// Gradient by gradient: the error is that of 4 bits in two rounds, and all in all there is no bias.
TEST(QuantizedGradients, GradientsAreUnbiased) {
  std::map<std::string, std::vector<float>> exact;
  for (const bool coded : {false, true}) {
    const Job run{
        4, zero_config(3, {{"zero_quantized_gradients", coded}, {"reduce_bucket_size", 20000}})};
    run_ranks(
        4,
        [&](const std::shared_ptr<Communicator>& comm) {
          auto engine = make_rank_engine(run, comm);
          engine->backward(engine->forward(random_batch(comm->rank())));
          double product = 0, square = 0;
          for (const nn::Parameter& p : named_parameters(*engine)) {
            const std::vector<float> values = flat(engine->gradients().get(p.name));
            if (comm->rank() != 0) continue;
            if (!coded) {
              exact[p.name] = values;
              continue;
            }
            double its_square = 0, lost = 0;
            for (size_t i = 0; i < values.size(); ++i) {
              const double mine = values[i], right = exact[p.name][i];
              product += mine * right;
              its_square += right * right;
              lost += (mine - right) * (mine - right);
            }
            square += its_square;
            EXPECT_LE(std::sqrt(lost / its_square), p.shape.dims() < 2 ? 1e-5 : 0.25) << p.name;
          }
          if (coded && comm->rank() == 0) {
            EXPECT_NEAR(product / square, 1, 0.02);
          }
        },
        two_nodes());
  }
}

// What one rounding to 4 bits may be off by at each element: a step of its block, which is the
// block's largest magnitude / 8. Blocks have 512 elements at most, so the largest within 511 on
// either side bounds it.
std::vector<double> largest_steps(const std::vector<double>& x) {
  constexpr size_t kReach = 511;
  std::vector<double> steps(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = i - std::min(i, kReach); j < std::min(x.size(), i + kReach + 1); ++j) {
      steps[i] = std::max(steps[i], std::abs(x[j]) / 8);
    }
  }
  return steps;
}

// The gradients of each rank's own batch, computed alone.
std::vector<std::vector<double>> lone_gradients(const Json& model, const std::string& name) {
  std::vector<std::vector<double>> all;
  for (int rank = 0; rank < 4; ++rank) {
    Job alone{1, zero_config(0)};
    alone.model = model;
    run_ranks(1, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(alone, comm);
      engine->backward(engine->forward(random_batch(rank)));
      const std::vector<float> values = flat(engine->gradients().get(name));
      all.emplace_back(values.begin(), values.end());
    });
  }
  return all;
}

// Every element of the reduced gradient is the mean of the ranks' own within one step of what was
// sent: of the ranks' gradients where nodes have one rank, else also of the nodes' sums.
TEST(QuantizedGradients, TheMeanIsRightWithinOneStep) {
  const Json model = model_config(0);
  const std::string name = "h.1.mlp.c_fc.weight";
  const std::vector<std::vector<double>> own = lone_gradients(model, name);
  const size_t n = own.front().size();
  std::vector<double> mean(n), of_ranks(n), of_nodes(n);
  for (size_t node = 0; node < 2; ++node) {
    std::vector<double> sum(n);
    for (size_t rank = 2 * node; rank < 2 * node + 2; ++rank) {
      const std::vector<double> steps = largest_steps(own[rank]);
      for (size_t i = 0; i < n; ++i) {
        mean[i] += own[rank][i] / 4;
        of_ranks[i] += steps[i] / 4;
        sum[i] += std::abs(own[rank][i]) + steps[i];
      }
    }
    const std::vector<double> steps = largest_steps(sum);
    for (size_t i = 0; i < n; ++i) of_nodes[i] += steps[i] / 4;
  }
  for (const int per_node : {1, 2}) {
    SCOPED_TRACE(per_node);
    Job run{4, zero_config(3, {{"zero_quantized_gradients", true}, {"reduce_bucket_size", 20000}})};
    run.model = model;
    CommOptions nodes;
    nodes.ranks_per_node = per_node;
    std::vector<float> got;
    run_ranks(
        4,
        [&](const std::shared_ptr<Communicator>& comm) {
          auto engine = make_rank_engine(run, comm);
          engine->backward(engine->forward(random_batch(comm->rank())));
          const std::vector<float> values = flat(engine->gradients().get(name));
          if (comm->rank() == 0) got = values;
        },
        nodes);
    double worst = 0;
    for (size_t i = 0; i < n; ++i) {
      const double bound = of_ranks[i] + (per_node == 2 ? of_nodes[i] : 0);
      const double ratio = std::abs(got[i] - mean[i]) / bound;
      ASSERT_LE(ratio, 1 + 1e-5) << i;
      worst = std::max(worst, ratio);
    }
    EXPECT_GT(worst, 0.2) << "something was rounded at all";
  }
}

// What roundings lose comes later: over many equal gradients the sum gets exact.
TEST(QuantizedGradients, KeptErrorsComeLater) {
  const auto lost_of = [](const Json& feedback, int rounds) {
    Json zero = {{"zero_quantized_gradients", true}, {"reduce_bucket_size", 20000}};
    if (!feedback.is_null()) zero["zeropp_loco_param"] = feedback;
    double lost = 0;
    std::vector<float> exact;
    for (const bool coded : {false, true}) {
      Job run{4, zero_config(3, coded ? zero : Json::object(),
                             {{"gradient_accumulation_steps", rounds}})};
      run.model = model_config(0);
      run_ranks(
          4,
          [&](const std::shared_ptr<Communicator>& comm) {
            auto engine = make_rank_engine(run, comm);
            for (int i = 0; i < rounds; ++i) {
              engine->backward(engine->forward(random_batch(comm->rank())));
              if (i + 1 < rounds) engine->step();
            }
            const std::vector<float> sum = flat(engine->gradients().get("h.0.mlp.c_fc.weight"));
            if (comm->rank() != 0) return;
            if (!coded) {
              exact = sum;
              return;
            }
            double square = 0;
            for (size_t i = 0; i < sum.size(); ++i) {
              lost += std::pow(double{sum[i]} - exact[i], 2);
              square += std::pow(exact[i], 2);
            }
            lost = std::sqrt(lost / square);
          },
          two_nodes());
    }
    return lost;
  };
  const double alone = lost_of(nullptr, 16);
  EXPECT_GT(alone, 0.02);
  EXPECT_LT(lost_of({{"err_beta", 0.0}}, 16), 0.5 * alone);
  EXPECT_LT(lost_of({{"err_beta", 0.2}}, 16), 0.7 * alone);
  // Errors that are forgotten each time are none.
  EXPECT_NEAR(lost_of({{"err_beta", 0.0}, {"reset_T", 1}}, 16), alone, 1e-6);
}

// Checkpoints do not hold kept errors: they begin again at zero, in a fresh engine and in one that
// has some.
TEST(QuantizedGradients, AResumeBeginsWithoutErrors) {
  const Json zero = {{"zero_quantized_gradients", true},
                     {"zeropp_loco_param", {{"err_beta", 0.2}}},
                     {"reduce_bucket_size", 20000}};
  const Job run{4, zero_config(3, zero)};
  const Folder folder;
  run_ranks(
      4,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto train_on = [](Engine& engine) {
          for (int i = 0; i < 3; ++i) engine.train_batch();
          return all_weights(engine);
        };
        auto engine = make_rank_engine(run, comm);
        train_on(*engine);
        engine->save(folder.path(), "three");
        const std::vector<float> saved = all_weights(*engine), plain = train_on(*engine);
        engine->load(folder.path(), "three");
        EXPECT_TRUE(same_bits(all_weights(*engine), saved));
        const std::vector<float> again = train_on(*engine);
        auto fresh = make_rank_engine(run, comm);
        fresh->load(folder.path(), "three");
        EXPECT_TRUE(same_bits(train_on(*fresh), again));
        // The uninterrupted run had errors to send: near, and not the same.
        EXPECT_FALSE(same_bits(again, plain));
        EXPECT_LT(largest_difference(again, plain), 5 * largest_difference(plain, saved));
      },
      two_nodes());
}

TEST(QuantizedGradients, OverflowIsSeenByAll) {
  const Json zero = {{"zero_quantized_gradients", true}, {"zeropp_loco_param", Json::object()}};
  const Json more = {{"fp16", {{"enabled", true}, {"initial_scale_power", 40}, {"hysteresis", 1}}}};
  const Job run{4, zero_config(3, zero, more)};
  run_ranks(
      4,
      [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(run, comm);
        const std::vector<float> before = all_weights(*engine);
        StepReport report = engine->train_batch();
        EXPECT_FALSE(report.applied);
        EXPECT_FALSE(report.first_bad_tensor.empty());
        EXPECT_TRUE(same_bits(all_weights(*engine), before));
        for (int i = 0; i < 40 && !report.applied; ++i) report = engine->train_batch();
        EXPECT_TRUE(report.applied);
        EXPECT_TRUE(std::isfinite(report.grad_norm));
      },
      two_nodes());
}

// On one node nothing would be gained: gradients travel as they are.
TEST(QuantizedGradients, OneNodeIsPlain) {
  const Trained plain = train({4, zero_config(3)});
  std::atomic<int> told = 0;  // by one of the ranks
  log_set_sink(
      [](void* count, int32_t, const char*, const char* text) {
        if (std::string_view(text).find("zero_quantized_gradients") == std::string_view::npos)
          return;
        ++*static_cast<std::atomic<int>*>(count);
      },
      &told, nullptr);
  const Trained coded = train({4, zero_config(3, {{"zero_quantized_gradients", true}})});
  log_set_sink(nullptr, nullptr, nullptr);
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(same_bits(coded.weights, plain.weights));
}

// The loss after many steps, with everything at once.
TEST(ZeroPlusPlus, TrainsAsWell) {
  const Json schedule = {{"scheduler", nullptr},
                         {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 5e-3}}}}}};
  const Json model = model_config(0);
  const Json zero = gather_again({{"stage3_param_persistence_threshold", 100}});
  const Json everything = with(zero, {{"zero_quantized_weights", true},
                                      {"zero_hpz_partition_size", 2},
                                      {"zero_quantized_gradients", true}});
  const auto mean_of_last = [&](const Json& keys) {
    const Measured run = measure({4, zero_config(3, keys, with(kBf16, schedule)), 300, model});
    double sum = 0;
    for (size_t i = 250; i < 300; ++i) sum += run.trained.losses[i] / 50;
    EXPECT_LT(sum, 0.8 * run.trained.losses[0]);
    return sum;
  };
  const double plain = mean_of_last(zero);
  EXPECT_NEAR(mean_of_last(everything) / plain, 1, 0.02);
  const Json loco = with(everything, {{"zeropp_loco_param", Json::object()}});
  EXPECT_NEAR(mean_of_last(loco) / plain, 1, 0.02);
}

// The plan knows how many collectives a step takes, and what goes quantised between nodes.
TEST(ZeroPlusPlus, IsPlanned) {
  const Json variants[] = {
      Json::object(),
      {{"zero_quantized_weights", true}, {"zero_hpz_partition_size", 2}},
      {{"zero_quantized_gradients", true}},
      {{"mics_shard_size", 2}},
  };
  for (const Json& keys : variants) {
    SCOPED_TRACE(dump_json(keys));
    const Json zero = {{"reduce_bucket_size", 9000}, {"stage3_param_persistence_threshold", 100}};
    const Job run{
        4, zero_config(3, with(zero, keys), with(kBf16, {{"communication_data_type", "bf16"}}))};
    PlanOptions options;
    options.world = 4;
    options.ranks_per_node = 2;
    const Json planned = plan_training(run.model, dump_json(run.config), options);
    const std::pair<const char*, Collective> kinds[] = {
        {"all_gather", Collective::kAllGather},
        {"reduce_scatter", Collective::kReduceScatter},
        {"all_to_all", Collective::kAllToAll}};
    run_ranks(
        4,
        [&](const std::shared_ptr<Communicator>& comm) {
          auto engine = make_rank_engine(run, comm);
          for (int i = 0; i < 2; ++i) engine->train_batch();
          const TrafficTable before = comm->total_traffic();
          engine->train_batch();
          const TrafficTable after = comm->total_traffic();
          for (const auto& [name, kind] : kinds) {
            int64_t calls = 0, across = 0;
            for (const Json& one : planned["moved_per_step"]) {
              if (one["collective"] != name) continue;
              calls += one["calls"].get<int64_t>();
              across += one["across_nodes"].get<int64_t>();
            }
            const auto at = static_cast<size_t>(kind);
            EXPECT_EQ(after[at].calls - before[at].calls, calls) << name;
            if (kind != Collective::kAllToAll) continue;
            EXPECT_EQ(after[at].across_nodes - before[at].across_nodes, across) << name;
          }
        },
        two_nodes());
  }
}

TEST(ZeroPlusPlus, Refuses) {
  const auto refused = [](int stage, const Json& zero, const Json& more = {}) {
    return error_of(Code::kConfig, [&] {
      Engine(dump_json(zero_config(stage, zero, more)), models::Model::create(model_config(), 3),
             nullptr);
    });
  };
  using ::testing::HasSubstr;
  for (const char* key : {"zero_quantized_weights", "zero_quantized_gradients",
                          "zero_quantized_nontrainable_weights"}) {
    EXPECT_THAT(refused(2, {{key, true}}), HasSubstr("needs ZeRO stage 3"));
  }
  EXPECT_THAT(refused(2, {{"zero_hpz_partition_size", 2}}), HasSubstr("needs ZeRO stage 3"));
  EXPECT_THAT(refused(3, {{"zero_quantized_gradients", true}, {"reduce_scatter", false}}),
              HasSubstr("reduce_scatter true"));
  EXPECT_THAT(refused(3, {{"zeropp_loco_param", Json::object()}}),
              HasSubstr("zero_quantized_gradients"));
  run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
    const Job run{4, zero_config(3, {{"zero_hpz_partition_size", 3}})};
    const std::string text = error_of(Code::kConfig, [&] { make_rank_engine(run, comm); });
    EXPECT_THAT(text, HasSubstr("3 does not divide the 4"));
  });
}

}  // namespace
}  // namespace ds::zero_test
