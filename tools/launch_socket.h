// What `ds launch` makes for one job before its ranks start: the ports, and the secret.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tool {

// MASTER_PORT, for programs that open it themselves. Between finding a free port and rank 0's
// listening on it another program could take it. So the port stays bound, without listening, until
// the job ends: the system gives it to nobody who asks for any port, and SO_REUSEADDR, which
// listeners on a given port set, lets rank 0 listen on it all the same.
class ReservedPort {
 public:
  explicit ReservedPort(std::optional<int64_t> wanted);
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  int number() const { return number_; }

 private:
  int file_ = -1;
  int number_ = 0;
};

// Where ranks of the library meet: it listens from the beginning, and rank 0 inherits it, so that
// nobody else of this host can be there before rank 0.
class MeetingSocket {
 public:
  MeetingSocket();
  ~MeetingSocket() { close(); }
  MeetingSocket(const MeetingSocket&) = delete;
  MeetingSocket& operator=(const MeetingSocket&) = delete;

  int file() const { return file_; }
  int port() const { return port_; }
  void close();

 private:
  int file_ = -1;
  int port_ = 0;
};

// 32 random bytes in hexadecimal digits.
std::string new_job_token();

}  // namespace tool
