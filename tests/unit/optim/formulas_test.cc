// Every optimizer beside its formula in double precision, written out here, over 100 steps.
#include <algorithm>
#include <functional>
#include <map>

#include "fresh_seed.h"
#include "optim/groups.h"
#include "unit/optim/optim_world.h"

namespace ds::optim {
namespace {

using testing::make_places;
using testing::parse_optimizer;
using testing::World;
using testing::WorldOptions;

constexpr int kSteps = 100;

// One element. `allowed` is what its weight may deviate by: 1e-6, and what each formula amplifies
// an error of a few fp32 roundings to where it divides by something small or asks for a sign.
struct Element {
  double p = 0, m = 0, v = 0;
  double rounding = 0;
  double allowed = 1e-6;
};

// What a formula sees besides the element.
struct At {
  const OptimizerConfig& config;  // of the group
  double g;                       // scaled
  double decay;
  int t;
};

void adam(Element& e, const At& at) {
  const OptimizerConfig& c = at.config;
  double g = at.g;
  double error = 0x1p-23 * std::abs(g);
  if (!c.decoupled) {
    g += at.decay * e.p;
    error += 0x1p-23 * at.decay * std::abs(e.p);
  }
  e.m = c.beta1 * e.m + (1 - c.beta1) * g;
  e.v = c.beta2 * e.v + (1 - c.beta2) * g * g;
  const double c1 = c.bias_correction ? 1 - std::pow(c.beta1, at.t) : 1;
  const double c2 = c.bias_correction ? 1 - std::pow(c.beta2, at.t) : 1;
  const double root = std::sqrt(e.v / c2) + c.eps;
  e.rounding = std::max(e.rounding, error);
  e.allowed += 2 * c.lr * e.rounding / root;
  e.p -= c.lr * (e.m / c1 / root + (c.decoupled ? at.decay * e.p : 0));
}

void adagrad(Element& e, const At& at) {
  const double h = at.g + at.decay * e.p;
  e.v += h * h;
  const double root = std::sqrt(e.v) + at.config.eps;
  e.rounding = std::max(
      e.rounding, 0x1p-23 * (std::abs(at.g) + at.decay * std::abs(e.p)) + at.decay * e.allowed);
  e.allowed += 2 * at.config.lr * std::abs(h) / root * e.rounding / root;
  if (at.decay > 0) e.allowed += 0x1p-22 * at.config.lr * (std::abs(at.g) + at.decay) / root;
  e.p -= at.config.lr * h / root;
}

void lion(Element& e, const At& at) {
  const OptimizerConfig& c = at.config;
  const double u = c.beta1 * e.m + (1 - c.beta1) * at.g;
  if (std::abs(u) < 1e-8) e.allowed += 2 * c.lr;  // fp32 may see the other sign
  // Steps of one size are rounded to the grid of p in the same direction every time.
  e.allowed += 0x1p-24 * std::abs(e.p);
  e.p = e.p * (1 - c.lr * at.decay) - c.lr * (u > 0 ? 1 : u < 0 ? -1 : 0);
  e.m = c.beta2 * e.m + (1 - c.beta2) * at.g;
}

void sgd(Element& e, const At& at) {
  const OptimizerConfig& c = at.config;
  const double g = at.g + at.decay * e.p;
  double u = g;
  if (c.momentum > 0) {
    e.m = at.t == 1 ? g : c.momentum * e.m + (1 - c.dampening) * g;
    u = c.nesterov ? g + c.momentum * e.m : e.m;
  }
  e.p -= c.lr * u;
}

double lamb_tensor(std::vector<Element>& all, const std::vector<double>& gradients,
                   const OptimizerConfig& c, double decay, int t) {
  std::vector<double> updates(all.size());
  double weights = 0, squares = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    Element& e = all[i];
    e.m = c.beta1 * e.m + (1 - c.beta1) * gradients[i];
    e.v = c.beta2 * e.v + (1 - c.beta2) * gradients[i] * gradients[i];
    updates[i] = e.m / (c.eps_inside_sqrt ? std::sqrt(e.v + c.eps) : std::sqrt(e.v) + c.eps);
    updates[i] += decay * e.p;
    weights += e.p * e.p;
    squares += updates[i] * updates[i];
  }
  double ratio = 1;
  if (weights > 0 && squares > 0) {
    ratio = std::min(std::max(std::sqrt(weights) / std::sqrt(squares), c.min_coeff), c.max_coeff);
  }
  double rate = c.lr;
  if (c.bias_correction) {
    rate *= std::sqrt(1 - std::pow(c.beta2, t)) / (1 - std::pow(c.beta1, t));
  }
  for (size_t i = 0; i < all.size(); ++i) all[i].p -= rate * ratio * updates[i];
  return ratio;
}

void update_tensor(std::vector<Element>& all, const std::vector<double>& gradients,
                   const OptimizerConfig& config, double decay, int t, double& ratio) {
  if (config.type == OptimizerType::kLamb) {
    ratio = lamb_tensor(all, gradients, config, decay, t);
    return;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const At at{config, gradients[i], decay, t};
    switch (config.type) {
      case OptimizerType::kAdagrad:
        adagrad(all[i], at);
        break;
      case OptimizerType::kLion:
        lion(all[i], at);
        break;
      case OptimizerType::kSgd:
        sgd(all[i], at);
        break;
      default:
        adam(all[i], at);
    }
  }
}

class Formulas : public ::testing::TestWithParam<const char*> {};

TEST_P(Formulas, HoldOverAHundredSteps) {
  SCOPED_TRACE(str_cat("DS_TEST_SEED=", ds::run_seed(), " ", GetParam()));
  const OptimizerConfig config = parse_optimizer(GetParam());
  const auto groups = static_cast<int32_t>(config.param_groups.size()) + 1;
  const std::vector<Shape> shapes = {{1}, {17}, {37, 3}, {1003}, {32}, {5, 7, 2}, {2, 1025}};
  WorldOptions options;
  options.seed = ds::run_seed();
  World world(make_places(shapes, groups), options);
  const auto optimizer = world.optimizer(config);
  ASSERT_EQ(optimizer->base_rates().size(), static_cast<size_t>(groups));

  std::vector<std::vector<Element>> expected;
  for (const TensorPlace& place : world.places()) {
    std::vector<Element> elements(static_cast<size_t>(place.end - place.begin));
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i].p = world.master(place.begin + static_cast<int64_t>(i));
    }
    expected.push_back(std::move(elements));
  }

  const float grad_scale = 0.37f;
  for (int t = 1; t <= kSteps; ++t) {
    world.next_gradients();
    optimizer->step(world.ctx(), world.step_of(*optimizer, grad_scale), world.flat());
    for (size_t k = 0; k < expected.size(); ++k) {
      const TensorPlace& place = world.places()[k];
      const OptimizerConfig group = group_config(config, place.group);
      std::vector<double> gradients;
      for (int64_t i = place.begin; i < place.end; ++i) {
        gradients.push_back(double{grad_scale} * world.gradient(i));
      }
      double ratio = 1;
      update_tensor(expected[k], gradients, group, place.decays ? group.weight_decay : 0, t, ratio);
      if (config.type == OptimizerType::kLamb) {
        // Of a small tensor whose momentum passes zero the ratio is large and as inexact.
        ASSERT_NEAR(optimizer->trust_ratios()[k], ratio, 1e-5 * ratio * (1 + 5 * ratio))
            << place.name;
      }
    }
  }
  EXPECT_EQ(optimizer->steps(), kSteps);
  double moved = 0;
  for (size_t k = 0; k < expected.size(); ++k) {
    const TensorPlace& place = world.places()[k];
    for (size_t i = 0; i < expected[k].size(); ++i) {
      const double p = world.master(place.begin + static_cast<int64_t>(i));
      ASSERT_NEAR(p, expected[k][i].p, expected[k][i].allowed) << place.name << "[" << i << "]";
      moved = std::max(moved, std::abs(p));
    }
    for (const std::string& state : optimizer->states(k)) {
      const Tensor value = optimizer->read_state(world.ctx(), k, state);
      const bool second = state == "exp_avg_sq" || state == "sum";
      for (size_t i = 0; i < expected[k].size(); ++i) {
        if (expected[k][i].allowed > 1e-5) continue;  // decay carries the weight's error over
        const double x = second ? expected[k][i].v : expected[k][i].m;
        ASSERT_NEAR(value.data<float>()[i], x, 2e-6 + 1e-5 * std::abs(x)) << state;
      }
    }
  }
  EXPECT_GT(moved, 0.1);
  // Padding stays zero.
  std::vector<bool> used(static_cast<size_t>(testing::span_of(world.places())));
  world.for_elements([&](const TensorPlace&, int64_t i) { used[static_cast<size_t>(i)] = true; });
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) {
      EXPECT_EQ(world.master(static_cast<int64_t>(i)), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Formulas,
    ::testing::Values(
        R"({"type": "AdamW", "params": {"weight_decay": 0.1}})",
        R"({"type": "Adam", "params": {"adam_w_mode": false, "weight_decay": 0.1}})",
        R"({"type": "AdamW", "params": {"bias_correction": false, "lr": 3e-4}})",
        R"({"type": "AdamW", "params": {"betas": [0, 0.95]}})",
        R"({"type": "AdamW", "params": {"weight_decay": 0.1}, "param_groups": [
            {"name": "a", "lr": 1e-4, "weight_decay": 0, "betas": [0.8, 0.9]},
            {"name": "b", "lr": 5e-3, "eps": 1e-5}]})",
        R"({"type": "Adagrad"})", R"({"type": "Adagrad", "params": {"weight_decay": 0.01}})",
        R"({"type": "Lion", "params": {"lr": 1e-4, "betas": [0.9, 0.99], "weight_decay": 0.1}})",
        R"({"type": "SGD"})", R"({"type": "SGD", "params": {"lr": 0.05, "weight_decay": 0.1}})",
        R"({"type": "SGD", "params": {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}})",
        R"({"type": "SGD", "params": {"momentum": 0.9, "nesterov": true}, "param_groups": [
            {"name": "a", "momentum": 0.5, "lr": 0.01}]})",
        R"({"type": "Lamb", "params": {"weight_decay": 0.01}})",
        R"({"type": "Lamb", "params": {"eps_inside_sqrt": true, "eps": 1e-6, "max_coeff": 0.5,
            "bias_correction": false}, "param_groups": [{"name": "a", "lr": 3e-4}]})"));

