#include "optim/flat_optimizer.h"

#include <algorithm>

#include "base/text.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::optim {

FlatOptimizer::FlatOptimizer(Setup setup) : setup_(std::move(setup)) {
  const auto count = static_cast<int32_t>(setup_.config.param_groups.size()) + 1;
  for (int32_t i = 0; i < count; ++i) groups_.push_back(group_config(setup_.config, i));
  for (const OptimizerConfig& config : groups_) rates_.push_back(config.lr);
  for (const TensorPlace& place : setup_.places) {
    const int64_t owned = place.end - place.begin;
    DS_CHECK(place.begin >= 0 && owned >= 0 && place.flat >= 0 && place.first >= 0 &&
                 place.first <= place.shape.elements() - owned,
             Code::kInvalidArgument, "optimizer: tensor ", place.name, " of shape ",
             place.shape.text(), " cannot lie at ", place.begin, " to ", place.end,
             " from its element ", place.first);
    DS_CHECK(place.group >= 0 && place.group < count, Code::kInvalidArgument, "optimizer: tensor ",
             place.name, " is in group ", place.group, " of ", count);
    const HyperClass of{place.group, place.decays, place.rate_factor, place.decay_factor};
    const auto found = std::find(classes_.begin(), classes_.end(), of);
    class_of_.push_back(found - classes_.begin());
    if (found == classes_.end()) classes_.push_back(of);
  }
  products_.resize(groups_.size());
  grouped_.resize(setup_.places.size());
  for (const auto& group : setup_.shard_groups) {
    for (const size_t tensor : group->tensors()) grouped_[tensor] = true;
  }
}

StateSpace FlatOptimizer::make_space(StateSpace::Options options,
                                     std::optional<OptimizerStateType> type) const {
  options.type = type.value_or(setup_.config.state_dtype);
  const auto limit = [&options](int64_t most) {
    options.most_elements =
        options.most_elements > 0 ? std::min(options.most_elements, most) : most;
  };
  if (setup_.offload) limit(setup_.offload->sub_group_elements());
  if (setup_.most_elements > 0) limit(setup_.most_elements);
  if (setup_.arrays) limit(setup_.arrays->most_elements());
  options.arrays = setup_.arrays;
  return {options, setup_.places, setup_.device};
}

void FlatOptimizer::need_whole(const TensorPlace& place, const char* why) const {
  DS_CHECK(wholly_owned(place), Code::kUnsupported, "optimizer: ", why, ", and tensor ", place.name,
           " of shape ", place.shape.text(), " is shared between ranks: this one owns ",
           place.end - place.begin, " of its elements");
}

void FlatOptimizer::need_whole_ungrouped(const std::function<bool(const TensorPlace&)>& of,
                                         const char* why) const {
  for (size_t i = 0; i < setup_.places.size(); ++i) {
    if (!grouped(i) && touched(place(i)) && of(place(i))) need_whole(place(i), why);
  }
}

// A step goes on where the last one stopped; after a load, or a step taken back, from the start.
double FlatOptimizer::momentum_product(size_t group, int64_t step) const {
  const OptimizerConfig& config = groups_[group];
  MomentumProduct& product = products_[group];
  if (product.steps > step) product = {};
  while (product.steps < step) {
    product.value *= kernels::nadam_momentum(config.beta1, config.momentum_decay, ++product.steps);
  }
  return product.value;
}

double FlatOptimizer::decay_of(const UpdateStep& step, int32_t group) const {
  const bool own =
      group > 0 && setup_.config.param_groups[static_cast<size_t>(group) - 1].weight_decay;
  if (step.weight_decay && !own) return *step.weight_decay;
  return groups_[static_cast<size_t>(group)].weight_decay;
}

kernels::UpdateHyper FlatOptimizer::hyper_of(const UpdateStep& step, const HyperClass& of,
                                             double lr) const {
  const auto group = static_cast<size_t>(of.group);
  const OptimizerConfig& config = groups_[group];
  const bool has_momentum =
      config.type == OptimizerType::kSgd || config.type == OptimizerType::kRmsprop;
  kernels::UpdateHyper hyper;
  hyper.lr = lr * of.rate_factor;
  hyper.beta1 = step.beta1.value_or(has_momentum ? config.momentum : config.beta1);
  hyper.beta2 = step.beta2.value_or(config.beta2);
  hyper.eps = config.eps;
  hyper.weight_decay = of.decays ? decay_of(step, of.group) * of.decay_factor : 0;
  hyper.dampening = config.dampening;
  hyper.nesterov = config.nesterov;
  hyper.decoupled = config.decoupled;
  hyper.bias_correction = config.bias_correction;
  hyper.eps_inside_sqrt = config.eps_inside_sqrt;
  hyper.lr_decay = config.lr_decay;
  hyper.momentum_decay = config.momentum_decay;
  if (config.type == OptimizerType::kNadam) {
    hyper.momentum_product = momentum_product(group, steps_ + 1);
  }
  hyper.step = step.updates.value_or(steps_ + 1);
  hyper.grad_scale = step.grad_scale;
  return hyper;
}

