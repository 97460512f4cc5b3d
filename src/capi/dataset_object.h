// What stands behind a ds_dataset.
#pragma once

#include "capi/handles.h"
#include "data/gpt_dataset.h"

namespace ds::capi {

class DatasetObject : public HandleObject {
 public:
  explicit DatasetObject(std::shared_ptr<const GptDataset> value) : dataset(std::move(value)) {}
  const std::shared_ptr<const GptDataset> dataset;
};

template <>
struct HandleTraits<ds_dataset> {
  using Object = DatasetObject;
  static constexpr HandleKind kind = HandleKind::kDataset;
};

}  // namespace ds::capi
