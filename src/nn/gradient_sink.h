// Where backward leaves the gradients of parameters. Buffers that add up, buckets that are reduced
// between ranks, and gradients of tiles are sinks; no layer knows which one it has.
#pragma once

#include "nn/parameter.h"

namespace ds::nn {

// An fp32 buffer for one gradient. Where `add` is false it holds nothing of this step yet: an
// operator that overwrites it saves clearing and reading it.
struct GradientTarget {
  Tensor sum;
  bool add = true;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // For an operator that can add alone: the buffer, cleared where it has to be; no tensor when the
  // parameter is frozen.
  virtual Tensor gradient(ParamId id) = 0;
  // For an operator that can also overwrite, which it must where `add` is false.
  virtual GradientTarget gradient_target(ParamId id) = 0;
  // Backward has added the last contribution of this pass: the gradient may be reduced now.
  virtual void gradient_complete(ParamId id) = 0;

  // The same for a tile of a weight that is read in tiles (ParameterReader::tiling), of its shape;
  // what backward leaves in rows that the weight does not have must be zeros.
  virtual GradientTarget tile_gradient(ParamId, int64_t /*tile*/) { return {}; }
  virtual void tile_gradient_complete(ParamId, int64_t /*tile*/) {}
};

}  // namespace ds::nn
