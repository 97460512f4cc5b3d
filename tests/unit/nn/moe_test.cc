// The layer of experts against the same formula in double precision, and its gradients against
// finite differences of that: with networks beside the experts, room that runs out, and the losses
// of routers.
#include "nn/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "base/text.h"
#include "fresh_seed.h"
#include "kernels/moe/reference.h"
#include "ops/elementwise.h"

namespace ds::nn {
namespace {

namespace ref = kernels::reference;
using Vector = std::vector<double>;

constexpr int64_t kSamples = 2, kLength = 9, kWidth = 10, kInner = 7, kExperts = 5;
constexpr int64_t kTokens = kSamples * kLength;

// fp32 weights and gradients.
class Memory : public ParameterReader, public GradientSink {
 public:
  Memory(const OpContext& ctx, uint64_t seed) : ctx_(ctx), random_(seed) {}

  Tensor random(const Shape& shape, float spread = 0.5f) {
    Tensor out = Tensor::empty(ctx_.device, DType::kFloat32, shape, MemoryTag::kOther);
    std::normal_distribution<float> normal(0, spread);
    std::generate_n(out.data<float>(), out.elements(), [&] { return normal(random_); });
    return out;
  }
  ParamId add(const Shape& shape) {
    Parameter p;
    p.name = str_cat("p", set_.size());
    p.shape = shape;
    weights_.push_back(random(shape));
    gradients_.push_back(Tensor::zeros(ctx_.device, DType::kFloat32, shape, MemoryTag::kOther));
    return set_.add(std::move(p));
  }
  Projection projection(int64_t out, int64_t in, bool bias) {
    return {add({out, in}), bias ? add({out}) : kNoParam};
  }
  FeedForward network(bool gated, bool bias) {
    FeedForward made;
    if (gated) made.gate = projection(kInner, kWidth, bias);
    made.up = projection(kInner, kWidth, bias);
    made.down = projection(kWidth, kInner, bias);
    return made;
  }
  const Tensor& gradient_of(ParamId id) const { return gradients_[static_cast<size_t>(id)]; }
  int64_t reads() const { return reads_; }

  Tensor acquire(ParamId id) override {
    ++reads_;
    return weights_[static_cast<size_t>(id)];
  }
  void release(ParamId) noexcept override {}
  DType compute_type() const override { return DType::kFloat32; }
  const ParameterSet& parameters() const override { return set_; }
  Tensor gradient(ParamId id) override { return gradients_[static_cast<size_t>(id)]; }
  GradientTarget gradient_target(ParamId id) override { return {gradient(id), true}; }
  void gradient_complete(ParamId id) override { complete_.push_back(id); }
  // Each once: nobody is left out and nobody comes twice.
  bool all_complete() {
    std::sort(complete_.begin(), complete_.end());
    for (ParamId id = 0; id < set_.size(); ++id) {
      if (complete_.size() <= static_cast<size_t>(id) || complete_[static_cast<size_t>(id)] != id) {
        return false;
      }
    }
    return std::ssize(complete_) == set_.size();
  }

 private:
  OpContext ctx_;
  std::mt19937_64 random_;
  ParameterSet set_;
  std::vector<Tensor> weights_, gradients_;
  std::vector<ParamId> complete_;
  int64_t reads_ = 0;
};

Vector doubles(const Tensor& x) { return {x.data<float>(), x.data<float>() + x.elements()}; }

// The layer in double precision. Values by parameter, and the input at -1.
struct Reference {
  const Moe& layer;
  std::function<const Vector&(ParamId)> value;
  // Made at the first evaluation, and kept: the formula is smooth where nobody changes his choice.
  std::vector<int32_t> chosen = {};
  std::vector<bool> kept = {};

  Vector linear(const Projection& p, const Vector& x) const {
    const Vector& w = value(p.weight);
    Vector y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      y[o] = p.bias == kNoParam ? 0 : value(p.bias)[o];
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
  }
  double activated(double x) const {
    if (layer.activation == ops::Activation::kSilu) return x / (1 + std::exp(-x));
    return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  }
  Vector network(const FeedForward& n, const Vector& x) const {
    Vector inner = linear(n.gate.weight != kNoParam ? n.gate : n.up, x);
    for (double& v : inner) v = activated(v);
    if (n.gate.weight != kNoParam) {
      const Vector up = linear(n.up, x);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] *= up[i];
    }
    return linear(n.down, inner);
  }