std::vector<kernels::UpdateConstants> FlatOptimizer::constants(
    kernels::UpdateRule rule, const UpdateStep& step,
    const std::function<double(size_t group)>& rate) const {
  std::vector<kernels::UpdateConstants> out;
  for (const HyperClass& of : classes_) {
    out.push_back(
        kernels::update_constants(rule, hyper_of(step, of, rate(static_cast<size_t>(of.group)))));
  }
  return out;
}

void FlatOptimizer::begin_step(const UpdateStep& step, const FlatTensors& tensors) {
  DS_CHECK(step.rates.size() == rates_.size(), Code::kInvalidArgument,
           "optimizer: ", step.rates.size(), " learning rates for ", rates_.size());
  int64_t owned_end = 0, flat_end = 0;
  for (const TensorPlace& place : setup_.places) {
    owned_end = std::max(owned_end, place.end);
    flat_end = std::max(flat_end, place.flat + place.end - place.begin);
  }
  const auto check = [&](const FlatTensor& tensor, const char* name) {
    if (!tensor) return;
    const int64_t end = tensor.compact ? owned_end : flat_end;
    DS_CHECK(tensor.elements() >= end, Code::kInvalidArgument, "optimizer: ", name, " of ",
             tensor.elements(), " elements does not span its space to ", end);
  };
  DS_CHECK(tensors.gradients, Code::kInvalidArgument, "optimizer: gradients are missing");
  DS_CHECK(tensors.low_halves ? tensors.model && !tensors.masters : bool(tensors.masters),
           Code::kInvalidArgument,
           "optimizer: masters are either given, or low halves beside a bf16 model");
  check(tensors.masters, "masters");
  check(tensors.low_halves, "low halves");
  check(tensors.model, "model");
  check(tensors.gradients, "gradients");
  for (StateSpace& space : spaces_) {
    space.cut_where_places_change(tensors);
    space.encode_writes();
  }
}

void FlatOptimizer::end_step() {
  flush();
  ++steps_;
}

void FlatOptimizer::flush() {
  for (const StateSpace& space : spaces_) space.flush();
}

void FlatOptimizer::update_run(const OpContext& ctx, const StateSpace& space, const StateRun& run,
                               const StateRun* next, const FlatTensors& tensors, Writes writes,
                               const UpdateRun& update) const {
  MappedRun mapped = space.map(run, tensors, writes);
  if (next != nullptr) space.prefetch(*next, tensors);
  const SubGroup group{run.begin, run.end, run.flat, mapped.device != nullptr};
  const bool weights = writes != Writes::kStates;
  if (setup_.offload) setup_.offload->fetch(group, mapped.part, weights);
  update(mapped.device ? OpContext{mapped.device, ctx.pool} : ctx, run, mapped.part);
  if (mapped.copy) ops::cast(ctx, mapped.part.master, mapped.copy);
  if (setup_.offload) setup_.offload->flush(group, mapped.part, weights);
  mapped.close();
}

void FlatOptimizer::publish(const OpContext& ctx, const StateSpace& space, const StateRun& run,
                            const FlatTensors& tensors) const {
  MappedRun mapped = space.map_weights(run, tensors, Access::kReadWrite);
  const SubGroup group{run.begin, run.end, run.flat};
  if (setup_.offload) setup_.offload->fetch(group, mapped.part, /*weights=*/true);
  if (mapped.part.model) ops::cast(ctx, mapped.part.master, mapped.part.model);
  if (mapped.copy) ops::cast(ctx, mapped.part.master, mapped.copy);
  if (setup_.offload) setup_.offload->flush(group, mapped.part, /*weights=*/true);
  mapped.close();
}

