// What stands behind a ds_io.
#pragma once

#include "capi/handles.h"
#include "io/session.h"

namespace ds::capi {

class IoObject : public HandleObject {
 public:
  IoObject(const io::SessionOptions& options, int64_t given_block_size)
      : block_size(given_block_size), session(options) {}
  const int64_t block_size;  // as it was given
  io::Session session;
};

template <>
struct HandleTraits<ds_io> {
  using Object = IoObject;
  static constexpr HandleKind kind = HandleKind::kIo;
};

}  // namespace ds::capi
