#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <map>
#include <system_error>
#include <thread>

#include "comm/sockets/socket.h"
#include "comm/sockets/tcp_store.h"

namespace ds::comm {

using namespace store_wire;  // NOLINT: the words of this protocol

uint64_t store_wire::job_hash(const std::string& job) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

class TcpStoreServer::Loop {
 public:
  Loop(Socket listener, std::string job, int world)
      : listener_(std::move(listener)),
        job_(job_hash(job)),
        world_(world),
        most_clients_(static_cast<size_t>(world) * 2 + 64),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    DS_CHECK(stop_, Code::kComm, "no event file for the store: ", std::strerror(errno));
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error& error) {
      fail(Code::kOutOfMemory, "no thread for the store: ", error.what());
    }
  }
  ~Loop() {
    const uint64_t one = 1;
    if (::write(stop_.file(), &one, sizeof(one)) < 0) stopping_ = true;
    stopping_ = true;
    thread_.join();
  }
  int port() const { return listener_.local_port(); }

 private:
  struct Client {
    Socket socket;
    Clock::time_point since = Clock::now();  // of the connection, or of an unfinished request
    int rank = -1;
    std::string in, out;
    bool waits = false;  // for `key` until `deadline`
    std::string key;
    Clock::time_point deadline;
    bool ended = false;
  };
  static constexpr std::chrono::seconds kPatience{10};  // for hellos and half requests

  void serve();
  void accept_all();
  void read(Client& client);
  bool take_request(Client& client);  // false: more bytes are needed
  void handle(Client& client, const Request& request, std::string key, std::string value);
  void answer_waiting();
  void flush(Client& client);
  template <class T>
  static void append(std::string& out, const T& value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void reply(Client& client, Status status, std::string_view value) {
    append(client.out, Reply{status, static_cast<uint32_t>(value.size())});
    client.out += value;
  }

  const Socket listener_;
  const uint64_t job_;
  const int world_;
  const size_t most_clients_;
  const Socket stop_;
  std::atomic<bool> stopping_{false};
  std::list<Client> clients_;
  std::map<std::string, std::string> values_;
  size_t stored_ = 0;
  std::thread thread_;
};

void TcpStoreServer::Loop::serve() {
  Clock::time_point end = Clock::time_point::max();
  std::vector<pollfd> entries;
  while (true) {
    if (stopping_ && end == Clock::time_point::max()) end = Clock::now() + std::chrono::seconds(1);
    const bool unsent =
        std::ranges::any_of(clients_, [](const Client& client) { return !client.out.empty(); });
    if (stopping_ && (!unsent || Clock::now() >= end)) return;
    entries.clear();
    entries.push_back({.fd = stopping_ ? -1 : stop_.file(), .events = POLLIN, .revents = 0});
    const bool full = clients_.size() >= most_clients_;
    entries.push_back({.fd = full ? -1 : listener_.file(), .events = POLLIN, .revents = 0});
    for (const Client& client : clients_) {
      const short events = static_cast<short>(POLLIN | (client.out.empty() ? 0 : POLLOUT));
      entries.push_back({.fd = client.socket.file(), .events = events, .revents = 0});
    }
    ::poll(entries.data(), entries.size(), 50);
    try {
      size_t i = 2;
      for (Client& client : clients_) {
        if (entries[i++].revents != 0) read(client);
      }
      accept_all();
      answer_waiting();
    } catch (const std::bad_alloc&) {  // whoever asked for too much waits in vain
    }
    const auto now = Clock::now();
    for (Client& client : clients_) {
      flush(client);
      const bool late = client.rank < 0 || !client.in.empty();
      if (late && now - client.since > kPatience) client.ended = true;
      if (client.out.size() > 4 * Store::kMostValue) client.ended = true;  // it does not read
    }
    std::erase_if(clients_, [](const Client& client) { return client.ended; });
  }
}

void TcpStoreServer::Loop::accept_all() {
  while (clients_.size() < most_clients_) {
    std::optional<Socket> socket = listener_.accept();
    if (!socket) return;
    clients_.emplace_back().socket = std::move(*socket);
  }
}

