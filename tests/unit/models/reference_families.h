// Llama and its kin, GPT-NeoX and BERT written out naively in double precision: independent
// references for their gradients, by finite differences.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>

#include "reference_gpt2.h"

namespace ds::testing {

// The experts of a pass over a batch. Where each token went at first it goes again: what is
// differentiated is smooth only as long as nobody changes its mind.
struct Routing {
  size_t choices = 2;
  bool normalise = false;
  double balance = 0;
  // DeepSeek: sigmoid scores, to which the router's bias is added while experts are chosen from the
  // best groups; weights times a factor.
  bool sigmoid = false;
  double scale = 1;
  size_t groups = 1, kept_groups = 1;
  std::map<std::tuple<const void*, size_t, size_t>, std::vector<size_t>> chosen = {};
  // Of the tokens that are no padding, in all layers.
  double tokens = 0;
  Vector probabilities = {}, routes = {};

  void begin_batch() {
    tokens = 0;
    probabilities.clear();
    routes.clear();
  }
  double loss() const {
    double sum = 0;
    for (size_t e = 0; e < routes.size(); ++e) sum += probabilities[e] * routes[e];
    return routes.empty() ? 0
                          : balance * static_cast<double>(routes.size()) * sum / tokens / tokens;
  }
};

// Of latent attention: channels of a head, and what scores are multiplied by.
struct LatentShape {
  size_t plain, turning, values, rank;
  double scale;
};

struct FamilyShape {
  size_t width, inner, layers, heads, kv_heads, head;
  double epsilon = 1e-6;
  size_t window = 0;    // 0 = none
  size_t rotating = 0;  // channels of a head that turn
  double theta = 10000;
  bool parallel = true;  // NeoX
  std::shared_ptr<Routing> routing = {};
  std::optional<LatentShape> latent = {};
};

inline Vector rms_norm(const Vector& x, const Vector& gamma, double epsilon) {
  double squares = 0;
  for (double v : x) squares += v * v / static_cast<double>(x.size());
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / std::sqrt(squares + epsilon) * gamma[i];
  return y;
}

// Turns channels (i, i + R / 2) of every head by position * theta^(-2i / R).
inline Vector turned(Vector x, size_t heads, const FamilyShape& c, size_t position) {
  const size_t half = c.rotating / 2;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(position) *
          std::pow(c.theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.rotating));
      double &a = x[h * c.head + i], &b = x[h * c.head + i + half];
      const double first = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = first;
    }
  }
  return x;
}

inline std::vector<Vector> attend(const std::vector<Vector>& q, const std::vector<Vector>& k,
                                  const std::vector<Vector>& v, const FamilyShape& c, bool causal,
                                  const std::vector<int>& mask) {
  const size_t length = q.size();
  std::vector<Vector> out(length, Vector(c.heads * c.head, 0.0));
  for (size_t t = 0; t < length; ++t) {
    for (size_t h = 0; h < c.heads; ++h) {
      const size_t g = h / (c.heads / c.kv_heads);
      std::vector<std::pair<size_t, double>> scores;
      for (size_t s = 0; s < length; ++s) {
        if (mask[s] == 0 || (causal && s > t)) continue;
        if (c.window > 0 && s + c.window <= t) continue;
        double dot = 0;
        for (size_t i = 0; i < c.head; ++i) dot += q[t][h * c.head + i] * k[s][g * c.head + i];
        scores.emplace_back(s, dot / std::sqrt(static_cast<double>(c.head)));
      }
      double top = -INFINITY, total = 0;
      for (const auto& [s, score] : scores) top = std::max(top, score);
      for (auto& [s, score] : scores) total += (score = std::exp(score - top));
      for (const auto& [s, score] : scores) {
        for (size_t i = 0; i < c.head; ++i) {
          out[t][h * c.head + i] += score / total * v[s][g * c.head + i];
        }
      }
    }
  }
  return out;
}

