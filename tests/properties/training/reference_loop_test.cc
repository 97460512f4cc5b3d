// Training beside a plain loop in double precision that shares no code with the library: a GPT-2 of
// two layers written out number by number, its gradients by reverse differentiation of those
// numbers, clipping and AdamW by their formulas.
#include <map>

#include "training_world.h"

namespace ds::properties {
namespace {

// What a number was made of: its derivatives by at most two earlier ones.
struct Record {
  int32_t first = -1, second = -1;
  double by_first = 0, by_second = 0;
};
std::vector<Record> records;

struct Number {
  double value = 0;
  int32_t place = -1;
};
Number made(double value, const Number& a, double by_a, const Number& b = {}, double by_b = 0) {
  records.push_back({a.place, b.place, by_a, by_b});
  return {value, static_cast<int32_t>(records.size()) - 1};
}
Number variable(double value) {
  records.emplace_back();
  return {value, static_cast<int32_t>(records.size()) - 1};
}
Number operator+(const Number& a, const Number& b) { return made(a.value + b.value, a, 1, b, 1); }
Number operator-(const Number& a, const Number& b) { return made(a.value - b.value, a, 1, b, -1); }
Number operator*(const Number& a, const Number& b) {
  return made(a.value * b.value, a, b.value, b, a.value);
}
Number operator*(const Number& a, double b) { return made(a.value * b, a, b); }
Number operator+(const Number& a, double b) { return made(a.value + b, a, 1); }
Number divided(const Number& a, const Number& b) {
  return made(a.value / b.value, a, 1 / b.value, b, -a.value / (b.value * b.value));
}
Number root(const Number& a) { return made(std::sqrt(a.value), a, 0.5 / std::sqrt(a.value)); }
Number exponential(const Number& a) { return made(std::exp(a.value), a, std::exp(a.value)); }
Number logarithm(const Number& a) { return made(std::log(a.value), a, 1 / a.value); }
Number hyperbolic_tangent(const Number& a) {
  const double t = std::tanh(a.value);
  return made(t, a, 1 - t * t);
}

std::vector<double> derivatives_of(const Number& result) {
  std::vector<double> out(records.size());
  out[static_cast<size_t>(result.place)] = 1;
  for (size_t i = records.size(); i-- > 0;) {
    const Record& r = records[i];
    if (r.first >= 0) out[static_cast<size_t>(r.first)] += r.by_first * out[i];
    if (r.second >= 0) out[static_cast<size_t>(r.second)] += r.by_second * out[i];
  }
  return out;
}

using Row = std::vector<Number>;
using Weights = std::map<std::string, Row>;

constexpr size_t kVocabulary = 17, kLength = 8, kWidth = 8, kHeads = 2, kLayers = 2;

Row product(const Row& matrix, const Row& x, const Row* bias) {  // [out, in]
  Row y;
  for (size_t o = 0; o < matrix.size() / x.size(); ++o) {
    Number sum = matrix[o * x.size()] * x[0];
    for (size_t i = 1; i < x.size(); ++i) sum = sum + matrix[o * x.size() + i] * x[i];
    y.push_back(bias != nullptr ? sum + (*bias)[o] : sum);
  }
  return y;
}

Row normalised(const Row& x, const Row& scale, const Row& shift) {
  const double n = 1.0 / static_cast<double>(x.size());
  Number mean = x[0] * n;
  for (size_t i = 1; i < x.size(); ++i) mean = mean + x[i] * n;
  Row centred;
  for (const Number& v : x) centred.push_back(v - mean);
  Number variance = centred[0] * centred[0] * n;
  for (size_t i = 1; i < x.size(); ++i) variance = variance + centred[i] * centred[i] * n;
  const Number deviation = root(variance + 1e-5);
  Row y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(divided(centred[i], deviation) * scale[i] + shift[i]);
  }
  return y;
}

Number gelu(const Number& x) {
  const Number inner = (x + x * x * x * 0.044715) * std::sqrt(2 / std::acos(-1.0));
  return x * (hyperbolic_tangent(inner) + 1) * 0.5;
}

// Of token t over the tokens up to it.
Row attended(const std::vector<Row>& qkv, size_t t) {
  constexpr size_t kHead = kWidth / kHeads;
  Row out(kWidth);
  for (size_t h = 0; h < kHeads; ++h) {
    Row weights;
    Number total;
    for (size_t s = 0; s <= t; ++s) {
      Number score = qkv[t][h * kHead] * qkv[s][kWidth + h * kHead];
      for (size_t i = 1; i < kHead; ++i) {
        score = score + qkv[t][h * kHead + i] * qkv[s][kWidth + h * kHead + i];
      }
      weights.push_back(exponential(score * (1 / std::sqrt(static_cast<double>(kHead)))));
      total = s == 0 ? weights[0] : total + weights[s];
    }
    for (size_t i = 0; i < kHead; ++i) {
      Number sum;
      for (size_t s = 0; s <= t; ++s) {
        const Number part = divided(weights[s], total) * qkv[s][2 * kWidth + h * kHead + i];
        sum = s == 0 ? part : sum + part;
      }
      out[h * kHead + i] = sum;
    }
  }
  return out;
}

void add(Row& to, const Row& what) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = to[i] + what[i];
}

