#include "models/inference_weights.h"

#include <algorithm>
#include <array>

#include "base/pattern.h"
#include "base/text.h"
#include "models/architecture.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::models {
namespace {

constexpr std::array<std::string_view, 4> kFormNames{"fp32", "bf16", "int8", "int4"};

// How the matrix of a linear layer is quantised; nothing: it is not.
std::optional<ops::QuantizeOptions> quantized_form(const InferenceOptions& options,
                                                   const std::string& name) {
  WeightOverride form{"", options.weights, options.group_size, options.symmetric};
  for (const WeightOverride& other : options.overrides) {
    if (matches_pattern(other.match, name)) form = other;
  }
  if (form.weights != WeightForm::kInt8 && form.weights != WeightForm::kInt4) return std::nullopt;
  const bool four = form.weights == WeightForm::kInt4;
  return ops::QuantizeOptions{.bits = four ? 4 : 8,
                              .group_size = form.group_size,
                              .symmetric = !four || form.symmetric,
                              .int8_activations = options.int8_activations};
}

void check_overrides(const InferenceOptions& options, const nn::ParameterSet& parameters,
                     nn::ParamId output) {
  for (const WeightOverride& override : options.overrides) {
    DS_CHECK(options.weights != WeightForm::kFloat32 && override.weights != WeightForm::kFloat32,
             Code::kInvalidArgument, "weights of ", printable(override.match),
             " cannot differ by fp32: activations are fp32 with it and bf16 with other forms");
    bool found = false;
    for (nn::ParamId id = 0; id < parameters.size() && !found; ++id) {
      found = (parameters[id].projection || id == output) && !parameters[id].keeps_numbers &&
              matches_pattern(override.match, parameters[id].name);
    }
    DS_CHECK(found, Code::kInvalidArgument, "no matrix of a linear layer is named ",
             printable(override.match), ", for which a form of weights is given");
  }
}

// Matrices that are stored need no more in codes, whose rows and columns are padded, than densely;
// each begins at a whole page.
int64_t most_file_bytes(const nn::ParameterSet& parameters, DType dense) {
  constexpr int64_t kPadded = 64, kPages = int64_t{4} << 12;
  const auto padded = [](int64_t n) { return (n + kPadded - 1) / kPadded * kPadded; };
  int64_t bytes = 0;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const Shape& shape = parameters[id].shape;
    if (shape.dims() != 2) continue;
    bytes += padded(shape[0]) * padded(shape[1]) * dtype_size(dense) + kPages;
  }
  return bytes;
}

}  // namespace

std::string_view weight_form_name(WeightForm form) { return kFormNames[static_cast<size_t>(form)]; }

WeightForm weight_form_named(std::string_view name) {
  for (size_t i = 0; i < kFormNames.size(); ++i) {
    if (kFormNames[i] == name) return static_cast<WeightForm>(i);
  }
  fail(Code::kInvalidArgument, "weights cannot be held as ", printable(std::string(name)),
       "; fp32, bf16, int8 and int4 are possible");
}

InferenceWeights::InferenceWeights(const OpContext& ctx, const nn::ParameterSet& parameters,
                                   const nn::ModelWeights& from, const ArchitectureInfo& info,
                                   const InferenceOptions& options, std::vector<bool> here)
    : parameters_(parameters),
      options_(options),
      output_(info.output),
      compute_type_(options.weights == WeightForm::kFloat32 ? DType::kFloat32 : DType::kBFloat16),
      here_(std::move(here)) {
  check_overrides(options, parameters_, output_);
  if (options.file) {
    DS_CHECK(ctx.device->kind() == DeviceKind::kCpu, Code::kUnsupported,
             "weights in a file are read to the CPU's memory, and the model is on ",
             ctx.device->describe(), "; leave offload_param out, or run it on the CPU");
    file_ = std::make_unique<WeightFile>(*options.file, ctx.device,
                                         most_file_bytes(parameters_, compute_type_));
    place_matrices();
  }
  for (nn::ParamId id = 0; id < parameters_.size(); ++id) {
    if (!holds(id)) {
      held_.emplace_back();
      continue;
    }
    const nn::Parameter& p = parameters_[id];
    Held held = make_held(ctx, id, from);
    const int64_t dense = held.dense ? held.dense.bytes() : 0;
    const int64_t codes = held.quantized ? held.quantized->bytes() : 0;
    bytes_ += dense + codes;
    float_bytes_ += p.shape.elements() * dtype_size(DType::kFloat32);
    if (is_product(id) || p.shape.dims() != 2) {
      const int64_t bytes = codes > 0 ? codes : dense;
      const bool chosen = p.expert >= 0 && p.split.experts > 0;
      bytes_per_token_ += chosen ? bytes * info.experts_per_token / p.split.experts : bytes;
    }
    if (is_product(id) && !held.quantized) all_in_codes_ = false;
    if (file_ && places_[static_cast<size_t>(id)].stored) store(id, held);
    held_.push_back(std::move(held));
  }
}

