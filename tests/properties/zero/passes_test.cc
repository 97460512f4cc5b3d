// Passes that are not the usual ones: given up, failed, interleaved with those of other engines, or
// with evaluation and generation between. What comes after is as if they had not been.
#include "device/caller_memory.h"
#include "infer/generate.h"
#include "world.h"

namespace ds::properties {
namespace {

using ::testing::Combine;
using ::testing::Values;

class Passes : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  int stage() const { return std::get<0>(GetParam()); }
  Json config(const Json& more = Json::object()) const {
    return zero_config(stage(),
                       {{"reduce_bucket_size", 3000}, {"stage3_param_persistence_threshold", 40}},
                       patched({{"activation_checkpointing", {{"enabled", true}}}},
                               {precision_config(std::get<1>(GetParam())), more}));
  }
};

INSTANTIATE_TEST_SUITE_P(Everywhere, Passes,
                         Combine(Values(0, 1, 2, 3), Values("fp32", "bf16", "fp16")),
                         [](const auto& one) {
                           return str_cat("Stage", std::get<0>(one.param), "_",
                                          std::get<1>(one.param));
                         });

void micro_batch(Engine& engine, int rank, int64_t step) {
  engine.backward(engine.forward(token_batch(rank, step)));
}

int64_t communication_memory(Engine& engine) {
  return engine.model()->device()->account().now(MemoryTag::kCommunication);
}

void expect_same_progress(Engine& one, Engine& other) {
  EXPECT_EQ(one.progress().steps, other.progress().steps);
  EXPECT_EQ(one.progress().micro_steps, other.progress().micro_steps);
  EXPECT_EQ(one.progress().samples, other.progress().samples);
  EXPECT_EQ(one.progress().tokens, other.progress().tokens);
}

// A forward, or a forward and its backward, that nobody wants: all that was gathered goes, nothing
// of it is counted, and the steps that follow have the bits of a run without it.
TEST_P(Passes, GivenUpLeaveNothing) {
  const Json accumulating =
      config({{"gradient_accumulation_steps", 2},
              {"zero_optimization", {{"stage3_param_persistence_threshold", 0}}}});
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const Job job{2, accumulating};
    auto plain = make_rank_engine(job, comm), disturbed = make_rank_engine(job, comm);
    for (int64_t step = 0; step < 3; ++step) {
      const int64_t before = communication_memory(*disturbed);
      disturbed->forward(token_batch(comm->rank(), 7));
      disturbed->discard_gradients();
      if (step > 0) {
        EXPECT_EQ(communication_memory(*disturbed), before);
      }
      micro_batch(*disturbed, comm->rank(), 8);
      disturbed->discard_gradients();
      micro_batch(*disturbed, comm->rank(), 9);
      disturbed->step();
      disturbed->forward(token_batch(comm->rank(), 10));
      disturbed->discard_gradients();
      for (Engine* const engine : {plain.get(), disturbed.get()}) {
        for (int64_t micro = 0; micro < 2; ++micro) {
          micro_batch(*engine, comm->rank(), 2 * step + micro);
          EXPECT_EQ(engine->step().applied, micro == 1);
        }
      }
    }
    expect_same_progress(*disturbed, *plain);
    EXPECT_TRUE(same_bits(values(*disturbed), values(*plain)));
  });
}

// Gradients of the caller of which some buckets have left and others not.
TEST_P(Passes, GivenUpGradientsLeaveNothing) {
  const Json given = given_config(stage(), {precision_config(std::get<1>(GetParam())),
                                            {{"zero_optimization", {{"reduce_bucket_size", 30}}}}});
  const DType type = type_of(std::get<1>(GetParam()));
  const std::vector<Shape> shapes = {{10}, {20}, {7, 4}, {9}};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine plain(dump_json(given), given_model(shapes, type), comm);
    Engine disturbed(dump_json(given), given_model(shapes, type), comm);
    for (int step = 0; step < 3; ++step) {
      give_exact(disturbed, comm->rank(), 17, [&](int64_t id) { return id % 2 == step % 2; });
      disturbed.discard_gradients();
      give_exact(disturbed, comm->rank(), 18);
      disturbed.discard_gradients();
      for (Engine* const engine : {&plain, &disturbed}) {
        give_exact(*engine, comm->rank(), step);
        EXPECT_TRUE(engine->step().applied);
      }
    }
    expect_same_progress(disturbed, plain);
    EXPECT_TRUE(same_bits(values(disturbed), values(plain)));
  });
}

