// What stands behind a ds_comm.
#pragma once

#include "capi/handles.h"
#include "comm/communicator.h"

namespace ds::capi {

class CommObject : public HandleObject {
 public:
  explicit CommObject(std::shared_ptr<Communicator> value) : comm(std::move(value)) {}
  const std::shared_ptr<Communicator> comm;
};

template <>
struct HandleTraits<ds_comm> {
  using Object = CommObject;
  static constexpr HandleKind kind = HandleKind::kComm;
};

}  // namespace ds::capi