// The weights NAME.weight and NAME.bias, the latter if there is one.
class Named {
 public:
  Named(const Weights& w, std::string prefix) : w_(w), prefix_(std::move(prefix)) {}
  Vector linear(const std::string& name, const Vector& x) const {
    const auto bias = w_.find(prefix_ + name + ".bias");
    return matvec(w_.at(prefix_ + name + ".weight"), x, bias == w_.end() ? nullptr : &bias->second);
  }
  Vector layer_norm(const std::string& name, const Vector& x, double epsilon) const {
    return norm(x, w_.at(prefix_ + name + ".weight"), w_.at(prefix_ + name + ".bias"), epsilon);
  }
  Vector rms(const std::string& name, const Vector& x, double epsilon) const {
    return rms_norm(x, w_.at(prefix_ + name + ".weight"), epsilon);
  }
  // Null where there is none.
  const Vector* find(const std::string& name) const {
    const auto found = w_.find(prefix_ + name);
    return found == w_.end() ? nullptr : &found->second;
  }
  bool has(const std::string& name) const { return w_.contains(prefix_ + name + ".weight"); }
  // Each part of x that is as long as the norm.
  Vector rms_parts(const std::string& name, const Vector& x, double epsilon) const {
    if (!has(name)) return x;
    Vector out;
    const auto size = static_cast<std::ptrdiff_t>(w_.at(prefix_ + name + ".weight").size());
    for (auto at = x.begin(); at != x.end(); at += size) {
      for (const double v : rms(name, Vector(at, at + size), epsilon)) out.push_back(v);
    }
    return out;
  }
  // down(silu(gate x) * up x)
  Vector gated(const std::string& name, const std::array<const char*, 3>& parts,
               const Vector& x) const {
    Vector gate = linear(name + parts[0], x);
    const Vector up = linear(name + parts[1], x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return linear(name + parts[2], gate);
  }

 private:
  const Weights& w_;
  std::string prefix_;
};

inline Vector sum(const Vector& a, const Vector& b) {
  Vector y(a);
  for (size_t i = 0; i < y.size(); ++i) y[i] += b[i];
  return y;
}

inline std::vector<Vector> rows_of(const Vector& table, const std::vector<int32_t>& ids,
                                   size_t width) {
  std::vector<Vector> x;
  for (const int32_t id : ids) {
    const auto at = table.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(id) * width);
    x.emplace_back(at, at + static_cast<std::ptrdiff_t>(width));
  }
  return x;
}

// The experts with the largest values, best first, in the groups with the best experts.
inline std::vector<size_t> best_experts(const Routing& r, Vector p, const Vector* bias) {
  if (bias != nullptr) p = sum(p, *bias);
  const size_t size = p.size() / r.groups;
  const auto begin_of = [&](size_t g) { return p.begin() + static_cast<std::ptrdiff_t>(g * size); };
  std::vector<std::pair<double, size_t>> groups;
  for (size_t g = 0; g < r.groups; ++g) {
    Vector own(begin_of(g), begin_of(g + 1));
    std::sort(own.rbegin(), own.rend());
    groups.emplace_back(own[0] + (r.sigmoid && size > 1 ? own[1] : 0), g);
  }
  std::sort(groups.rbegin(), groups.rend());
  std::vector<size_t> out;
  for (size_t g = 0; g < r.kept_groups; ++g) {
    for (size_t i = 0; i < size; ++i) out.push_back(groups[g].second * size + i);
  }
  std::sort(out.begin(), out.end());
  std::stable_sort(out.begin(), out.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  out.resize(r.choices);
  return out;
}

// One token's way through its experts; `place` says which token of which layer it is.
inline Vector through_experts(Routing& r, const Named& n,
                              const std::tuple<const void*, size_t, size_t>& place, bool counted,
                              const Vector& x) {
  constexpr std::array kNames = {"gate_proj", "up_proj", "down_proj"};
  constexpr std::array kMixtralNames = {"w1", "w3", "w2"};
  const bool mixtral = n.has("block_sparse_moe.gate");
  const std::string prefix = mixtral ? "block_sparse_moe." : "mlp.";
  Vector p = n.linear(prefix + "gate", x);
  const double top = *std::max_element(p.begin(), p.end());
  double total = 0;
  for (double& v : p) total += (v = r.sigmoid ? 1 / (1 + std::exp(-v)) : std::exp(v - top));
  if (!r.sigmoid) {
    for (double& v : p) v /= total;
    total = 1;
  }
  std::vector<size_t>& chosen = r.chosen[place];
  if (chosen.empty()) chosen = best_experts(r, p, n.find("mlp.gate.e_score_correction_bias"));
  r.probabilities.resize(p.size());
  r.routes.resize(p.size());
  double weights = 0;
  for (const size_t e : chosen) weights += p[e];
  Vector y(x.size());
  for (const size_t e : chosen) {
    const Vector out =
        n.gated(prefix + "experts." + std::to_string(e) + ".", mixtral ? kMixtralNames : kNames, x);
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] += p[e] / (r.normalise ? weights : 1) * r.scale * out[i];
    }
    if (counted) r.routes[e] += 1;
  }
  if (counted) {
    r.tokens += 1;
    for (size_t e = 0; e < p.size(); ++e) r.probabilities[e] += p[e] / total;
  }
  if (n.has("mlp.shared_experts.gate_proj")) {
    const Vector shared = n.gated("mlp.shared_experts.", kNames, x);
    for (size_t i = 0; i < y.size(); ++i) y[i] += shared[i];
  }
  if (n.has("mlp.shared_expert_gate")) {
    const double share = 1 / (1 + std::exp(-n.linear("mlp.shared_expert_gate", x)[0]));
    const Vector shared = n.gated("mlp.shared_expert.", kNames, x);
    for (size_t i = 0; i < y.size(); ++i) y[i] += share * shared[i];
  }
  return y;
}

