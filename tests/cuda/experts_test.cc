// Layers of experts on a GPU beside the same on the CPU: choices and routes with the same bits,
// training and decoding up to roundings, and twice with the same bits.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "cuda/model_world.h"
#include "infer/generate.h"
#include "models/adapters.h"
#include "models/lora.h"
#include "ops/gate.h"
#include "ops/routes.h"
#include "unit/zero/expert_models.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about

// The same call on the CPU and on a GPU.
class GpuRoutes : public GpuModel {
 protected:
  void SetUp() override {
    GpuModel::SetUp();
    if (IsSkipped()) return;
    contexts_ = {OpContext{make_cpu_device(), &pool_}, OpContext{make_cuda_device(0), &pool_}};
  }

  // Runs `body(context, place)`, where place(x) is x where the context computes, on both; what it
  // returns has the same bits.
  template <class Body>
  void expect_same_bits(const Body& body) {
    std::vector<std::vector<Tensor>> results;
    for (const OpContext& ctx : contexts_) {
      const auto place = [&](const Tensor& x) { return to_device(x, ctx.device); };
      results.push_back(body(ctx, place));
    }
    ASSERT_EQ(results[0].size(), results[1].size());
    for (size_t i = 0; i < results[0].size(); ++i) {
      const Tensor gpu = to_host(results[1][i], contexts_[0].device), &cpu = results[0][i];
      ASSERT_EQ(gpu.bytes(), cpu.bytes()) << "result " << i;
      EXPECT_EQ(std::memcmp(gpu.raw(), cpu.raw(), static_cast<size_t>(cpu.bytes())), 0)
          << "result " << i << " of shape " << cpu.shape().text();
    }
  }

  ThreadPool pool_{1};
  std::vector<OpContext> contexts_;
};

// Few different numbers, so that many are equal, and the awkward ones.
Tensor coarse(std::mt19937_64& random, const Shape& shape) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float numbers[] = {0.0f,  -0.0f, 0.25f,     0.5f,       0.5f,
                           -1.0f, 3.0f,  kInfinity, -kInfinity, kNan};
  Tensor out = random_tensor(random, shape);
  for (int64_t i = 0; i < out.elements(); ++i) {
    out.data<float>()[i] = numbers[random() % std::size(numbers)];
  }
  return out;
}

ops::Routes routes_of(const OpContext& ctx, const Tensor& chosen, int64_t experts) {
  const auto ints = [&](const Shape& shape) { return ctx.workspace(DType::kInt32, shape); };
  ops::Routes out{chosen, ints({experts + 1}), ints({chosen.elements()}), ints(chosen.shape())};
  // The parts of the arrays that sorting leaves alone are compared, too.
  if (chosen.elements() > 0) {
    copy_from_host(std::vector<int32_t>(static_cast<size_t>(chosen.elements()), -7).data(),
                   out.routes);
  }
  return out;
}

// The offsets as the host sees them.
Tensor begins_of(const ops::Routes& routes, const std::shared_ptr<Device>& host) {
  Tensor out = Tensor::empty(host, DType::kInt64, {routes.experts() + 1}, MemoryTag::kOther);
  for (int64_t e = 0; e <= routes.experts(); ++e) out.data<int64_t>()[e] = routes.begin(e);
  return out;
}

struct ChoiceCase {
  int64_t tokens, experts;
  ops::GateRule rule;
};

std::vector<ChoiceCase> choice_cases() {
  const auto rule = [](int64_t choices, int64_t groups = 1, int64_t kept = 1, int64_t best = 1) {
    ops::GateRule r;
    r.choices = choices;
    r.groups = groups;
    r.kept_groups = kept;
    r.group_best = best;
    return r;
  };
  return {{0, 3, rule(1)},
          {1, 1, rule(1)},
          {65, 31, rule(3)},
          {40, 33, rule(33)},
          {50, 64, rule(8, 8, 4, 2)},
          {50, 60, rule(6, 4, 2, 1)},
          {30, 128, rule(2, 64, 40)},
          {300, 7, rule(2, 7, 3, 2)}};
}

