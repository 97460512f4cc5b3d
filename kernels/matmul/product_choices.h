// Which of the algorithms that cuBLASLt proposes for a form of matrix product is taken, where they
// are timed rather than taken as they come (GpuPolicy::time_products).
//
// Choices belong to a GPU of the process. Clocks differ from run to run, and so may choices and the
// bits of results: ranks that are to have the same bits take over the choices of one of them. In a
// build without CUDA these functions do nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

// Between the two, the first product of a form times what is proposed for it. A form that comes
// first at another time, or while the stream is recorded, takes the first proposal.
void open_timing(const GpuStream& on);
void close_timing(const GpuStream& on);

// How many forms have a choice that was timed, here or elsewhere.
int64_t timed_products(const GpuStream& on);
// Gives up what was timed.
void forget_timed_products(const GpuStream& on);

// What was timed on the GPU, for other processes with such a GPU and the same cuBLASLt.
std::vector<std::byte> export_timed_products(const GpuStream& on);
// Takes choices over, all or none: returns why none, or "". The bytes may be anything. The GPU is
// current, here and above.
std::string import_timed_products(std::span<const std::byte> bytes, const GpuStream& on);

}  // namespace ds::kernels
