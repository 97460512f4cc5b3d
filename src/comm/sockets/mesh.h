// The connections between every two ranks of a group.
#pragma once

#include <array>
#include <vector>

#include "comm/sockets/job_secret.h"
#include "comm/sockets/socket.h"
#include "comm/stream_transport.h"

namespace ds::comm {

struct Mesh {
  // By channel and rank; the own ones are empty.
  std::array<std::vector<Socket>, kChannels> links;
};

// What a rank tells the others before it can be connected to. `address` "" is this host's name.
struct MeshEntry {
  std::string address;
  int port = 0;
  uint64_t token = 0;  // that of rank 0 goes into the secret of the mesh
};
std::string write_entry(const MeshEntry& entry);
MeshEntry read_entry(const std::string& text);  // throws kComm

// Rank i connects to all before it and is connected to by all after it. Both ends of a connection
// prove that they know the job's secret and the token. Throws kComm naming the rank that does not.
Mesh connect_mesh(int rank, const Socket& listener, const std::vector<MeshEntry>& entries,
                  const JobSecret& secret, Clock::time_point deadline);

// What the two ends of a connection say, in this order: the hello of the one who connects, the
// answer, the proof of the first, and a byte that says that it was let in.
namespace mesh_wire {
inline constexpr uint64_t kMagic = 0x6873656D327364ull;  // "ds2mesh"
struct Hello {
  uint64_t magic;
  uint32_t rank;  // who connects
  uint32_t channel;
  Nonce nonce;
};
struct Answer {
  uint64_t magic;
  Nonce nonce;
  Proof proof;
};
JobSecret mesh_secret(const JobSecret& job, uint64_t token, int size);
Proof answer_proof(const JobSecret& mesh, int acceptor, const Hello& hello, const Nonce& nonce);
inline constexpr char kLetIn = 1;
Proof hello_proof(const JobSecret& mesh, int acceptor, const Hello& hello, const Nonce& nonce);
}  // namespace mesh_wire

}  // namespace ds::comm
