// The store that rank 0 keeps for the ranks of one job: a thread that serves it over TCP, and the
// clients. Ranks prove that they know the job's secret, and rank 0 that it does; whoever else comes
// to the port, and whatever they send, disturbs nobody.
#pragma once

#include <memory>
#include <string>

#include "comm/sockets/job_secret.h"
#include "comm/store.h"

namespace ds::comm {

// Where rank 0 listens. With `port_count` > 1 it takes the first free port of the range and clients
// look for it by the job's name.
struct StoreAddress {
  std::string host;
  int port = 0;
  int port_count = 1;
  int file = -1;  // of rank 0: a listener for this port that it has inherited
};

// Who meets there.
struct StoreJob {
  std::string name;
  int world = 1;
  JobSecret secret = {};
};

class TcpStoreServer {
 public:
  TcpStoreServer(const StoreAddress& address, StoreJob job);
  ~TcpStoreServer();  // answers what can be answered, for a second at most
  int port() const;
  std::string address() const;  // where it listens, numeric

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Tries until the deadline; the error says what was in the way. `local_address`: this host as the
// way to rank 0 shows it.
StorePtr connect_store(const StoreAddress& address, const StoreJob& job, int rank,
                       std::chrono::milliseconds timeout, std::string* local_address);

// What client and server send, in this order: Hello, Challenge, the client's Proof, Welcome; then
// requests (with key and value) and replies (with the value), each followed by a Proof of the
// session, which counts them: nobody can put one in or send an old one again.
namespace store_wire {
inline constexpr uint64_t kMagic = 0x6532726F74732D64ull;  // "d-stor2e", of this version
enum Operation : uint32_t { kPut = 1, kGet = 2 };
enum Status : uint32_t {
  kFine,
  kTimeout,
  kOtherJob,
  kOtherWorld,
  kTwice,
  kRefused,
  kOtherSecret,
  kFull,
  kNotYours,
};
struct Hello {
  uint64_t magic;
  uint64_t job;  // hash of its name
  int32_t rank;
  int32_t world;
  Nonce nonce;
};
struct Challenge {
  uint64_t magic;
  uint32_t status;
  uint32_t unused;
  Nonce nonce;
};
struct Welcome {
  uint64_t magic;
  uint32_t status;
  int32_t world;
  Proof proof;
};
struct Request {
  uint32_t operation;
  uint32_t key_bytes;
  uint32_t value_bytes;
  uint32_t timeout_ms;
};
struct Reply {
  uint32_t status;
  uint32_t value_bytes;
};
uint64_t job_hash(const std::string& job);

// The codes of one connection.
class Session {
 public:
  Session(const StoreJob& job, const Hello& hello, const Challenge& challenge);
  Proof client_proof() const;
  Proof welcome_proof(uint32_t status, int32_t world) const;
  Proof request_proof(std::string_view message) { return frame("request", requests_++, message); }
  Proof reply_proof(std::string_view message) { return frame("reply", replies_++, message); }

 private:
  Proof frame(std::string_view kind, uint64_t number, std::string_view message) const;
  JobSecret secret_;  // of this connection
  uint64_t requests_ = 0, replies_ = 0;
};
}  // namespace store_wire

}  // namespace ds::comm
