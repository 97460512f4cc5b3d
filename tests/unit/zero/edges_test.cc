// Steps that are unusual: gradients that are not finite on one rank, overflows in a row, nothing to
// train, parameters without elements, fewer elements than ranks, values set before a step.
#include "attached_state.h"
#include "models/adapters.h"
#include "own_world.h"

namespace ds::zero_test {
namespace {

const std::shared_ptr<Device>& host() {
  static const std::shared_ptr<Device> device = make_cpu_device();
  return device;
}

Tensor filled(const Shape& shape, float value) {
  Tensor out = Tensor::empty(host(), DType::kFloat32, shape, MemoryTag::kOther);
  std::fill(out.data<float>(), out.data<float>() + out.elements(), value);
  return out;
}

void give(Engine& engine, int64_t index, float value) {
  const Tensor gradient =
      filled(engine.model()->parameters()[static_cast<int>(index)].shape, value);
  const Tensor* const one = &gradient;
  engine.gradients().add({&index, 1}, {&one, 1});
}

std::shared_ptr<models::Model> model_of(const std::vector<Shape>& shapes,
                                        const std::vector<bool>& frozen = {}) {
  nn::ParameterSet set;
  for (size_t i = 0; i < shapes.size(); ++i) {
    nn::Parameter p;
    p.name = str_cat("p", i);
    p.shape = shapes[i];
    p.decays = true;
    p.trainable = frozen.empty() || !frozen[i];
    set.add(p);
  }
  auto model = models::Model::from_parameters(std::move(set));
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const Tensor master = master_of(*model, id);
    for (int64_t i = 0; i < master.elements(); ++i) master.data<float>()[i] = noise(id, i);
  }
  return model;
}

Json sgd(int stage, const Json& more = Json::object()) {
  return own_config(stage, Json::object(),
                    with({{"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.5}}}}},
                          {"gradient_clipping", 0},
                          {"zero_allow_untested_optimizer", true}},
                         more));
}

// Every rank skips, and names the parameter, when one rank alone has a number that is not finite.
TEST(Edges, NanOnOneRankAlone) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int bad : {0, 2}) {
      run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(sgd(stage)), model_of({{40, 3}, {50}}), comm);
        const std::vector<float> before = all_weights(engine);
        const float infinity = std::numeric_limits<float>::infinity();
        for (const float wrong : {std::nanf(""), infinity, -infinity}) {
          give(engine, 0, 1);
          give(engine, 1, comm->rank() == bad ? wrong : 1.0f);
          const StepReport report = engine.step();
          EXPECT_FALSE(report.applied);
          EXPECT_EQ(report.skip_reason, SkipReason::kNonFinite);
          EXPECT_EQ(report.first_bad_tensor, "p1") << "stage " << stage << ", rank " << bad;
          EXPECT_EQ(report.first_bad_element, 0);
          if (std::isnan(wrong)) {
            EXPECT_TRUE(std::isnan(report.first_bad_value)) << report.first_bad_value;
          } else {
            EXPECT_EQ(report.first_bad_value, wrong);
          }
          EXPECT_TRUE(same_bits(all_weights(engine), before));
        }
        give(engine, 0, 1);
        give(engine, 1, 1);
        EXPECT_TRUE(engine.step().applied);
        EXPECT_EQ(engine.progress().skipped, 3);
        EXPECT_EQ(engine.optimizer_steps(), 1);
      });
    }
  }
}

// x: overflow on one of the two ranks; in turn on each.
TEST(Edges, ScriptedOverflowsOnTwoRanks) {
  struct Script {
    const char* scaler;
    const char* steps;
    std::vector<double> scales;
  };
  const Script scripts[] = {
      {"zero", "xx...x...xx", {256, 128, 128, 128, 256, 256, 256, 256, 512, 512, 256}},
      {"wrapper", "xx...x...xx", {128, 64, 64, 64, 128, 64, 64, 64, 128, 64, 32}},
  };
  for (const int stage : {0, 2}) {
    for (const Script& script : scripts) {
      if (stage > 0 && script.scaler == std::string("wrapper")) continue;
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        Json config = sgd(stage);
        config["fp16"] = {{"enabled", true},
                          {"initial_scale_power", 8},
                          {"hysteresis", 2},
                          {"loss_scale_window", 2},
                          {"scaler", script.scaler}};
        Engine engine(dump_json(config), model_of({{33}, {8, 4}}), comm);
        int64_t applied = 0;
        for (size_t i = 0; i < script.scales.size(); ++i) {
          const bool overflows = script.steps[i] == 'x';
          const bool here = overflows && static_cast<int>(i % 2) == comm->rank();
          give(engine, 0, here ? std::numeric_limits<float>::infinity() : 1.0f);
          give(engine, 1, 1);
          EXPECT_EQ(engine.step().applied, !overflows) << "step " << i;
          EXPECT_EQ(engine.loss_scale(), script.scales[i]) << script.scaler << ", step " << i;
          applied += overflows ? 0 : 1;
        }
        EXPECT_EQ(engine.optimizer_steps(), applied);
      });
    }
  }
}

