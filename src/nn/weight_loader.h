// Where weights come from that no memory holds yet: fresh numbers, or files. A loader makes any
// part of any parameter, so that a rank makes only what it is to hold.
#pragma once

#include <cstdint>
#include <functional>

#include "nn/parameter.h"
#include "ops/context.h"

namespace ds::nn {

class WeightLoader {
 public:
  virtual ~WeightLoader() = default;
  // Writes the elements of a parameter from `begin` on to `out`, flat fp32 in host memory; `ctx`
  // is one of the host.
  virtual void fill(const OpContext& ctx, ParamId id, const Parameter& parameter, int64_t begin,
                    Tensor& out) const = 0;
  // The same where what follows is not wanted, as of a rank that holds slices: files are read no
  // further.
  virtual void fill_slice(const OpContext& ctx, ParamId id, const Parameter& parameter,
                          int64_t begin, Tensor& out) const {
    fill(ctx, id, parameter, begin, out);
  }
  // Loaders of several ranks that make the same values have the same one; others differ.
  virtual uint64_t fingerprint() const = 0;
};

// The same with `out` in the memory of the context's device.
void fill_weights(const WeightLoader& loader, const OpContext& ctx, ParamId id,
                  const Parameter& parameter, int64_t begin, Tensor& out, bool slice = false);

// A whole parameter in parts of `part` elements: take(part, begin) gets each, flat fp32 in the
// memory of the context's device.
void load_in_parts(const WeightLoader& loader, const OpContext& ctx, ParamId id,
                   const Parameter& parameter, int64_t part,
                   const std::function<void(const Tensor& values, int64_t begin)>& take);

}  // namespace ds::nn
