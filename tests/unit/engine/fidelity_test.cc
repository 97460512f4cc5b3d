// What the configuration says of parameter groups, rates, momentum and boundaries reaches the
// update, as it would in DeepSpeed.
#include <map>
#include <set>

#include "base/log.h"
#include "engine_world.h"

namespace ds::engine_test {
namespace {

Json adamw(const Json& params, const Json& more = Json::object()) {
  Json section = {{"type", "AdamW"}, {"params", params}};
  section.merge_patch(more);
  Json config = base_config();
  config.erase("scheduler");
  config["optimizer"] = section;
  return config;
}

std::map<std::string, std::vector<float>> by_name(Engine& engine) {
  std::map<std::string, std::vector<float>> out;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    out[parameters[id].name] = flat(engine.model()->get(parameters[id].name));
  }
  return out;
}

// One step with decoupled decay differs from one without by lr * decay * p: which tensors decayed.
std::set<std::string> decayed(const Json& plain, const Json& config, double part) {
  const auto before = by_name(*make_engine(plain));
  const auto one = make_engine(plain), other = make_engine(config);
  one->train_batch();
  other->train_batch();
  const auto without = by_name(*one), with_decay = by_name(*other);
  std::set<std::string> out;
  for (const auto& [name, start] : before) {
    double moved = 0, wrong = 0, largest = 0;
    for (size_t i = 0; i < start.size(); ++i) {
      const double difference = double{without.at(name)[i]} - with_decay.at(name)[i];
      moved = std::max(moved, std::abs(difference));
      wrong = std::max(wrong, std::abs(difference - part * start[i]));
      largest = std::max(largest, std::abs(double{start[i]}));
    }
    if (largest == 0) continue;  // new biases, which decay to nothing from nothing
    if (moved > 0) {
      EXPECT_LT(wrong, 1e-6 * (1 + largest)) << name;
      out.insert(name);
    }
  }
  return out;
}

std::set<std::string> names_with(std::initializer_list<const char*> parts) {
  std::set<std::string> out;
  for (const auto& [name, values] : by_name(*make_engine(adamw({{"lr", 0.01}})))) {
    const bool wanted = std::any_of(parts.begin(), parts.end(), [&, n = name](const char* part) {
      return n.find(part) != std::string::npos;
    });
    if (wanted && name.find(".bias") == std::string::npos) out.insert(name);
  }
  return out;
}

TEST(Fidelity, DecayLeavesOutNormsUnlessAsked) {
  const Json plain = adamw({{"lr", 0.01}});
  const std::set<std::string> matrices = names_with({"wte", "wpe", "c_"}),
                              norms = names_with({"ln_"});
  EXPECT_EQ(norms.size(), 5u);
  std::set<std::string> all = matrices;
  all.insert(norms.begin(), norms.end());
  EXPECT_EQ(decayed(plain, adamw({{"lr", 0.01}, {"weight_decay", 0.5}}), 0.005), matrices);
  EXPECT_EQ(
      decayed(plain, adamw({{"lr", 0.01}, {"weight_decay", 0.5}}, {{"decay_all", true}}), 0.005),
      all);
  // What a group says holds for all that it takes.
  const auto group = [](const char* pattern, double decay) {
    return Json{
        {"param_groups", {{{"name", "asked"}, {"match", {pattern}}, {"weight_decay", decay}}}}};
  };
  EXPECT_EQ(decayed(plain, adamw({{"lr", 0.01}}, group("*", 0.5)), 0.005), all);
  EXPECT_EQ(decayed(plain, adamw({{"lr", 0.01}}, group("*ln_*", 0.5)), 0.005), norms);
  EXPECT_EQ(
      decayed(plain, adamw({{"lr", 0.01}, {"weight_decay", 0.5}}, group("*ln_*", 0.5)), 0.005),
      all);
}

TEST(Fidelity, WhatDecaysIsInTheLogAndInTheResolvedDocument) {
  std::vector<std::string> lines;
  log_set_level(LogLevel::kInfo);
  log_set_sink(
      [](void* to, int32_t, const char*, const char* text) {
        static_cast<std::vector<std::string>*>(to)->push_back(text);
      },
      &lines, nullptr);
  const auto says = [&](const Json& config) {
    lines.clear();
    const Json resolved = make_engine(config)->config_document().at("config");
    const bool said = std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("weight decay applies to 10 of 28 parameters") == 0;
    });
    return std::pair(said, resolved.at("optimizer").at("decay_all").get<bool>());
  };
  const Json params = {{"lr", 0.01}, {"weight_decay", 0.5}};
  EXPECT_EQ(says(adamw(params)), std::pair(true, false));
  EXPECT_EQ(says(adamw(params, {{"decay_all", true}})), std::pair(false, true));
  EXPECT_EQ(says(adamw({{"lr", 0.01}})), std::pair(false, false));
  log_set_sink(nullptr, nullptr, nullptr);
  log_set_level(LogLevel::kWarning);
}

// Rates of every group, before the first step and after.
TEST(Fidelity, ListsOfRatesAreTheGroups) {
  Json config = adamw({{"lr", 0.5}}, {{"param_groups",
                                       {{{"name", "norms"}, {"match", {"*ln_*"}}, {"lr", 0.25}},
                                        {{"name", "ends"}, {"match", {"w?e.*"}}}}}});
  config["scheduler"] = {{"type", "WarmupLR"},
                         {"params",
                          {{"warmup_min_lr", {0.001, 0.002, 0.003}},
                           {"warmup_max_lr", {0.002, 0.004, 0.005}},
                           {"warmup_num_steps", 2},
                           {"warmup_type", "linear"}}}};
  const auto engine = make_engine(config);
  EXPECT_EQ(engine->rates(), (std::vector<double>{0.001, 0.002, 0.003}));
  engine->train_batch();
  engine->train_batch();
  EXPECT_EQ(engine->rates(), (std::vector<double>{0.0015, 0.003, 0.004}));
  engine->train_batch();
  EXPECT_EQ(engine->rates(), (std::vector<double>{0.002, 0.004, 0.005}));
  config["scheduler"]["params"]["warmup_min_lr"] = {0.001, 0.002};
  const std::string text = error_of(Code::kConfig, [&] { make_engine(config); });
  EXPECT_NE(text.find("a list of 2 rates for 3 groups"), std::string::npos) << text;
}

