// Parameters of unusual sizes through engine, optimizer and checkpoint: fewer elements or
// parameters than ranks, none at all, odd ones over memory that held garbage; groups that take
// nothing.
#include "device/caller_memory.h"
#include "world.h"

namespace ds::properties {
namespace {

using ::testing::Combine;
using ::testing::Values;

float exact(int64_t id, int64_t i, int rank, int step) { return exact_gradient(id, i, rank, step); }

void train_exact(Engine& engine, int rank, int from, int to) {
  for (int step = from; step < to; ++step) {
    give_exact(engine, rank, step);
    EXPECT_TRUE(engine.step().applied);
  }
}

struct ShapeCase {
  const char* name;
  std::vector<Shape> shapes;
  int world;
};

const ShapeCase kCases[] = {
    {"TwoElementsForFourRanks", {{1}, {1}}, 4},
    {"OneParameterForFourRanks", {{3, 3}}, 4},
    {"WithoutElements", {{0}, {5}, {0, 7}, {3, 2}, {0}}, 2},
    {"FiveAndSeven", {{5}, {7}, {53}}, 2},
    {"AHundredSmallOnes", std::vector<Shape>(100, Shape{7}), 2},
};

class Shapes : public ::testing::TestWithParam<std::tuple<int, ShapeCase>> {};

INSTANTIATE_TEST_SUITE_P(Everywhere, Shapes,
                         Combine(Values(0, 1, 2, 3), ::testing::ValuesIn(kCases)),
                         [](const auto& one) {
                           return str_cat("Stage", std::get<0>(one.param),
                                          std::get<1>(one.param).name);
                         });

// Every rank has the weights of one process; the checkpoint made on the way goes on at another
// stage and on one process.
void train_save_and_load(const ShapeCase& of, int stage, const std::string& precision,
                         const std::string& optimizer) {
  const DType type = type_of(precision);
  const Json config = given_config(stage, {optimizer_config(optimizer),
                                           precision_config(precision),
                                           {{"zero_optimization", {{"reduce_bucket_size", 100}}}}});
  const std::vector<float> expected = one_process(config, of.shapes, type, 4, of.world, exact);
  const Folder folder;
  std::vector<float> half;
  run_ranks(of.world, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config), given_model(of.shapes, type), comm);
    train_exact(engine, comm->rank(), 0, 2);
    engine.save(folder.path(), "half");
    const std::vector<float> now = values(engine);
    train_exact(engine, comm->rank(), 2, 4);
    EXPECT_TRUE(same_bits(values(engine), expected));
    if (comm->rank() == 0) half = now;
  });
  const Json next = patched(config, {{{"zero_optimization", {{"stage", 3 - stage}}}}});
  run_ranks(of.world, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(next), given_model(of.shapes, type), comm);
    engine.load(folder.path(), "half");
    EXPECT_TRUE(same_bits(values(engine), half));
    train_exact(engine, comm->rank(), 2, 4);
    EXPECT_TRUE(same_bits(values(engine), expected));
  });
  Engine alone(dump_json(next), given_model(of.shapes, type), nullptr);
  alone.load(folder.path(), "half");
  EXPECT_TRUE(same_bits(values(alone), half));
}

TEST_P(Shapes, TrainSaveAndLoad) {
  const auto& [stage, of] = GetParam();
  const std::pair<const char*, const char*> ways[] = {
      {"fp32", "AdamW"}, {"bf16", "Lamb"}, {"fp16", "Lamb"}, {"bf16", "Muon"}, {"fp16", "Lion"}};
  for (const auto& [precision, optimizer] : ways) {
    SCOPED_TRACE(str_cat(precision, " ", optimizer));
    train_save_and_load(of, stage, precision, optimizer);
  }
}

class Groups : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

INSTANTIATE_TEST_SUITE_P(Everywhere, Groups,
                         Combine(Values(0, 1, 2, 3), Values("fp32", "bf16", "fp16")),
                         [](const auto& one) {
                           return str_cat("Stage", std::get<0>(one.param), "_",
                                          std::get<1>(one.param));
                         });