inline std::vector<Vector> llama_logits(const FamilyShape& c, const Weights& w,
                                        const std::vector<int32_t>& ids,
                                        const std::vector<int32_t>&, const std::vector<int>& mask) {
  std::vector<Vector> x = rows_of(w.at("embed_tokens.weight"), ids, c.width);
  for (size_t layer = 0; layer < c.layers; ++layer) {
    const Named n(w, "layers." + std::to_string(layer) + ".");
    const bool after = n.has("post_feedforward_layernorm");  // norms of results
    std::vector<Vector> q, k, v;
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector y = after ? x[t] : n.rms("input_layernorm", x[t], c.epsilon);
      const auto head = [&](const std::string& name, size_t heads) {
        const Vector row = n.linear("self_attn." + name + "_proj", y);
        return turned(n.rms_parts("self_attn." + name + "_norm", row, c.epsilon), heads, c, t);
      };
      q.push_back(head("q", c.heads));
      k.push_back(head("k", c.kv_heads));
      v.push_back(n.linear("self_attn.v_proj", y));
    }
    const std::vector<Vector> mixed = attend(q, k, v, c, true, mask);
    for (size_t t = 0; t < x.size(); ++t) {
      const auto mlp = [&](const Vector& y) {
        if (n.has("mlp.gate_proj")) {
          return n.gated("mlp.", {"gate_proj", "up_proj", "down_proj"}, y);
        }
        return through_experts(*c.routing, n, {&ids, layer, t}, mask[t] != 0, y);
      };
      const Vector out = n.linear("self_attn.o_proj", mixed[t]);
      if (after) {
        x[t] = sum(x[t], n.rms("post_attention_layernorm", out, c.epsilon));
        x[t] = sum(x[t], n.rms("post_feedforward_layernorm", mlp(x[t]), c.epsilon));
      } else {
        x[t] = sum(x[t], out);
        x[t] = sum(x[t], mlp(n.rms("post_attention_layernorm", x[t], c.epsilon)));
      }
    }
  }
  const auto head = w.find("lm_head.weight");
  const Vector& output = head == w.end() ? w.at("embed_tokens.weight") : head->second;
  for (Vector& row : x) {
    row = matvec(output, rms_norm(row, w.at("norm.weight"), c.epsilon), nullptr);
  }
  return x;
}

// Channels (first + 2i, first + 2i + 1) of every head, as in `turned`.
inline void turn_neighbours(Vector& x, size_t heads, size_t first, size_t size, double theta,
                            size_t position) {
  const size_t head = x.size() / heads;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < size; i += 2) {
      const double angle = static_cast<double>(position) *
                           std::pow(theta, -static_cast<double>(i) / static_cast<double>(size));
      double &a = x[h * head + first + i], &b = x[h * head + first + i + 1];
      const double turned_a = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = turned_a;
    }
  }
}