// ---- Muon ----

using Matrix = std::vector<std::vector<double>>;

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), std::vector<double>(b.front().size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b.front().size(); ++j) out[i][j] += a[i][k] * b[k][j];
    }
  }
  return out;
}
Matrix transposed(const Matrix& a) {
  Matrix out(a.front().size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a.front().size(); ++j) out[j][i] = a[i][j];
  }
  return out;
}

Matrix newton_schulz(Matrix x) {
  const bool tall = x.size() > x.front().size();
  if (tall) x = transposed(x);
  double norm = 0;
  for (const auto& row : x) {
    for (const double value : row) norm += value * value;
  }
  for (auto& row : x) {
    for (double& value : row) value /= std::sqrt(norm) + 1e-7;
  }
  for (int iteration = 0; iteration < 5; ++iteration) {
    const Matrix a = times(x, transposed(x)), a2 = times(a, a);
    Matrix b = a;
    for (size_t i = 0; i < b.size(); ++i) {
      for (size_t j = 0; j < b.size(); ++j) b[i][j] = -4.7750 * a[i][j] + 2.0315 * a2[i][j];
    }
    const Matrix bx = times(b, x);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x.front().size(); ++j) x[i][j] = 3.4445 * x[i][j] + bx[i][j];
    }
  }
  return tall ? transposed(x) : x;
}