// A group that takes nothing, beside one that takes everything or some, trains, is saved and loads;
// frozen parameters lie between.
TEST_P(Groups, EmptyOnesAndFrozenParameters) {
  const auto& [stage, precision] = GetParam();
  const DType type = type_of(precision);
  const std::vector<Shape> shapes = {{11}, {6, 3}, {5}, {53}};
  for (const char* const pattern : {"q*", "p*", "p2"}) {
    Json config = given_config(
        stage, {{{"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.5}, {"momentum", 0.5}}}}},
                 {"zero_allow_untested_optimizer", true}},
                precision_config(precision)});
    config["optimizer"]["param_groups"] = {{{"name", "one"}, {"match", {pattern}}, {"lr", 0.25}}};
    const Folder folder;
    std::vector<float> trained;
    run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(config), given_model(shapes, type, {1}), comm);
      EXPECT_EQ(engine.rates(), (std::vector<double>{0.5, 0.25}));
      const std::vector<float> before = values(engine);
      // Every rank the same, so that no mean is rounded.
      train_exact(engine, 7, 0, 2);
      engine.save(folder.path(), "end");
      const std::vector<float> after = values(engine);
      size_t at = 0;
      for (int64_t id = 0; id < 4; ++id) {
        const bool grouped =
            pattern == std::string("p*") || (pattern == std::string("p2") && id == 2);
        const float rate = id == 1 ? 0 : grouped ? 0.25f : 0.5f;
        for (int64_t i = 0; i < shapes[static_cast<size_t>(id)].elements(); ++i, ++at) {
          const float first = exact_gradient(id, i, 7, 0), second = exact_gradient(id, i, 7, 1);
          ASSERT_EQ(after[at], before[at] - rate * (first + (0.5f * first + second)))
              << pattern << " " << id << " " << i;
        }
      }
      if (comm->rank() == 0) trained = after;
    });
    for (const int world : {1, 2}) {
      run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(config), given_model(shapes, type, {1}), comm);
        engine.load(folder.path(), "end");
        EXPECT_TRUE(same_bits(values(engine), trained));
        train_exact(engine, 7, 2, 3);
      });
    }
  }
}

// Fresh memory holds NaN in every type.
class PoisonedMemory {
 public:
  PoisonedMemory() {
    set_caller_memory(
        DeviceKind::kCpu,
        std::make_shared<CallerMemory>(
            [](int64_t bytes, int64_t alignment, int) {
              const auto align = static_cast<size_t>(alignment);
              const size_t size = (static_cast<size_t>(bytes) + align - 1) / align;
              void* const memory = std::aligned_alloc(align, size * align);
              if (memory) std::memset(memory, 0xFF, size * align);
              return memory;
            },
            [](void* memory, int64_t, int) { std::free(memory); }, std::function<void()>()));
  }
  ~PoisonedMemory() { set_caller_memory(DeviceKind::kCpu, nullptr); }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;
};

// Padding of parts that are not even and memory that nobody wrote reach no result: weights, norms
// and states are those of memory that was clean.
TEST_P(Groups, GarbageInFreshMemoryReachesNothing) {
  const auto& [stage, precision] = GetParam();
  const DType type = type_of(precision);
  const std::vector<Shape> shapes = {{5}, {7}, {1}, {0}, {23, 3}};
  for (const char* const optimizer : {"AdamW", "Lamb", "Muon"}) {
    const Json config = given_config(stage, {optimizer_config(optimizer),
                                             precision_config(precision),
                                             {{"zero_optimization", {{"reduce_bucket_size", 20}}},
                                              {"gradient_accumulation_steps", 2}}});
    const auto trained = [&] {
      std::pair<std::vector<float>, double> out;
      run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(config), given_model(shapes, type), comm);
        double norm = 0;
        for (int i = 0; i < 4; ++i) {
          // The first parameter has none in the first micro batch.
          give_exact(engine, comm->rank(), i, [&](int64_t id) { return id != 0 || i > 0; });
          norm += engine.step().grad_norm;
        }
        std::vector<float> mine = values(engine);
        for (const std::string& state : engine.values().optimizer_states("p4")) {
          const std::vector<float> one = flat(engine.values().optimizer_state("p4", state));
          mine.insert(mine.end(), one.begin(), one.end());
        }
        if (comm->rank() == 0) out = {mine, norm};
      });
      return out;
    };
    const auto clean = trained();
    const PoisonedMemory poisoned;
    const auto dirty = trained();
    EXPECT_TRUE(all_finite(clean.first));
    EXPECT_TRUE(same_bits(dirty.first, clean.first)) << optimizer;
    EXPECT_EQ(dirty.second, clean.second);
  }
}

// The same for a built-in model, whose operators write what they read.
TEST_P(Groups, GarbageInFreshMemoryReachesNoBuiltInModel) {
  const auto& [stage, precision] = GetParam();
  const Json zero = {{"reduce_bucket_size", 3001}, {"stage3_param_persistence_threshold", 30}};
  const Job job{3, zero_config(stage, zero, precision_config(precision)), 2};
  const Trained clean = train(job);
  const PoisonedMemory poisoned;
  const Trained dirty = train(job);
  EXPECT_TRUE(same_bits(dirty.weights, clean.weights));
  EXPECT_EQ(dirty.losses, clean.losses);
  EXPECT_EQ(dirty.norms, clean.norms);
}

}  // namespace
}  // namespace ds::properties
