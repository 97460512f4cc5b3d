// The control memory of a group of one host: for each rank a step counter that others wait for, a
// note of what it does, its records, and slots for staging.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/record.h"
#include "comm/shm/segment.h"

namespace ds::comm {

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

inline constexpr size_t kSlotBytes = size_t{256} << 10;  // of two for each rank
inline constexpr size_t kPipeBytes = size_t{64} << 10;   // of one for each ordered pair

struct ControlHeader {
  uint64_t nonce;
  enum Raised : uint32_t { kNo, kWriting, kYes };
  std::atomic<uint32_t> raised;
  int32_t raised_code;
  int32_t raised_by;
  char raised_text[2048];
};

// What a rank does, read by others while it changes: a torn record is harmless.
struct Note {
  std::atomic<uint32_t> busy;     // inside the operation, or after it
  std::atomic<int64_t> since_ms;  // steady clock of the host
  std::array<std::atomic<uint64_t>, sizeof(Record) / sizeof(uint64_t)> record;
};
static_assert(sizeof(Record) % sizeof(uint64_t) == 0);

struct alignas(128) RankControl {
  std::atomic<uint32_t> step;               // the waits that this rank has released
  std::atomic<uint32_t> sleepers;           // who sleeps on `step`
  alignas(128) std::atomic<uint32_t> bell;  // rung for the streams of this rank
  std::atomic<uint32_t> bell_sleepers;
  alignas(128) std::atomic<uint32_t> left;  // this rank's communicator is gone
  std::atomic<int32_t> process;
  Note note;
  alignas(128) Record records[2];
  alignas(64) std::byte payloads[2][kMaxPayload];
};

// A byte stream from one rank to another: `written` belongs to the sender, `read` to the receiver.
struct alignas(128) Pipe {
  std::atomic<uint64_t> written;
  alignas(128) std::atomic<uint64_t> read;
  alignas(128) std::byte data[kPipeBytes];
};

// Offsets in the segment.
struct ControlLayout {
  explicit ControlLayout(int size)
      : ranks(4096),
        slots(round(ranks + sizeof(RankControl) * static_cast<size_t>(size))),
        pipes(slots + 2 * kSlotBytes * static_cast<size_t>(size)),
        bytes(pipes + sizeof(Pipe) * static_cast<size_t>(size) * static_cast<size_t>(size)) {}
  static size_t round(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  size_t ranks, slots, pipes, bytes;
};
static_assert(sizeof(ControlHeader) <= 4096);

// The parts of the segment of a group of so many ranks.
class ControlMemory {
 public:
  ControlMemory(std::shared_ptr<Segment> segment, int size)
      : layout_(size), size_(static_cast<size_t>(size)), segment_(std::move(segment)) {}

  ControlHeader& header() const { return *reinterpret_cast<ControlHeader*>(segment_->data()); }
  RankControl& of(int rank) const {
    return reinterpret_cast<RankControl*>(segment_->data() + layout_.ranks)[rank];
  }
  // Two in turn.
  std::byte* slot(int rank, uint32_t round) const {
    return segment_->data() + layout_.slots +
           kSlotBytes * (static_cast<size_t>(rank) * 2 + (round & 1));
  }
  Pipe& pipe(int from, int to) const {
    return reinterpret_cast<Pipe*>(
        segment_->data() +
        layout_.pipes)[static_cast<size_t>(from) * size_ + static_cast<size_t>(to)];
  }

 private:
  const ControlLayout layout_;
  const size_t size_;
  const std::shared_ptr<Segment> segment_;
};

}  // namespace ds::comm
