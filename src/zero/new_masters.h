// Masters of a new layout while they are written for the first time, in the form that they will
// have: fp32 or rounded in one array, or split. So what makes them takes a piece of fp32 numbers at
// a time, and no fp32 copy of all exists beside smaller ones.
#pragma once

#include "nn/weight_loader.h"
#include "optim/optimizer.h"
#include "zero/flat_layout.h"

namespace ds::zero {

class NewMasters {
 public:
  // In one array: fp32, or rounded to its type.
  explicit NewMasters(optim::FlatTensor masters) : masters_(std::move(masters)) {}
  // Split.
  NewMasters(optim::FlatTensor model, optim::FlatTensor low_halves)
      : model_(std::move(model)), low_halves_(std::move(low_halves)) {}

  // The elements of a parameter that this rank is to have: all, where the array is not compact.
  FlatRange wanted(const FlatLayout& layout, nn::ParamId id) const;
  // Writes some of these, flat fp32, from the parameter's element `begin` on.
  void write(const OpContext& ctx, const FlatLayout& layout, nn::ParamId id, int64_t begin,
             const Tensor& values) const;
  // Writes all of these, of every parameter.
  void fill(const OpContext& ctx, const FlatLayout& layout, const nn::ParameterSet& parameters,
            const nn::WeightLoader& loader) const;

  const optim::FlatTensor& masters() const { return masters_; }  // empty when split
  const optim::FlatTensor& model() const { return model_; }
  const optim::FlatTensor& low_halves() const { return low_halves_; }

 private:
  bool compact() const { return masters_ ? masters_.compact : low_halves_.compact; }
  int64_t place(const optim::FlatTensor& array, const FlatLayout& layout, nn::ParamId id,
                int64_t begin) const;

  optim::FlatTensor masters_;
  optim::FlatTensor model_, low_halves_;
};

}  // namespace ds::zero
