// TCP sockets with deadlines. No call waits without one, and none raises SIGPIPE.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "comm/transport.h"

namespace ds::comm {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int file) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  explicit operator bool() const noexcept { return file_ >= 0; }
  int file() const noexcept { return file_; }

  // Whole or failed: false when the peer closed, the time passed or the network failed.
  bool send_all(const void* data, size_t bytes, Clock::time_point deadline) const;
  bool receive_all(void* data, size_t bytes, Clock::time_point deadline) const;
  // What can be done at once; 0: nothing now, -1: the connection has ended.
  int64_t send_some(const void* data, int64_t bytes) const;
  int64_t receive_some(void* data, int64_t bytes) const;

  std::string local_address() const;  // numeric, without the port
  int local_port() const;
  std::string peer_address() const;      // numeric, without the port
  std::optional<Socket> accept() const;  // nothing: nobody waits

 private:
  int file_ = -1;
};

// A nonblocking listener; port 0: any free one. Where the address is not one of this host, on all.
// Throws kComm; `busy`, if given, is set instead when the port is taken.
Socket listen_on(const std::string& address, int port, bool* busy = nullptr);
// The listener that was open when this process began, as file `file`, for port `port`; the caller
// keeps the file. Throws kConfig for anything else.
Socket inherited_listener(int file, int port);
// A nonblocking connection, or nothing with the reason in `why`.
std::optional<Socket> connect_to(const std::string& address, int port, Clock::time_point deadline,
                                 std::string* why);
// Whether a numeric address can be reached from this host alone.
bool is_loopback(const std::string& address);

}  // namespace ds::comm
