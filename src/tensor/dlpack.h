// DLPack in and out: tensors of other libraries without copying, in the struct of DLPack 1.x and in
// the one before.
#pragma once

#include "tensor/lent_memory.h"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace ds {

// A checked view of a foreign tensor. The struct stays its owner's until the lease is armed; from
// then on its deleter runs once, with the last view. Throws kInvalidArgument for what is malformed
// and kUnsupported for another major version, devices other than the CPU, and element types that
// the engine does not have.
LentTensor import_dlpack(DLManagedTensorVersioned* managed, void* stream);
LentTensor import_dlpack(DLManagedTensor* managed, void* stream);

// A struct that keeps the tensor's storage alive until its deleter runs.
DLManagedTensorVersioned* export_dlpack(const Tensor& tensor, void* stream);
// Refuses a read-only tensor: the older struct cannot say so.
DLManagedTensor* export_dlpack_legacy(const Tensor& tensor, void* stream);

}  // namespace ds
