// Memory of GPUs that somebody else allocated and lends.
#pragma once

#include <cstdint>

namespace ds {

// Waits until `stream`, a cudaStream_t of the lender (null: CUDA's legacy default stream), has come
// so far that the memory may be used. Throws kInvalidArgument when `data` is no memory of
// cuda:`index`, and kUnsupported where there is no such GPU.
void accept_cuda_memory(int index, const void* data, void* stream);

// Copies between such memory and the host or other memory of that GPU, and waits for it.
void copy_lent_cuda(int index, void* to, const void* from, int64_t bytes);

}  // namespace ds
