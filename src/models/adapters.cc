// Changes to which parameters a model has and which of them train: freezing, adding and merging
// low-rank adapters. Values stay; only a model that no engine holds can change.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/pattern.h"
#include "models/adapters.h"
#include "models/weight_loaders.h"
#include "ops/linear.h"
#include "tensor/transfer.h"

namespace ds::models {
namespace {

// What `changed` makes of every parameter, with the adapters of the old set.
template <class Fn>
nn::ParameterSet edited(const nn::ParameterSet& from, nn::ParamId count, const Fn& changed) {
  nn::ParameterSet out;
  for (nn::ParamId id = 0; id < count; ++id) {
    nn::Parameter p = from[id];
    changed(id, p);
    out.add(std::move(p));
  }
  return out;
}

void copy_adapters(const nn::ParameterSet& from, nn::ParameterSet& to) {
  for (nn::ParamId id = 0; id < from.size(); ++id) {
    if (const nn::Adapter* adapter = from.adapter(id)) to.adapt(id, *adapter);
  }
}

bool ends_with_module(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

}  // namespace

std::string module_name(const Model& model, nn::ParamId weight) {
  std::string name = model.has_architecture() && weight < model.architecture().parameters().size()
                         ? model.architecture().external_name(weight).name
                         : model.parameters()[weight].name;
  if (name.ends_with(".weight")) name.resize(name.size() - 7);
  return name;
}

int64_t set_trainable(Model& model, const std::vector<std::string>& patterns, bool trainable) {
  model.held_weights("parameters cannot be frozen or released");
  std::vector<bool> chosen(static_cast<size_t>(model.parameters().size()), false);
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
      const nn::Parameter& p = model.parameters()[id];
      bool match = matches_pattern(pattern, p.name) ||
                   std::any_of(p.aliases.begin(), p.aliases.end(), [&](const std::string& alias) {
                     return matches_pattern(pattern, alias);
                   });
      if (!match && model.has_architecture() && id < model.architecture().parameters().size()) {
        match = matches_pattern(pattern, model.architecture().external_name(id).name);
      }
      if (!match) continue;
      any = true;
      chosen[static_cast<size_t>(id)] = !(trainable && p.keeps_fp32);  // no gradient moves it
    }
    DS_CHECK(any, Code::kNotFound, "no parameter matches ", printable(pattern));
  }
  const auto count = std::count(chosen.begin(), chosen.end(), true);
  bool changes = false;
  nn::ParameterSet set =
      edited(model.parameters(), model.parameters().size(), [&](nn::ParamId id, nn::Parameter& p) {
        if (!chosen[static_cast<size_t>(id)] || p.trainable == trainable) return;
        p.trainable = trainable;
        changes = true;
      });
  copy_adapters(model.parameters(), set);
  if (changes) model.change_parameters(std::move(set), model.lora());
  return count;
}

