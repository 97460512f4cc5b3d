// Stage 3: what is gathered, for how long and how much of it; layers that are used more than once.
#include "unit/zero/traffic_world.h"
#include "world.h"

namespace ds::properties {
namespace {

using ::testing::Values;

constexpr int64_t kElements = 1280;  // of a layer: no bucket is padded
const std::vector<Shape> kLayers(6, Shape{32, 40});

// One bucket per layer, and as much of a key as a test says.
Json layer_config(const Json& zero = Json::object()) {
  return given_config(3, {{{"zero_optimization",
                            {{"reduce_bucket_size", kElements},
                             {"stage3_prefetch_bucket_size", 0},
                             {"stage3_max_reuse_distance", 0}}}},
                          {{"zero_optimization", zero}}});
}

int64_t gathered(Engine& engine) {
  return engine.model()->device()->account().now(MemoryTag::kCommunication);
}

void use(Engine& engine, int64_t layer) {
  engine.scopes().fetch({&layer, 1});
  engine.scopes().release({&layer, 1});
}

// A pass that ends: forward over all layers, and a step without gradients.
void pass_over(Engine& engine) {
  for (int64_t layer = 0; layer < 6; ++layer) use(engine, layer);
  engine.step();
}

// What is fetched is there until its last release and, with no reuse in reach, no longer: at each
// moment, for a layer that serves two inputs of a pass too.
TEST(Gathering, EndsWithTheLastUse) {
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(layer_config()), given_model(kLayers), comm);
    pass_over(engine);  // the order becomes known
    const int64_t before = gathered(engine);
    for (const int64_t layer : {0, 1, 2, 3, 4, 5}) {
      engine.scopes().fetch({&layer, 1});
      EXPECT_GE(gathered(engine) - before, 4 * kElements);
      engine.scopes().fetch({&layer, 1});  // another module has it as well
      engine.scopes().release({&layer, 1});
      EXPECT_GE(gathered(engine) - before, 4 * kElements);
      engine.scopes().release({&layer, 1});
      EXPECT_EQ(gathered(engine), before) << layer;
    }
    engine.step();
    EXPECT_EQ(gathered(engine), before);
  });
}

class Kinds : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Ways, Kinds, Values("Plain", "Mics", "SecondShards"),
                         [](const auto& one) { return std::string(one.param); });

Json way(const std::string& name) {
  if (name == "Mics") return {{"mics_shard_size", 2}};
  if (name == "SecondShards") return {{"zero_hpz_partition_size", 2}};
  return Json::object();
}