// Stacks of matrices, conv weights, vectors and names that Adam keeps. Weights within 1e-6 over 100
// steps at a rate of 1e-3; the iteration multiplies the roundings of small singular values by up to
// 3.4^5, to 5e-5 of an update at worst.
TEST(Muon, FollowsItsFormulaInBothForms) {
  SCOPED_TRACE(str_cat("DS_TEST_SEED=", ds::run_seed()));
  for (const char* method : {"gram", "standard"}) {
    SCOPED_TRACE(method);
    const OptimizerConfig config = parse_optimizer(str_cat(
        R"({"type": "Muon", "params": {"muon_lr": 1e-3, "adam_lr": 5e-4, "weight_decay": 0.1,
            "ns_method": ")",
        method, R"("}, "param_groups": [{"name": "a", "muon_lr": 2e-3, "momentum": 0.8}]})"));
    WorldOptions options;
    options.seed = ds::run_seed();
    std::vector<TensorPlace> places =
        make_places({{5, 7}, {19}, {33, 8}, {6, 6}, {3, 4, 5}, {4, 3, 2, 2}, {1, 9}, {8, 4}}, 2);
    places[7].name = "model.Embed_tokens.weight";
    World world(places, options);
    const auto optimizer = world.optimizer(config);
    ASSERT_EQ(std::vector<double>(optimizer->base_rates().begin(), optimizer->base_rates().end()),
              (std::vector<double>{1e-3, 5e-4, 2e-3, 5e-4}));
    const std::vector<std::string> matrix = {"momentum_buffer"}, rest = {"exp_avg", "exp_avg_sq"};
    for (size_t k = 0; k < places.size(); ++k) {
      EXPECT_EQ(optimizer->states(k), k == 1 || k == 7 ? rest : matrix) << k;
    }

    std::vector<std::vector<Element>> expected;
    for (const TensorPlace& place : places) {
      std::vector<Element> elements;
      for (int64_t i = place.begin; i < place.end; ++i) {
        elements.emplace_back();
        elements.back().p = world.master(i);
      }
      expected.push_back(std::move(elements));
    }
    for (int t = 1; t <= kSteps; ++t) {
      world.next_gradients();
      optimizer->step(world.ctx(), world.step_of(*optimizer, 0.5f), world.flat());
      for (size_t k = 0; k < places.size(); ++k) {
        const TensorPlace& place = places[k];
        OptimizerConfig group = group_config(config, place.group);
        const double decay = place.decays ? group.weight_decay : 0;
        std::vector<Element>& elements = expected[k];
        if (k == 1 || k == 7) {
          group.lr = group.adam_lr;
          for (size_t i = 0; i < elements.size(); ++i) {
            const double g = 0.5 * world.gradient(place.begin + static_cast<int64_t>(i));
            adam(elements[i], {group, g, decay, t});
          }
          continue;
        }
        const bool stacked = place.shape.dims() == 3;
        const auto count = static_cast<size_t>(stacked ? place.shape[0] : 1);
        const auto rows = static_cast<size_t>(place.shape[stacked ? 1 : 0]);
        const size_t columns = elements.size() / count / rows;
        for (size_t s = 0; s < count; ++s) {
          Matrix direction(rows, std::vector<double>(columns));
          for (size_t i = 0; i < rows * columns; ++i) {
            Element& e = elements[s * rows * columns + i];
            const double g =
                0.5 * world.gradient(place.begin + static_cast<int64_t>(s * rows * columns + i));
            e.m = group.momentum * e.m + (1 - group.momentum) * g;
            direction[i / columns][i % columns] = (1 - group.momentum) * g + group.momentum * e.m;
          }
          direction = newton_schulz(direction);
          const double factor =
              std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
          for (size_t i = 0; i < rows * columns; ++i) {
            Element& e = elements[s * rows * columns + i];
            e.p = e.p * (1 - group.lr * decay) -
                  group.lr * factor * direction[i / columns][i % columns];
          }
        }
      }
    }
    double worst = 0;
    for (size_t k = 0; k < places.size(); ++k) {
      for (size_t i = 0; i < expected[k].size(); ++i) {
        const double p = world.master(places[k].begin + static_cast<int64_t>(i));
        EXPECT_NEAR(p, expected[k][i].p, expected[k][i].allowed)
            << places[k].name << "[" << i << "]";
        worst = std::max(worst, std::abs(p - expected[k][i].p));
      }
    }
    RecordProperty("worst", std::to_string(worst));
  }
}

}  // namespace
}  // namespace ds::optim