  void choose(const Vector& scores) {
    const Router& r = layer.router;
    for (int64_t t = 0; t < kTokens; ++t) {
      const Vector row(scores.begin() + t * kExperts, scores.begin() + (t + 1) * kExperts);
      const auto own = ref::choose_experts(row, row, r.rule.choices, 1, 1, 1);
      chosen.insert(chosen.end(), own.begin(), own.end());
    }
    kept.assign(chosen.size(), true);
    if (r.drop == DropPolicy::kNone) return;
    ref::DenseGate gate;
    gate.tokens = kTokens;
    gate.experts = kExperts;
    gate.choices = r.rule.choices;
    gate.capacity =
        std::max(r.min_capacity,
                 static_cast<int64_t>(std::ceil(static_cast<double>(kTokens * r.rule.choices) /
                                                kExperts * r.capacity_factor)));
    gate.by_choice = r.first_choices_first && r.drop == DropPolicy::kPosition;
    if (r.drop == DropPolicy::kProbability) gate.priority = kernels::RoutePriority::kScore;
    const Vector combine = ref::dense_combine(gate, scores, chosen, scores);
    for (size_t i = 0; i < chosen.size(); ++i) {
      const auto token = static_cast<int64_t>(i) / r.rule.choices;
      const auto at = combine.begin() + (token * kExperts + chosen[i]) * gate.capacity;
      kept[i] = std::any_of(at, at + gate.capacity, [](double w) { return w != 0; });
    }
  }

  // The layer's output, and the losses of its router.
  Vector output(double& losses) {
    const Router& r = layer.router;
    const Vector& x = value(-1);
    Vector logits, scores, y;
    for (int64_t t = 0; t < kTokens; ++t) {
      const Vector row(x.begin() + t * kWidth, x.begin() + (t + 1) * kWidth);
      const Vector own = linear({r.weight, kNoParam}, row);
      const Vector s = ref::gate_scores(r.rule.scores, own);
      logits.insert(logits.end(), own.begin(), own.end());
      scores.insert(scores.end(), s.begin(), s.end());
    }
    if (chosen.empty()) choose(scores);
    losses = static_cast<double>(r.losses.balance) *
             ref::balance_loss(r.rule.scores, scores, chosen, kExperts, r.rule.choices, {});
    if (r.losses.per_choice) losses /= static_cast<double>(r.rule.choices);
    for (int64_t t = 0; t < kTokens; ++t) {
      const Vector row(x.begin() + t * kWidth, x.begin() + (t + 1) * kWidth);
      const auto at = [&](int64_t j) { return static_cast<size_t>(t * r.rule.choices + j); };
      double sum = 0, exponentials = 0;
      for (int64_t e = 0; e < kExperts; ++e) {
        exponentials += std::exp(logits[static_cast<size_t>(t * kExperts + e)]);
      }
      losses += static_cast<double>(r.losses.z) * std::pow(std::log(exponentials), 2) / kTokens;
      const auto score = [&](int64_t j) {
        return scores[static_cast<size_t>(t * kExperts + chosen[at(j)])];
      };
      for (int64_t j = 0; j < r.rule.choices; ++j) sum += kept[at(j)] ? score(j) : 0;
      Vector out(static_cast<size_t>(kWidth));
      const auto add = [&](const Vector& more, double weight) {
        for (size_t i = 0; i < out.size(); ++i) out[i] += weight * more[i];
      };
      for (int64_t j = 0; j < r.rule.choices; ++j) {
        if (!kept[at(j)]) continue;
        const double share = r.rule.normalise ? sum : 1;
        add(network(layer.experts[static_cast<size_t>(chosen[at(j)])], row),
            static_cast<double>(r.rule.scale) * score(j) / share);
      }
      if (layer.residual.down.weight != kNoParam) {
        const Vector share =
            ref::gate_scores(ops::GateScores::kSoftmax, linear(layer.coefficients, row));
        for (double& v : out) v *= share[0];
        add(network(layer.residual, row), share[1]);
      }
      if (layer.shared.down.weight != kNoParam) {
        double share = 1;
        if (layer.shared_gate != kNoParam) {
          share = 1 / (1 + std::exp(-linear({layer.shared_gate, kNoParam}, row)[0]));
        }
        add(network(layer.shared, row), share);
      }
      y.insert(y.end(), out.begin(), out.end());
    }
    return y;
  }
};

struct Setting {
  const char* name;
  int64_t choices;
  bool gated, bias, residual, shared, shared_gate;
  ops::GateScores scores = ops::GateScores::kSoftmax;
  DropPolicy drop = DropPolicy::kNone;
  double factor = 1;
};
void PrintTo(const Setting& s, std::ostream* out) { *out << s.name; }

Moe make_layer(Memory& memory, const Setting& s) {
  Moe layer;
  layer.activation = s.gated ? ops::Activation::kSilu : ops::Activation::kGeluErf;
  layer.router.weight = memory.add({kExperts, kWidth});
  layer.router.rule.choices = s.choices;
  layer.router.rule.scores = s.scores;
  layer.router.rule.normalise = s.choices > 1;
  layer.router.rule.floor = 1e-20f;
  layer.router.rule.scale = 1.5f;
  layer.router.drop = s.drop;
  layer.router.capacity_factor = s.factor;
  layer.router.min_capacity = 1;
  layer.router.first_choices_first = s.choices == 2;
  layer.router.losses.balance = 0.7f;
  layer.router.losses.per_choice = s.choices > 1;
  layer.router.losses.z = 0.2f;
  for (int64_t e = 0; e < kExperts; ++e) layer.experts.push_back(memory.network(s.gated, s.bias));
  if (s.residual) {
    layer.residual = memory.network(s.gated, s.bias);
    layer.coefficients = memory.projection(2, kWidth, true);
  }
  if (s.shared) layer.shared = memory.network(s.gated, s.bias);
  if (s.shared_gate) layer.shared_gate = memory.add({1, kWidth});
  return layer;
}

class MoeLayer : public ::testing::TestWithParam<Setting> {
 protected:
  static uint64_t seed() { return ds::fresh_seed(); }
  ThreadPool pool_{2};
  OpContext ctx_{make_cpu_device(), &pool_};
};

TEST_P(MoeLayer, IsTheFormulaAndItsGradients) {
  const uint64_t seed = MoeLayer::seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  Memory memory(ctx_, seed);
  const Moe layer = make_layer(memory, GetParam());
  const Tensor x = memory.random({kSamples, kLength, kWidth}, 1);
  const Tensor dy = memory.random({kSamples, kLength, kWidth}, 1);

  RouterRecord record;
  Tape tape(ctx_, memory, &memory, {});
  const Value in{x, std::make_shared<GradientSlot>()};
  const Value y = moe(tape, in, layer, {Tensor(), &record});
  ASSERT_EQ(y.data.shape(), x.shape());

  std::vector<Vector> values;
  for (ParamId id = 0; id < memory.parameters().size(); ++id) {
    values.push_back(doubles(memory.acquire(id)));
  }
  Vector input = doubles(x);
  const Vector weights = doubles(dy);
  Reference reference{layer, [&](ParamId id) -> const Vector& {
                        return id < 0 ? input : values[static_cast<size_t>(id)];
                      }};
  double losses = 0;
  const Vector expected = reference.output(losses);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(y.data.data<float>()[i], expected[i], 1e-5 * (1 + std::abs(expected[i]))) << i;
  }
  EXPECT_NEAR(record.loss(), losses, 1e-6 * (1 + losses));
  const int64_t dropped = std::count(reference.kept.begin(), reference.kept.end(), false);
  EXPECT_EQ(dropped > 0, GetParam().drop != DropPolicy::kNone);
  int64_t told = 0;
  for (size_t e = 0; e < kExperts; ++e) {
    told += record.layers()[0].chosen[e] - record.layers()[0].kept[e];
  }
  EXPECT_EQ(told, dropped);

