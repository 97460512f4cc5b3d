// Where what an update works on rests between updates, when that is not simply the memory that its
// kernels run on: the masters, gradients and states of an offloaded optimizer, or a share of them.
// An update goes through them by sub-groups, in the same order every time, and hands each to the
// store before and after. The store in host memory (zero/host_store.h) provides room for the
// weights in the compute type and sends them to the GPU. Arrays that are not in memory at all are
// no part of this: whoever works with them maps them (tensor/array_store.h), and a store gets what
// was mapped.
#pragma once

#include <cstdint>

#include "ops/optimizer_update.h"

namespace ds::optim {

// Elements [begin, end) of the owned space, which begin at `flat` in the flat one.
struct SubGroup {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t flat = 0;
  bool on_device = false;  // its arrays lie in the memory of the GPU, which updates it
  int64_t elements() const { return end - begin; }
};

class OffloadStore {
 public:
  virtual ~OffloadStore() = default;

  // Elements that an update takes at a time, at most. Where it needs a whole tensor it takes more.
  virtual int64_t sub_group_elements() const = 0;
  // `part` has the arrays of the sub-group where they rest, or as they were mapped; those that the
  // update's kernels cannot use there are replaced by others that hold the same. `weights`: the
  // update writes masters, and the model's copy if there is one.
  virtual void fetch(const SubGroup& group, ops::UpdateTensors& part, bool weights) = 0;
  // Of the same `part`, updated: takes what was written back. It may still be on its way on
  // return.
  virtual void flush(const SubGroup& group, const ops::UpdateTensors& part, bool weights) = 0;
};

}  // namespace ds::optim