// Memory that a rank is refused from its nth request on, until it is told to stop.
class ScarceMemory {
 public:
  ScarceMemory() {
    set_caller_memory(
        DeviceKind::kCpu,
        std::make_shared<CallerMemory>(
            [](int64_t bytes, int64_t alignment, int) -> void* {
              if (left() > 0 && --left() == 0) return nullptr;
              const auto align = static_cast<size_t>(alignment);
              return std::aligned_alloc(align,
                                        (static_cast<size_t>(bytes) + align - 1) / align * align);
            },
            [](void* memory, int64_t, int) { std::free(memory); }, std::function<void()>()));
  }
  ~ScarceMemory() { set_caller_memory(DeviceKind::kCpu, nullptr); }
  ScarceMemory(const ScarceMemory&) = delete;
  ScarceMemory& operator=(const ScarceMemory&) = delete;

  // Of this thread: the request that fails; 0: none.
  static int64_t& left() {
    thread_local int64_t value = 0;
    return value;
  }
};

// An exception anywhere in forward, recomputation or backward, on every rank: nothing stays
// gathered that was not before, and the retry gives the step that there would have been.
TEST_P(Passes, ThatFailCanBeTriedAgain) {
  const ScarceMemory memory;
  const Json one = config();
  std::vector<float> expected;
  std::atomic<bool> all_points_seen = false;
  for (int64_t point = 0; !all_points_seen; point += point < 30 ? 1 : 11) {
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      const Job job{2, one, 1, model_config()};
      auto engine = make_rank_engine(job, comm);
      bool failed = false;
      ScarceMemory::left() = point;
      try {
        micro_batch(*engine, comm->rank(), 0);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kOutOfMemory) << error.message();
        failed = true;
      }
      ScarceMemory::left() = 0;
      if (failed) {
        engine->discard_gradients();
        micro_batch(*engine, comm->rank(), 0);
      }
      EXPECT_TRUE(engine->step().applied);
      micro_batch(*engine, comm->rank(), 1);
      EXPECT_TRUE(engine->step().applied);
      const std::vector<float> now = values(*engine);
      if (comm->rank() == 0) {
        if (point == 0) expected = now;
        EXPECT_TRUE(same_bits(now, expected)) << "request " << point;
        all_points_seen = point > 0 && !failed;
      }
    });
    ASSERT_LT(point, 4000);
  }
}

// Evaluation and generation between steps change no bit of the training, whatever is fetched ahead.
TEST_P(Passes, EvaluationAndGenerationBetweenChangeNothing) {
  for (const int64_t prefetch : {0, 10'000, 100'000}) {
    const Json zero = {{"zero_optimization", {{"stage3_prefetch_bucket_size", prefetch}}}};
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      const Job job{2, config(zero)};
      auto plain = make_rank_engine(job, comm), other = make_rank_engine(job, comm);
      std::vector<double> seen;
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(other->train_batch().loss, plain->train_batch().loss);
        const double loss = other->evaluate(*periodic_data(), 2);
        EXPECT_EQ(other->evaluate(*periodic_data(), 2), loss);
        models::Model& model = *other->model();
        const models::Model::Use use(model);
        const std::vector<int32_t> prompt = {3, 9, 28};
        infer::GenerateOptions options;
        options.max_tokens = 4;
        const auto text = infer::generate(model.context(), model.reader(), model.architecture(),
                                          prompt, options, [](int32_t) { return true; });
        EXPECT_EQ(text.size(), 4u);
      }
      EXPECT_TRUE(same_bits(values(*other), values(*plain)));
    });
  }
}

// Engines over one group, their forwards and backwards in turn: each trains as if alone.
TEST_P(Passes, OfThreeEnginesInterleave) {
  constexpr int kSteps = 3, kEngines = 3;
  const Json one = config();
  const auto make = [&](uint64_t seed, const std::shared_ptr<Communicator>& comm) {
    return std::make_unique<Engine>(dump_json(one), models::Model::create(model_config(), seed),
                                    comm);
  };
  std::vector<std::vector<float>> alone(kEngines);
  for (size_t k = 0; k < kEngines; ++k) {
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make(k + 1, comm);
      for (int64_t step = 0; step < kSteps; ++step) {
        micro_batch(*engine, comm->rank(), step);
        EXPECT_TRUE(engine->step().applied);
      }
      const std::vector<float> now = values(*engine);
      if (comm->rank() == 0) alone[k] = now;
    });
  }
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    std::vector<std::unique_ptr<Engine>> engines;
    for (size_t k = 0; k < kEngines; ++k) engines.push_back(make(k + 1, comm));
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<Tensor> losses;
      for (auto& engine : engines)
        losses.push_back(engine->forward(token_batch(comm->rank(), step)));
      for (const size_t k : {1, 0, 2}) engines[k]->backward(losses[k]);
      for (const size_t k : {2, 1, 0}) EXPECT_TRUE(engines[k]->step().applied);
    }
    for (size_t k = 0; k < kEngines; ++k) {
      EXPECT_TRUE(same_bits(values(*engines[k]), alone[k])) << "engine " << k;
    }
  });
}

}  // namespace
}  // namespace ds::properties
