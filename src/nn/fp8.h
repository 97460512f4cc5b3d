// Linear layers whose products are of 8-bit codes, with delayed scaling (Micikevicius et al.,
// arXiv:2209.05433; NVIDIA Transformer Engine): the inputs of a product are cast with scales that
// follow from the largest numbers of past steps, so that nobody waits for those of this one.
//
// A scale is the same throughout a step, and so are weights: a weight is cast once per step, or for
// every product where its codes are not kept, to the same codes.
#pragma once

#include <memory>
#include <vector>

#include "nn/parameter.h"
#include "ops/fp8.h"

namespace ds::nn {

struct Fp8Options {
  ops::Fp8Format gradients = ops::Fp8Format::kE5M2;
  int margin = 0;                  // scales are divided by 2 to this power
  int64_t history = 16;            // steps that are remembered
  bool most_recent = false;        // the last step alone decides
  bool fast_accumulation = false;  // of forward products: kernels::Fp8Matmul
  bool keep_weights = true;        // their codes, until they change
};

class Fp8Linears {
 public:
  // What a scale belongs to.
  enum class Role { kInput, kWeight, kGradient };
  static constexpr int64_t kRoles = 3;

  // The projections of blocks whose two sizes are multiples of 16.
  static bool takes(const Parameter& parameter) {
    return parameter.projection && parameter.shape[0] % 16 == 0 && parameter.shape[1] % 16 == 0;
  }

  Fp8Linears(const OpContext& ctx, const ParameterSet& parameters, const Fp8Options& options);

  const Fp8Options& options() const { return options_; }
  bool has(ParamId weight) const { return layer_of_[static_cast<size_t>(weight)] >= 0; }
  const std::vector<ParamId>& weights() const { return weights_; }

  struct Sides {
    bool codes = true;
    bool transposed = true;  // only where products want it
  };
  // The codes of a layer's input. Layers that read one tensor in turn share those of the first, and
  // its scale: queries, keys and values, or a gate and what it gates. (Not where an activation is
  // applied in the cast: such a source has one reader.)
  ops::Fp8Tensor input(const OpContext& ctx, ParamId weight, const ops::Fp8Source& x, Sides sides);
  // Of its output's gradient; `db` (fp32, may be empty) += the column sums of dy.
  ops::Fp8Tensor gradient(const OpContext& ctx, ParamId weight, const ops::Fp8Source& dy,
                          Sides sides, Tensor& db);
  // The codes of a weight, with these sides at least, cast from `w` where there are none of an
  // earlier call that are up to date.
  ops::Fp8Tensor weight(const OpContext& ctx, ParamId weight, const Tensor& w, Sides sides);
  void weights_changed();

  // After the last micro batch of a step. Before that, ranks agree on `amax()`.
  void finish_step(const OpContext& ctx);
  const Tensor& amax() const { return amax_; }  // fp32, of the open step
  // The open step is given up.
  void drop_step(const OpContext& ctx);

  // What a layer has to be saved, fp32 [kRoles, 2 + history] on the host: scale (0: none yet), amax
  // of the open step, history. A layer that was saved with another length keeps what
  // fits; no tensor: the layer begins anew.
  Tensor saved(ParamId weight, const std::shared_ptr<Device>& host) const;
  void restore(ParamId weight, const Tensor& saved);

 private:
  int64_t place(ParamId weight, Role role) const {
    return layer_of_[static_cast<size_t>(weight)] * kRoles + static_cast<int64_t>(role);
  }
  ops::Fp8Scaling scaling(int64_t place) const;
  Tensor inverse(int64_t place) const;
  ops::Fp8Format format(Role role) const;
  ops::Fp8Tensor cast(const OpContext& ctx, ParamId weight, Role role, const ops::Fp8Source& x,
                      Sides sides, Tensor& sums);

  const ParameterSet& parameters_;
  Fp8Options options_;
  std::vector<ParamId> weights_;       // that are multiplied so
  std::vector<int64_t> layer_of_;      // by parameter; -1: it is not
  Tensor scale_, amax_;                // [layers * kRoles]
  Tensor inverse_;                     // the same, kFp8InverseStep apart
  Tensor history_;                     // [layers * kRoles, history], newest first
  std::vector<bool> scaled_;           // by place: there is a scale, for sure
  std::vector<ops::Fp8Tensor> codes_;  // of weights, by layer
  std::vector<bool> current_;          // codes_ are of the weight as it is
  // The newest input. It is not kept alive, and its codes count as long as it lives.
  struct Input {
    std::weak_ptr<Storage> storage;
    const void* data = nullptr;
    Shape shape;
    ops::Fp8Tensor codes;
  };
  Input input_;
};

}  // namespace ds::nn
