// What both ends of a connection to the store compute alike.
#include "comm/sockets/tcp_store.h"

namespace ds::comm::store_wire {

uint64_t job_hash(const std::string& job) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

// Everything that was said goes into the secret of the connection, so that what is proven holds for
// this rank, world, job, protocol and connection alone.
Session::Session(const StoreJob& job, const Hello& hello, const Challenge& challenge)
    : secret_(job.secret.derive({"ds store", job.name, bytes_of(hello), bytes_of(challenge)})) {}

Proof Session::client_proof() const { return secret_.prove({"client"}); }

Proof Session::welcome_proof(uint32_t status, int32_t world) const {
  return secret_.prove({"server", bytes_of(status), bytes_of(world)});
}

Proof Session::frame(std::string_view kind, uint64_t number, std::string_view message) const {
  return secret_.prove({kind, bytes_of(number), message});
}

}  // namespace ds::comm::store_wire