  y.slot->add(ctx_, dy, false);
  tape.backward();
  EXPECT_TRUE(memory.all_complete());
  const auto objective = [&] {
    double total = 0;
    const Vector out = reference.output(total);
    for (size_t i = 0; i < out.size(); ++i) total += weights[i] * out[i];
    return total;
  };
  std::mt19937_64 random(seed + 1);
  std::normal_distribution<double> normal;
  const auto compare = [&](Vector& at, const Tensor& gradient, const std::string& name) {
    const Vector kept = at, g = doubles(gradient);
    Vector direction(at.size());
    double analytic = 0, scale = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      direction[i] = normal(random);
      analytic += direction[i] * g[i];
      scale += std::pow(direction[i] * g[i], 2);
    }
    constexpr double kStep = 1e-5;
    const auto moved = [&](double step) {
      for (size_t i = 0; i < at.size(); ++i) at[i] = kept[i] + step * direction[i];
      return objective();
    };
    const double numeric = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    at = kept;
    // fp32 against double: sums of a few hundred rounded terms.
    EXPECT_NEAR(analytic, numeric, 1e-4 * (std::sqrt(scale) + std::abs(numeric)) + 1e-6) << name;
  };
  for (ParamId id = 0; id < memory.parameters().size(); ++id) {
    compare(values[static_cast<size_t>(id)], memory.gradient_of(id), str_cat("parameter ", id));
  }
  ASSERT_TRUE(*in.slot);
  compare(input, in.slot->gradient(), "input");
}

