// A transport over byte streams between every two ranks, whatever carries them. Collectives are
// pairwise exchanges, so that sums are made in rank order and no rank has to wait for a chain of
// others.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "comm/waiting_ranks.h"

namespace ds::comm {

enum Channel : uint32_t {
  kData,     // records and blocks of collectives, in their order
  kStream,   // messages
  kControl,  // failures, and who waits for whom
};
inline constexpr int kChannels = 3;

class StreamTransport : public Transport {
 public:
  StreamTransport(int rank, int size);

  void exchange(const Record& mine, std::span<const std::byte> payload,
                const Watch& watch) override;
  const Record& record(int rank) const override;
  const std::byte* payload(int rank) const override;
  void move(const Movement& movement, const Watch& watch) override;
  void reduce(const Reduction& reduction, const Watch& watch) override;
  int64_t write_some(int peer, const std::byte* data, int64_t bytes) override;
  int64_t read_some(int peer, std::byte* data, int64_t bytes) override;
  void wait_for_streams(std::span<const int> peers, const Watch& watch) override;
  void hear_peers(std::span<const int> awaited) override;
  void announce(const Record&, bool) noexcept override {}
  Tensor shared_tensor(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                       MemoryTag tag, const GatherTexts& gather) override;
  void raise(Code code, std::string_view text) noexcept override;
  void check_raised() const override;

 protected:
  // What can be done at once; 0: nothing now, -1: the stream has ended. A channel is used by one
  // thread at a time, different ones by different threads.
  virtual int64_t send_some(Channel channel, int peer, const void* data, int64_t bytes) = 0;
  virtual int64_t receive_some(Channel channel, int peer, void* data, int64_t bytes) = 0;
  // Waits until one of these streams may be ready, a failure arrives or wake() is called, but not
  // long and not past the deadline. False: none is ready.
  virtual bool wait_for_links(std::span<const int> readable, std::span<const int> writable,
                              Channel channel, Clock::time_point deadline) = 0;
  bool listens_to(int peer) const {  // for failures
    return peer != rank() && !control_closed_[static_cast<size_t>(peer)];
  }
  bool raised() const noexcept { return raised_; }

 private:
  // Sends and receives at once, at most one of each for a peer, until all are complete.
  struct Part {
    int peer;
    std::byte* data;  // only read where it is sent
    int64_t bytes;
    int64_t done = 0;
  };
  struct Heard {
    Record records[2];
    std::vector<std::byte> payloads[2];
  };
  void transfer(std::vector<Part>& sends, std::vector<Part>& receives, const Watch& watch);
  // One pass over what can be done now; the number of bytes moved.
  int64_t pass(std::vector<Part>& parts, bool send, const Watch& watch);
  void await(std::span<const int> readable, std::span<const int> writable, Channel channel,
             const Watch& watch);
  // The control connections: failures, and who waits for whom.
  void hear_control();
  void hear_frames(int peer);
  void send_control(int peer, int32_t code, std::string_view bytes);
  [[noreturn]] void fail_lost(int peer, const Watch& watch);
  std::string rank_states() const;
  void raise_here(Code code, std::string text) noexcept;
  static Part sent(int peer, const std::byte* data, int64_t bytes) {
    return {peer, const_cast<std::byte*>(data), bytes};
  }
  // Each rank gets its part of the whole (or its piece) reduced into `result`.
  void reduce_part(const Reduction& reduction, const std::vector<Range>& parts, std::byte* result,
                   const Watch& watch);

  std::vector<Heard> heard_;
  uint32_t exchanges_ = 0;
  std::vector<Part> sends_, receives_;
  std::vector<char> blocked_;         // streams that took less than was offered
  std::vector<char> control_closed_;  // by peer
  std::vector<std::string> control_in_;
  std::vector<std::byte> scratch_;  // chunks of peers, and parts that have no other place
  std::mutex control_mutex_;        // what is sent there
  WaitingRanks waiting_;
  mutable std::mutex raised_mutex_;
  std::atomic<bool> raised_{false};
  Code raised_code_ = Code::kComm;
  std::string raised_text_;
};

}  // namespace ds::comm