// Rows of what the output projection of latent attention reads.
inline std::vector<Vector> latent_mixed(const FamilyShape& c, const Named& n,
                                        const std::vector<Vector>& x,
                                        const std::vector<int>& mask) {
  const LatentShape& l = *c.latent;
  const size_t head = l.plain + l.turning;
  std::vector<Vector> q, k, v;
  for (size_t t = 0; t < x.size(); ++t) {
    Vector query = x[t];
    if (n.has("self_attn.q_a_proj")) {
      query = n.linear("self_attn.q_b_proj", n.rms("self_attn.q_a_layernorm",
                                                   n.linear("self_attn.q_a_proj", query), 1e-6));
    } else {
      query = n.linear("self_attn.q_proj", query);
    }
    turn_neighbours(query, c.heads, l.plain, l.turning, c.theta, t);
    const Vector packed = n.linear("self_attn.kv_a_proj_with_mqa", x[t]);
    const auto middle = packed.begin() + static_cast<std::ptrdiff_t>(l.rank);
    Vector shared(middle, packed.end());
    turn_neighbours(shared, 1, 0, l.turning, c.theta, t);
    const Vector expanded =
        n.linear("self_attn.kv_b_proj",
                 n.rms("self_attn.kv_a_layernorm", Vector(packed.begin(), middle), 1e-6));
    Vector keys, values;
    for (size_t h = 0; h < c.heads; ++h) {
      const size_t at = h * (l.plain + l.values);
      for (size_t i = 0; i < l.plain; ++i) keys.push_back(expanded[at + i]);
      keys.insert(keys.end(), shared.begin(), shared.end());
      for (size_t i = 0; i < l.values; ++i) values.push_back(expanded[at + l.plain + i]);
    }
    q.push_back(query);
    k.push_back(keys);
    v.push_back(values);
  }
  std::vector<Vector> out(x.size(), Vector(c.heads * l.values, 0.0));
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t h = 0; h < c.heads; ++h) {
      Vector scores(t + 1, 0.0);
      double top = -INFINITY, total = 0;
      for (size_t s = 0; s <= t; ++s) {
        for (size_t i = 0; i < head; ++i) scores[s] += q[t][h * head + i] * k[s][h * head + i];
        scores[s] = mask[s] == 0 ? -INFINITY : scores[s] * l.scale;
        top = std::max(top, scores[s]);
      }
      if (top == -INFINITY) continue;
      for (double& score : scores) total += (score = std::exp(score - top));
      for (size_t s = 0; s <= t; ++s) {
        for (size_t i = 0; i < l.values; ++i) {
          out[t][h * l.values + i] += scores[s] / total * v[s][h * l.values + i];
        }
      }
    }
  }
  return out;
}

inline std::vector<Vector> deepseek_logits(const FamilyShape& c, const Weights& w,
                                           const std::vector<int32_t>& ids,
                                           const std::vector<int32_t>&,
                                           const std::vector<int>& mask) {
  std::vector<Vector> x = rows_of(w.at("embed_tokens.weight"), ids, c.width);
  for (size_t layer = 0; layer < c.layers; ++layer) {
    const Named n(w, "layers." + std::to_string(layer) + ".");
    std::vector<Vector> y;
    for (const Vector& row : x) y.push_back(n.rms("input_layernorm", row, c.epsilon));
    const std::vector<Vector> mixed = latent_mixed(c, n, y, mask);
    for (size_t t = 0; t < x.size(); ++t) {
      x[t] = sum(x[t], n.linear("self_attn.o_proj", mixed[t]));
      const Vector z = n.rms("post_attention_layernorm", x[t], c.epsilon);
      x[t] = sum(x[t], n.has("mlp.gate_proj")
                           ? n.gated("mlp.", {"gate_proj", "up_proj", "down_proj"}, z)
                           : through_experts(*c.routing, n, {&ids, layer, t}, mask[t] != 0, z));
    }
  }
  for (Vector& row : x) {
    row = matvec(w.at("lm_head.weight"), rms_norm(row, w.at("norm.weight"), c.epsilon), nullptr);
  }
  return x;
}

