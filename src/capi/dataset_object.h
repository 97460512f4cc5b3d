// What stands behind a ds_dataset.
#pragma once

#include "capi/handles.h"
#include "data/dataset.h"

namespace ds::capi {

class DatasetObject : public HandleObject {
 public:
  explicit DatasetObject(DatasetPtr value) : dataset(std::move(value)) {}
  const DatasetPtr dataset;
};

template <>
struct HandleTraits<ds_dataset> {
  using Object = DatasetObject;
  static constexpr HandleKind kind = HandleKind::kDataset;
};

}  // namespace ds::capi
