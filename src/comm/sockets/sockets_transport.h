// The transport over TCP: a connection between every two ranks for each channel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/sockets/mesh.h"
#include "comm/stream_transport.h"

namespace ds::comm {

class SocketsTransport : public StreamTransport {
 public:
  SocketsTransport(int rank, int size, Mesh mesh, std::string address, JobSecret secret);

  const char* name() const noexcept override { return "sockets"; }
  void wake() noexcept override;
  std::unique_ptr<Transport> split(const std::vector<int>& members, const GatherTexts& gather,
                                   const Watch& watch) override;

 protected:
  int64_t send_some(Channel channel, int peer, const void* data, int64_t bytes) override {
    return link(channel, peer).send_some(data, bytes);
  }
  int64_t receive_some(Channel channel, int peer, void* data, int64_t bytes) override {
    return link(channel, peer).receive_some(data, bytes);
  }
  bool wait_for_links(std::span<const int> readable, std::span<const int> writable, Channel channel,
                      Clock::time_point deadline) override;

 private:
  const Socket& link(Channel channel, int peer) const {
    return mesh_.links[channel][static_cast<size_t>(peer)];
  }

  Mesh mesh_;
  const std::string address_;  // of this host, for groups split off
  const JobSecret secret_;     // the same
  const Socket wake_file_;
};

// Collective over `gather`. `address` is where others reach this host; "": found out.
std::unique_ptr<Transport> make_sockets_transport(int rank, int size, const std::string& address,
                                                  const JobSecret& secret,
                                                  const GatherTexts& gather,
                                                  Clock::time_point deadline);

}  // namespace ds::comm
