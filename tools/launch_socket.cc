#include "launch_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ds.hpp"
#include "failure.h"
#include "format.h"

namespace tool {
namespace {

sockaddr_in this_host(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int port_of(int file) {
  sockaddr_in address = {};
  socklen_t size = sizeof address;
  ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

}  // namespace

ReservedPort::ReservedPort(std::optional<int64_t> wanted) {
  file_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file_ < 0) throw Failure(std::string("cannot make a socket: ") + std::strerror(errno));
  const sockaddr_in address = this_host(static_cast<int>(wanted.value_or(0)));
  // A given port may still be closing after the last job; a free one must be nobody else's.
  const int yes = 1;
  if (wanted) ::setsockopt(file_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(file_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const std::string why = std::strerror(errno);
    ::close(file_);
    throw Failure(wanted ? "cannot use --master-port " + std::to_string(*wanted) + ": " + why +
                               "; without the option a free port is taken"
                         : "cannot find a free port: " + why);
  }
  ::setsockopt(file_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  number_ = port_of(file_);
}

ReservedPort::~ReservedPort() { ::close(file_); }

MeetingSocket::MeetingSocket() {
  file_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr_in address = this_host(0);
  if (file_ < 0 ||
      ::bind(file_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(file_, 1024) != 0) {
    const std::string why = std::strerror(errno);
    close();
    throw Failure("cannot listen for the ranks: " + why);
  }
  port_ = port_of(file_);
}

void MeetingSocket::close() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

std::string new_job_token() {
  unsigned char bytes[32];
  size_t got = 0;
  while (got < sizeof bytes) {
    const ssize_t n = ::getrandom(bytes + got, sizeof bytes - got, 0);
    if (n < 0 && errno != EINTR) {
      throw Failure(std::string("the system gives no random numbers: ") + std::strerror(errno));
    }
    if (n > 0) got += static_cast<size_t>(n);
  }
  std::string token;
  for (const unsigned char byte : bytes) token += format("%02x", byte);
  return token;
}

}  // namespace tool