TEST_F(GpuRoutes, ChooseTheSameExperts) {
  std::mt19937_64 random(::testing::UnitTest::GetInstance()->random_seed() + 11);
  for (const ChoiceCase& c : choice_cases()) {
    SCOPED_TRACE(str_cat(c.tokens, " tokens, ", c.experts, " experts, ", c.rule.groups, " groups"));
    const Tensor first = coarse(random, {c.tokens, c.experts});
    const Tensor others = coarse(random, {c.tokens, c.experts});
    const Tensor bias = coarse(random, {c.experts});
    Tensor used = Tensor::empty(contexts_[0].device, DType::kUInt8, {c.tokens}, MemoryTag::kOther);
    for (int64_t i = 0; i < c.tokens; ++i) used.data<uint8_t>()[i] = random() % 4 == 0 ? 0 : 1;
    expect_same_bits([&](const OpContext& ctx, const auto& place) {
      std::vector<Tensor> out;
      for (const bool all : {false, true}) {
        Tensor chosen = ctx.workspace(DType::kInt32, {c.tokens, c.rule.choices});
        ops::choose_experts(ctx, c.rule, place(first), all ? place(others) : Tensor(),
                            all ? place(bias) : Tensor(), all ? place(used) : Tensor(), chosen);
        out.push_back(chosen);
      }
      return out;
    });
  }
}

TEST_F(GpuRoutes, AreSortedAndLimitedAlike) {
  std::mt19937_64 random(::testing::UnitTest::GetInstance()->random_seed() + 12);
  struct Case {
    int64_t tokens, experts, choices, capacity;
    bool skewed;
  };
  for (const Case& c : {Case{0, 3, 2, 1, false},
                        {1, 1, 1, 0, false},
                        {300, 40, 3, 9, false},
                        {700, 5, 2, 170, true},
                        {4500, 3, 2, 1000, true},
                        {33, 70, 4, 1, false}}) {
    SCOPED_TRACE(str_cat(c.tokens, " tokens, ", c.experts, " experts"));
    Tensor chosen =
        Tensor::empty(contexts_[0].device, DType::kInt32, {c.tokens, c.choices}, MemoryTag::kOther);
    for (int64_t token = 0; token < c.tokens; ++token) {
      std::vector<int32_t> order(static_cast<size_t>(c.experts));
      for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
      std::shuffle(order.begin(), order.end(), random);
      if (c.skewed) std::swap(order[0], *std::find(order.begin(), order.end(), 1));
      for (int64_t j = 0; j < c.choices; ++j) {
        chosen.data<int32_t>()[token * c.choices + j] =
            random() % 6 == 0 ? -1 : order[static_cast<size_t>(j)];
      }
    }
    const Tensor key = coarse(random, {c.tokens, c.experts});
    for (const bool by_choice : {false, true}) {
      for (const auto priority : {ops::RoutePriority::kOrder, ops::RoutePriority::kScore}) {
        if (by_choice && priority == ops::RoutePriority::kScore) continue;
        SCOPED_TRACE(str_cat("by choice ", by_choice, ", by score ",
                             priority == ops::RoutePriority::kScore));
        expect_same_bits([&](const OpContext& ctx, const auto& place) {
          const Tensor own = ctx.workspace(DType::kInt32, chosen.shape());
          copy_tensor(chosen, own);
          ops::Routes routes = routes_of(ctx, own, c.experts);
          ops::sort_routes(ctx, routes, by_choice);
          const auto& host = contexts_[0].device;
          std::vector<Tensor> out{copied_to_host(routes.offsets, host),
                                  copied_to_host(routes.routes, host),
                                  copied_to_host(routes.rows, host), begins_of(routes, host)};
          Tensor places = ctx.workspace(DType::kInt32, chosen.shape());
          ops::limit_routes(ctx, routes, c.capacity, priority, place(key), places);
          for (const Tensor& more : {routes.chosen, routes.offsets, routes.rows, places,
                                     routes.routes.slice(0, 0, routes.all_rows())}) {
            out.push_back(copied_to_host(more, host));
          }
          out.push_back(begins_of(routes, host));
          return out;
        });
      }
    }
  }
}

TEST_F(GpuRoutes, ReachEveryExpertAlike) {
  for (const int64_t tokens : {0, 1, 77}) {
    expect_same_bits([&](const OpContext& ctx, const auto&) {
      ops::Routes routes = routes_of(ctx, ctx.workspace(DType::kInt32, {tokens, 3}), 3);
      ops::all_routes(ctx, routes);
      return std::vector<Tensor>{routes.chosen, routes.offsets, routes.rows, routes.routes,
                                 begins_of(routes, contexts_[0].device)};
    });
  }
}

