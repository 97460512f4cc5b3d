// Where weights come from that no memory holds yet: fresh numbers, or files. A source makes any
// part of any parameter, so that a rank makes only what it is to hold.
#pragma once

#include <cstdint>

#include "nn/parameter.h"
#include "ops/context.h"

namespace ds::zero {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Writes the elements of a parameter from `begin` on to `out`, flat fp32.
  virtual void fill(const OpContext& ctx, nn::ParamId id, const nn::Parameter& parameter,
                    int64_t begin, Tensor& out) const = 0;
  // Sources of several ranks that make the same values have the same one; others differ.
  virtual uint64_t fingerprint() const = 0;
};

}  // namespace ds::zero