// bf16 without the check applies what it is given, as DeepSpeed does.
TEST(Edges, WithoutTheOverflowCheckNothingIsSkipped) {
  for (const bool check : {false, true}) {
    Json config = sgd(0);
    config["bf16"] = {{"enabled", true}, {"check_grad_overflow", check}};
    Engine engine(dump_json(config), model_of({{4}, {5}}), nullptr);
    for (int i = 0; i < 3; ++i) {
      give(engine, 0, std::nanf(""));
      give(engine, 1, 1);
      EXPECT_EQ(engine.step().applied, !check);
    }
    EXPECT_EQ(engine.progress().skipped, check ? 3 : 0);
    bool finite = true;
    for (const float w : all_weights(engine)) finite = finite && std::isfinite(w);
    EXPECT_EQ(finite, check);
  }
}

// Two elements for four ranks; parameters of no element; groups that take nothing.
TEST(Edges, FewerElementsThanRanksAndEmptyOnes) {
  const std::vector<Shape> shapes = {{1}, {0}, {1}, {0, 7}};
  Json config = sgd(0);
  config["optimizer"]["params"]["momentum"] = 0.5;
  config["optimizer"]["param_groups"] = {{{"name", "nobody"}, {"match", {"q*"}}, {"lr", 3}},
                                         {{"name", "empty"}, {"match", {"p1"}}, {"lr", 2}}};
  const auto start = model_of(shapes);
  const float first = *master_of(*start, 0).data<float>(),
              last = *master_of(*start, 2).data<float>();
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world : {1, 4}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", world ", world));
      config["zero_optimization"]["stage"] = stage;
      run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(config), model_of(shapes), comm);
        for (int i = 0; i < 2; ++i) {
          for (int64_t index = 0; index < 4; ++index) give(engine, index, 1);
          EXPECT_TRUE(engine.step().applied);
        }
        const std::vector<float> weights = all_weights(engine);
        ASSERT_EQ(weights.size(), 2u);
        // Momentum: steps of 0.5 * 1 and 0.5 * 1.5.
        EXPECT_NEAR(weights[0], first - 1.25, 1e-6);
        EXPECT_NEAR(weights[1], last - 1.25, 1e-6);
      });
    }
  }
}

TEST(Edges, EverythingIsFrozen) {
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Json config = zero_config(stage);
      config["optimizer"] = {{"type", "AdamW"}, {"params", {{"lr", 1.0}, {"weight_decay", 0.5}}}};
      Job run{2, config};
      run.prepare = [](models::Model& model) { models::set_trainable(model, {"*"}, false); };
      auto engine = make_rank_engine(run, comm);
      const std::vector<float> before = all_weights(*engine);
      for (int i = 0; i < 2; ++i) {
        const StepReport report = engine->train_batch();
        EXPECT_TRUE(report.applied);
        EXPECT_EQ(report.grad_norm, 0);
        EXPECT_GT(report.loss, 0);
      }
      EXPECT_TRUE(same_bits(all_weights(*engine), before));
    });
  }
}

// Parameters that have gradients in turn: what has none counts as zero, in the norm and in Adam.
TEST(Edges, GradientsThatAlternate) {
  const std::vector<Shape> shapes = {{30}, {40}};
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      const Json config = own_config(
          stage, Json::object(),
          {{"gradient_clipping", 0},
           {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}, {"weight_decay", 0}}}}}});
      Engine engine(dump_json(config), model_of(shapes), comm);
      const std::vector<float> before = all_weights(engine);
      double p[2] = {0, 0}, m[2] = {0, 0}, v[2] = {0, 0};
      for (int t = 1; t <= 6; ++t) {
        const int which = t % 2;
        give(engine, which, static_cast<float>(t));
        EXPECT_NEAR(engine.step().grad_norm, t * std::sqrt(which == 0 ? 30.0 : 40.0), 1e-4);
        for (int k = 0; k < 2; ++k) {
          const double g = k == which ? t : 0;
          m[k] = 0.9 * m[k] + 0.1 * g;
          v[k] = 0.999 * v[k] + 0.001 * g * g;
          p[k] -= 0.01 * m[k] / (1 - std::pow(0.9, t)) /
                  (std::sqrt(v[k] / (1 - std::pow(0.999, t))) + 1e-8);
        }
      }
      const std::vector<float> after = all_weights(engine);
      for (size_t i = 0; i < after.size(); ++i) {
        ASSERT_NEAR(after[i] - before[i], p[i < 30 ? 0 : 1], 2e-6) << i;
      }
    });
  }
}

