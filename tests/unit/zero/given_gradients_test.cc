// Gradients of the caller for built-in models on several ranks, beside those of their own backward.
#include <gmock/gmock.h>

#include "own_world.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

constexpr int kWorld = 3;
constexpr const char* kNames[] = {"h.0.attn.c_attn.weight", "ln_f.bias", "wte.weight"};
constexpr double kRate = 0.125;

Json given_config(int stage, const Json& more = Json::object()) {
  return zero_config(
      stage, {{"reduce_bucket_size", 3000}},
      with({{"scheduler", nullptr},
            {"gradient_clipping", 0},
            {"zero_allow_untested_optimizer", true},
            {"optimizer", {{"type", "SGD"}, {"params", {{"lr", kRate}, {"weight_decay", 0}}}}}},
           more));
}

// Gradients of rank `rank` in micro batch `micro`: small, so that sums stay near.
Tensor given(const nn::ParameterSet& set, const char* name, int rank, int micro) {
  static const std::shared_ptr<Device> device = make_cpu_device();
  const nn::ParamId id = set.find(name);
  Tensor out = Tensor::empty(device, DType::kFloat32, set[id].shape, MemoryTag::kOther);
  for (int64_t i = 0; i < out.elements(); ++i) {
    out.data<float>()[i] = 0.01f * noise(id, i, rank, micro);
  }
  return out;
}

enum class How { kNone, kAdd, kView };

// One step of two micro batches. Rank 2 adds nothing in the second one.
std::vector<float> train_given(int stage, How how, const Json& more = Json::object()) {
  std::vector<float> out;
  std::mutex mutex;
  std::vector<std::vector<float>> all;
  const Job run{kWorld, given_config(stage, with(more, {{"gradient_accumulation_steps", 2}}))};
  run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    const nn::ParameterSet& set = engine->model()->parameters();
    for (int micro = 0; micro < 2; ++micro) {
      const auto ids = ids_tensor(std::vector<int64_t>(16, 5 + comm->rank() + micro), 2);
      engine->backward(engine->forward({ids, ids, Tensor(), Tensor(), Tensor()}));
      for (const char* name : kNames) {
        if (how == How::kNone || (micro == 1 && comm->rank() == 2)) continue;
        const Tensor value = given(set, name, comm->rank(), micro);
        const int64_t index = set.find(name);
        const Tensor* const one = &value;
        if (how == How::kAdd) {
          engine->gradients().add({&index, 1}, {&one, 1});
          continue;
        }
        const Tensor view = engine->gradients().view(name);
        for (int64_t i = 0; i < view.elements(); ++i) {
          view.data<float>()[i] += value.data<float>()[i];
        }
      }
      EXPECT_EQ(engine->step().applied, micro == 1);
    }
    const std::vector<float> mine = all_weights(*engine);
    const std::lock_guard lock(mutex);
    all.push_back(mine);
    if (comm->rank() == 0) out = mine;
  });
  for (const std::vector<float>& weights : all) {
    EXPECT_TRUE(same_bits(weights, out)) << "ranks differ";
  }
  return out;
}

// Their mean over the ranks joins what backward found.
TEST(GivenGradients, AreAveragedOverRanks) {
  const std::vector<float> plain = train_given(0, How::kNone);
  const auto model = models::Model::create(model_config(), 3);
  const nn::ParameterSet& set = model->parameters();
  std::vector<double> wanted(plain.begin(), plain.end());
  size_t at = 0;
  for (nn::ParamId id = 0; id < set.size(); ++id) {
    const auto n = static_cast<size_t>(set[id].shape.elements());
    for (const char* name : kNames) {
      if (set[id].name != name) continue;
      for (int rank = 0; rank < kWorld; ++rank) {
        for (int micro = 0; micro < (rank == 2 ? 1 : 2); ++micro) {
          const Tensor value = given(set, name, rank, micro);
          for (size_t i = 0; i < n; ++i) {
            wanted[at + i] -= kRate * double{value.data<float>()[i]} / kWorld;
          }
        }
      }
    }
    at += n;
  }
  std::vector<float> first;
  for (const int stage : {0, 1, 2}) {
    for (const How how : {How::kAdd, How::kView}) {
      SCOPED_TRACE(str_cat("stage ", stage, how == How::kAdd ? ", added" : ", in place"));
      const std::vector<float> weights = train_given(stage, how);
      if (first.empty()) first = weights;
      EXPECT_TRUE(same_bits(weights, first));
      ASSERT_EQ(weights.size(), wanted.size());
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_NEAR(weights[i], wanted[i], 1e-6) << i;
      }
    }
  }
}

