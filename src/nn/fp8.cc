#include "nn/fp8.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::nn {

Fp8Linears::Fp8Linears(const OpContext& ctx, const ParameterSet& parameters,
                       const Fp8Options& options)
    : parameters_(parameters), options_(options) {
  layer_of_.assign(static_cast<size_t>(parameters.size()), -1);
  for (ParamId id = 0; id < parameters.size(); ++id) {
    if (!takes(parameters[id])) continue;
    layer_of_[static_cast<size_t>(id)] = static_cast<int64_t>(weights_.size());
    weights_.push_back(id);
  }
  const auto layers = static_cast<int64_t>(weights_.size());
  const auto numbers = [&](const Shape& shape) {
    return Tensor::zeros(ctx.device, DType::kFloat32, shape, MemoryTag::kParameters);
  };
  scale_ = numbers({layers * kRoles});
  inverse_ = numbers({layers * kRoles, kernels::kFp8InverseStep});
  amax_ = numbers({layers * kRoles});
  history_ = numbers({layers * kRoles, options.history});
  scaled_.assign(static_cast<size_t>(layers * kRoles), false);
  codes_.resize(weights_.size());
  current_.assign(weights_.size(), false);
}

ops::Fp8Scaling Fp8Linears::scaling(int64_t place) const {
  return {scale_.slice(0, place, place + 1), inverse(place), amax_.slice(0, place, place + 1)};
}

Tensor Fp8Linears::inverse(int64_t place) const {
  return inverse_.slice(0, place, place + 1).slice(1, 0, 1);
}

ops::Fp8Format Fp8Linears::format(Role role) const {
  return role == Role::kGradient ? options_.gradients : ops::Fp8Format::kE4M3;
}

ops::Fp8Tensor Fp8Linears::cast(const OpContext& ctx, ParamId weight, Role role,
                                const ops::Fp8Source& source, Sides sides, Tensor& sums) {
  const int64_t at = place(weight, role), columns = source.x.size(-1),
                rows = source.x.elements() / columns;
  ops::Fp8Scaling own = scaling(at);
  ops::Fp8Tensor out;
  out.format = format(role);
  // No numbers say nothing. Where other ranks had some in an earlier step, there is a scale
  // already.
  if (!scaled_[static_cast<size_t>(at)] && rows > 0) {
    ops::fp8_first_scale(ctx, ops::fp8_made(ctx, source), out.format, options_.margin, own);
    scaled_[static_cast<size_t>(at)] = true;
  }
  const MemoryTag tag = role == Role::kWeight ? MemoryTag::kParameters : MemoryTag::kActivations;
  const bool wants = ops::fp8_wants_transposed(ctx);
  if (sides.codes || (!wants && sides.transposed)) {
    out.codes = Tensor::empty(ctx.device, DType::kUInt8, {rows, columns}, tag);
  }
  if (wants && sides.transposed) {
    out.transposed = Tensor::empty(ctx.device, DType::kUInt8, {columns, rows}, tag);
  }
  ops::fp8_cast(ctx, source, own, out, sums);
  return out;
}

ops::Fp8Tensor Fp8Linears::input(const OpContext& ctx, ParamId weight, const ops::Fp8Source& source,
                                 Sides sides) {
  const Tensor& x = source.x;
  const bool shared = !source.activation && x.contiguous();
  const bool same = shared && input_.storage.lock() == x.storage() && input_.data == x.raw() &&
                    input_.shape == x.shape();
  const bool has = !sides.transposed || input_.codes.transposed || !ops::fp8_wants_transposed(ctx);
  if (same && has) return input_.codes;
  Tensor no_sums;
  input_ = {};
  const ops::Fp8Tensor codes = cast(ctx, weight, Role::kInput, source, sides, no_sums);
  if (shared) input_ = {x.storage(), x.raw(), x.shape(), codes};
  return codes;
}

ops::Fp8Tensor Fp8Linears::gradient(const OpContext& ctx, ParamId weight, const ops::Fp8Source& dy,
                                    Sides sides, Tensor& db) {
  return cast(ctx, weight, Role::kGradient, dy, sides, db);
}

ops::Fp8Tensor Fp8Linears::weight(const OpContext& ctx, ParamId weight, const Tensor& w,
                                  Sides sides) {
  const auto layer = static_cast<size_t>(layer_of_[static_cast<size_t>(weight)]);
  Tensor no_sums;
  if (!options_.keep_weights) return cast(ctx, weight, Role::kWeight, w, sides, no_sums);
  if (!current_[layer]) {
    codes_[layer] = {};  // its memory serves again
    codes_[layer] = cast(ctx, weight, Role::kWeight, w, {}, no_sums);
    current_[layer] = true;
  }
  return codes_[layer];
}

void Fp8Linears::weights_changed() { current_.assign(weights_.size(), false); }

void Fp8Linears::finish_step(const OpContext& ctx) {
  if (weights_.empty()) return;
  const ops::Fp8Format formats[] = {format(Role::kInput), format(Role::kWeight),
                                    format(Role::kGradient)};
  ops::fp8_update(
      ctx, {formats, options_.most_recent, options_.margin, amax_, history_, scale_, inverse_});
  weights_changed();  // their scales did
  input_ = {};
}

void Fp8Linears::drop_step(const OpContext& ctx) {
  ops::fill(ctx, 0.0f, amax_);
  input_ = {};
}

Tensor Fp8Linears::saved(ParamId weight, const std::shared_ptr<Device>& host) const {
  const int64_t first = place(weight, Role::kInput), length = options_.history;
  const Tensor out = Tensor::empty(host, DType::kFloat32, {kRoles, 2 + length}, MemoryTag::kOther);
  for (int64_t role = 0; role < kRoles; ++role) {
    const int64_t at = first + role;
    float* const row = out.data<float>() + role * (2 + length);
    copy_to_host(scale_.slice(0, at, at + 1), row);
    copy_to_host(amax_.slice(0, at, at + 1), row + 1);
    copy_to_host(history_.slice(0, at, at + 1), row + 2);
  }
  return out;
}

void Fp8Linears::restore(ParamId weight, const Tensor& saved) {
  const int64_t length = options_.history;
  for (int64_t role = 0; role < kRoles; ++role) {
    const int64_t at = place(weight, static_cast<Role>(role));
    float scale = 0, inverted = 0, amax = 0;
    std::vector<float> history(static_cast<size_t>(length), 0.0f);
    if (saved) {
      const int64_t columns = saved.size(1);
      const std::span row(saved.data<float>() + role * columns, static_cast<size_t>(columns));
      int exponent = 0;
      scale = row[0];
      amax = row[1];
      const bool sound =
          std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v) && v >= 0; });
      DS_CHECK(sound && (scale == 0 || std::frexp(scale, &exponent) == 0.5f), Code::kCorrupt,
               "the checkpoint's fp8 scaling of ", parameters_[weight].name,
               " holds numbers that no training makes");
      inverted = scale > 0 ? 1 / scale : 0;
      std::copy_n(row.begin() + 2, std::min(columns - 2, length), history.begin());
    }
    copy_from_host(&scale, scale_.slice(0, at, at + 1));
    copy_from_host(&inverted, inverse(at));
    copy_from_host(&amax, amax_.slice(0, at, at + 1));
    copy_from_host(history.data(), history_.slice(0, at, at + 1));
    scaled_[static_cast<size_t>(at)] = scale > 0;
  }
  weights_changed();
  input_ = {};
}

}  // namespace ds::nn