// Sum of the losses of one sequence.
Number loss_of(const Weights& w, const int64_t* ids, const int64_t* labels) {
  std::vector<Row> x;
  for (size_t t = 0; t < kLength; ++t) {
    Row row;
    for (size_t i = 0; i < kWidth; ++i) {
      row.push_back(w.at("wte.weight")[static_cast<size_t>(ids[t]) * kWidth + i] +
                    w.at("wpe.weight")[t * kWidth + i]);
    }
    x.push_back(std::move(row));
  }
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const auto at = [&](const char* name) -> const Row& {
      return w.at(str_cat("h.", layer, ".", name));
    };
    std::vector<Row> qkv;
    for (const Row& row : x) {
      qkv.push_back(product(at("attn.c_attn.weight"),
                            normalised(row, at("ln_1.weight"), at("ln_1.bias")),
                            &at("attn.c_attn.bias")));
    }
    for (size_t t = 0; t < kLength; ++t) {
      add(x[t], product(at("attn.c_proj.weight"), attended(qkv, t), &at("attn.c_proj.bias")));
    }
    for (Row& row : x) {
      Row up = product(at("mlp.c_fc.weight"), normalised(row, at("ln_2.weight"), at("ln_2.bias")),
                       &at("mlp.c_fc.bias"));
      for (Number& v : up) v = gelu(v);
      add(row, product(at("mlp.c_proj.weight"), up, &at("mlp.c_proj.bias")));
    }
  }
  Number total;
  for (size_t t = 0; t < kLength; ++t) {
    const Row logits = product(w.at("wte.weight"),
                               normalised(x[t], w.at("ln_f.weight"), w.at("ln_f.bias")), nullptr);
    Number sum = exponential(logits[0]);
    for (size_t v = 1; v < kVocabulary; ++v) sum = sum + exponential(logits[v]);
    const Number loss = logarithm(sum) - logits[static_cast<size_t>(labels[t])];
    total = t == 0 ? loss : total + loss;
  }
  return total;
}

struct Parameter {
  bool decays = false;
  std::vector<double> value, gradient, first, second;
};

constexpr double kRate = 3e-3, kDecay = 0.1, kClip = 1.0;

// Clips by the norm of all gradients, then AdamW; gives the norm.
double update(std::map<std::string, Parameter>& all, int step) {
  double squares = 0;
  for (auto& [name, p] : all) {
    for (const double g : p.gradient) squares += g * g;
  }
  const double norm = std::sqrt(squares);
  const double factor = 1 / std::max(1.0, (norm + 1e-6) / kClip);
  for (auto& [name, p] : all) {
    for (size_t i = 0; i < p.value.size(); ++i) {
      const double g = p.gradient[i] * factor;
      p.first[i] = 0.9 * p.first[i] + 0.1 * g;
      p.second[i] = 0.999 * p.second[i] + 0.001 * g * g;
      const double first = p.first[i] / (1 - std::pow(0.9, step)),
                   second = p.second[i] / (1 - std::pow(0.999, step));
      p.value[i] -=
          kRate * (first / (std::sqrt(second) + 1e-8) + (p.decays ? kDecay : 0) * p.value[i]);
    }
    std::fill(p.gradient.begin(), p.gradient.end(), 0.0);
  }
  return norm;
}

