// The transport over TCP: a connection between every two ranks. Collectives are pairwise exchanges,
// so that sums are made in rank order and no rank has to wait for a chain of others.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/sockets/mesh.h"
#include "comm/transport.h"

namespace ds::comm {

class SocketsTransport : public Transport {
 public:
  SocketsTransport(int rank, int size, Mesh mesh, std::string address);

  const char* name() const noexcept override { return "sockets"; }
  void exchange(const Record& mine, std::span<const std::byte> payload,
                const Watch& watch) override;
  const Record& record(int rank) const override;
  const std::byte* payload(int rank) const override;
  void move(const Movement& movement, const Watch& watch) override;
  void reduce(const Reduction& reduction, const Watch& watch) override;
  int64_t write_some(int peer, const std::byte* data, int64_t bytes) override;
  int64_t read_some(int peer, std::byte* data, int64_t bytes) override;
  void wait_for_streams(std::span<const int> peers, const Watch& watch) override;
  void wake() noexcept override;
  void announce(const Record&, bool) noexcept override {}
  Tensor shared_tensor(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                       MemoryTag tag, const GatherTexts& gather) override;
  std::unique_ptr<Transport> split(const std::vector<int>& members, const GatherTexts& gather,
                                   const Watch& watch) override;
  void raise(Code code, std::string_view text) noexcept override;
  void check_raised() const override;

  // Sends and receives at once, at most one of each for a peer, until all are complete.
  struct Part {
    int peer;
    std::byte* data;  // only read where it is sent
    int64_t bytes;
    int64_t done = 0;
  };
  void transfer(std::vector<Part>& sends, std::vector<Part>& receives, const Watch& watch);

 private:
  struct Heard {
    Record records[2];
    std::vector<std::byte> payloads[2];
  };
  const Socket& link(Channel channel, int peer) const {
    return mesh_.links[channel][static_cast<size_t>(peer)];
  }
  // One pass over what can be done now; the number of bytes moved.
  int64_t pass(std::vector<Part>& parts, bool send, const Watch& watch);
  void wait_for_links(std::span<const int> readable, std::span<const int> writable, Channel channel,
                      const Watch& watch);
  void hear_control();
  [[noreturn]] void fail_lost(int peer, const Watch& watch);
  std::string doings() const;
  void raise_here(Code code, std::string text) noexcept;
  static Part sent(int peer, const std::byte* data, int64_t bytes) {
    return {peer, const_cast<std::byte*>(data), bytes};
  }
  // Each rank gets its part of the whole (or its piece) reduced into `result`.
  void reduce_part(const Reduction& reduction, const std::vector<Range>& parts, std::byte* result,
                   const Watch& watch);

  Mesh mesh_;
  const std::string address_;  // of this host, for groups split off
  const Socket wake_file_;
  std::vector<Heard> heard_;
  uint32_t exchanges_ = 0;
  std::vector<Part> sends_, receives_;
  std::vector<char> blocked_;         // streams that took less than was offered
  std::vector<char> control_closed_;  // by peer
  std::vector<std::string> control_in_;
  std::vector<std::byte> scratch_;  // chunks of peers, and parts that have no other place
  std::mutex control_mutex_;        // sends of failures
  mutable std::mutex raised_mutex_;
  std::atomic<bool> raised_{false};
  Code raised_code_ = Code::kComm;
  std::string raised_text_;
};

// Collective over `gather`. `address` is where others reach this host; "": found out.
std::unique_ptr<Transport> make_sockets_transport(int rank, int size, const std::string& address,
                                                  const GatherTexts& gather,
                                                  Clock::time_point deadline);

}  // namespace ds::comm
