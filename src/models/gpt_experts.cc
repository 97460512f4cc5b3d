#include "models/gpt_experts.h"

#include <algorithm>
#include <numeric>

namespace ds::models {
namespace {

// One number for all layers with experts, or one for each of them.
std::vector<int64_t> read_counts(const ConfigReader& read, int64_t layers) {
  const int64_t interval = read.count("expert_interval", 2, 10000);
  const int64_t with = layers / interval;
  std::vector<int64_t> given;
  if (read.is_list("num_experts")) {
    given = read.counts("num_experts", kMostExperts);
    DS_CHECK(std::ssize(given) == with, Code::kConfig, read.where(), ": num_experts has ",
             given.size(), " entries for ", with, " layers with experts (every ", interval, " of ",
             layers, ")");
  } else {
    DS_CHECK(read.has("num_experts"), Code::kConfig, read.where(),
             ": num_experts is missing: a number, or a list with one for each layer with experts");
    given.assign(static_cast<size_t>(with), read.count("num_experts", 1, kMostExperts));
  }
  read.check_experts("num_experts", std::accumulate(given.begin(), given.end(), int64_t{0}));
  std::vector<int64_t> counts(static_cast<size_t>(layers), 0);
  for (size_t i = 0; i < given.size(); ++i) {
    counts[(i + 1) * static_cast<size_t>(interval) - 1] = given[i];
  }
  return counts;
}

nn::DropPolicy drop_policy(const ConfigReader& read, int64_t choices) {
  const std::string policy = read.text("moe_drop_policy", "auto");
  if (!read.flag("moe_drop_tokens", true)) return nn::DropPolicy::kNone;
  if (policy == "position") return nn::DropPolicy::kPosition;
  if (policy == "probs") return nn::DropPolicy::kProbability;
  if (policy == "random") return nn::DropPolicy::kRandom;
  DS_CHECK(policy == "auto", Code::kConfig, read.where(), ": moe_drop_policy ", printable(policy),
           " is unknown; auto, probs, position and random are known");
  // As DeepSpeed's gates do: any tokens of top-1, the last ones of top-2.
  if (choices == 1) return nn::DropPolicy::kRandom;
  return choices == 2 ? nn::DropPolicy::kPosition : nn::DropPolicy::kProbability;
}

// Scores, groups and the bias, by Megatron's names.
void read_scores(const ConfigReader& read, GptExperts& c) {
  nn::Router& router = c.router;
  const std::string scores = read.text("moe_router_score_function", "softmax");
  DS_CHECK(scores == "softmax" || scores == "sigmoid", Code::kConfig, read.where(),
           ": moe_router_score_function ", printable(scores),
           " is unknown; softmax and sigmoid are known");
  if (scores == "sigmoid") router.rule.scores = ops::GateScores::kSigmoid;
  router.rule.scale = static_cast<float>(read.number("moe_router_topk_scaling_factor", 1, 0, 1e6));
  router.rule.groups = read.count("moe_router_num_groups", 1, kernels::kMostExpertGroups);
  router.rule.kept_groups = read.count("moe_router_group_topk", 1, router.rule.groups);
  c.biased = read.flag("moe_router_enable_expert_bias", false);
  c.bias_rate = read.number("moe_router_bias_update_rate", 1e-3, 0, 1);
  // A group is as good as those of its experts that a token would take from it.
  router.rule.group_best = std::max<int64_t>(1, router.rule.choices / router.rule.kept_groups);
  if (router.rule.groups == 1) router.rule.group_best = 1;
  DS_CHECK(!c.biased || scores == "sigmoid", Code::kConfig, read.where(),
           ": moe_router_enable_expert_bias needs moe_router_score_function sigmoid: a bias beside "
           "probabilities that add up to 1 has no meaning of its own");
  for (const int64_t count : c.counts) {
    if (count == 0) continue;
    try {
      ops::check_gate_rule(router.rule, count);
    } catch (const Error& error) {
      fail(Code::kConfig, read.where(), ": ", error.message(), " (moe_router_num_groups, ",
           "moe_router_group_topk)");
    }
  }
}

}  // namespace

GptExperts read_gpt_experts(const ConfigReader& read, int64_t layers) {
  GptExperts c;
  c.counts = read_counts(read, layers);
  int64_t least = kMostExperts;
  for (const int64_t count : c.counts) {
    if (count > 0) least = std::min(least, count);
  }
  nn::Router& router = c.router;
  const int64_t choices = read.count("moe_top_k", 1, least);
  router.rule.choices = choices;
  router.rule.normalise = choices > 1;
  router.rule.floor = 0x1p-23f;
  router.drop = drop_policy(read, choices);
  router.first_choices_first = choices == 2;
  router.capacity_factor = read.number("moe_train_capacity_factor", 1, 0, 1e6);
  router.eval_capacity_factor = read.number("moe_eval_capacity_factor", 1, 0, 1e6);
  router.min_capacity = read.count("moe_min_capacity", 4, int64_t{1} << 30, 0);
  router.losses.balance = static_cast<float>(read.number("moe_loss_coeff", 0.1, 0, 1e6));
  router.losses.counted_choices = choices == 2 ? 1 : choices;
  router.losses.per_choice = true;
  router.losses.z = static_cast<float>(read.number("moe_z_loss_coeff", 0, 0, 1e6));
  const std::string noise = read.text("moe_noisy_gate_policy", "none");
  DS_CHECK(noise == "none" || noise == "Jitter" || noise == "RSample", Code::kConfig, read.where(),
           ": moe_noisy_gate_policy ", printable(noise),
           " is unknown; none, Jitter and RSample are known");
  if (noise == "Jitter") router.jitter = 0.01f;
  router.sample_first = noise == "RSample" && choices == 1;
  router.sample_others = read.flag("moe_top2_2nd_expert_sampling", true) && choices == 2;
  read_scores(read, c);
  const std::string type = read.text("mlp_type", "standard");
  DS_CHECK(type == "standard" || type == "residual", Code::kConfig, read.where(), ": mlp_type ",
           printable(type), " is unknown; standard and residual are known");
  c.residual = type == "residual";
  return c;
}

}  // namespace ds::models
