// What a load overwrites, kept until it has succeeded: so that one that fails leaves a trained
// engine as it was without having read the checkpoint beforehand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "io/buffer.h"

namespace ds {

struct TensorTarget;

class OverwrittenMemory {
 public:
  // For `targets`; nothing where one of them lies elsewhere than in the host's memory, or where
  // that has no room: at least half of `free_bytes` stays free (-1: not known, which is no reason).
  static std::optional<OverwrittenMemory> of(std::span<const TensorTarget> targets,
                                             int64_t free_bytes, ThreadPool* pool);

  // Before `memory` is overwritten, by one thread at a time. No more than the targets are.
  void keep(std::span<std::byte> memory);
  // Whether keeping would take longer than reading a second time, by the first bytes of memory, and
  // whether it has since this was asked last: some virtual machines get memory from their host more
  // slowly than bytes from a disk.
  bool comes_slowly() noexcept;
  bool was_slow() noexcept;
  // As it was before the first keep().
  void put_back() noexcept;

 private:
  struct Piece {
    std::span<std::byte> memory;
    size_t at;  // in copies_
  };
  OverwrittenMemory(int64_t bytes, ThreadPool* pool) : copies_(bytes), pool_(pool) {}
  void copy(std::byte* target, std::span<const std::byte> source) const;

  io::Buffer copies_;
  ThreadPool* pool_;
  size_t used_ = 0;
  size_t asked_ = 0;    // of used_, when was_slow() was asked
  double seconds_ = 0;  // for what came after
  std::vector<Piece> pieces_;
};

}  // namespace ds
