// Cuts a block of scratch into aligned arrays; with a null base it only counts the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds::kernels {

class Scratch {
 public:
  static constexpr int64_t kAlignment = 64;

  explicit Scratch(std::byte* base) : base_(base) {}

  template <class U>
  U* take(int64_t count) {
    const int64_t at = bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(U)) + kAlignment - 1) / kAlignment * kAlignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<U*>(base_ + at);
  }
  int64_t bytes() const { return bytes_; }

  // The first aligned address at or after `from`.
  static std::byte* aligned(float* from) {
    const auto address = reinterpret_cast<uintptr_t>(from);
    return reinterpret_cast<std::byte*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
};

}  // namespace ds::kernels
