// Who says where the arrays of training state lie, by their roles.
#pragma once

#include <memory>
#include <string>

#include "kernels/optimizer/update.h"
#include "tensor/array_store.h"

namespace ds::optim {

enum class ArrayRole {
  kWeights,    // that the model computes with, and that are no masters of type fp32
  kMasters,    // fp32, also where they are the weights
  kLowHalves,  // of split masters
  kGradients,
  kStates,  // of the optimizer
  kScales,  // of its 8-bit states
};

// Whose account the memory of such an array is in.
constexpr MemoryTag memory_tag(ArrayRole role) {
  switch (role) {
    case ArrayRole::kGradients:
      return MemoryTag::kGradients;
    case ArrayRole::kStates:
    case ArrayRole::kScales:
      return MemoryTag::kOptimizer;
    default:
      return MemoryTag::kParameters;
  }
}

// Elements of the space that one of such an array stands for: a scale stands for a block of states.
constexpr int64_t elements_each(ArrayRole role) {
  return role == ArrayRole::kScales ? kernels::kStateBlock : 1;
}

struct ArrayRequest {
  ArrayRole role;
  std::string name;  // "masters", "exp_avg", ...; several arrays may have the same
  DType dtype;
  int64_t elements;
  int64_t trainable = -1;  // the first so many are updated; -1: all
};

class ArrayFactory {
 public:
  virtual ~ArrayFactory() = default;

  // Whether make() makes the arrays of a role. Others lie in memory, as all do without a factory.
  virtual bool makes(ArrayRole role) const = 0;
  // An array of zeros.
  virtual std::shared_ptr<ArrayStore> make(const ArrayRequest& request) = 0;
  // Elements that an update takes at a time, at most. Where it needs a whole tensor it takes more.
  virtual int64_t most_elements() const = 0;
};

}  // namespace ds::optim
