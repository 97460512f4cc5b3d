// Where backward adds gradients that no reducer takes: right to the gradients over the flat space,
// to fp32 sums of the micro batch where those have another type, or to parts of a store that are
// mapped meanwhile.
#pragma once

#include <vector>

#include "nn/gradient_sink.h"
#include "zero/gradient_marks.h"
#include "zero/held_gradients.h"
#include "zero/state_arrays.h"

namespace ds::zero {

class GradientSums {
 public:
  GradientSums(StateArrays& arrays, GradientMarks& marks) : arrays_(arrays), marks_(marks) {}

  // The flat gradients have this type from now on. `mapped`: they do not lie in memory.
  void begin(const OpContext& ctx, DType type, bool mapped);
  DType type() const { return type_; }
  // What is open of the micro batch goes.
  void drop();

  // Of a parameter, in the gradients that are held whole where there are some.
  nn::GradientTarget target(nn::ParamId id, const HeldGradients* held);
  void complete(nn::ParamId id, const HeldGradients* held);
  // The backward is over. One that leaves a parameter's gradient incomplete has added to it all the
  // same.
  void close_mapped();

 private:
  nn::GradientTarget mapped_target(nn::ParamId id);
  void add(nn::ParamId id, const Tensor& sum, const HeldGradients* held);

  StateArrays& arrays_;
  GradientMarks& marks_;
  OpContext ctx_;
  DType type_ = DType::kFloat32;
  std::vector<Tensor> open_;        // fp32, of this micro batch, by parameter
  std::vector<ArrayLease> mapped_;  // by parameter
};

}  // namespace ds::zero
