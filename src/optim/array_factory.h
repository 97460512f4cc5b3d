// Who says where the arrays of training state lie, by their roles.
#pragma once

#include <memory>
#include <string>

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

struct ArrayRequest {
  ArrayRole role;
  std::string name;  // "masters", "exp_avg", ...; several arrays may have the same
  DType dtype;
  int64_t elements;
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