// Three uses in a pass, with others between: their gradients add up, at every prefetch.
TEST_P(Kinds, ALayerUsedThreeTimesSumsItsGradients) {
  constexpr int kWorld = 4, kSteps = 3;
  constexpr int64_t kUses[] = {0, 1, 0, 2, 0, 1};
  const auto part = [](int64_t id, int64_t i, int rank, int step, int64_t at) {
    return exact_gradient(id, i, rank, step * 10 + at);
  };
  const std::vector<Shape> shapes(3, Shape{32, 40});
  for (const int64_t prefetch : {0, 1280, 100'000}) {
    const Json config = patched(
        layer_config(way(GetParam())),
        {{{"zero_optimization",
           {{"stage3_prefetch_bucket_size", prefetch}, {"stage3_max_reuse_distance", prefetch}}}}});
    Json alone = given_config(0);
    const std::vector<float> expected = one_process(alone, shapes, DType::kFloat32, kSteps, kWorld,
                                                    [&](int64_t id, int64_t i, int rank, int step) {
                                                      float sum = 0;
                                                      for (int64_t at = 0; at < 6; ++at) {
                                                        if (kUses[at] == id)
                                                          sum += part(id, i, rank, step, at);
                                                      }
                                                      return sum;
                                                    });
    run_ranks(
        kWorld,
        [&](const std::shared_ptr<Communicator>& comm) {
          Engine engine(dump_json(config), given_model(shapes), comm);
          for (int step = 0; step < kSteps; ++step) {
            for (const int64_t layer : kUses) use(engine, layer);
            for (int64_t at = 5; at >= 0; --at) {
              const int64_t layer = kUses[at];
              engine.scopes().fetch({&layer, 1});
              give(engine, layer,
                   [&](int64_t i) { return part(layer, i, comm->rank(), step, at); });
              engine.scopes().release({&layer, 1});
            }
            EXPECT_TRUE(engine.step().applied);
          }
          // A sum that comes in parts is rounded in another order.
          EXPECT_LT(largest_difference(values(engine), expected), 1e-5);
        },
        two_nodes());
  }
}

// What is gathered at a time stays below the limit of live elements, whatever may be fetched ahead
// or kept.
TEST_P(Kinds, StaysBelowTheLimitOfLiveElements) {
  for (const int64_t limit : {kElements, 2 * kElements + 100, 4 * kElements}) {
    const Json config =
        layer_config(with(way(GetParam()), {{"stage3_max_live_parameters", limit},
                                            {"stage3_prefetch_bucket_size", 1'000'000},
                                            {"stage3_max_reuse_distance", 1'000'000}}));
    run_ranks(
        4,
        [&](const std::shared_ptr<Communicator>& comm) {
          Engine engine(dump_json(config), given_model(kLayers), comm);
          MemoryAccount& account = engine.model()->device()->account();
          pass_over(engine);
          const int64_t before = gathered(engine);  // a buffer of gradients
          account.reset_peaks();
          for (int pass = 0; pass < 3; ++pass) pass_over(engine);
          for (const int64_t layer : {5, 0, 3, 3, 1}) use(engine, layer);
          engine.step();
          EXPECT_LE(account.peak(MemoryTag::kCommunication) - before, 4 * limit);
          EXPECT_GE(account.peak(MemoryTag::kCommunication) - before, 4 * kElements);
        },
        two_nodes());
  }
}

// The same for a model that trains and evaluates itself: its largest bucket is below the limit, and
// gradients need a few buckets besides.
TEST(Gathering, ABuiltInModelStaysBelowTheLimitOfLiveElements) {
  constexpr int64_t kBucket = 4200, kLimit = 9000;
  const Json zero = {{"reduce_bucket_size", kBucket},
                     {"stage3_param_persistence_threshold", 0},
                     {"stage3_max_live_parameters", kLimit},
                     {"stage3_prefetch_bucket_size", 1'000'000},
                     {"stage3_max_reuse_distance", 1'000'000}};
  const Job job{2, zero_config(3, zero)};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(job, comm);
    MemoryAccount& account = engine->model()->device()->account();
    const int64_t before = gathered(*engine);
    for (int i = 0; i < 3; ++i) {
      account.reset_peaks();
      const int64_t start = gathered(*engine);
      engine->evaluate(*periodic_data(), 2);
      EXPECT_LE(account.peak(MemoryTag::kCommunication) - start, 4 * kLimit);
      EXPECT_EQ(gathered(*engine), start);
      account.reset_peaks();
      engine->train_batch();
      EXPECT_LE(account.peak(MemoryTag::kCommunication) - before, 4 * (kLimit + 3 * kBucket));
    }
  });
}

// Once the order of a pass is known, as much as was asked for is under way ahead of its use, and no
// bucket is gathered more often than without.
TEST(Gathering, TheNextLayersAreUnderWay) {
  for (const auto& [allowed, sequential] :
       {std::pair{0, false}, {1, false}, {3, false}, {3, true}}) {
    const int64_t ahead = sequential ? 0 : allowed;
    const Json config = layer_config({{"stage3_prefetch_bucket_size", allowed * kElements},
                                      {"stage3_allgather_sequential", sequential}});
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(config), given_model(kLayers), comm);
      const auto gathers = [&] {
        return comm->total_traffic()[static_cast<size_t>(Collective::kAllGather)].calls;
      };
      pass_over(engine);
      const int64_t empty = gathered(engine);  // but a buffer of gradients
      for (int pass = 0; pass < 2; ++pass) {
        const int64_t start = gathers();
        for (int64_t layer = 0; layer < 6; ++layer) {
          engine.scopes().fetch({&layer, 1});
          const int64_t there = (gathered(engine) - empty) / (4 * kElements);
          EXPECT_EQ(there, 1 + std::min(ahead, 5 - layer)) << layer;
          engine.scopes().release({&layer, 1});
        }
        EXPECT_EQ(gathers() - start, 6);
        engine.step();
      }
    });
  }
}

// With a reuse distance that reaches the next use, a bucket stays and is not gathered again.
TEST(Gathering, WhatIsUsedAgainSoonStays) {
  for (const bool keeps : {false, true}) {
    const Json config = layer_config({{"stage3_max_reuse_distance", keeps ? 3 * kElements : 0}});
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(config), given_model(kLayers), comm);
      const auto gathers = [&] {
        return comm->total_traffic()[static_cast<size_t>(Collective::kAllGather)].calls;
      };
      const int64_t order[] = {0, 1, 2, 0, 3, 4, 5, 1};
      for (int pass = 0; pass < 3; ++pass) {
        const int64_t start = gathers();
        for (const int64_t layer : order) use(engine, layer);
        // Layer 0 comes again after two others, layer 1 after five.
        if (pass > 0) {
          EXPECT_EQ(gathers() - start, keeps ? 7 : 8);
        }
        engine.step();
      }
    });
  }
}

}  // namespace
}  // namespace ds::properties