void add_lora(Model& model, const LoraOptions& options) {
  model.held_weights("adapters cannot be added");
  DS_CHECK(!model.lora(), Code::kState,
           "the model carries adapters already; merge or remove them first");
  DS_CHECK(options.r >= 1 && options.r <= 1 << 16, Code::kInvalidArgument, "LoRA: r is ", options.r,
           "; 1 to 65536 are possible");
  DS_CHECK(std::isfinite(options.alpha) && options.alpha > 0, Code::kInvalidArgument,
           "LoRA: alpha must be a positive number");
  DS_CHECK(options.dropout >= 0 && options.dropout < 1, Code::kInvalidArgument,
           "LoRA: dropout must lie in [0, 1), not ", options.dropout);
  const std::vector<std::string>& targets = options.target_modules;
  DS_CHECK(!targets.empty(), Code::kInvalidArgument,
           "LoRA: target_modules is empty; name modules, or \"all-linear\"");
  const bool all = std::find(targets.begin(), targets.end(), "all-linear") != targets.end();
  DS_CHECK(!all || targets.size() == 1, Code::kInvalidArgument,
           "LoRA: target_modules is \"all-linear\" alone, or a list of modules");
  const nn::ParamId base = model.parameters().size();
  std::vector<bool> found(targets.size(), all);
  std::vector<nn::ParamId> weights;
  std::vector<std::string> leaves;
  for (nn::ParamId id = 0; id < base; ++id) {
    if (!model.parameters()[id].projection) continue;
    const std::string module = module_name(model, id);
    leaves.push_back(module.substr(module.rfind('.') + 1));
    bool chosen = all;
    for (size_t i = 0; i < targets.size() && !all; ++i) {
      if (!ends_with_module(module, targets[i])) continue;
      chosen = found[i] = true;
    }
    if (chosen) weights.push_back(id);
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (found[i]) continue;
    const std::string nearest = nearest_name(targets[i], leaves);
    const std::set<std::string> names(leaves.begin(), leaves.end());
    fail(Code::kNotFound, "LoRA: no linear layer of the model is named ", printable(targets[i]),
         nearest.empty() ? ";" : "; did you mean " + nearest + "?", " the linear layers are ",
         join(std::vector<std::string>(names.begin(), names.end()), ", "));
  }
  DS_CHECK(!weights.empty(), Code::kUnsupported, "LoRA: the model has no linear layers to adapt");
  std::vector<bool> trained;
  nn::ParameterSet set = edited(model.parameters(), base, [&](nn::ParamId, nn::Parameter& p) {
    trained.push_back(p.trainable);
    p.trainable = false;
  });
  for (const nn::ParamId weight : weights) {
    const nn::Parameter& w = model.parameters()[weight];
    const std::string module = w.name.substr(0, w.name.size() - 7);  // without ".weight"
    const double bound = 1 / std::sqrt(static_cast<double>(w.shape[1]));
    nn::Adapter adapter;
    nn::Parameter a{module + ".lora_A.weight", {options.r, w.shape[1]}, nn::Init::kUniform, bound};
    nn::Parameter b{module + ".lora_B.weight", {w.shape[0], options.r}};
    a.decays = b.decays = true;
    a.expert = b.expert = w.expert;
    a.split = w.split.of_adapter_a();
    b.split = w.split.of_adapter_b();
    adapter.a = set.add(std::move(a));
    adapter.b = set.add(std::move(b));
    adapter.scale = static_cast<float>(options.scale());
    adapter.dropout = options.dropout;
    set.adapt(weight, adapter);
  }
  AppliedLora applied{options, std::move(trained)};
  if (!model.origin().empty()) applied.options.base = model.origin();
  model.change_parameters(std::move(set), std::move(applied), fresh_weights(options.seed));
}

void merge_lora(Model& model) {
  nn::HeldWeights& held = model.held_weights("adapters cannot be merged");
  DS_CHECK(model.lora(), Code::kState, "the model carries no adapters");
  held.make(model.context());
  const OpContext ctx = held.context(model.context());
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const nn::Adapter* adapter = model.parameters().adapter(id);
    if (adapter == nullptr) continue;
    const Tensor a = held.view(adapter->a);
    const Tensor b = to_host(held.view(adapter->b), model.host());
    const int64_t out = b.size(0), rank = b.size(1);
    // w += b a is the weight gradient of rows a under outputs b^T, scaled.
    const Tensor transposed = model.host_context().workspace(DType::kFloat32, {rank, out});
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t o = 0; o < out; ++o) {
        transposed.data<float>()[r * out + o] = adapter->scale * b.data<float>()[o * rank + r];
      }
    }
    Tensor w = held.view(id);
    ops::linear_grad_weight(ctx, to_device(transposed, ctx.device), a, w);
  }
  remove_lora(model);
}

void remove_lora(Model& model) {
  model.held_weights("adapters cannot be removed");
  DS_CHECK(model.lora(), Code::kState, "the model carries no adapters");
  const std::vector<bool> trained = model.lora()->trained_before;
  const auto base = static_cast<nn::ParamId>(trained.size());
  auto set = edited(model.parameters(), base, [&](nn::ParamId id, nn::Parameter& p) {
    p.trainable = trained[static_cast<size_t>(id)];
  });
  model.change_parameters(std::move(set), std::nullopt);
}

}  // namespace ds::models
