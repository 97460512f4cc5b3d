// Weights below fp32 that are their own masters: updates compute in fp32 and round to them
// (bf16_master_weights_and_grads, fp16_master_weights_and_grads).
#include <gmock/gmock.h>

#include "own_world.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

const Json kRoundedBf16 = {{"bf16",
                            {{"enabled", true},
                             {"bf16_master_weights_and_grads", true},
                             {"bf16_optimizer_states", true}}}};
const Json kOffload = {{"offload_optimizer", {{"device", "cpu"}}}};
const Json kBf16States32 = {{"bf16", {{"enabled", true}, {"bf16_master_weights_and_grads", true}}},
                            {"zero_optimization", kOffload}};
const Json kRoundedFp16 = {
    {"fp16",
     {{"enabled", true}, {"initial_scale_power", 8}, {"fp16_master_weights_and_grads", true}}},
    {"zero_optimization", kOffload}};

struct RoundedKind {
  const char* name;
  Json precision;
  DType type;
};
const RoundedKind kRoundedKinds[] = {{"Bf16", kRoundedBf16, DType::kBFloat16},
                                     {"Bf16StatesInFp32", kBf16States32, DType::kBFloat16},
                                     {"Fp16", kRoundedFp16, DType::kFloat16}};

double rounded(DType type, double x) {
  const auto single = static_cast<float>(x);
  return type == DType::kBFloat16 ? to_float(to_bfloat16(single)) : to_float(to_float16(single));
}

// What one step of the type is worth at x.
double ulp(DType type, double x) {
  const int bits = type == DType::kBFloat16 ? 7 : 10, least = type == DType::kBFloat16 ? -126 : -14;
  const int exponent = x == 0 ? least : std::max(std::ilogb(x), least);
  return std::ldexp(1.0, exponent - bits);
}

bool representable(DType type, const std::vector<float>& values) {
  return std::ranges::all_of(values, [&](float x) { return rounded(type, x) == x; });
}

class RoundedMasters : public ::testing::TestWithParam<RoundedKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, RoundedMasters, ::testing::ValuesIn(kRoundedKinds),
                         [](const auto& kind) { return kind.param.name; });

OwnJob own_job(const RoundedKind& kind, int world, int stage) {
  Json config = with(own_config(stage), kind.precision);
  config["gradient_clipping"] = 0;
  OwnJob job{world, config};
  job.dtype = kind.type;
  return job;
}

// Adam of one element in double, from what the engine holds.
struct Adam {
  double p, m, v;
  void step(double g, int t) {
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const double mean = m / (1 - std::pow(0.9, t)), square = v / (1 - std::pow(0.999, t));
    p -= 1e-2 * (mean / (std::sqrt(square) + 1e-8) + 0.01 * p);
  }
};

// Each step from the numbers before it: the next weight is the double one, rounded to nearest. The
// update's fp32 arithmetic is off by a few 2^-24, which turns a rounding only next to a tie.
TEST_P(RoundedMasters, AgreeWithDoublePrecisionRounded) {
  const DType type = GetParam().type;
  OwnJob job = own_job(GetParam(), 1, 1);
  job.config["optimizer"]["params"]["weight_decay"] = 0.01;
  job.config["optimizer"]["decay_all"] = true;
  Engine engine(dump_json(job.config), own_model(job), nullptr);
  const nn::ParameterSet& set = engine.model()->parameters();
  int64_t all = 0, other = 0;
  for (int step = 0; step < 4; ++step) {
    run_own_batch(engine, job, 0, step);
    std::vector<std::vector<Adam>> expected;
    for (nn::ParamId id = 0; id < set.size(); ++id) {
      const std::string& name = set[id].name;
      const std::vector<float> p = flat(engine.model()->get(name)),
                               g = flat(engine.gradients().get(name));
      const std::vector<float> m = flat(engine.values().optimizer_state(name, "exp_avg")),
                               v = flat(engine.values().optimizer_state(name, "exp_avg_sq"));
      EXPECT_TRUE(representable(type, p)) << name;
      EXPECT_TRUE(representable(type, g)) << name;
      std::vector<Adam>& after = expected.emplace_back();
      for (size_t i = 0; i < p.size(); ++i) {
        after.push_back({p[i], m[i], v[i]});
        after.back().step(g[i] / engine.loss_scale(), step + 1);
      }
    }
    EXPECT_TRUE(engine.step().applied);
    for (nn::ParamId id = 0; id < set.size(); ++id) {
      const std::vector<float> found = flat(engine.model()->get(set[id].name));
      for (size_t i = 0; i < found.size(); ++i) {
        const double exact = expected[static_cast<size_t>(id)][i].p;
        const double wanted = rounded(type, exact);
        ++all;
        if (found[i] == wanted) continue;
        ++other;
        // Both neighbours are as near, up to the update's arithmetic.
        EXPECT_NEAR(found[i], exact, 0.501 * ulp(type, exact)) << set[id].name << " " << i;
      }
    }
  }
  EXPECT_LT(other, all / 1000) << "of " << all;
}

