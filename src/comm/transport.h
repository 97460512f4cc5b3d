// What carries a group's bytes. The group above it (comm/group.h) orders operations, compares what
// ranks call and plans who needs what; a transport exchanges records and moves and reduces blocks.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/record.h"

namespace ds::comm {

using Clock = std::chrono::steady_clock;

// When an operation has to be over. Time in which this process itself did nothing does not count:
// it was stopped, perhaps with the whole job, or was busy with its own part.
struct Deadline {
  Clock::time_point at{};
  Clock::time_point looked{};  // at the clock, last

  static Deadline in(std::chrono::milliseconds allowed) {
    const auto now = Clock::now();
    return {now + allowed, now};
  }
  // Waits call this after each short sleep, wherever the process was stopped since the last look.
  void look() {
    constexpr std::chrono::milliseconds kStopped{1000};  // sleeps are half as long at most
    const auto now = Clock::now();
    if (now - looked > kStopped) at += now - looked;
    looked = now;
  }
};

class Transport;

// What a wait is for and how long it may last.
struct Watch {
  const Record& record;
  Deadline& deadline;
  std::chrono::milliseconds allowed;
  std::chrono::milliseconds grace{0};  // beyond the deadline
  Transport* beside = nullptr;         // another of this rank, whose peers are heard meanwhile

  void slept() const { deadline.look(); }
  Clock::time_point end() const { return deadline.at + grace; }
  std::string what() const;  // operation 12, all_reduce(sum) of 10 float32 "layer.weight"
};

// Each rank sends a block to each: `send[j]` of the input goes to rank j, and `receive[i]` of the
// output comes from rank i. Blocks of no bytes are left out. `largest`, `same_to_all` and the flags
// by rank are the same on every rank.
struct Movement {
  struct Block {
    int64_t offset = 0;  // bytes from the start of input or output
    int64_t bytes = 0;
  };
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::vector<Block> send;     // by receiver
  std::vector<Block> receive;  // by sender
  // Where the own blocks lie in the peers' buffers: in the input of each sender and in the output
  // of each receiver. Empty when only the peers know.
  std::vector<int64_t> source_offset;
  std::vector<int64_t> target_offset;
  std::vector<char> sends;     // by rank: has something for others
  std::vector<char> receives;  // by rank: gets something
  bool same_to_all = false;    // a rank sends one block to everybody
  int64_t largest = 0;         // bytes of the largest block of any pair
};

struct Reduction {
  enum class Result { kEverywhere, kPieces, kRoot };
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // kAverage divides by `divisor`
  int divisor = 1;
  Result result = Result::kEverywhere;
  int root = -1;
  const std::byte* input = nullptr;  // null on ranks that have joined
  std::byte* output = nullptr;
  int64_t count = 0;              // elements of the whole, or of a piece for kPieces
  std::vector<char> contributes;  // by rank: has not joined
};

// All ranks give a short text and get everybody's, by rank.
using GatherTexts = std::function<std::vector<std::string>(const std::string&)>;

// Methods run on one thread at a time unless they say otherwise. They throw Error(kComm) when a
// deadline passes or a peer is lost, naming it, and what raise() was called with, here or on a
// peer.
class Transport {
 public:
  Transport(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  virtual const char* name() const noexcept = 0;

  // Publishes a record with its payload and waits for those of all. They stay until the exchange
  // after the next one begins.
  virtual void exchange(const Record& mine, std::span<const std::byte> payload,
                        const Watch& watch) = 0;
  virtual const Record& record(int rank) const = 0;
  virtual const std::byte* payload(int rank) const = 0;
  // Where peers find this memory.
  virtual Place locate(const void*, int64_t) const { return {}; }

  // On return outputs are complete and nobody reads the input of this rank.
  virtual void move(const Movement& movement, const Watch& watch) = 0;
  virtual void reduce(const Reduction& reduction, const Watch& watch) = 0;

  // Byte streams between pairs, for messages. They never wait and return how much they took.
  virtual int64_t write_some(int peer, const std::byte* data, int64_t bytes) = 0;
  virtual int64_t read_some(int peer, std::byte* data, int64_t bytes) = 0;
  // Waits a little for any stream to get ready, or for wake(). `peers` are those awaited.
  virtual void wait_for_streams(std::span<const int> peers, const Watch& watch) = 0;
  virtual void wake() noexcept = 0;  // any thread
  // While this rank waits for others (`awaited`) elsewhere: peers that ask whom it waits for are
  // answered, and what they raised is thrown.
  virtual void hear_peers(std::span<const int>) {}

  // What this rank does now (`busy`) or did last, for the messages of others.
  virtual void announce(const Record& record, bool busy) noexcept = 0;

  virtual Tensor shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                               const Shape& shape, MemoryTag tag, const GatherTexts& gather) = 0;
  // The transport of a new group. `members` are ranks of this one in the new order; empty for ranks
  // without a group, which take part in the gathers alone.
  virtual std::unique_ptr<Transport> split(const std::vector<int>& members,
                                           const GatherTexts& gather, const Watch& watch) = 0;

  // Makes every wait of every rank of the group throw this from now on. Any thread; never waits.
  virtual void raise(Code code, std::string_view text) noexcept = 0;
  // What was raised by any rank, if anything; throws it. Any thread.
  virtual void check_raised() const = 0;

  // What was really sent to other hosts so far, for transports that do not send pairwise.
  virtual std::optional<Traffic> sent_across() const { return std::nullopt; }

 private:
  const int rank_;
  const int size_;
};

// The elements [begin, end) that rank `part` of `parts` works on: nearly equal parts that begin at
// multiples of a cache line.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
Range part_of(int64_t count, int part, int parts, int64_t element_size);

// Reduces in rank order. `inputs[i]` holds rank i's elements, or null for ranks that contribute
// nothing.
void combine_inputs(const Reduction& reduction, const std::vector<const std::byte*>& inputs,
                    const std::vector<std::byte*>& outputs, int64_t count, bool stream);

// Larger targets are written past the cache.
inline constexpr int64_t kStreamBytes = int64_t{8} << 20;
void copy_bytes(void* to, const void* from, int64_t bytes, bool stream);

}  // namespace ds::comm