// A matrix that has other names too is a table as well: rows are looked up in the dense form.
bool InferenceWeights::is_looked_up(nn::ParamId id) const {
  const nn::Parameter& p = parameters_[id];
  return p.shape.dims() == 2 && (!is_product(id) || !p.aliases.empty());
}

// Matrices that every token reads stay in memory before those of experts, of which each reads a
// few. What is left of the memory keeps experts that were used last, of every layer as many: the
// layers take turns, so that the last ones of all would be those of the last layers alone. Where
// there is not one expert for each layer, the first ones have one.
void InferenceWeights::place_matrices() {
  places_.resize(static_cast<size_t>(parameters_.size()));
  int64_t left = options_.file->elements_in_memory;
  int64_t of_experts = 0, of_expert = 0, largest = 0, last = -1;
  size_t layers = 0;
  for (nn::ParamId id = 0; id < parameters_.size(); ++id) {
    const nn::Parameter& p = parameters_[id];
    const int64_t elements = p.shape.elements();
    Place& place = places_[static_cast<size_t>(id)];
    place.stored = is_product(id) && !is_looked_up(id) && holds(id);
    if (p.expert < 0) {
      if (!place.stored || elements > left) continue;
      left -= elements;
      place.stored = false;
      continue;
    }
    if (!is_product(id)) continue;
    if (layers == 0 || p.expert < last) ++layers;
    if (p.expert != last) of_expert = 0;
    last = p.expert;
    if (!place.stored) continue;
    place.layer = layers - 1;
    of_experts += elements;
    of_expert += elements;
    largest = std::max(largest, of_expert);
  }
  if (of_experts <= left) {
    for (Place& place : places_) {
      if (place.layer) place.stored = false;
    }
    return;
  }
  const size_t kept = std::min(layers, static_cast<size_t>(left / largest));
  std::vector<int64_t> room(layers, 0);
  std::fill_n(room.begin(), kept, kept > 0 ? left / static_cast<int64_t>(kept) : 0);
  file_->keep_recent(room);
}

// Rows of fp32 numbers at a time, which become what is kept of them.
InferenceWeights::Held InferenceWeights::make_held(const OpContext& ctx, nn::ParamId id,
                                                   const nn::ModelWeights& from) const {
  const nn::Parameter& p = parameters_[id];
  Held held;
  const auto form =
      is_product(id) && !p.keeps_numbers ? quantized_form(options_, p.name) : std::nullopt;
  int64_t unit = 1;
  try {
    if (form) {
      held.quantized = ops::make_quantized(ctx, p.shape, *form);
      unit = std::max<int64_t>(1, ops::kQuantizedRows * p.shape[1]);
    }
    if (!held.quantized || is_looked_up(id)) {
      const DType type = p.keeps_fp32 ? DType::kFloat32 : compute_type_;
      held.dense = Tensor::empty(ctx.device, type, p.shape, MemoryTag::kParameters);
    }
    from.read_in_parts(ctx, id, unit, [&](const Tensor& read, int64_t begin) {
      const Tensor part = to_device(read, ctx.device);
      const int64_t n = part.elements();
      if (held.quantized) {
        const int64_t columns = p.shape[1];
        ops::quantize_rows(ctx, part.view({n / columns, columns}), begin / columns,
                           *held.quantized);
      }
      if (!held.dense) return;
      Tensor to = held.dense.view({p.shape.elements()}).slice(0, begin, begin + n);
      ops::cast(ctx, part, to);
    });
  } catch (const Error& error) {
    if (!form) throw;
    fail(error.code(), p.name, ": ", error.what());
  }
  return held;
}