// Frozen rates, so that the cycle could show in momentum alone.
Json cycle(const Json& optimizer, bool momentum) {
  Json config = base_config();
  config["optimizer"] = optimizer;
  config["scheduler"] = {{"type", "OneCycle"},
                         {"params",
                          {{"cycle_min_lr", 0.01},
                           {"cycle_max_lr", 0.01},
                           {"cycle_first_step_size", 3},
                           {"cycle_min_mom", 0.3},
                           {"cycle_max_mom", 0.9},
                           {"cycle_momentum", momentum}}}};
  return config;
}

TEST(Fidelity, OneCycleMovesBetasAndNoOtherMomentum) {
  const auto trained = [](const Json& config) {
    const auto engine = make_engine(config);
    for (int i = 0; i < 4; ++i) engine->train_batch();
    return weights(*engine);
  };
  const Json sgd = {{"type", "SGD"}, {"params", {{"momentum", 0.9}}}};
  EXPECT_TRUE(same_bits(trained(cycle(sgd, true)), trained(cycle(sgd, false))));
  const Json adam = {{"type", "AdamW"}, {"params", {{"weight_decay", 0}}}};
  EXPECT_FALSE(same_bits(trained(cycle(adam, true)), trained(cycle(adam, false))));
  // The first step takes cycle_min_mom: its first moment is (1 - 0.3) of the gradient.
  const auto engine = make_engine(cycle(adam, true));
  const auto reference = make_engine(cycle(adam, false));  // beta1 0.9
  engine->train_batch();
  reference->train_batch();
  const std::vector<float> moment = flat(engine->values().optimizer_state("wte.weight", "exp_avg")),
                           other =
                               flat(reference->values().optimizer_state("wte.weight", "exp_avg"));
  for (size_t i = 0; i < moment.size(); ++i) {
    ASSERT_NEAR(moment[i], 7 * other[i], 1e-6 * std::abs(moment[i]) + 1e-12);
  }
}

// ---- boundaries ----

MicroBatch micro_batch(int64_t salt) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 4 * 8; ++i) ids.push_back((i * i + salt * 7) % 61);
  return {ids_tensor(ids, 4), ids_tensor(ids, 4), {}, {}, {}};
}

StepReport pass(Engine& engine, int64_t salt) {
  engine.backward(engine.forward(micro_batch(salt)));
  return engine.step();
}

Json sgd_config(int64_t accumulation) {
  return with(base_config(), {{"gradient_accumulation_steps", accumulation},
                              {"scheduler", nullptr},
                              {"gradient_clipping", 0},
                              {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}}});
}

std::unique_ptr<Engine> sgd_engine(int64_t accumulation, const Json& change = Json::object()) {
  Json config = sgd_config(accumulation);
  config["optimizer"]["params"].erase("weight_decay");
  config.merge_patch(change);
  return make_engine(config, model_config(0));
}

TEST(Fidelity, BoundariesMayBeTheCallers) {
  const auto counted = sgd_engine(2), told = sgd_engine(2);
  for (int64_t i = 0; i < 6; ++i) {
    told->set_boundary(i % 2 == 1);
    EXPECT_EQ(pass(*told, i).applied, pass(*counted, i).applied);
  }
  EXPECT_TRUE(same_bits(weights(*told), weights(*counted)));
  // Three micro batches where two are configured: the sum over the configured number.
  const auto three = sgd_engine(3, {{"optimizer", {{"params", {{"lr", 0.15}}}}}}),
             over = sgd_engine(2);
  double loss = 0;
  for (int64_t i = 0; i < 3; ++i) {
    over->set_boundary(i == 2);
    loss = pass(*over, i).loss;
    EXPECT_EQ(pass(*three, i).loss, loss);
  }
  EXPECT_LT(largest_difference(weights(*over), weights(*three)), 1e-6);
  over->set_boundary(std::nullopt);
  EXPECT_FALSE(pass(*over, 1).applied);
  EXPECT_TRUE(pass(*over, 2).applied);
}

TEST(Fidelity, WithoutManagedAccumulationEveryStepUpdates) {
  const Json unmanaged = {{"managed_gradient_accumulation", false}};
  const auto engine = sgd_engine(4, unmanaged), plain = sgd_engine(1);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(pass(*engine, i).applied);
    EXPECT_TRUE(pass(*plain, i).applied);
  }
  EXPECT_TRUE(same_bits(weights(*engine), weights(*plain)));
  // Several passes before a step add up, undivided.
  const auto two = sgd_engine(2, {{"optimizer", {{"params", {{"lr", 0.2}}}}}});
  const auto many = sgd_engine(4, unmanaged);
  many->backward(many->forward(micro_batch(0)));
  const StepReport report = pass(*many, 1);
  EXPECT_TRUE(report.applied);
  pass(*two, 0);
  EXPECT_EQ(report.loss, pass(*two, 1).loss);
  EXPECT_LT(largest_difference(weights(*many), weights(*two)), 1e-6);
  EXPECT_NE(error_of(Code::kState, [&] { many->set_boundary(true); }), "");
}

}  // namespace
}  // namespace ds::engine_test