// Uniform numbers and jitter have the same bits; those made of logarithms are near each other.
TEST_F(GpuRoutes, DrawTheSameNumbers) {
  std::mt19937_64 random(::testing::UnitTest::GetInstance()->random_seed() + 13);
  const RandomStream stream{.seed = random(), .step = 3, .op = 5, .sample = 7};
  const Tensor factors = random_tensor(random, {3, 5, 7});
  for (const auto kind : {ops::GateNoise::kUniform, ops::GateNoise::kJitter}) {
    expect_same_bits([&](const OpContext& ctx, const auto& place) {
      Tensor plain = ctx.workspace(DType::kFloat32, factors.shape());
      Tensor scaled = ctx.workspace(DType::kFloat32, factors.shape());
      ops::gate_noise(ctx, {kind, stream, 0.01f}, Tensor(), plain);
      ops::gate_noise(ctx, {kind, stream, 0.01f}, place(factors), scaled);
      return std::vector<Tensor>{plain, scaled};
    });
  }
  std::vector<std::vector<float>> drawn;
  for (const OpContext& ctx : contexts_) {
    Tensor out = ctx.workspace(DType::kFloat32, factors.shape());
    ops::gate_noise(ctx, {ops::GateNoise::kGumbel, stream}, Tensor(), out);
    drawn.push_back(flat(to_host(out, contexts_[0].device)));
  }
  EXPECT_LT(largest_difference(drawn[0], drawn[1]), 1e-5);
}

TEST_F(GpuRoutes, RefuseWhatIsElsewhere) {
  const OpContext& gpu = contexts_[1];
  std::mt19937_64 random(1);
  const Tensor host = random_tensor(random, {4, 3});
  Tensor chosen = gpu.workspace(DType::kInt32, {4, 1});
  EXPECT_THROW(ops::choose_experts(gpu, {}, host, Tensor(), Tensor(), Tensor(), chosen), Error);
}

// ---- models ----

struct ExpertVariant {
  std::string name;
  Json model;
  Json config;
  // Largest differences from the CPU: of a loss, of a norm by its share, and of a weight.
  double loss, norm, weight;
};

void PrintTo(const ExpertVariant& variant, std::ostream* out) { *out << variant.name; }

const Json kBf16 = {{"bf16", {{"enabled", true}}}};
const Json kFp16 = {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}};

// In 16 bits a router sees activations that were rounded apart, and a token may choose another
// expert; then losses and gradients differ by what two experts differ.
std::vector<ExpertVariant> expert_variants() {
  const Json segments = {
      {"activation_checkpointing", {{"enabled", true}, {"number_checkpoints", 2}}}};
  std::vector<ExpertVariant> out;
  for (const zero_test::ExpertModel& model : zero_test::expert_models({3, 6})) {
    out.push_back({model.name, model.model, Json::object(), 1e-5, 1e-4, 5e-4});
  }
  const auto add = [&](const char* name, const Json& model, const Json& config) {
    out.push_back({name, model, config, 3e-2, 5e-2, 5e-2});
  };
  add("mixtral_bf16", zero_test::mixtral(), with(kBf16, segments));
  add("qwen2_fp16", zero_test::qwen2_moe(), kFp16);
  add("top2_bf16", zero_test::gpt_moe({{"moe_top_k", 2}, {"moe_train_capacity_factor", 0.7}}),
      kBf16);
  // What was rounded apart may get another code, 8 times as far away.
  const Json fp8 = with(kBf16, {{"fp8", {{"enabled", true}, {"amax_history_len", 2}}}});
  out.push_back({"mixtral_fp8", with(zero_test::mixtral(), {{"intermediate_size", 32}}),
                 with(fp8, segments), 5e-2, 1e-1, 6e-2});
  out.push_back({"top2_fp8", zero_test::gpt_moe({{"moe_top_k", 2}}), fp8, 5e-2, 1e-1, 6e-2});
  return out;
}

class GpuExperts : public GpuModel, public ::testing::WithParamInterface<ExpertVariant> {};

