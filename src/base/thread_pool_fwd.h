// For headers that only name the pool: those of kernels, which sources for GPUs include, too.
#pragma once

namespace ds {

class ThreadPool;

}  // namespace ds
