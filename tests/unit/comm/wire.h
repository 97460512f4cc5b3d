// Talking to ranks as a stranger does: byte by byte.
#pragma once

#include <gtest/gtest.h>

#include "comm/sockets/socket.h"
#include "comm/sockets/tcp_store.h"

namespace ds::testing {

inline comm::StoreAddress loopback(int port, int count = 1) {
  return {.host = "127.0.0.1", .port = port, .port_count = count};
}

inline comm::Clock::time_point soon(int seconds = 20) {
  return comm::Clock::now() + std::chrono::seconds(seconds);
}

class Wire {
 public:
  // `may_fail`: nobody need listen there any more.
  explicit Wire(int port, bool may_fail = false) {
    std::string why;
    auto socket = comm::connect_to("127.0.0.1", port, soon(), &why);
    if (socket) socket_ = std::move(*socket);
    EXPECT_TRUE(may_fail || socket_) << why;
  }

  void say(std::string_view bytes) const { socket_.send_all(bytes.data(), bytes.size(), soon()); }
  template <class T>
  void say_value(const T& value) const {
    say(comm::bytes_of(value));
  }
  // Whether it came whole.
  template <class T>
  bool hear(T& value) const {
    return socket_.receive_all(&value, sizeof(value), soon());
  }
  // Whether the other side has ended the connection, perhaps after some bytes.
  bool ended(int seconds = 20) const {
    char byte;
    const auto end = soon(seconds);
    while (socket_.receive_all(&byte, 1, end)) {
    }
    return comm::Clock::now() < end;
  }

 private:
  comm::Socket socket_;
};

// One that goes the whole way to the store of rank 0, as a rank does.
struct StoreWire : Wire {
  StoreWire(int port, const comm::StoreJob& job, int rank)
      : Wire(port),
        hello{comm::store_wire::kMagic, comm::store_wire::job_hash(job.name), rank, job.world,
              comm::new_nonce()} {
    say_value(hello);
    EXPECT_TRUE(hear(challenge));
    session.emplace(job, hello, challenge);
    proof = session->client_proof();
    say_value(proof);
    EXPECT_TRUE(hear(welcome));
  }
  std::string request(uint32_t operation, const std::string& key, const std::string& value) {
    const comm::store_wire::Request head{operation, static_cast<uint32_t>(key.size()),
                                         static_cast<uint32_t>(value.size()), 1000};
    std::string message(comm::bytes_of(head));
    message += key + value;
    const comm::Proof mine = session->request_proof(message);
    return message + std::string(comm::bytes_of(mine));
  }

  comm::store_wire::Hello hello;
  comm::store_wire::Challenge challenge{};
  std::optional<comm::store_wire::Session> session;
  comm::Proof proof{};
  comm::store_wire::Welcome welcome{};
};

}  // namespace ds::testing