TEST_P(GpuExperts, FollowTheCpu) {
  const ExpertVariant& variant = GetParam();
  const Json config = with(base_config(), variant.config);
  const auto cpu = make_engine_on(false, config, variant.model);
  const auto gpu = make_engine_on(true, config, variant.model);
  const auto again = make_engine_on(true, config, variant.model);
  for (int i = 0; i < 3; ++i) {
    const StepReport expected = cpu->train_batch(), actual = gpu->train_batch();
    EXPECT_TRUE(actual.applied);
    EXPECT_NEAR(actual.loss, expected.loss, variant.loss) << "step " << i;
    EXPECT_NEAR(actual.grad_norm, expected.grad_norm, variant.norm * expected.grad_norm);
    EXPECT_EQ(again->train_batch().loss, actual.loss);
    if (variant.config.empty()) {
      Json loads = gpu->experts(), wanted = cpu->experts();
      EXPECT_NEAR(loads["balance_loss"].get<double>(), wanted["balance_loss"].get<double>(), 1e-5);
      EXPECT_EQ(dump_json(loads["layers"]), dump_json(wanted["layers"]));
    }
  }
  EXPECT_LT(largest_difference(weights_of(*gpu), weights_of(*cpu)), variant.weight);
  EXPECT_TRUE(same_bits(weights_of(*gpu), weights_of(*again)));
  EXPECT_TRUE(same_bits(states_of(*gpu), states_of(*again)));
  const auto data = periodic_data();
  EXPECT_NEAR(gpu->evaluate(*data, 2), cpu->evaluate(*data, 2), variant.loss * 5);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuExperts, ::testing::ValuesIn(expert_variants()),
                         [](const auto& test) { return test.param.name; });

using GpuExpertModel = GpuModel;

TEST_F(GpuExpertModel, RecomputationChangesNoBit) {
  for (const Json& model :
       {zero_test::qwen2_moe(),
        zero_test::gpt_moe({{"moe_noisy_gate_policy", "RSample"}, {"mlp_type", "residual"}})}) {
    const auto run = [&](const Json& more) {
      const auto engine = make_engine_on(true, with(base_config(), more), model);
      for (int i = 0; i < 3; ++i) engine->train_batch();
      return weights_of(*engine);
    };
    const std::vector<float> plain = run(Json::object());
    EXPECT_TRUE(same_bits(
        run({{"activation_checkpointing", {{"enabled", true}, {"number_checkpoints", 2}}}}),
        plain));
    EXPECT_TRUE(same_bits(
        run({{"activation_checkpointing", {{"enabled", true}, {"cpu_checkpointing", true}}}}),
        plain));
    EXPECT_TRUE(same_bits(run({{"graph_harvesting", true}}), plain));
  }
}

TEST_F(GpuExpertModel, CheckpointsGoBetweenCpuAndGpu) {
  const Folder folder;
  const Json model = zero_test::gpt_moe({{"moe_router_score_function", "sigmoid"},
                                         {"moe_router_enable_expert_bias", true},
                                         {"moe_top_k", 2}});
  const auto straight = make_engine_on(true, base_config(), model);
  straight->train_batch();
  straight->save(folder.path("gpu"), "one");
  const auto cpu = make_engine_on(false, base_config(), model);
  cpu->load(folder.path("gpu"), "one");
  EXPECT_TRUE(same_bits(weights_of(*cpu), weights_of(*straight)));
  cpu->save(folder.path("cpu"), "one");
  const auto resumed = make_engine_on(true, base_config(), model);
  resumed->load(folder.path("cpu"), "one");
  EXPECT_EQ(resumed->train_batch().loss, straight->train_batch().loss);
  EXPECT_TRUE(same_bits(weights_of(*resumed), weights_of(*straight)));
}

TEST_F(GpuExpertModel, AdaptersOfExpertsTrain) {
  models::LoraOptions options;
  options.r = 2;
  options.target_modules = {"all-linear"};
  std::vector<float> after[2];
  for (const bool on_gpu : {false, true}) {
    const auto model = make_model(zero_test::mixtral(), on_gpu);
    models::add_lora(*model, options);
    Engine engine(dump_json(base_config()), model, nullptr);
    engine.set_dataset(periodic_data());
    for (int i = 0; i < 3; ++i) engine.train_batch();
    after[on_gpu ? 1 : 0] = weights_of(engine);
  }
  EXPECT_LT(largest_difference(after[0], after[1]), 5e-4);
}