void FlatOptimizer::update_runs(const OpContext& ctx, const StateSpace& space,
                                const FlatTensors& tensors, Writes writes,
                                const UpdateRun& update) const {
  const std::span<const StateRun> runs = space.runs();
  for (size_t i = 0; i < runs.size(); ++i) {
    const StateRun* const next = i + 1 < runs.size() ? &runs[i + 1] : nullptr;
    update_run(ctx, space, runs[i], next, tensors, writes, update);
  }
}

// ---- state by tensor ----

OwnedRange FlatOptimizer::owned(size_t tensor) const {
  const TensorPlace& place = setup_.places.at(tensor);
  return {place.first, place.first + place.end - place.begin};
}

std::vector<std::string> FlatOptimizer::states(size_t tensor) const {
  std::vector<std::string> names;
  for (const StateSpace& space : spaces_) {
    if (!space.includes(tensor)) continue;
    for (const NamedState& state : space.states()) names.push_back(state.name);
  }
  return names;
}

FlatOptimizer::Found FlatOptimizer::find_state(size_t tensor, const std::string& state) const {
  for (size_t i = 0; i < spaces_.size(); ++i) {
    if (!spaces_[i].includes(tensor)) continue;
    const std::vector<NamedState>& names = spaces_[i].states();
    for (size_t k = 0; k < names.size(); ++k) {
      if (names[k].name == state) return {i, k};
    }
  }
  const std::vector<std::string> have = states(tensor);
  fail(Code::kNotFound, "optimizer: tensor ", setup_.places.at(tensor).name, " has no state \"",
       printable(state, 100), "\"",
       have.empty() ? "; it has none here" : "; it has " + join(have, ", "));
}

void FlatOptimizer::check_range(size_t tensor, int64_t begin, int64_t end) const {
  const OwnedRange range = owned(tensor);
  DS_CHECK(begin >= range.begin && begin <= end && end <= range.end, Code::kInvalidArgument,
           "optimizer: elements ", begin, " to ", end, " of tensor ", place(tensor).name,
           " are not owned here; ", range.begin, " to ", range.end, " are");
}

void FlatOptimizer::read_state_range(size_t tensor, const std::string& state, int64_t begin,
                                     int64_t end, float* out) const {
  const Found found = find_state(tensor, state);
  check_range(tensor, begin, end);
  const int64_t from = owned(tensor).begin;
  spaces_[found.space].read(tensor, found.state, begin - from, end - from, out);
}

void FlatOptimizer::write_state_range(size_t tensor, const std::string& state, int64_t begin,
                                      int64_t end, const float* values) {
  const Found found = find_state(tensor, state);
  check_range(tensor, begin, end);
  const int64_t from = owned(tensor).begin;
  spaces_[found.space].write(tensor, found.state, begin - from, end - from, values);
}

Tensor FlatOptimizer::state_view(size_t tensor, const std::string& state) const {
  const Found found = find_state(tensor, state);
  if (!touched(place(tensor))) return {};
  return spaces_[found.space].view(tensor, found.state, place(tensor).end - place(tensor).begin);
}

Tensor FlatOptimizer::read_state(const OpContext& ctx, size_t tensor,
                                 const std::string& state) const {
  find_state(tensor, state);
  need_whole(place(tensor), "a whole state is asked for");
  Tensor out = Tensor::empty(ctx.device, DType::kFloat32, place(tensor).shape, MemoryTag::kOther);
  if (ctx.device->kind() == DeviceKind::kCpu) {
    read_state_range(tensor, state, 0, out.elements(), out.data<float>());
    return out;
  }
  std::vector<float> values(static_cast<size_t>(out.elements()));
  read_state_range(tensor, state, 0, out.elements(), values.data());
  copy_from_host(values.data(), out);
  return out;
}

void FlatOptimizer::write_state(const OpContext&, size_t tensor, const std::string& state,
                                const Tensor& value) {
  find_state(tensor, state);
  need_whole(place(tensor), "a whole state is given");
  check_tensor(value, state.c_str(), DType::kFloat32, place(tensor).shape);
  DS_CHECK(value.contiguous(), Code::kInvalidArgument, "optimizer: state ", state, " of ",
           place(tensor).name, " must be contiguous");
  if (on_host(value)) {
    return write_state_range(tensor, state, 0, value.elements(), value.data<float>());
  }
  std::vector<float> values(static_cast<size_t>(value.elements()));
  copy_to_host(value, values.data());
  write_state_range(tensor, state, 0, value.elements(), values.data());
}

}  // namespace ds::optim
