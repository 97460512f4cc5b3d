// What a load overwrites, kept until it has succeeded: so that one that fails leaves a trained
// engine as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "io/prepared_buffer.h"

namespace ds {

struct TensorTarget;

class OverwrittenMemory {
 public:
  // Copies go to memory `at_hand`, whose contents do not count, then to so many bytes from the
  // system, which is asked for them from now on. Where it refuses, to what is at hand alone.
  OverwrittenMemory(std::vector<std::span<std::byte>> at_hand, int64_t from_system,
                    ThreadPool* pool);

  // Of what reading the target overwrites in the host's memory; nothing where it overwrites other
  // memory, or that is not known.
  static std::optional<int64_t> bytes_of(const TensorTarget& target);

  // Bytes that there is room for, and those of them whose memory is there already.
  int64_t room() const noexcept;
  int64_t ready() const noexcept;
  // Bytes of memory that the system gives in a second; 0: not known.
  double rate() const noexcept { return fresh_ ? fresh_->rate() : 0; }
  // Seconds that keep() has waited for memory.
  double waited() const noexcept { return waited_; }
  // No more than so many bytes will still be kept.
  void expect(int64_t bytes) noexcept;

  // Before `memory` is overwritten, by one thread at a time. Waits for memory from the system.
  void keep(std::span<std::byte> memory);
  // As it was before the first keep().
  void put_back() noexcept;

 private:
  struct Piece {
    std::span<std::byte> memory, copy;
  };
  void copy(std::span<std::byte> target, std::span<const std::byte> source) const;

  std::vector<std::span<std::byte>> at_hand_;  // what is left of it, the first ones last
  int64_t at_hand_bytes_ = 0;
  std::unique_ptr<io::PreparedBuffer> fresh_;
  int64_t fresh_used_ = 0;
  double waited_ = 0;
  ThreadPool* pool_;
  std::vector<Piece> pieces_;
};

}  // namespace ds
