// hpZ: second copies of weights within a node, for parameters of any size, over micro batches,
// after a load, and over memory that held garbage.
#include "unit/zero/traffic_world.h"
#include "world.h"

namespace ds::properties {
namespace {

using ::testing::Combine;
using ::testing::Values;

// Elements below the size of the block, no multiple of it, none.
const std::vector<Shape> kCopiedShapes = {{1}, {3}, {5, 7}, {0}, {2}, {41}};

class SecondCopies : public ::testing::TestWithParam<std::tuple<int, int, const char*>> {};

INSTANTIATE_TEST_SUITE_P(Everywhere, SecondCopies,
                         Combine(Values(1, 2, 4), Values(1, 3), Values("fp32", "bf16", "fp16")),
                         [](const auto& one) {
                           return str_cat("Of", std::get<0>(one.param), "Micro",
                                          std::get<1>(one.param), "_", std::get<2>(one.param));
                         });

// Every rank that uses the weights sees those of one process, in each micro batch.
TEST_P(SecondCopies, HoldTheWeightsOfEverySize) {
  const auto [block, micro, precision] = GetParam();
  constexpr int kWorld = 4, kSteps = 3;
  const DType type = type_of(precision);
  const Json config = given_config(
      3,
      {optimizer_config("AdamW"),
       precision_config(precision),
       {{"gradient_accumulation_steps", micro},
        {"zero_optimization", {{"zero_hpz_partition_size", block}, {"reduce_bucket_size", 20}}}}});
  const Folder folder;
  const auto pass = [&](Engine& engine, int rank, int64_t at, std::vector<float>& seen) {
    for (int64_t id = 0; id < static_cast<int64_t>(kCopiedShapes.size()); ++id) {
      engine.scopes().fetch({&id, 1});
      engine.scopes().release({&id, 1});
    }
    seen.clear();
    for (int64_t id = static_cast<int64_t>(kCopiedShapes.size()) - 1; id >= 0; --id) {
      const std::vector<float> now = numbers(engine.scopes().fetch({&id, 1})[0]);
      seen.insert(seen.begin(), now.begin(), now.end());
      give(engine, id, [&](int64_t i) { return exact_gradient(id, i, rank, at); });
      engine.scopes().release({&id, 1});
    }
  };
  const auto as_computed = [&](std::vector<float> x) {
    for (float& v : x) {
      if (type == DType::kBFloat16) v = to_float(to_bfloat16(v));
      if (type == DType::kFloat16) v = to_float(to_float16(v));
    }
    return x;
  };
  const auto expected_after = [&, micro = micro](int steps) {
    Json alone = config;
    alone["gradient_accumulation_steps"] = 1;
    alone["zero_optimization"] = Json::object();
    return one_process(alone, kCopiedShapes, type, steps, kWorld,
                       [&](int64_t id, int64_t i, int rank, int step) {
                         float sum = 0;
                         for (int k = 0; k < micro; ++k) {
                           sum += exact_gradient(id, i, rank, step * micro + k);
                         }
                         return sum;
                       });
  };
  std::vector<std::vector<float>> expected;
  for (int step = 0; step <= kSteps; ++step) expected.push_back(expected_after(step));
  const auto run_from = [&, micro = micro](Engine& engine, int rank, int first) {
    std::vector<float> seen;
    for (int step = first; step < kSteps; ++step) {
      const auto at = static_cast<size_t>(step);
      for (int k = 0; k < micro; ++k) {
        pass(engine, rank, step * micro + k, seen);
        EXPECT_TRUE(same_bits(seen, as_computed(expected[at]))) << "step " << step;
        engine.step();
      }
      EXPECT_TRUE(same_bits(values(engine), expected[at + 1])) << "step " << step;
      if (step == 0 && first == 0) engine.save(folder.path(), "one");
    }
  };
  run_ranks(
      kWorld,
      [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(config), given_model(kCopiedShapes, type), comm);
        run_from(engine, comm->rank(), 0);
        // What the copies held before the load is worthless.
        engine.load(folder.path(), "one");
        run_from(engine, comm->rank(), 1);
        Engine fresh(dump_json(config), given_model(kCopiedShapes, type), comm);
        fresh.load(folder.path(), "one");
        run_from(fresh, comm->rank(), 1);
      },
      two_nodes());
}

}  // namespace
}  // namespace ds::properties
