// Rows of a mixture of experts: gates against dense tensors of combine weights, their gradients,
// and rows on their way to experts and back.
#include "kernels/case_util.h"
#include "kernels/moe/reference.h"
#include "ops/gate.h"
#include "ops/routes.h"

namespace ds::testing::moe_rows {
namespace {

namespace ref = kernels::reference;
using ops::GateRule;
using ops::GateScores;
using ops::RoutePriority;
using ops::Routes;

// Tokens with as many routes each, to be sorted.
Routes make_routes(const Tensor& chosen, int64_t experts) {
  const auto ints = [](const Shape& shape) { return guarded_tensor(DType::kInt32, shape); };
  return {chosen, ints({experts + 1}), ints({chosen.elements()}), ints(chosen.shape())};
}

struct Gate {
  int64_t tokens, experts;
  GateRule rule;
  int64_t capacity = -1;  // -1: none is dropped
  RoutePriority priority = RoutePriority::kOrder;
  bool by_choice = false;
  bool biased = false;

  std::string name() const {
    return str_cat("moe_gate/", tokens, "x", experts, "/k", rule.choices,
                   rule.scores == GateScores::kSigmoid ? "/sigmoid" : "/softmax",
                   rule.normalise ? "/normalised" : "", rule.groups > 1 ? "/groups" : "",
                   biased ? "/biased" : "", capacity >= 0 ? str_cat("/room", capacity) : "",
                   priority == RoutePriority::kScore ? "/by_score"
                   : by_choice                       ? "/by_choice"
                                                     : "");
  }
};

std::vector<int32_t> ints_of(const Tensor& x) {
  std::vector<int32_t> out;
  for (const double v : doubles(x)) out.push_back(static_cast<int32_t>(v));
  return out;
}

// fp32 exponentials within 2 ulp and sums of so many terms.
double score_tolerance(const Gate& g) { return 0x1p-24 * (20 + static_cast<double>(g.experts)); }

// Each token's scores in double precision.
std::vector<double> scores_of(const Gate& g, const std::vector<double>& logits) {
  std::vector<double> out;
  for (auto at = logits.begin(); at != logits.end(); at += g.experts) {
    const std::vector<double> row = ref::gate_scores(g.rule.scores, {at, at + g.experts});
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

// What the reference makes of the same scores: choices do not depend on rounding then.
std::vector<int32_t> expected_choices(const Gate& g, const std::vector<double>& scores,
                                      const std::vector<double>& bias) {
  std::vector<int32_t> out;
  for (auto at = scores.begin(); at != scores.end(); at += g.experts) {
    std::vector<double> row(at, at + g.experts);
    for (size_t e = 0; e < bias.size(); ++e) {
      row[e] = double{static_cast<float>(row[e]) + static_cast<float>(bias[e])};
    }
    const auto chosen = ref::choose_experts(row, row, g.rule.choices, g.rule.groups,
                                            g.rule.kept_groups, g.rule.group_best);
    out.insert(out.end(), chosen.begin(), chosen.end());
  }
  return out;
}

struct Chosen {
  Tensor logits, scores, chosen;
};
Chosen run_choice(const OpContext& ctx, Random& random, const Gate& g, const Tensor& bias) {
  Chosen out{random_tensor(random, DType::kFloat32, {g.tokens, g.experts}, 2),
             guarded_tensor(DType::kFloat32, {g.tokens, g.experts}),
             guarded_tensor(DType::kInt32, {g.tokens, g.rule.choices})};
  ops::gate_scores(ctx, g.rule.scores, out.logits, out.scores);
  ops::choose_experts(ctx, g.rule, out.scores, Tensor(), bias, Tensor(), out.chosen);
  return out;
}

CaseResult check_gate(const OpContext& ctx, uint64_t seed, const Gate& g) {
  Random random(seed);
  CaseResult result;
  const Tensor bias =
      g.biased ? random_tensor(random, DType::kFloat32, {g.experts}, 0.3) : Tensor();
  const Chosen c = run_choice(ctx, random, g, bias);
  compare(result, "scores", c.scores, scores_of(g, doubles(c.logits)), {score_tolerance(g), 1e-37});
  const std::vector<double> scores = doubles(c.scores);
  const std::vector<int32_t> chosen = expected_choices(g, scores, doubles(bias));
  compare(result, "chosen", c.chosen, std::vector<double>(chosen.begin(), chosen.end()), {});

  Routes routes = make_routes(copy_of(c.chosen), g.experts);
  ops::sort_routes(ctx, routes, g.by_choice);
  Tensor places = guarded_tensor(DType::kInt32, c.chosen.shape());
  const int64_t capacity = g.capacity >= 0 ? g.capacity : g.tokens;
  ops::limit_routes(ctx, routes, capacity, g.priority, c.scores, places);
  Tensor weights = guarded_tensor(DType::kFloat32, c.chosen.shape());
  ops::route_weights(ctx, g.rule, c.scores, routes.chosen, weights);

  const std::vector<double> combine =
      ref::dense_combine({g.tokens, g.experts, g.rule.choices, capacity, g.by_choice, g.priority,
                          g.rule.normalise, double{g.rule.floor}, double{g.rule.scale}},
                         scores, chosen, scores);
  // The same tensor from routes, places and weights.
  std::vector<double> dense(combine.size());
  const std::vector<int32_t> kept = ints_of(routes.chosen), place = ints_of(places);
  const std::vector<double> weight = doubles(weights);
  for (size_t r = 0; r < kept.size(); ++r) {
    if (kept[r] < 0) continue;
    const auto token = static_cast<int64_t>(r) / g.rule.choices;
    dense[static_cast<size_t>((token * g.experts + kept[r]) * capacity + place[r])] = weight[r];
  }
  // A quotient of fp32 sums of as many terms as choices.
  compare(result, "combine", tensor_of(DType::kFloat32, {std::ssize(dense)}, dense), combine,
          {0x1p-24 * (4 + static_cast<double>(g.rule.choices)), 0});
  // Rows of experts lie in the order of tokens, one after the other.
  std::vector<double> rows(kept.size(), -1), offsets(static_cast<size_t>(g.experts) + 1);
  double next = 0;
  for (int64_t e = 0; e < g.experts; ++e) {
    offsets[static_cast<size_t>(e)] = next;
    for (size_t r = 0; r < kept.size(); ++r) {
      if (kept[r] == e) rows[r] = next++;
    }
  }
  offsets.back() = next;
  compare(result, "rows", routes.rows, rows, {});
  compare(result, "offsets", routes.offsets, offsets, {});
  return result;
}

// The gradient of weights, balancing loss and z-loss together; what was chosen stays.
CaseResult gate_gradient(const OpContext& ctx, uint64_t seed, const Gate& g) {
  Random random(seed);
  const Chosen c = run_choice(ctx, random, g, Tensor());
  Tensor counted = guarded_tensor(DType::kUInt8, {g.tokens});
  for_each_element(counted, [&](int64_t i, void* at) {
    set_element(DType::kUInt8, at, i == 0 ? 1 : static_cast<double>(random() % 2));
  });
  const Tensor dweights = random_tensor(random, DType::kFloat32, c.chosen.shape());
  const Tensor balance = random_tensor(random, DType::kFloat32, {g.experts});
  const double z = 0.25;
  Tensor dlogits = guarded_tensor(DType::kFloat32, c.logits.shape());
  ops::gate_backward(ctx, g.rule, c.logits, c.scores, c.chosen,
                     {dweights, balance, counted, static_cast<float>(z)}, dlogits);
  const std::vector<double> dw = doubles(dweights), db = doubles(balance), mask = doubles(counted);
  const std::vector<int32_t> chosen = ints_of(c.chosen);
  const auto objective = [&](const std::vector<double>& logits) {
    const std::vector<double> scores = scores_of(g, logits);
    double total = 0;
    for (int64_t t = 0; t < g.tokens; ++t) {
      const double* const s = scores.data() + t * g.experts;
      double sum = 0, all = 0, exponentials = 0;
      for (int64_t e = 0; e < g.experts; ++e) {
        all += s[e];
        exponentials += std::exp(logits[static_cast<size_t>(t * g.experts + e)]);
      }
      const auto at = [&](int64_t j) { return static_cast<size_t>(t * g.rule.choices + j); };
      for (int64_t j = 0; j < g.rule.choices; ++j) sum += s[chosen[at(j)]];
      for (int64_t j = 0; j < g.rule.choices; ++j) {
        const double share = g.rule.normalise ? std::max(sum, double{g.rule.floor}) : 1;
        total += dw[at(j)] * double{g.rule.scale} * s[chosen[at(j)]] / share;
      }
      if (mask[static_cast<size_t>(t)] == 0) continue;
      for (int64_t e = 0; e < g.experts; ++e) {
        const double share = g.rule.scores == GateScores::kSigmoid ? all : 1;
        total += db[static_cast<size_t>(e)] * s[e] / share;
      }
      total += z * std::pow(std::log(exponentials), 2);
    }
    return total;
  };
  CaseResult result;
  compare_gradient(result, "dlogits", dlogits, doubles(c.logits), objective, {1e-5, 1e-8});
  return result;
}

// Sums over tokens, of which some do not count.
CaseResult check_sums(const OpContext& ctx, uint64_t seed, const Gate& g) {
  Random random(seed);
  const Chosen c = run_choice(ctx, random, g, Tensor());
  Tensor counted = guarded_tensor(DType::kUInt8, {g.tokens});
  double tokens = 0;
  for_each_element(counted, [&](int64_t i, void* at) {
    const double one = i == 0 ? 1 : static_cast<double>(random() % 2);
    tokens += one;
    set_element(DType::kUInt8, at, one);
  });
  Tensor probabilities = guarded_tensor(DType::kFloat64, {g.experts});
  Tensor counts = guarded_tensor(DType::kFloat64, {g.experts});
  const Tensor all = guarded_tensor(DType::kFloat64, {1});
  ops::gate_sums(ctx, g.rule.scores, c.scores,
                 {.chosen = c.chosen, .choices = g.rule.choices, .tokens = counted}, probabilities,
                 counts, all);
  const std::vector<double> p = doubles(probabilities), n = doubles(counts);
  double loss = 0;
  for (size_t e = 0; e < p.size(); ++e) loss += p[e] * n[e];
  loss *= static_cast<double>(g.experts) / tokens / tokens;
  std::vector<uint8_t> mask;
  for (const double v : doubles(counted)) mask.push_back(static_cast<uint8_t>(v));
  CaseResult result;
  compare_value(result, "balancing loss", loss,
                ref::balance_loss(g.rule.scores, doubles(c.scores), ints_of(c.chosen), g.experts,
                                  g.rule.choices, mask),
                {1e-6, 0});
  compare(result, "tokens that count", all, std::vector<double>{tokens}, {});
  // The z-loss: exponentials and logarithms in double precision.
  Tensor z = guarded_tensor(DType::kFloat64, {1});
  ops::gate_z_sum(ctx, c.logits, counted, z);
  const std::vector<double> logits = doubles(c.logits);
  double expected = 0;
  for (int64_t t = 0; t < g.tokens; ++t) {
    double sum = 0;
    for (int64_t e = 0; e < g.experts; ++e) {
      sum += std::exp(logits[static_cast<size_t>(t * g.experts + e)]);
    }
    if (mask[static_cast<size_t>(t)] != 0) expected += std::pow(std::log(sum), 2);
  }
  compare(result, "squared logarithms", z, std::vector<double>{expected}, {1e-12, 0});
  return result;
}

OpCase gate_row(const Gate& g) {
  OpCase row;
  row.name = g.name();
  row.check = [g](const OpContext& ctx, uint64_t seed) {
    CaseResult result = check_gate(ctx, seed, g);
    if (g.tokens > 0) {
      const CaseResult sums = check_sums(ctx, seed, g);
      result.merge(sums.worst, sums.where);
    }
    return result;
  };
  if (g.tokens > 0 && g.tokens * g.experts < 100 && g.capacity < 0 && !g.biased) {
    row.gradient = [g](const OpContext& ctx, uint64_t seed) { return gate_gradient(ctx, seed, g); };
  }
  return row;
}

// ---- rows ----

struct RowSetting {
  DType dtype;
  int64_t tokens, experts, choices, width;
};

struct RowInputs {
  Routes routes;
  Tensor x, weights;
  std::vector<Tensor> experts;  // rows of each
};
RowInputs row_inputs(const OpContext& ctx, Random& random, const RowSetting& s) {
  Tensor chosen = guarded_tensor(DType::kInt32, {s.tokens, s.choices});
  // Different experts of a token, some of them none.
  std::vector<int32_t> order(static_cast<size_t>(s.experts));
  for (int64_t e = 0; e < s.experts; ++e) order[static_cast<size_t>(e)] = static_cast<int32_t>(e);
  for_each_element(chosen, [&](int64_t i, void* at) {
    if (i % s.choices == 0) std::shuffle(order.begin(), order.end(), random);
    const bool none = random() % 5 == 0;
    set_element(DType::kInt32, at, none ? -1 : order[static_cast<size_t>(i % s.choices)]);
  });
  RowInputs in{make_routes(chosen, s.experts),
               random_tensor(random, s.dtype, {s.tokens, s.width}),
               random_tensor(random, DType::kFloat32, {s.tokens, s.choices}),
               {}};
  ops::sort_routes(ctx, in.routes);
  for (int64_t e = 0; e < s.experts; ++e) {
    const int64_t rows = in.routes.begin(e + 1) - in.routes.begin(e);
    in.experts.push_back(e == 1 ? Tensor() : random_tensor(random, s.dtype, {rows, s.width}));
  }
  return in;
}

// Element i of the row of a route; 0 where there is none.
double row_element(const RowInputs& in, const std::vector<std::vector<double>>& rows, int64_t route,
                   int64_t width, int64_t i) {
  const int32_t expert = in.routes.chosen.data<int32_t>()[route];
  if (expert < 0 || rows[static_cast<size_t>(expert)].empty()) return 0;
  const int64_t row = in.routes.rows.data<int32_t>()[route] - in.routes.begin(expert);
  return rows[static_cast<size_t>(expert)][static_cast<size_t>(row * width + i)];
}

CaseResult check_rows(const OpContext& ctx, uint64_t seed, const RowSetting& s) {
  Random random(seed);
  const RowInputs in = row_inputs(ctx, random, s);
  std::vector<std::vector<double>> rows;
  for (const Tensor& part : in.experts) rows.push_back(doubles(part));
  const std::vector<double> x = doubles(in.x), w = doubles(in.weights);
  CaseResult result;

  std::vector<double> sums(x.size()), magnitudes(x.size()), plain(x.size());
  std::vector<double> dots(w.size()), dot_sizes(w.size());
  for (int64_t route = 0; route < s.tokens * s.choices; ++route) {
    for (int64_t i = 0; i < s.width; ++i) {
      const auto at = static_cast<size_t>(route / s.choices * s.width + i);
      const double v = row_element(in, rows, route, s.width, i);
      sums[at] += w[static_cast<size_t>(route)] * v;
      plain[at] += v;
      magnitudes[at] += std::abs(w[static_cast<size_t>(route)] * v) + std::abs(v);
      dots[static_cast<size_t>(route)] += v * x[at];
      dot_sizes[static_cast<size_t>(route)] += std::abs(v * x[at]);
    }
  }
  // Each product and each sum of a few is rounded once.
  const Tolerance tolerance{
      0x1p-24 * (1 + 2 * static_cast<double>(s.choices)) + storage_roundoff(s.dtype), 0};
  Tensor y = guarded_tensor(s.dtype, in.x.shape());
  ops::sum_rows(ctx, in.routes, in.experts, in.weights, y);
  compare(result, "weighted sums", y, sums, tolerance, magnitudes);
  ops::sum_rows(ctx, in.routes, in.experts, Tensor(), y);
  compare(result, "sums", y, plain, tolerance, magnitudes);
  Tensor products = guarded_tensor(DType::kFloat32, in.weights.shape());
  ops::route_dots(ctx, in.routes, in.experts, in.x, products);
  compare(result, "dots", products, dots, {0x1p-24 * (8 + static_cast<double>(s.width) / 16), 0},
          dot_sizes);

  const int64_t all = in.routes.all_rows();
  std::vector<double> gathered(static_cast<size_t>(all * s.width)), scaled(gathered.size());
  for (int64_t row = 0; row < all; ++row) {
    const int32_t route = in.routes.routes.data<int32_t>()[row];
    for (int64_t i = 0; i < s.width; ++i) {
      const auto at = static_cast<size_t>(row * s.width + i);
      gathered[at] = x[static_cast<size_t>(route / s.choices * s.width + i)];
      scaled[at] = gathered[at] * w[static_cast<size_t>(route)];
    }
  }
  Tensor out = guarded_tensor(s.dtype, {all, s.width});
  ops::gather_rows(ctx, in.routes, in.x, Tensor(), out);
  compare(result, "gathered", out, gathered, {});
  ops::gather_rows(ctx, in.routes, in.x, in.weights, out);
  compare(result, "scaled", out, scaled, {unit_roundoff(s.dtype), 0});
  return result;
}

OpCase rows_row(const RowSetting& s) {
  OpCase row;
  row.name = str_cat("moe_rows/", type_name(s.dtype), "/", s.tokens, "x", s.experts, "/k",
                     s.choices, "/", s.width);
  row.check = [s](const OpContext& ctx, uint64_t seed) { return check_rows(ctx, seed, s); };
  return row;
}

// 4096 tokens of 768 channels to 2 of 8 experts and back.
OpCase timed_rows(DType dtype) {
  const RowSetting s{dtype, 4096, 8, 2, 768};
  OpCase row;
  row.name = str_cat("moe_rows/dispatch_combine/", type_name(dtype));
  row.bytes = static_cast<double>(4 * s.tokens * s.choices * s.width * dtype_size(dtype));
  row.prepare = [s](const OpContext& ctx) -> std::function<void()> {
    Random random(1);
    const RowInputs in = row_inputs(ctx, random, s);
    const Tensor rows = bench_tensor(ctx, s.dtype, {in.routes.all_rows(), s.width});
    const Tensor y = bench_tensor(ctx, s.dtype, {s.tokens, s.width});
    return [=] {
      Tensor gathered = rows, sums = y;
      ops::gather_rows(ctx, in.routes, in.x, Tensor(), gathered);
      ops::sum_rows(ctx, in.routes, in.experts, in.weights, sums);
    };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  constexpr float kTiny = 0x1p-23f;
  const auto rule = [](int64_t choices, bool normalise, GateScores scores = GateScores::kSoftmax) {
    GateRule r;
    r.choices = choices;
    r.normalise = normalise;
    r.floor = normalise ? kTiny : 0;
    r.scores = scores;
    return r;
  };
  GateRule scaled = rule(3, true, GateScores::kSigmoid);
  scaled.scale = 2.5f;
  GateRule grouped = rule(4, true, GateScores::kSigmoid);
  grouped.groups = 4;
  grouped.kept_groups = 2;
  grouped.group_best = 2;
  GateRule by_best = rule(2, false);
  by_best.groups = 3;
  by_best.kept_groups = 1;
  constexpr auto kScore = RoutePriority::kScore;
  constexpr auto kOrder = RoutePriority::kOrder;
  std::vector<OpCase> rows;
  for (const Gate& g : {
           Gate{5, 4, rule(1, false)},
           Gate{0, 4, rule(2, true)},
           Gate{7, 1, rule(1, true)},
           Gate{6, 8, rule(2, true)},
           Gate{9, 6, rule(3, false)},
           Gate{8, 7, scaled},
           Gate{5, 12, grouped},
           Gate{6, 6, by_best},
           Gate{33, 16, grouped, -1, kOrder, false, true},
           Gate{70, 9, rule(1, false), 5, kScore},
           Gate{40, 5, rule(2, true), 9, kOrder, true},
           Gate{41, 5, rule(2, true), 9, kScore},
           Gate{64, 6, rule(3, true), 20, kOrder},
           Gate{64, 6, rule(3, true), 20, kScore},
           Gate{50, 4, rule(2, true), 0, kScore},
           Gate{129, 33, rule(8, true), 24, kScore},
           Gate{300, 60, rule(4, false)},
       }) {
    rows.push_back(gate_row(g));
  }
  for (const DType dtype : kFloatTypes) {
    for (const RowSetting& s :
         {RowSetting{dtype, 0, 3, 2, 8}, RowSetting{dtype, 1, 2, 1, 1},
          RowSetting{dtype, 5, 4, 3, 15}, RowSetting{dtype, 33, 5, 2, 64},
          RowSetting{dtype, 17, 9, 8, 129}, RowSetting{dtype, 257, 6, 3, 96}}) {
      rows.push_back(rows_row(s));
    }
    rows.push_back(timed_rows(dtype));
  }
  return rows;
}

}  // namespace ds::testing::moe_rows