void InferenceWeights::store(nn::ParamId id, Held& held) {
  const std::optional<size_t> layer = places_[static_cast<size_t>(id)].layer;
  const int64_t elements = parameters_[id].shape.elements();
  if (!held.quantized) {
    held.stored = file_->put({std::exchange(held.dense, {})}, elements, layer);
    return;
  }
  ops::QuantizedWeight& codes = *held.quantized;
  std::vector<Tensor> tensors = {std::exchange(codes.codes, {}), std::exchange(codes.scales, {})};
  if (codes.minimum) tensors.push_back(std::exchange(codes.minimum, {}));
  held.stored = file_->put(tensors, elements, layer);
}

void InferenceWeights::check_held(nn::ParamId id) const {
  DS_CHECK(holds(id), Code::kState, printable(parameters_[id].name),
           " is held by another of the ranks that share experts; ask there");
}

Tensor InferenceWeights::acquire(nn::ParamId id) {
  check_held(id);
  const Held& held = held_[static_cast<size_t>(id)];
  if (held.stored && !held.quantized) return file_->hold(*held.stored).front();
  DS_CHECK(held.dense, Code::kInternal, parameters_[id].name, " is held in ",
           weight_form_name(options_.weights), " alone");
  return held.dense;
}

const ops::QuantizedWeight* InferenceWeights::quantized(nn::ParamId id) {
  check_held(id);
  Held& held = held_[static_cast<size_t>(id)];
  if (!held.quantized) return nullptr;
  if (held.stored) {
    const std::vector<Tensor>& tensors = file_->hold(*held.stored);
    held.quantized->codes = tensors[0];
    held.quantized->scales = tensors[1];
    if (tensors.size() > 2) held.quantized->minimum = tensors[2];
  }
  return &*held.quantized;
}

// Only those of experts in the file are read in another order than in the last pass.
void InferenceWeights::expect(std::span<const nn::ParamId> ids) {
  if (!file_) return;
  std::vector<WeightFile::Entry> entries;
  for (const nn::ParamId id : ids) {
    const Held& held = held_[static_cast<size_t>(id)];
    if (held.stored && places_[static_cast<size_t>(id)].layer) entries.push_back(*held.stored);
  }
  file_->expect(entries);
}

void InferenceWeights::release(nn::ParamId id) noexcept {
  Held& held = held_[static_cast<size_t>(id)];
  if (!held.stored) return;
  if (held.quantized) held.quantized->codes = held.quantized->scales = held.quantized->minimum = {};
  file_->release(*held.stored);
}

Tensor InferenceWeights::read(const OpContext& ctx, nn::ParamId id) {
  if (const nn::CodesGuard codes(*this, id); codes) return ops::dequantize(ctx, *codes);
  const nn::ParameterGuard dense(*this, id);
  if ((*dense).dtype() == DType::kFloat32) return *dense;
  Tensor wide = ctx.workspace(DType::kFloat32, (*dense).shape());
  ops::cast(ctx, *dense, wide);
  return wide;
}

InferenceReport InferenceWeights::report() const {
  InferenceReport out;
  out.weights = options_.weights;
  const bool groups =
      options_.weights == WeightForm::kInt8 || options_.weights == WeightForm::kInt4;
  out.group_size = groups ? options_.group_size : 0;
  out.symmetric = options_.weights != WeightForm::kInt4 || options_.symmetric;
  out.bytes = bytes_;
  out.bytes_per_token = bytes_per_token_;
  out.bytes_saved = float_bytes_ - bytes_;
  if (file_) out.reads = file_->reads();
  return out;
}

}  // namespace ds::models