TEST(GivenGradients, HoldInLowerPrecision) {
  const Json more = {{"bf16", {{"enabled", true}}}, {"data_types", {{"grad_accum_dtype", "bf16"}}}};
  const std::vector<float> plain = train_given(0, How::kNone, more);
  const std::vector<float> zero = train_given(0, How::kAdd, more);
  EXPECT_GT(largest_difference(zero, plain), 1e-4);
  for (const int stage : {1, 2}) EXPECT_TRUE(same_bits(train_given(stage, How::kAdd, more), zero));
}

// Without a forward too; what is given up, set or cleared leaves nothing behind.
TEST(GivenGradients, BelongToTheOpenStep) {
  for (const int stage : {0, 2}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Job run{2, given_config(stage)};
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      const nn::ParameterSet& set = engine->model()->parameters();
      const int64_t index = set.find("ln_f.bias");
      const Tensor value = given(set, "ln_f.bias", comm->rank(), 0);
      const Tensor* const one = &value;
      const auto add = [&] { engine->gradients().add({&index, 1}, {&one, 1}); };
      const std::vector<float> before = all_weights(*engine);
      add();
      EXPECT_TRUE(same_bits(flat(engine->gradients().get("ln_f.bias")), flat(value)));
      engine->discard_gradients();
      for (const float g : flat(engine->gradients().get("ln_f.bias"))) EXPECT_EQ(g, 0);
      // A set gradient takes the place of what was added.
      add();
      const Tensor zeros =
          Tensor::zeros(make_cpu_device(), DType::kFloat32, value.shape(), MemoryTag::kOther);
      engine->gradients().set("ln_f.bias", zeros);
      EXPECT_TRUE(engine->step().applied);
      EXPECT_TRUE(same_bits(all_weights(*engine), before));
      add();
      EXPECT_TRUE(engine->step().applied);
      const std::vector<float> moved = flat(engine->model()->get("ln_f.bias"));
      size_t at = 0;
      for (nn::ParamId id = 0; id < index; ++id) {
        at += static_cast<size_t>(set[id].shape.elements());
      }
      for (size_t i = 0; i < moved.size(); ++i) {
        const auto n = static_cast<int64_t>(i);
        const double mean = 0.005 * (double{noise(index, n, 0)} + noise(index, n, 1));
        EXPECT_NEAR(moved[i], before[at + i] - kRate * mean, 1e-6) << i;
      }
      EXPECT_TRUE(engine->train_batch().applied);
    });
  }
}

// A rank without further batches takes part in them, too.
TEST(GivenGradients, GoWithRanksThatHaveJoined) {
  const Job run{2, given_config(2)};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    const nn::ParameterSet& set = engine->model()->parameters();
    const int64_t index = set.find("ln_f.bias");
    const auto ids = ids_tensor(std::vector<int64_t>(16, 5), 2);
    for (int step = 0; step < (comm->rank() == 0 ? 1 : 3); ++step) {
      engine->backward(engine->forward({ids, ids, Tensor(), Tensor(), Tensor()}));
      const Tensor value = given(set, "ln_f.bias", comm->rank(), step);
      const Tensor* const one = &value;
      engine->gradients().add({&index, 1}, {&one, 1});
      EXPECT_TRUE(engine->step().applied);
    }
    engine->join();
    EXPECT_EQ(engine->progress().steps, 3);
    all_weights(*engine);
  });
}

TEST(GivenGradients, HaveNoPlaceAtStageThree) {
  const Job run{2, given_config(3)};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    const nn::ParameterSet& set = engine->model()->parameters();
    const int64_t index = set.find("ln_f.bias");
    const Tensor value = given(set, "ln_f.bias", 0, 0);
    const Tensor* const one = &value;
    EXPECT_THAT(error_of(Code::kUnsupported,
                         [&] {
                           engine->gradients().add({&index, 1}, {&one, 1});
                         }),
                HasSubstr("ds_engine_set_values"));
    EXPECT_THAT(error_of(Code::kUnsupported, [&] { engine->gradients().view("ln_f.bias"); }),
                HasSubstr("use stage 2"));
    EXPECT_TRUE(engine->train_batch().applied);
  });
}

}  // namespace
}  // namespace ds::zero_test