// Enough steps at a constant rate for the loss to fall.
Job learning_job(int world, int stage, const Json& precision, const Json& zero = Json::object()) {
  Json config = with(zero_config(stage, zero), precision);
  config.erase("scheduler");
  Job job{world, config};
  job.steps = 8;
  return job;
}

// What the same job learns with fp32 masters is what this one learns, up to its roundings.
void expect_learns(const Trained& trained, const Job& job) {
  Job plain = job;
  for (const char* const kind : {"bf16", "fp16"}) {
    if (!plain.config.contains(kind)) continue;
    for (const char* const key : {"_master_weights_and_grads", "_optimizer_states"}) {
      plain.config[kind].erase(kind + std::string(key));
    }
  }
  const Trained expected = train(plain);
  EXPECT_LT(trained.losses.back(), trained.losses.front() - 0.1);
  EXPECT_NEAR(trained.losses.back(), expected.losses.back(), 0.1);
  EXPECT_FALSE(same_bits(trained.weights, expected.weights));
}

// A model of this library at every stage that DeepSpeed allows.
TEST_P(RoundedMasters, EveryStageHasTheSameBits) {
  for (const int world : {1, 3}) {
    std::optional<Trained> first;
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(str_cat("world ", world, ", stage ", stage));
      Job job = learning_job(world, stage, GetParam().precision,
                             {{"reduce_bucket_size", 3000},
                              {"stage3_param_persistence_threshold", 40},
                              {"enable_sanity_checks", true}});
      job.config["gradient_accumulation_steps"] = 2;
      const Trained trained = train(job);
      EXPECT_TRUE(representable(GetParam().type, trained.weights));
      if (!first) {
        first = trained;
        expect_learns(trained, job);
      }
      EXPECT_TRUE(same_bits(trained.weights, first->weights));
      EXPECT_EQ(trained.losses, first->losses);
      EXPECT_EQ(trained.norms, first->norms);
    }
  }
}

// A save in the middle goes on with the same bits, at another stage too; by other ranks and with
// fp32 masters the same weights and states are there.
TEST_P(RoundedMasters, CheckpointsGoOn) {
  const auto job_at = [&](int world, int stage) {
    Job job{world, with(zero_config(stage, {{"reduce_bucket_size", 3000}}), GetParam().precision)};
    return job;
  };
  const Folder folder;
  std::vector<float> half, unbroken;
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = make_rank_engine(job_at(2, 1), comm);
    for (int i = 0; i < 2; ++i) engine->train_batch();
    engine->save(folder.path(), "half");
    const std::vector<float> first = all_weights(*engine);
    for (int i = 0; i < 2; ++i) engine->train_batch();
    const std::vector<float> last = all_weights(*engine);
    if (comm->rank() != 0) return;
    half = first;
    unbroken = last;
  });
  Job plain{2, zero_config(1)};
  plain.config["bf16"] = {{"enabled", true}};
  for (const Job& job : {job_at(2, 1), job_at(2, 3), job_at(1, 2), plain}) {
    const bool same = job.world == 2 && job.config != plain.config;
    run_ranks(job.world, [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = make_rank_engine(job, comm);
      engine->load(folder.path(), "half");
      const std::vector<float> loaded = all_weights(*engine);
      EXPECT_TRUE(comm->rank() != 0 || same_bits(loaded, half));
      for (int i = 0; i < 2; ++i) engine->train_batch();
      const std::vector<float> last = all_weights(*engine);
      EXPECT_TRUE(comm->rank() != 0 || !same || same_bits(last, unbroken));
    });
  }
}