// Padding is left out of losses of routers.
TEST_F(GpuExpertModel, PaddingIsNotCounted) {
  std::vector<double> losses;
  for (const bool on_gpu : {false, true}) {
    const auto engine = make_engine_on(on_gpu, base_config(), zero_test::mixtral());
    const Tensor ids = ids_tensor({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2);
    const Tensor labels = ids_tensor({2, 3, 4, -100, 6, 7, 8, 9, 10, 11, 12, -100}, 2);
    const Tensor mask = ids_tensor({0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, 2);
    for (const Tensor& which : {mask, Tensor()}) {
      const Tensor loss = engine->forward({ids, labels, which, {}, {}});
      losses.push_back(double{*loss.data<float>()});
      engine->backward(loss);
      engine->step();
    }
  }
  EXPECT_NEAR(losses[2], losses[0], 1e-5);
  EXPECT_NEAR(losses[3], losses[1], 1e-5);
}

std::vector<int32_t> prompt() { return {3, 9, 27, 20, 60}; }

// The greedy text behind it.
std::vector<int32_t> continue_on(models::Model& model) {
  infer::GenerateOptions options;
  options.max_tokens = 9;
  return infer::generate(model.context(), model.reader(), model.architecture(), prompt(), options,
                         {});
}

// Of the prompt and a text behind it, in host memory.
Tensor logits_on(models::Model& model, const std::vector<int32_t>& text) {
  std::vector<int32_t> all = prompt();
  all.insert(all.end(), text.begin(), text.end());
  const Tensor ids =
      Tensor::empty(model.host(), DType::kInt32, {1, std::ssize(all)}, MemoryTag::kOther);
  std::copy(all.begin(), all.end(), ids.data<int32_t>());
  return to_host(
      infer::batch_logits(model.context(), model.reader(), model.architecture(), ids, Tensor()),
      model.host());
}

double root_mean_square_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b.at(i)}, 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Every token that the GPU chooses is, on the CPU, the likeliest or as likely as that one.
TEST_F(GpuExpertModel, Generate) {
  for (const Json& config : {zero_test::mixtral(), zero_test::qwen2_moe(),
                             zero_test::gpt_moe({{"mlp_type", "residual"}}),
                             zero_test::deepseek("deepseek_v3", {{"n_shared_experts", 1}})}) {
    SCOPED_TRACE(config.at("model_type").get<std::string>());
    const auto cpu = make_model(config, false), gpu = make_model(config, true);
    const std::vector<int32_t> text = continue_on(*gpu);
    EXPECT_EQ(text.size(), 9U);
    EXPECT_EQ(continue_on(*gpu), text);
    const Tensor expected = logits_on(*cpu, text), actual = logits_on(*gpu, text);
    EXPECT_LT(largest_difference(flat(actual), flat(expected)), 1e-4);
    const int64_t vocab = expected.size(2);
    for (size_t i = 0; i < text.size(); ++i) {
      const float* const row =
          expected.data<float>() + (static_cast<int64_t>(prompt().size() + i) - 1) * vocab;
      EXPECT_GE(row[text[i]], *std::max_element(row, row + vocab) - 1e-4f) << "token " << i;
    }
  }
}

// Weights in bf16 and 8 bits. Every token goes to all experts: where the two round apart, another
// choice would hide everything else.
TEST_F(GpuExpertModel, NarrowWeightsGenerate) {
  const Json of_all[] = {with(zero_test::mixtral(), {{"num_experts_per_tok", 12}}),
                         with(zero_test::qwen2_moe(), {{"num_experts_per_tok", 8}})};
  for (const Json& config : of_all) {
    SCOPED_TRACE(config.at("model_type").get<std::string>());
    for (const models::WeightForm form :
         {models::WeightForm::kBFloat16, models::WeightForm::kInt8}) {
      models::InferenceOptions held;
      held.weights = form;
      held.group_size = 0;
      held.threads = 1;
      const auto cpu = make_model(config, false)->prepared_copy(held);
      const auto gpu = make_model(config, true)->prepared_copy(held);
      const std::vector<int32_t> text = continue_on(*gpu);
      EXPECT_EQ(continue_on(*gpu), text);
      const std::vector<float> on_cpu = flat(logits_on(*cpu, text)),
                               on_gpu = flat(logits_on(*gpu, text)),
                               in_fp32 = flat(logits_on(*make_model(config, false), text));
      // Some dozens of roundings to bf16 and, of weights, to 8 bits: where one falls on the other
      // side, all that follow do so at random. What a wrong expert would move is many times that.
      const double error = root_mean_square_difference(on_cpu, in_fp32);
      EXPECT_LT(error,
                0.025 * root_mean_square_difference(in_fp32, std::vector<float>(on_cpu.size())));
      EXPECT_LT(root_mean_square_difference(on_gpu, in_fp32), 2 * error);
    }
  }
}

}  // namespace
}  // namespace ds
