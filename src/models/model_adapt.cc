// Changes to which parameters a model has and which of them train: freezing, adding and merging
// low-rank adapters. Values stay; only a model that no engine holds can change.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/pattern.h"
#include "models/model.h"
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

void Model::check_free(const char* what) const {
  DS_CHECK(!has_engine_, Code::kState, what,
           " while an engine trains the model; destroy that engine first");
  DS_CHECK(!prepared(), Code::kState, what, ": the model is prepared for inference already");
  state_->weights().check_not_lost();
}

void Model::rebuild(nn::ParameterSet parameters, std::shared_ptr<const zero::WeightLoader> rest) {
  for (nn::ParamId id = 0; id < parameters_->size(); ++id) {
    DS_CHECK(!state_->weights().borrowed().has(id), Code::kState, (*parameters_)[id].name,
             " lies in lent memory: say when you register parameters which of them train");
  }
  auto set = std::make_unique<nn::ParameterSet>(std::move(parameters));
  const nn::ParamId kept = std::min(set->size(), parameters_->size());
  std::unique_ptr<zero::TrainState> state;
  if (state_->masters().loader()) {
    state = std::make_unique<zero::TrainState>(
        *set, device_, joined_weights(state_->masters().loader(), kept, std::move(rest)));
  } else {
    state = std::make_unique<zero::TrainState>(*set, device_);
    const OpContext ctx = context();
    for (nn::ParamId id = kept; rest && id < set->size(); ++id) {
      const nn::Parameter& p = (*set)[id];
      Tensor out = state->masters().view(id).view({p.shape.elements()});
      if (out.elements() > 0) zero::fill_weights(*rest, ctx, id, p, 0, out);
    }
  }
  for (nn::ParamId id = 0; !state->masters().loader() && id < kept; ++id) {
    const Tensor from = state_->masters().view(id), to = state->masters().view(id);
    DS_CHECK(from.shape() == to.shape(), Code::kInternal, "a parameter changed its shape");
    copy_tensor(from, to);
  }
  parameters_.swap(set);
  state_.swap(state);
}

std::string Model::module_name(nn::ParamId weight) const {
  std::string name = has_architecture() && weight < architecture_->parameters().size()
                         ? architecture_->external_name(weight).name
                         : parameters()[weight].name;
  if (name.ends_with(".weight")) name.resize(name.size() - 7);
  return name;
}

int64_t Model::set_trainable(const std::vector<std::string>& patterns, bool trainable) {
  check_free("parameters cannot be frozen or released");
  std::vector<bool> chosen(static_cast<size_t>(parameters().size()), false);
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (nn::ParamId id = 0; id < parameters().size(); ++id) {
      const nn::Parameter& p = parameters()[id];
      bool match = matches_pattern(pattern, p.name) ||
                   std::any_of(p.aliases.begin(), p.aliases.end(), [&](const std::string& alias) {
                     return matches_pattern(pattern, alias);
                   });
      if (!match && has_architecture() && id < architecture_->parameters().size()) {
        match = matches_pattern(pattern, architecture_->external_name(id).name);
      }
      if (match) chosen[static_cast<size_t>(id)] = any = true;
    }
    DS_CHECK(any, Code::kNotFound, "no parameter matches ", printable(pattern));
  }
  const auto count = std::count(chosen.begin(), chosen.end(), true);
  bool changes = false;
  nn::ParameterSet set =
      edited(parameters(), parameters().size(), [&](nn::ParamId id, nn::Parameter& p) {
        if (!chosen[static_cast<size_t>(id)] || p.trainable == trainable) return;
        p.trainable = trainable;
        changes = true;
      });
  copy_adapters(parameters(), set);
  if (changes) rebuild(std::move(set));
  return count;
}

void Model::add_lora(const LoraOptions& options) {
  check_free("adapters cannot be added");
  DS_CHECK(!lora_, Code::kState, "the model carries adapters already; merge or remove them first");
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
  const nn::ParamId base = parameters().size();
  std::vector<bool> found(targets.size(), all);
  std::vector<nn::ParamId> weights;
  std::vector<std::string> leaves;
  for (nn::ParamId id = 0; id < base; ++id) {
    if (!parameters()[id].projection) continue;
    const std::string module = module_name(id);
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
  nn::ParameterSet set = edited(parameters(), base, [&](nn::ParamId, nn::Parameter& p) {
    trained.push_back(p.trainable);
    p.trainable = false;
  });
  for (const nn::ParamId weight : weights) {
    const nn::Parameter& w = parameters()[weight];
    const std::string module = w.name.substr(0, w.name.size() - 7);  // without ".weight"
    const double bound = 1 / std::sqrt(static_cast<double>(w.shape[1]));
    nn::Adapter adapter;
    adapter.a = set.add({module + ".lora_A.weight",
                         {options.r, w.shape[1]},
                         nn::Init::kUniform,
                         bound,
                         true,
                         true,
                         {}});
    adapter.b = set.add(
        {module + ".lora_B.weight", {w.shape[0], options.r}, nn::Init::kZeros, 0, true, true, {}});
    adapter.scale = static_cast<float>(options.scale());
    adapter.dropout = options.dropout;
    set.adapt(weight, adapter);
  }
  rebuild(std::move(set), fresh_weights(options.seed));
  lora_ = options;
  if (!origin_.empty()) lora_->base = origin_;
  trained_before_lora_ = std::move(trained);
}

void Model::merge_lora() {
  check_free("adapters cannot be merged");
  DS_CHECK(lora_, Code::kState, "the model carries no adapters");
  zero::TrainState& weights = state();
  const OpContext ctx = weights.arrays().state_context(context());
  for (nn::ParamId id = 0; id < parameters().size(); ++id) {
    const nn::Adapter* adapter = parameters().adapter(id);
    if (adapter == nullptr) continue;
    const Tensor a = weights.masters().view(adapter->a);
    const Tensor b = to_host(weights.masters().view(adapter->b), host_);
    const int64_t out = b.size(0), rank = b.size(1);
    // w += b a is the weight gradient of rows a under outputs b^T, scaled.
    const Tensor transposed = host_context().workspace(DType::kFloat32, {rank, out});
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t o = 0; o < out; ++o) {
        transposed.data<float>()[r * out + o] = adapter->scale * b.data<float>()[o * rank + r];
      }
    }
    Tensor w = weights.masters().view(id);
    ops::linear_grad_weight(ctx, to_device(transposed, ctx.device), a, w);
  }
  remove_lora();
}

void Model::remove_lora() {
  check_free("adapters cannot be removed");
  DS_CHECK(lora_, Code::kState, "the model carries no adapters");
  const auto base = static_cast<nn::ParamId>(trained_before_lora_.size());
  rebuild(edited(parameters(), base, [&](nn::ParamId id, nn::Parameter& p) {
    p.trainable = trained_before_lora_[static_cast<size_t>(id)];
  }));
  lora_.reset();
  trained_before_lora_.clear();
}

}  // namespace ds::models