// Readers that gather weights from ranks need every pass to ask for the same.
TEST_P(MoeLayer, AsksForTheSameWeightsWhateverTokensThereAre) {
  Memory memory(ctx_, 3);
  const Moe layer = make_layer(memory, GetParam());
  const auto reads_of = [&](int64_t length) {
    const int64_t before = memory.reads();
    Tape tape(ctx_, memory, &memory, {});
    const Value in{memory.random({1, length, kWidth}), std::make_shared<GradientSlot>()};
    const Value y = moe(tape, in, layer, {});
    y.slot->add(ctx_, memory.random({1, length, kWidth}), true);
    tape.backward();
    return memory.reads() - before;
  };
  const int64_t one = reads_of(1);
  EXPECT_EQ(reads_of(40), one);
  EXPECT_GE(one, memory.parameters().size());
}

// The most that a pass forward and backward holds besides weights and their gradients.
int64_t peak_of_pass(int64_t experts, double capacity_factor, bool crowded) {
  constexpr int64_t kRows = 256, kColumns = 96;
  ThreadPool pool(2);
  const OpContext ctx{make_cpu_device(), &pool};
  Memory memory(ctx, 5);
  Moe layer;
  layer.router.weight = memory.add({experts, kColumns});
  layer.router.rule.choices = 2;
  layer.router.rule.normalise = true;
  layer.router.min_capacity = 1;
  if (capacity_factor > 0) {
    layer.router.drop = DropPolicy::kPosition;
    layer.router.capacity_factor = capacity_factor;
  }
  if (crowded) {  // all scores are alike, so every token chooses the first two
    Tensor router = memory.acquire(layer.router.weight);
    ops::fill(ctx, 0, router);
  }
  for (int64_t e = 0; e < experts; ++e) {
    FeedForward network;
    network.gate = {memory.add({kColumns, kColumns}), kNoParam};
    network.up = {memory.add({kColumns, kColumns}), kNoParam};
    network.down = {memory.add({kColumns, kColumns}), kNoParam};
    layer.experts.push_back(network);
  }
  const Tensor x = memory.random({1, kRows, kColumns}, 1);
  const Tensor dy = memory.random({1, kRows, kColumns}, 1);
  MemoryAccount& account = ctx.device->account();
  account.reset_peaks();
  const int64_t before = account.total_now();
  {
    Tape tape(ctx, memory, &memory, {});
    const Value in{x, std::make_shared<GradientSlot>()};
    const Value y = moe(tape, in, layer, {});
    y.slot->add(ctx, dy, false);
    tape.backward();
  }
  return account.total_peak() - before;
}

// Rows are tokens times choices: neither more experts, nor more room of each, nor tokens that all
// choose the same need more memory. Logits, scores and their gradients are a number for each token
// and expert.
TEST(MoeMemory, GrowsNeitherWithExpertsNorWithTheirRoom) {
  constexpr int64_t kFew = 4, kMany = 64, kRows = 256, kColumns = 96, kChoices = 2;
  const int64_t few = peak_of_pass(kFew, 0, false), many = peak_of_pass(kMany, 0, false);
  // What rows of each expert, padded to the room of all tokens, would take once.
  constexpr int64_t kPadded = kMany * kRows * kColumns * 4;
  constexpr int64_t kScores = 3 * kRows * (kMany - kFew) * 4;
  EXPECT_GE(few, 6 * kRows * kChoices * kColumns * 4);  // rows, what is kept of them, gradients
  EXPECT_LE(many, few + kScores);
  EXPECT_LT(many, kPadded);
  EXPECT_LE(peak_of_pass(kFew, 0, true), few + 8 * kRows * 4);
  const int64_t narrow = peak_of_pass(kMany, 1, false), wide = peak_of_pass(kMany, 64, false);
  EXPECT_LE(wide, many + 8 * kRows * kChoices * 4);
  EXPECT_LE(narrow, wide);  // what is dropped takes no memory
}

constexpr auto kSigmoid = ops::GateScores::kSigmoid;
constexpr auto kSoftmax = ops::GateScores::kSoftmax;
INSTANTIATE_TEST_SUITE_P(
    Settings, MoeLayer,
    ::testing::Values(Setting{"gated", 2, true, false, false, false, false},
                      Setting{"plain_top1", 1, false, true, false, false, false},
                      Setting{"shared", 3, true, false, false, true, false},
                      Setting{"shared_gate", 2, true, false, false, true, true},
                      Setting{"residual", 2, false, true, true, false, false},
                      Setting{"sigmoid", 3, true, false, false, true, true, kSigmoid},
                      Setting{"room_by_score", 3, false, true, false, false, false, kSoftmax,
                              DropPolicy::kProbability, 0.4},
                      Setting{"room_by_place", 2, true, true, true, false, false, kSoftmax,
                              DropPolicy::kPosition, 0.4},
                      Setting{"room_by_place3", 3, true, false, false, false, false, kSigmoid,
                              DropPolicy::kPosition, 0.4}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ds::nn
