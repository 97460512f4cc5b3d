// Loading into an engine that has something to lose: nothing is overwritten for good before all
// bytes have been checked. What the first ones overwrite is kept. The last ones are only checked,
// and read a second time when nothing else is left: as many as there is no room for, or as reading
// twice is sooner done with than having memory from the system.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/reader.h"
#include "engine/load_parts.h"
#include "engine/overwritten_memory.h"

namespace ds {

// What one part is chosen by. Bytes of targets that are open: in files, and in the memory that they
// overwrite. Rates in bytes of these in a second, 0: not known yet.
struct LoadProspect {
  int64_t file_bytes = 0, memory_bytes = 0;
  int64_t ready = 0, room = 0;  // of OverwrittenMemory
  double disk_rate = 0, memory_rate = 0;
};
// Bytes of the open ones, in files, that had better be checked than wait for memory.
int64_t bytes_to_check(const LoadProspect& prospect);

class LoadProtection {
 public:
  // Whether all that they overwrite can be kept if there is room.
  static bool protects(std::span<const TensorTarget> targets);
  // Of memory at hand the contents do not count, and of what is `free` at least half stays so (-1:
  // not known, which is no reason).
  LoadProtection(std::span<const TensorTarget> targets, std::vector<std::span<std::byte>> at_hand,
                 int64_t free, ThreadPool* pool);

  // Reads or checks the next part of those that are open; not before the caller is asked.
  void next(const CheckpointReader& reader, LoadParts& parts);
  void put_back() noexcept { kept_.put_back(); }

 private:
  size_t targets_to_check(std::span<const TensorTarget> open) const;

  OverwrittenMemory kept_;
  double seconds_ = 0;  // of reading and checking
  int64_t bytes_ = 0;
};

}  // namespace ds