// Of each parameter 2 bytes are left of weights and masters, and 2 of gradients.
TEST(RoundedMasters, SaveTheBytesOfMasters) {
  struct Bytes {
    int64_t parameters, gradients, optimizer;
  };
  const auto bytes_of = [](const Json& precision, int stage) {
    Json config = with(zero_config(stage), precision);
    const auto model = models::Model::create(model_config(), 3);
    const Engine engine(dump_json(config), model, nullptr);
    const MemoryAccount& account = model->device()->account();
    return Bytes{account.now(MemoryTag::kParameters), account.now(MemoryTag::kGradients),
                 account.now(MemoryTag::kOptimizer)};
  };
  const int64_t n =
      zero::FlatLayout(models::Model::create(model_config(), 3)->parameters()).elements();
  const Bytes plain = bytes_of({{"bf16", {{"enabled", true}}}}, 1),
              small = bytes_of(kRoundedBf16, 1);
  EXPECT_EQ(plain.parameters, 6 * n);
  EXPECT_EQ(plain.gradients, 4 * n);
  EXPECT_EQ(small.parameters, 2 * n);
  EXPECT_EQ(small.gradients, 2 * n);
  EXPECT_EQ(small.optimizer * 2, plain.optimizer);
  EXPECT_EQ(bytes_of(kRoundedFp16, 2).parameters, 2 * n);
}

// Rules with whole tensors, moments alone and no state at all.
TEST(RoundedMasters, OtherOptimizersTrainThem) {
  const std::pair<const char*, double> kinds[] = {
      {"Lamb", 1e-1}, {"Muon", 5e-2}, {"SGD", 0.5}, {"Lion", 2e-3}, {"Adagrad", 1e-2}};
  for (const auto& [type, rate] : kinds) {
    std::optional<std::vector<float>> first;
    for (const int stage : {1, 3}) {
      SCOPED_TRACE(str_cat(type, ", stage ", stage));
      Job job = learning_job(2, stage, kRoundedBf16, {{"reduce_scatter", stage == 1}});
      job.config["optimizer"] = {{"type", type}, {"params", {{"lr", rate}}}};
      job.config["zero_allow_untested_optimizer"] = true;
      const Trained trained = train(job);
      EXPECT_TRUE(representable(DType::kBFloat16, trained.weights));
      if (!first) {
        first = trained.weights;
        expect_learns(trained, job);
      }
      EXPECT_TRUE(same_bits(trained.weights, *first));
    }
  }
}

// Values of own parameters, lent memory among them, are of the type.
TEST(RoundedMasters, ValuesAreThoseOfTheType) {
  for (const int stage : {1, 3}) {
    OwnJob job = own_job(kRoundedKinds[0], 2, stage);
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      const auto model = own_model(job);
      const nn::ParamId id = model->parameters().find("layer1.bias");
      const Tensor lent =
          Tensor::zeros(make_cpu_device(), DType::kBFloat16, {23}, MemoryTag::kOther);
      if (stage < 3) model->weights().borrowed().add(id, lent);
      Engine engine(dump_json(job.config), model, comm);
      run_own_batch(engine, job, comm->rank(), 0);
      EXPECT_TRUE(engine.step().applied);
      const std::vector<float> values = flat(model->get("layer1.bias"));
      EXPECT_TRUE(representable(DType::kBFloat16, values));
      if (stage < 3) {
        EXPECT_EQ(numbers(lent), values);
      }
      const int64_t ids[] = {id};
      const std::vector<Tensor> gathered = engine.scopes().gather(ids);
      for (int64_t i = 0; i < 23; ++i) gathered[0].data<float>()[i] = 1.0f / 3;
      engine.scopes().scatter(ids, 0);
      const auto third = static_cast<float>(rounded(DType::kBFloat16, 1.0 / 3));
      EXPECT_EQ(flat(model->get("layer1.bias")), std::vector<float>(23, third));
    });
  }
}

// Documents published for DeepSpeed turn on autocast in bf16 with them.
TEST(RoundedMasters, TakeAutocastBesideThem) {
  Json config = with(zero_config(1), kRoundedBf16);
  const Trained expected = train({2, config});
  config["torch_autocast"] = {{"enabled", true}, {"dtype", "bfloat16"}};
  EXPECT_TRUE(same_bits(train({2, config}).weights, expected.weights));
  config["torch_autocast"]["dtype"] = "float16";
  EXPECT_THAT(error_of(Code::kConfig, [&] { train({1, config}); }), HasSubstr("torch_autocast"));
}

TEST(RoundedMasters, TwoTypesOfParametersAreRefused) {
  OwnJob job = own_job(kRoundedKinds[0], 1, 1);
  job.change = [](nn::Parameter& p) {
    if (p.name == "layer0.bias") p.dtype = DType::kFloat32;
    return true;
  };
  EXPECT_THAT(
      error_of(Code::kUnsupported, [&] { Engine(dump_json(job.config), own_model(job), nullptr); }),
      HasSubstr("bf16.bf16_master_weights_and_grads"));
}

}  // namespace
}  // namespace ds::zero_test
