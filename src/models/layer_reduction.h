// A student that begins with layers of its teacher (layer reduction of DeepSpeed-Compression).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"

namespace ds::models {

struct LayerReduction {
  std::string prefix;                   // of layers in parameters' names; empty: as they are
  std::vector<int64_t> teacher_layers;  // by layer of the student
  // Modules that are copied besides; unset: all that are no layers, as far as the teacher has them.
  std::optional<std::vector<std::string>> others;
};

// What makes the weights of `student`: those of the teacher's layers and modules, and its own for
// the rest, adapters among them. Nothing is read before the weights are. The teacher's own weights
// must lie in files, or be whole in memory. Throws kConfig where layers, names or shapes do not
// fit.
std::shared_ptr<const nn::WeightLoader> reduced_weights(Model& student,
                                                        std::shared_ptr<Model> teacher,
                                                        const LayerReduction& reduction);

}  // namespace ds::models
