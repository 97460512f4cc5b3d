// Sources of weights that a model is made from: fresh numbers, and two sources one after the other.
// Those of files are with the files (weights.cc, saved_model.cc).
#pragma once

#include <memory>

#include "nn/weight_loader.h"

namespace ds::models {

// Numbers as each parameter's `init` says; same seed, same bits, whatever parts they are made in.
std::shared_ptr<const nn::WeightLoader> fresh_weights(uint64_t seed);

// Whether those are what a loader makes, adapters aside.
bool makes_fresh_weights(const nn::WeightLoader& loader);

// `first` for the parameters before `count`, and `rest` from there on; zeros where one is null.
std::shared_ptr<const nn::WeightLoader> joined_weights(
    std::shared_ptr<const nn::WeightLoader> first, nn::ParamId count,
    std::shared_ptr<const nn::WeightLoader> rest);

// One number from several, for fingerprints.
uint64_t mixed(uint64_t seed, uint64_t value);

}  // namespace ds::models
