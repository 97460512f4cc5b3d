// Memory of GPUs that somebody else allocated and lends.
#pragma once

#include <cstdint>

namespace ds {

// Throws kInvalidArgument when `data` is no memory of cuda:`index`, and kUnsupported where there is
// no such GPU.
void accept_cuda_memory(int index, const void* data);
// Returns when the work on a cudaStream_t of the lender (null: CUDA's legacy stream) is over.
void wait_for_lender(int index, void* stream);

// Copies between such memory and the host or other memory of that GPU, and waits for it.
void copy_lent_cuda(int index, void* to, const void* from, int64_t bytes);

}  // namespace ds
