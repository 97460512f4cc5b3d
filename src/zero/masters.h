// The fp32 masters by parameter, whatever holds them: whole or what this rank owns, in place,
// split or as the weights, or still with the loader that will make them.
#pragma once

#include <memory>

#include "nn/model_weights.h"
#include "zero/state_arrays.h"
#include "zero/weights.h"

namespace ds::zero {

class Masters {
 public:
  // They are those of the arrays, else zero or, with a loader, do not exist before make or
  // somebody's spreading makes them.
  Masters(StateArrays& arrays, Weights& weights, std::shared_ptr<const nn::WeightLoader> loader);

  // Null once they exist. Everything but read, sharing and offloading needs that.
  const std::shared_ptr<const nn::WeightLoader>& loader() const { return loader_; }
  void make(const OpContext& ctx);
  // Somebody else has made them.
  void drop_loader() { loader_.reset(); }

  // Over the flat space, and a whole one where they lie whole in memory, as a view; not while they
  // are split.
  const Tensor& all() const { return arrays_.flat.masters.memory(); }
  Tensor view(nn::ParamId id) const { return arrays_.view(all(), id); }

  // fp32, a view or, while they are split, shared or not in memory, a copy (every rank; of an
  // expert that other ranks hold, too).
  Tensor read(const OpContext& ctx, nn::ParamId id) const;
  // The same in parts of so many elements, flat; false, and nothing is done, where read() needs no
  // memory for it, or the ranks read it together.
  bool read_in_parts(const OpContext& ctx, nn::ParamId id, int64_t part,
                     const nn::ModelWeights::PartTaker& take) const;
  // Sets one (fp32, packed) and everything that follows from it; every rank, with one value.
  void write(const OpContext& ctx, nn::ParamId id, const Tensor& value);
  // Of what this rank owns, flat fp32: a view or, while they are split or not in memory, a copy.
  Tensor read_owned(const OpContext& ctx, nn::ParamId id) const;
  // The elements of that from `at` on.
  void read_owned(const OpContext& ctx, nn::ParamId id, int64_t at, Tensor& out) const;
  // Sets elements [at, at + value's) of that, fp32; Weights::follow_masters or follow_owned_master
  // must come after it.
  void write_owned(const OpContext& ctx, nn::ParamId id, int64_t at, const Tensor& value);

 private:
  StateArrays& arrays_;
  Weights& weights_;
  std::shared_ptr<const nn::WeightLoader> loader_;
};

}  // namespace ds::zero
