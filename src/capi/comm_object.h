// What stands behind a ds_comm and a ds_work.
#pragma once

#include "capi/handles.h"
#include "comm/communicator.h"

namespace ds::capi {

class CommObject : public HandleObject {
 public:
  explicit CommObject(std::shared_ptr<Communicator> value) : comm(std::move(value)) {}
  const std::shared_ptr<Communicator> comm;
};

// An operation in flight. It keeps the group, and through the group's own record the tensors.
class WorkObject : public HandleObject {
 public:
  explicit WorkObject(std::shared_ptr<Communicator> group) : comm(std::move(group)) {}
  const std::shared_ptr<Communicator> comm;
  WorkPtr work;  // set before the handle is known to the caller
};

template <>
struct HandleTraits<ds_comm> {
  using Object = CommObject;
  static constexpr HandleKind kind = HandleKind::kComm;
};

template <>
struct HandleTraits<ds_work> {
  using Object = WorkObject;
  static constexpr HandleKind kind = HandleKind::kWork;
};

// A ds_reduce_op.
ReduceOp reduce_op_param(int32_t op);

}  // namespace ds::capi
