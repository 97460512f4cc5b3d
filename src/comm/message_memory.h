// Host memory for the few numbers by which ranks come to know something together.
#pragma once

#include <memory>

#include "base/error.h"
#include "comm/communicator.h"
#include "tensor/transfer.h"

namespace ds::comm {

// In front of a collective that every rank is about to call. A rank that cannot have the memory
// ends the group before it throws: the others would wait for it until their deadline.
inline Tensor message_memory(Communicator& comm, const std::shared_ptr<Device>& device, DType dtype,
                             const Shape& shape, MemoryTag tag) {
  try {
    return Tensor::empty(host_memory_of(device), dtype, shape, tag);
  } catch (const Error& error) {
    if (comm.size() > 1) comm.abort(error.message());
    throw;
  }
}

}  // namespace ds::comm
