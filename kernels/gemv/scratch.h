// The calling thread's buffer for the rows of x in the form that the inner loops read: it grows to
// the largest call and stays, so that a warm call allocates nothing.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace ds::kernels {

class GrowingBuffer {
 public:
  // At least `floats` floats at a multiple of 64 bytes; what an earlier call wrote may be gone.
  float* reserve(int64_t floats) {
    if (floats > size_) {
      const auto bytes = (static_cast<size_t>(floats) * sizeof(float) + 63) / 64 * 64;
      buffer_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      size_ = buffer_ ? floats : 0;
      if (!buffer_) throw std::bad_alloc();
    }
    return buffer_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> buffer_;
  int64_t size_ = 0;
};

}  // namespace ds::kernels
