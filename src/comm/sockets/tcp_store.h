// The store that rank 0 keeps for the ranks of one job: a thread that serves it over TCP, and the
// clients. Whoever else comes to the port, and whatever they send, disturbs nobody.
#pragma once

#include <memory>
#include <string>

#include "comm/store.h"

namespace ds::comm {

// Where rank 0 listens. With `port_count` > 1 it takes the first free port of the range and clients
// look for it by the job's name.
struct StoreAddress {
  std::string host;
  int port = 0;
  int port_count = 1;
};

class TcpStoreServer {
 public:
  TcpStoreServer(const StoreAddress& address, std::string job, int world);
  ~TcpStoreServer();  // answers what can be answered, for a second at most
  int port() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Tries until the deadline; the error says what was in the way. `local_address`: this host as the
// way to rank 0 shows it.
StorePtr connect_store(const StoreAddress& address, const std::string& job, int rank, int world,
                       std::chrono::milliseconds timeout, std::string* local_address);

// What client and server send; also for tests that misbehave.
namespace store_wire {
inline constexpr uint64_t kMagic = 0x6531726F74732D64ull;  // "d-stor1e"
enum Operation : uint32_t { kPut = 1, kGet = 2 };
enum Status : uint32_t { kFine, kTimeout, kOtherJob, kOtherWorld, kTwice, kRefused };
struct Hello {
  uint64_t magic;
  uint64_t job;  // hash of its name
  int32_t rank;
  int32_t world;
};
struct Welcome {
  uint64_t magic;
  uint32_t status;
  int32_t world;
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
}  // namespace store_wire

}  // namespace ds::comm
