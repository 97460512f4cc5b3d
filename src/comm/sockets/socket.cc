#include "comm/sockets/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace ds::comm {
namespace {

bool wait_for(int file, short events, Clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{.fd = file, .events = events, .revents = 0};
    const int n = ::poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
    if (left <= 0) return false;
  }
}

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

// "" on success, else the reason.
std::string resolve(const std::string& address, int port, bool passive, AddressList& list) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  const int code = ::getaddrinfo(address.empty() ? nullptr : address.c_str(),
                                 std::to_string(port).c_str(), &hints, &list.first);
  return code == 0 ? "" : ::gai_strerror(code);
}

void tune(int file) {
  const int yes = 1;
  ::setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

std::string numeric_host(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  const int code = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host,
                                 sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? host : "";
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (file_ >= 0) ::close(file_);
    file_ = std::exchange(other.file_, -1);
  }
  return *this;
}

Socket::~Socket() {
  if (file_ >= 0) ::close(file_);
}

int64_t Socket::send_some(const void* data, int64_t bytes) const {
  const ssize_t n = ::send(file_, data, static_cast<size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) return n;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

int64_t Socket::receive_some(void* data, int64_t bytes) const {
  if (bytes == 0) return 0;
  const ssize_t n = ::recv(file_, data, static_cast<size_t>(bytes), MSG_DONTWAIT);
  if (n > 0) return n;
  if (n == 0) return -1;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

bool Socket::send_all(const void* data, size_t bytes, Clock::time_point deadline) const {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const int64_t n = send_some(at, static_cast<int64_t>(bytes));
    if (n < 0) return false;
    if (n == 0 && !wait_for(file_, POLLOUT, deadline)) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool Socket::receive_all(void* data, size_t bytes, Clock::time_point deadline) const {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const int64_t n = receive_some(at, static_cast<int64_t>(bytes));
    if (n < 0) return false;
    if (n == 0 && !wait_for(file_, POLLIN, deadline)) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

std::string Socket::local_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(file_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return numeric_host(address, size);
}

std::string Socket::peer_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(file_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return numeric_host(address, size);
}

int Socket::local_port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(file_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::optional<Socket> Socket::accept() const {
  const int file = ::accept4(file_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (file < 0) return {};
  tune(file);
  return Socket(file);
}

Socket listen_on(const std::string& address, int port, bool* busy) {
  AddressList list;
  const std::string failure = resolve(address, port, true, list);
  DS_CHECK(failure.empty(), Code::kComm, "the address ", printable(address),
           " is unknown: ", failure);
  int error = 0;
  for (const addrinfo* entry = list.first; entry != nullptr; entry = entry->ai_next) {
    Socket socket(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    if (socket) ::setsockopt(socket.file(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (socket && ::bind(socket.file(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::listen(socket.file(), 1024) == 0) {
      return socket;
    }
    error = errno;
  }
  // Behind an address translation the name of this host is no address of it.
  if (error == EADDRNOTAVAIL && !address.empty()) return listen_on("", port, busy);
  if (busy != nullptr && error == EADDRINUSE) {
    *busy = true;
    return Socket();
  }
  fail(Code::kComm, "cannot listen on ", address.empty() ? "any address" : printable(address),
       " port ", port, ": ", std::strerror(error),
       error == EADDRINUSE ? "; another job may use it: choose another MASTER_PORT" : "");
}

Socket inherited_listener(int file, int port) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  const bool listener =
      ::getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
  Socket own(listener ? ::fcntl(file, F_DUPFD_CLOEXEC, 3) : -1);
  DS_CHECK(own && own.local_port() == port, Code::kConfig, "DS_MASTER_FD says that file ", file,
           " listens on port ", port,
           own ? str_cat(", and it listens on port ", own.local_port()) : ", and it does not",
           ": a program between the launcher and this one has closed it (Python: subprocess with "
           "close_fds=False, or pass_fds); or unset DS_MASTER_FD and DS_MASTER_PORT on every rank");
  ::fcntl(own.file(), F_SETFL, ::fcntl(own.file(), F_GETFL) | O_NONBLOCK);
  return own;
}

std::optional<Socket> connect_to(const std::string& address, int port, Clock::time_point deadline,
                                 std::string* why) {
  AddressList list;
  *why = resolve(address, port, false, list);
  if (!why->empty()) return {};
  for (const addrinfo* entry = list.first; entry != nullptr; entry = entry->ai_next) {
    Socket socket(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    tune(socket.file());
    int error = 0;
    if (::connect(socket.file(), entry->ai_addr, entry->ai_addrlen) != 0) {
      error = errno;
      if (error == EINPROGRESS) {
        socklen_t size = sizeof(error);
        if (!wait_for(socket.file(), POLLOUT, deadline)) {
          error = ETIMEDOUT;
        } else {
          ::getsockopt(socket.file(), SOL_SOCKET, SO_ERROR, &error, &size);
        }
      }
    }
    // A connection to a free port of this host may meet itself.
    sockaddr_storage mine{}, theirs{};
    socklen_t mine_size = sizeof(mine), theirs_size = sizeof(theirs);
    if (error == 0 &&
        ::getsockname(socket.file(), reinterpret_cast<sockaddr*>(&mine), &mine_size) == 0 &&
        ::getpeername(socket.file(), reinterpret_cast<sockaddr*>(&theirs), &theirs_size) == 0 &&
        mine_size == theirs_size && std::memcmp(&mine, &theirs, mine_size) == 0) {
      error = ECONNREFUSED;
    }
    if (error == 0) return socket;
    *why = std::strerror(error);
  }
  if (why->empty()) *why = "no address can be used";
  return {};
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

}  // namespace ds::comm
