// The connections between every two ranks of a group.
#pragma once

#include <vector>

#include "comm/sockets/socket.h"
#include "comm/stream_transport.h"

namespace ds::comm {

struct Mesh {
  // By channel and rank; the own ones are empty.
  std::vector<Socket> links[kChannels];
};

// What a rank tells the others before it can be connected to. `address` "" is this host's name.
struct MeshEntry {
  std::string address;
  int port = 0;
  uint64_t token = 0;  // that of rank 0 keeps strangers out
};
std::string write_entry(const MeshEntry& entry);
MeshEntry read_entry(const std::string& text);  // throws kComm

// Rank i connects to all before it and is connected to by all after it. Throws kComm naming the
// rank that does not.
Mesh connect_mesh(int rank, const Socket& listener, const std::vector<MeshEntry>& entries,
                  Clock::time_point deadline);

}  // namespace ds::comm