// Adds a micro batch's gradients, each `part` of them; gives its mean loss.
double accumulate(std::map<std::string, Parameter>& all, const std::vector<int64_t>& ids,
                  const std::vector<int64_t>& labels, double part) {
  records.clear();
  Weights weights;
  for (const auto& [name, p] : all) {
    for (const double v : p.value) weights[name].push_back(variable(v));
  }
  Number total;
  for (size_t row = 0; row * kLength < ids.size(); ++row) {
    const Number one = loss_of(weights, &ids[row * kLength], &labels[row * kLength]);
    total = row == 0 ? one : total + one;
  }
  const Number mean = total * (1 / static_cast<double>(ids.size()));
  const std::vector<double> derivatives = derivatives_of(mean);
  for (auto& [name, p] : all) {
    for (size_t i = 0; i < p.value.size(); ++i) {
      p.gradient[i] += part * derivatives[static_cast<size_t>(weights.at(name)[i].place)];
    }
  }
  return mean.value;
}

// Twenty steps of two micro batches: every loss and every norm within a millionth.
TEST(ReferenceLoop, TwentyStepsHaveItsLosses) {
  const Json model = {{"model_type", "gpt2"},   {"vocab_size", kVocabulary},
                      {"n_positions", kLength}, {"n_embd", kWidth},
                      {"n_layer", kLayers},     {"n_head", kHeads},
                      {"resid_pdrop", 0},       {"embd_pdrop", 0},
                      {"attn_pdrop", 0},        {"initializer_range", 0.2}};
  const Json config = {
      {"train_micro_batch_size_per_gpu", 2},
      {"gradient_accumulation_steps", 2},
      {"gradient_clipping", kClip},
      {"threads", 1},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", kRate}, {"weight_decay", kDecay}}}}}};
  Engine engine(dump_json(config), models::Model::create(model, 11), nullptr);
  std::map<std::string, Parameter> reference;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const std::vector<float> start = flat(engine.model()->get(parameters[id].name));
    Parameter p;
    p.decays = parameters[id].shape.dims() > 1;
    p.value.assign(start.begin(), start.end());
    p.gradient.resize(start.size());
    p.first = p.second = p.gradient;
    reference[parameters[id].name] = std::move(p);
  }
  double first_loss = 0, last_loss = 0, worst = 0;
  for (int step = 1; step <= 20; ++step) {
    double loss = 0;
    StepReport report;
    for (int micro = 0; micro < 2; ++micro) {
      std::vector<int64_t> ids, labels;
      for (size_t i = 0; i < 2 * kLength; ++i) {
        const auto at = static_cast<int64_t>(i) + 3 * (2 * step + micro);
        ids.push_back(at * at % static_cast<int64_t>(kVocabulary));
        labels.push_back((at + 1) * (at + 1) % static_cast<int64_t>(kVocabulary));
      }
      loss += accumulate(reference, ids, labels, 0.5) / 2;
      engine.backward(engine.forward({ids_tensor(ids, 2), ids_tensor(labels, 2), {}, {}, {}}));
      report = engine.step();
    }
    const double norm = update(reference, step);
    ASSERT_NEAR(report.loss, loss, 1e-6 * loss) << "step " << step;
    ASSERT_NEAR(report.grad_norm, norm, 1e-5 * norm) << "step " << step;
    worst = std::max(worst, std::abs(report.loss / loss - 1));
    if (step == 1) first_loss = loss;
    last_loss = loss;
  }
  RecordProperty("worst", std::to_string(worst));
  EXPECT_LT(last_loss, 0.9 * first_loss) << "it learns, so that agreement means something";
}

}  // namespace
}  // namespace ds::properties
