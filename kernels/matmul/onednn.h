// The library calls behind matmul.cc, one tile each, single-threaded.
#pragma once

#include "kernels/matmul/matmul.h"

namespace ds::kernels::onednn {

// While it lives, OpenMP code called from this thread uses this thread alone. OpenMP keeps that
// number per thread, and the destructor restores it: the embedder's setting does not change.
class SingleThreaded {
 public:
  SingleThreaded();
  ~SingleThreaded();
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int previous_;
};

// fp32 tile without bias: C = A B + (accumulate ? C : 0).
void multiply_float(const Matmul& tile);

// bf16 tile with bias and accumulation. False, with nothing written, when the library has no fast
// code for it on this CPU. Creating the library's primitive per call costs some 10 microseconds,
// because the library caches primitives by shape; scratch is one buffer per thread that grows to
// the largest tile's need.
bool multiply_bfloat16(const Matmul& tile);

bool has_bfloat16();

}  // namespace ds::kernels::onednn
