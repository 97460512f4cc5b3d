#include "nearest.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <utility>

namespace tool {
namespace {

// Insertions, deletions, replacements and swaps of neighbours that make `b` of `a`.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] != b[j - 1]);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, replaced});
      const bool swapped =
          i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && a[i - 1] != b[j - 1];
      if (swapped) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

// Options of other training programs whose place is the configuration.
std::string setting_for(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  static const std::vector<std::pair<std::string, std::string>> kSettings = {
      {"lr", "optimizer.params.lr=1e-4"},
      {"learning-rate", "optimizer.params.lr=1e-4"},
      {"weight-decay", "optimizer.params.weight_decay=0.1"},
      {"optimizer", "optimizer.type=AdamW"},
      {"optim", "optimizer.type=AdamW"},
      {"batch-size", "train_micro_batch_size_per_gpu=8"},
      {"micro-batch", "train_micro_batch_size_per_gpu=8"},
      {"per-device-train-batch-size", "train_micro_batch_size_per_gpu=8"},
      {"gradient-accumulation-steps", "gradient_accumulation_steps=4"},
      {"max-grad-norm", "gradient_clipping=1.0"},
      {"clip", "gradient_clipping=1.0"},
      {"gradient-clipping", "gradient_clipping=1.0"},
      {"bf16", "bf16.enabled=true"},
      {"fp16", "fp16.enabled=true"},
      {"zero-stage", "zero_optimization.stage=2"},
      {"warmup-steps", "scheduler.params.warmup_num_steps=100"},
      {"lr-scheduler-type", "scheduler.type=WarmupLR"},
  };
  for (const auto& [option, setting] : kSettings) {
    if (name == option) return setting;
  }
  return {};
}

const CLI::App& chosen_subcommand(const CLI::App& app) {
  const CLI::App* here = &app;
  while (!here->get_subcommands().empty()) here = here->get_subcommands().front();
  return *here;
}

}  // namespace

std::string nearest(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t least = std::max<size_t>(1, std::min<size_t>(3, name.size() / 3)) + 1;
  for (const std::string& candidate : candidates) {
    // The beginning of a long name is meant for it.
    const bool begun = name.size() >= 3 && candidate.compare(0, name.size(), name) == 0;
    const size_t distance = begun ? 1 : edit_distance(name, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string hint_for(const CLI::App& app, const std::string& word) {
  const CLI::App& sub = chosen_subcommand(app);
  std::vector<std::string> names;
  if (word.compare(0, 2, "--") == 0) {
    const std::string name = word.substr(2, word.find('=') - 2);
    for (const CLI::Option* option : sub.get_options()) {
      for (const std::string& each : option->get_lnames()) names.push_back(each);
    }
    const bool sets = std::find(names.begin(), names.end(), "set") != names.end();
    if (const std::string setting = setting_for(name); sets && !setting.empty()) {
      return ": it belongs to the configuration; use --set " + setting;
    }
    const std::string meant = nearest(name, names);
    return meant.empty() ? "" : ": did you mean --" + meant + "?";
  }
  if (word.compare(0, 1, "-") == 0) return {};
  for (const CLI::App* each : sub.get_subcommands({})) names.push_back(each->get_name());
  const std::string meant = nearest(word, names);
  return meant.empty() ? "" : ": did you mean '" + meant + "'?";
}

}  // namespace tool
