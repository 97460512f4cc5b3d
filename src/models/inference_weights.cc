#include "models/inference_weights.h"

#include <array>

#include "base/pattern.h"
#include "base/text.h"
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
  return ops::QuantizeOptions{four ? 4 : 8, form.group_size, !four || form.symmetric};
}

void check_overrides(const InferenceOptions& options, const nn::ParameterSet& parameters,
                     nn::ParamId output) {
  for (const WeightOverride& override : options.overrides) {
    DS_CHECK(options.weights != WeightForm::kFloat32 && override.weights != WeightForm::kFloat32,
             Code::kInvalidArgument, "weights of ", printable(override.match),
             " cannot differ by fp32: activations are fp32 with it and bf16 with other forms");
    bool found = false;
    for (nn::ParamId id = 0; id < parameters.size() && !found; ++id) {
      found = (parameters[id].projection || id == output) &&
              matches_pattern(override.match, parameters[id].name);
    }
    DS_CHECK(found, Code::kInvalidArgument, "no matrix of a linear layer is named ",
             printable(override.match), ", for which a form of weights is given");
  }
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
                                   const nn::ModelWeights& from, nn::ParamId output,
                                   const InferenceOptions& options)
    : parameters_(parameters),
      options_(options),
      compute_type_(options.weights == WeightForm::kFloat32 ? DType::kFloat32 : DType::kBFloat16) {
  check_overrides(options, parameters_, output);
  for (nn::ParamId id = 0; id < parameters_.size(); ++id) {
    const nn::Parameter& p = parameters_[id];
    const Tensor master = to_device(from.read(ctx, id), ctx.device);
    const bool product = p.projection || id == output;
    // A matrix that has other names too is a table as well: rows are looked up in the dense form.
    const bool looked_up = p.shape.dims() == 2 && (!product || !p.aliases.empty());
    Held held;
    const auto form = product ? quantized_form(options, p.name) : std::nullopt;
    if (form) {
      try {
        held.quantized = ops::quantize(ctx, master, *form);
      } catch (const Error& error) {
        fail(error.code(), p.name, ": ", error.what());
      }
    }
    if (!held.quantized || looked_up) {
      held.dense = Tensor::empty(ctx.device, compute_type_, p.shape, MemoryTag::kParameters);
      if (compute_type_ == DType::kFloat32) {
        copy_tensor(master, held.dense);
      } else {
        ops::cast(ctx, master, held.dense);
      }
    }
    const int64_t dense = held.dense ? held.dense.bytes() : 0;
    const int64_t codes = held.quantized ? held.quantized->bytes() : 0;
    bytes_ += dense + codes;
    float_bytes_ += p.shape.elements() * dtype_size(DType::kFloat32);
    if (product || p.shape.dims() != 2) bytes_per_token_ += codes > 0 ? codes : dense;
    held_.push_back(std::move(held));
  }
}

Tensor InferenceWeights::acquire(nn::ParamId id) {
  const Held& held = held_[static_cast<size_t>(id)];
  DS_CHECK(held.dense, Code::kInternal, parameters_[id].name, " is held in ",
           weight_form_name(options_.weights), " alone");
  return held.dense;
}

const ops::QuantizedWeight* InferenceWeights::quantized(nn::ParamId id) const {
  const Held& held = held_[static_cast<size_t>(id)];
  return held.quantized ? &*held.quantized : nullptr;
}

Tensor InferenceWeights::read(const OpContext& ctx, nn::ParamId id) const {
  const Held& held = held_[static_cast<size_t>(id)];
  if (held.quantized) return ops::dequantize(ctx, *held.quantized);
  if (held.dense.dtype() == DType::kFloat32) return held.dense;
  Tensor wide = ctx.workspace(DType::kFloat32, held.dense.shape());
  ops::cast(ctx, held.dense, wide);
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
  return out;
}

}  // namespace ds::models