inline std::vector<Vector> neox_logits(const FamilyShape& c, const Weights& w,
                                       const std::vector<int32_t>& ids, const std::vector<int32_t>&,
                                       const std::vector<int>& mask) {
  std::vector<Vector> x = rows_of(w.at("embed_in.weight"), ids, c.width);
  for (size_t layer = 0; layer < c.layers; ++layer) {
    const Named n(w, "layers." + std::to_string(layer) + ".");
    std::array<std::vector<Vector>, 3> qkv;
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector packed =
          n.linear("attention.query_key_value", n.layer_norm("input_layernorm", x[t], c.epsilon));
      for (size_t part = 0; part < 3; ++part) {
        Vector one;
        for (size_t h = 0; h < c.heads; ++h) {
          for (size_t i = 0; i < c.head; ++i) one.push_back(packed[(h * 3 + part) * c.head + i]);
        }
        qkv[part].push_back(part < 2 ? turned(one, c.heads, c, t) : one);
      }
    }
    const std::vector<Vector> mixed = attend(qkv[0], qkv[1], qkv[2], c, true, mask);
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector attended = sum(x[t], n.linear("attention.dense", mixed[t]));
      Vector up = n.linear(
          "mlp.dense_h_to_4h",
          n.layer_norm("post_attention_layernorm", c.parallel ? x[t] : attended, c.epsilon));
      for (double& value : up) value = gelu(value, true);
      x[t] = sum(attended, n.linear("mlp.dense_4h_to_h", up));
    }
  }
  const Named n(w, "");
  for (Vector& row : x)
    row = n.linear("embed_out", n.layer_norm("final_layer_norm", row, c.epsilon));
  return x;
}

inline std::vector<Vector> bert_hidden(const FamilyShape& c, const Weights& w,
                                       const std::vector<int32_t>& ids,
                                       const std::vector<int32_t>& types,
                                       const std::vector<int>& mask) {
  std::vector<Vector> x = rows_of(w.at("embeddings.word_embeddings.weight"), ids, c.width);
  const std::vector<Vector> kinds =
      rows_of(w.at("embeddings.token_type_embeddings.weight"), types, c.width);
  const Named outer(w, "");
  for (size_t t = 0; t < x.size(); ++t) {
    const Vector place = rows_of(w.at("embeddings.position_embeddings.weight"),
                                 {static_cast<int32_t>(t)}, c.width)[0];
    x[t] = outer.layer_norm("embeddings.LayerNorm", sum(sum(x[t], kinds[t]), place), c.epsilon);
  }
  for (size_t layer = 0; layer < c.layers; ++layer) {
    const Named n(w, "encoder.layer." + std::to_string(layer) + ".");
    std::vector<Vector> q, k, v;
    for (const Vector& row : x) {
      q.push_back(n.linear("attention.self.query", row));
      k.push_back(n.linear("attention.self.key", row));
      v.push_back(n.linear("attention.self.value", row));
    }
    const std::vector<Vector> mixed = attend(q, k, v, c, false, mask);
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector y =
          n.layer_norm("attention.output.LayerNorm",
                       sum(x[t], n.linear("attention.output.dense", mixed[t])), c.epsilon);
      Vector up = n.linear("intermediate.dense", y);
      for (double& value : up) value = gelu(value, true);
      x[t] = n.layer_norm("output.LayerNorm", sum(y, n.linear("output.dense", up)), c.epsilon);
    }
  }
  return x;
}

inline std::vector<Vector> bert_mlm_logits(const FamilyShape& c, const Weights& w,
                                           const std::vector<int32_t>& ids,
                                           const std::vector<int32_t>& types,
                                           const std::vector<int>& mask) {
  std::vector<Vector> x = bert_hidden(c, w, ids, types, mask);
  const Named n(w, "cls.predictions.");
  for (Vector& row : x) {
    Vector y = n.linear("transform.dense", row);
    for (double& value : y) value = gelu(value, true);
    y = n.layer_norm("transform.LayerNorm", y, c.epsilon);
    row = matvec(w.at("embeddings.word_embeddings.weight"), y, &w.at("cls.predictions.bias"));
  }
  return x;
}

// One row: the classes of a text.
inline std::vector<Vector> bert_classes(const FamilyShape& c, const Weights& w,
                                        const std::vector<int32_t>& ids,
                                        const std::vector<int32_t>& types,
                                        const std::vector<int>& mask) {
  const Named n(w, "");
  Vector pooled = n.linear("pooler.dense", bert_hidden(c, w, ids, types, mask)[0]);
  for (double& value : pooled) value = std::tanh(value);
  return {n.linear("classifier", pooled)};
}

// One row: whether the second text is another one's, from the head that pretraining leaves.
inline std::vector<Vector> bert_order(const FamilyShape& c, const Weights& w,
                                      const std::vector<int32_t>& ids,
                                      const std::vector<int32_t>& types,
                                      const std::vector<int>& mask) {
  const Named n(w, "");
  Vector pooled = n.linear("pooler.dense", bert_hidden(c, w, ids, types, mask)[0]);
  for (double& value : pooled) value = std::tanh(value);
  return {n.linear("cls.seq_relationship", pooled)};
}

}  // namespace ds::testing