// As DeepSpeed: a weight, a state or a rank's own values that are set between backward and step are
// what the step works with.
TEST(Edges, ValuesSetBetweenBackwardAndStepAreUsed) {
  Json base = sgd(0, {{"gradient_accumulation_steps", 2}, {"scheduler", nullptr}});
  base["optimizer"]["params"]["momentum"] = 0.5;
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Json config = base;
      config["zero_optimization"]["stage"] = stage;
      Job run{2, config, 1, model_config(0)};
      auto plain = make_rank_engine(run, comm), set = make_rank_engine(run, comm);
      const auto pass = [&](Engine& engine, int micro) {
        const auto ids = ids_tensor(std::vector<int64_t>(16, 5 + comm->rank() + micro), 2);
        engine.backward(engine.forward({ids, ids, Tensor(), Tensor(), Tensor()}));
      };
      for (int micro = 0; micro < 2; ++micro) {
        pass(*plain, micro);
        if (micro == 0) {
          EXPECT_FALSE(plain->step().applied);
        }
      }
      pass(*set, 0);
      EXPECT_FALSE(set->step().applied);
      pass(*set, 1);
      const std::vector<float> before = all_weights(*set);
      const Tensor own = set->values().local("wte.weight", "parameter");
      for (int64_t i = 0; i < own.elements(); ++i) own.data<float>()[i] += 1;
      set->values().set_local("wte.weight", "parameter", own);
      const Shape shape =
          set->model()->parameters()[set->model()->parameters().find("wpe.weight")].shape;
      set->model()->set("wpe.weight", filled(shape, 0.25f));
      set->values().set_optimizer_state("ln_f.weight", "momentum_buffer", filled(Shape{32}, 2));
      EXPECT_TRUE(set->step().applied);
      EXPECT_TRUE(plain->step().applied);
      const std::vector<float> with_values = all_weights(*set), without = all_weights(*plain);
      size_t at = 0;
      const nn::ParameterSet& parameters = set->model()->parameters();
      for (nn::ParamId id = 0; id < parameters.size(); ++id) {
        const std::string& name = parameters[id].name;
        for (int64_t i = 0; i < parameters[id].shape.elements(); ++i, ++at) {
          const double moved = double{without[at]} - before[at];
          const double start = name == "wte.weight"    ? before[at] + 1.0
                               : name == "wpe.weight"  ? 0.25
                               : name == "ln_f.weight" ? before[at] - 0.5 * 0.5 * 2
                                                       : before[at];
          ASSERT_NEAR(with_values[at], start + moved, 1e-6) << name << " stage " << stage;
        }
      }
      // The second step works with a buffer that is set.
      for (Engine* const engine : {plain.get(), set.get()}) {
        pass(*engine, 2);
        EXPECT_FALSE(engine->step().applied);
        pass(*engine, 3);
      }
      const std::vector<float> gradient = flat(set->gradients().get("ln_f.weight"));
      const std::vector<float> weight = flat(set->model()->get("ln_f.weight"));
      set->values().set_optimizer_state("ln_f.weight", "momentum_buffer", filled(Shape{32}, 2));
      EXPECT_TRUE(set->step().applied);
      plain->step();
      const std::vector<float> now = flat(set->model()->get("ln_f.weight"));
      for (size_t i = 0; i < now.size(); ++i) {
        ASSERT_NEAR(now[i], weight[i] - 0.5 * (0.5 * 2 + gradient[i]), 1e-6);
      }
      // Between forward and backward it is too early: backward needs the weights of its forward.
      const auto ids = ids_tensor(std::vector<int64_t>(16, 3), 2);
      const Tensor loss = set->forward({ids, ids, Tensor(), Tensor(), Tensor()});
      error_of(Code::kState, [&] { set->values().set_local("wte.weight", "parameter", own); });
      error_of(Code::kState, [&] { set->model()->set("wpe.weight", filled(shape, 0)); });
      set->backward(loss);
      set->step();
    });
  }
}

}  // namespace
}  // namespace ds::zero_test