void TcpStoreServer::Loop::read(Client& client) {
  char buffer[16384];
  while (true) {
    const int64_t n = client.socket.receive_some(buffer, sizeof(buffer));
    if (n < 0) client.ended = true;
    if (n <= 0) break;
    if (client.in.empty()) client.since = Clock::now();
    client.in.append(buffer, static_cast<size_t>(n));
    // No request is longer; the rest can wait.
    if (client.in.size() > Store::kMostValue + Store::kMostKey + sizeof(Request)) break;
  }
  while (!client.ended && take_request(client)) {
  }
}

bool TcpStoreServer::Loop::take_request(Client& client) {
  if (client.rank < 0) {
    Hello hello;
    if (client.in.size() < sizeof(hello)) {
      // Something else than a rank shows itself early.
      client.ended |=
          std::memcmp(client.in.data(), &kMagic, std::min(client.in.size(), sizeof(kMagic))) != 0;
      return false;
    }
    std::memcpy(&hello, client.in.data(), sizeof(hello));
    client.in.erase(0, sizeof(hello));
    if (hello.magic != kMagic) {
      client.ended = true;
      return false;
    }
    Status status = kFine;
    if (hello.job != job_) {
      status = kOtherJob;
    } else if (hello.world != world_) {
      status = kOtherWorld;
    } else if (hello.rank < 0 || hello.rank >= world_) {
      status = kRefused;
    } else if (std::ranges::any_of(
                   clients_, [&](const Client& c) { return !c.ended && c.rank == hello.rank; })) {
      status = kTwice;
    }
    append(client.out, Welcome{kMagic, status, world_});
    if (status == kFine) client.rank = hello.rank;
    return status == kFine;
  }
  Request request;
  if (client.waits || client.in.size() < sizeof(request)) return false;
  std::memcpy(&request, client.in.data(), sizeof(request));
  const bool known = request.operation == kPut || request.operation == kGet;
  if (!known || request.key_bytes > Store::kMostKey || request.value_bytes > Store::kMostValue ||
      (request.operation == kGet && request.value_bytes != 0)) {
    client.ended = true;
    return false;
  }
  const size_t whole = sizeof(request) + request.key_bytes + request.value_bytes;
  if (client.in.size() < whole) return false;
  std::string key = client.in.substr(sizeof(request), request.key_bytes);
  std::string value = client.in.substr(sizeof(request) + request.key_bytes, request.value_bytes);
  client.in.erase(0, whole);
  client.since = Clock::now();
  handle(client, request, std::move(key), std::move(value));
  return true;
}

void TcpStoreServer::Loop::handle(Client& client, const Request& request, std::string key,
                                  std::string value) {
  if (request.operation == kGet) {
    client.waits = true;
    client.key = std::move(key);
    client.deadline = Clock::now() + std::chrono::milliseconds(request.timeout_ms);
    return;
  }
  constexpr size_t kMostStored = size_t{1} << 30;
  if (stored_ + key.size() + value.size() > kMostStored) return reply(client, kRefused, "");
  stored_ += key.size() + value.size();
  values_[std::move(key)] = std::move(value);
  reply(client, kFine, "");
}

void TcpStoreServer::Loop::answer_waiting() {
  const auto now = Clock::now();
  for (Client& client : clients_) {
    if (!client.waits || client.ended) continue;
    const auto found = values_.find(client.key);
    if (found != values_.end()) {
      reply(client, kFine, found->second);
    } else if (now >= client.deadline) {
      reply(client, kTimeout, "");
    } else {
      continue;
    }
    client.waits = false;
    while (!client.ended && take_request(client)) {
    }
  }
}

void TcpStoreServer::Loop::flush(Client& client) {
  while (!client.out.empty() && !client.ended) {
    const int64_t n =
        client.socket.send_some(client.out.data(), static_cast<int64_t>(client.out.size()));
    if (n < 0) client.ended = true;
    if (n <= 0) return;
    client.out.erase(0, static_cast<size_t>(n));
  }
}

TcpStoreServer::TcpStoreServer(const StoreAddress& address, std::string job, int world) {
  for (int i = 0; i < address.port_count; ++i) {
    bool busy = false;
    const bool last = i + 1 == address.port_count;
    Socket listener = listen_on(address.host, address.port + i, last ? nullptr : &busy);
    if (!listener) continue;
    loop_ = std::make_unique<Loop>(std::move(listener), std::move(job), world);
    return;
  }
}

TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const { return loop_->port(); }

}  // namespace ds::comm
