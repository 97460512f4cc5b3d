// Memory that a thread keeps for the products it takes part in.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/error.h"

namespace ds::kernels::gemm {

// Grows to the largest request; contents are lost when it grows. Large pages where the system has
// them, because packed blocks are read with strides and in turns.
class Scratch {
 public:
  template <class T>
  T* get(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes > bytes_) grow(bytes);
    return static_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };

  void grow(size_t bytes) {
    constexpr size_t kPage = size_t{2} << 20;
    const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
    memory_.reset();
    bytes_ = 0;
    memory_.reset(std::aligned_alloc(kPage, rounded));
    DS_CHECK(memory_, Code::kOutOfMemory, "no memory for ", rounded,
             " bytes of matrix product scratch");
    madvise(memory_.get(), rounded, MADV_HUGEPAGE);
    bytes_ = rounded;
  }

  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace ds::kernels::gemm
