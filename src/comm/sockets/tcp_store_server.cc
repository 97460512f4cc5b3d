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

#include "base/log.h"
#include "comm/sockets/lobby.h"
#include "comm/sockets/socket.h"
#include "comm/sockets/tcp_store.h"

namespace ds::comm {
namespace {

using namespace store_wire;  // NOLINT: the words of this protocol

// What the values of one rank may take in all, and those of all ranks.
constexpr size_t kMostOfRank = size_t{1} << 18, kMostOfRank0 = size_t{1} << 24;
constexpr size_t kMostStored = size_t{1} << 26;
constexpr std::chrono::seconds kClientTimeout{10};  // for half a request, and for who does not read

// A connection that has proven to be a rank's.
struct Client {
  Socket socket;
  int rank;
  Session session;
  Clock::time_point since = Clock::now();  // of an unfinished request or reply
  std::string in = {};                     // of one request
  bool waits = false;                      // for `key` until `deadline`
  std::string key = {};
  Clock::time_point deadline = {};
  // The reply on its way: head, value, proof. The next request is read when it has gone.
  std::string head = {}, tail = {};
  std::shared_ptr<const std::string> value = {};
  size_t sent = 0;
  bool ended = false;

  bool replies() const { return !head.empty(); }
};

}  // namespace

class TcpStoreServer::Loop {
 public:
  Loop(Socket listener, StoreJob job)
      : listener_(std::move(listener)),
        job_(std::move(job)),
        job_hash_(job_hash(job_.name)),
        lobby_(job_.world),
        stored_(static_cast<size_t>(job_.world)),
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
  const Socket& listener() const { return listener_; }

 private:
  void serve();
  void wait_for_events();
  void meet(Guest& guest);
  void admit(Guest& guest);
  void read(Client& client);
  void take_request(Client& client, const Request& request);
  Status put(const Client& client, std::string key, std::string value);
  void answer_waiting();
  void reply(Client& client, Status status, std::shared_ptr<const std::string> value = nullptr);
  void flush(Client& client);
  bool connected(int rank) const {
    return std::ranges::any_of(clients_,
                               [&](const Client& c) { return !c.ended && c.rank == rank; });
  }

  const Socket listener_;
  const StoreJob job_;
  const uint64_t job_hash_;
  Lobby lobby_;
  std::list<Client> clients_;
  std::map<std::string, std::shared_ptr<const std::string>> values_;
  std::vector<size_t> stored_;  // bytes by rank
  size_t stored_in_all_ = 0;
  bool warned_ = false;
  const Socket stop_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

void TcpStoreServer::Loop::serve() {
  Clock::time_point end = Clock::time_point::max();
  while (true) {
    if (stopping_ && end == Clock::time_point::max()) end = Clock::now() + std::chrono::seconds(1);
    const bool unsent = std::ranges::any_of(clients_, &Client::replies);
    if (stopping_ && (!unsent || Clock::now() >= end)) return;
    wait_for_events();
    try {
      for (Client& client : clients_) read(client);
      lobby_.serve(listener_, [this](Guest& guest) { meet(guest); });
      answer_waiting();
    } catch (const std::bad_alloc&) {  // whoever asked for too much waits in vain
    }
    const auto now = Clock::now();
    for (Client& client : clients_) {
      flush(client);
      const bool late = client.replies() || !client.in.empty();
      if (late && !client.waits && now - client.since > kClientTimeout) client.ended = true;
    }
    std::erase_if(clients_, [](const Client& client) { return client.ended; });
  }
}

void TcpStoreServer::Loop::wait_for_events() {
  std::vector<pollfd> files;
  files.push_back({.fd = stopping_ ? -1 : stop_.file(), .events = POLLIN, .revents = 0});
  lobby_.add_to(files, listener_);
  for (const Client& client : clients_) {
    const int events = client.replies() ? POLLOUT | POLLRDHUP : client.waits ? POLLRDHUP : POLLIN;
    files.push_back(
        {.fd = client.socket.file(), .events = static_cast<short>(events), .revents = 0});
  }
  ::poll(files.data(), files.size(), 50);
  auto file = files.end() - std::ssize(clients_);
  for (Client& client : clients_) {
    if (((file++)->revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 && client.waits) {
      client.ended = true;  // its place is free again
    }
  }
}

// One of a rank's two messages, or what a stranger sends instead.
void TcpStoreServer::Loop::meet(Guest& guest) {
  Hello hello;
  const bool whole = guest.hear(sizeof(hello));
  const size_t shown = std::min(guest.in.size(), sizeof(kMagic));
  if (std::memcmp(guest.in.data(), &kMagic, shown) != 0) guest.over = true;
  if (guest.over || !whole) return;
  if (!guest.greeted) {
    std::memcpy(&hello, guest.in.data(), sizeof(hello));
    Challenge challenge{kMagic, kFine, 0, {}};
    if (hello.job != job_hash_) {
      challenge.status = kOtherJob;
      guest.over = true;
    } else {
      guest.nonce = challenge.nonce = new_nonce();
      guest.greeted = true;
    }
    guest.tell(bytes_of(challenge));
  }
  if (!guest.over && guest.hear(sizeof(hello) + sizeof(Proof))) admit(guest);
}

void TcpStoreServer::Loop::admit(Guest& guest) {
  Hello hello;
  Proof proof;
  std::memcpy(&hello, guest.in.data(), sizeof(hello));
  std::memcpy(proof.data(), guest.in.data() + sizeof(hello), sizeof(proof));
  guest.over = true;
  Session session(job_, hello, {kMagic, kFine, 0, guest.nonce});
  Status status = kFine;
  if (!same_proof(proof, session.client_proof())) {
    status = kOtherSecret;
    if (!warned_) {
      log_warning("comm", "refused a connection from ", printable(guest.address),
                  " that does not know the secret of this job; if it was a rank of yours, give it "
                  "the same DS_JOB_TOKEN as rank 0 (more of this kind are not reported)");
    }
    warned_ = true;
  } else if (hello.world != job_.world) {
    status = kOtherWorld;
  } else if (hello.rank < 0 || hello.rank >= job_.world) {
    status = kRefused;
  } else if (connected(hello.rank)) {
    status = kTwice;
  }
  Welcome welcome{kMagic, status, 0, {}};
  if (status != kOtherSecret) {
    welcome.world = job_.world;
    welcome.proof = session.welcome_proof(status, job_.world);
  }
  Guest told;
  told.socket = std::move(guest.socket);
  told.tell(bytes_of(welcome));
  if (status != kFine || told.over) return;
  clients_.push_back({.socket = std::move(told.socket), .rank = hello.rank, .session = session});
}

void TcpStoreServer::Loop::read(Client& client) {
  char buffer[16384];
  while (!client.ended && !client.waits && !client.replies()) {
    Request request{};
    size_t whole = sizeof(request);
    if (client.in.size() >= whole) {
      std::memcpy(&request, client.in.data(), sizeof(request));
      const bool known = request.operation == kPut || request.operation == kGet;
      if (!known || request.key_bytes > Store::kMostKey ||
          request.value_bytes > (request.operation == kPut ? Store::kMostValue : 0)) {
        client.ended = true;
        return;
      }
      whole += request.key_bytes + request.value_bytes + sizeof(Proof);
      if (client.in.size() == whole) {
        take_request(client, request);
        continue;
      }
    }
    const size_t wanted = std::min(sizeof(buffer), whole - client.in.size());
    const int64_t n = client.socket.receive_some(buffer, static_cast<int64_t>(wanted));
    if (n < 0) client.ended = true;
    if (n <= 0) return;
    if (client.in.empty()) client.since = Clock::now();
    client.in.append(buffer, static_cast<size_t>(n));
  }
}

void TcpStoreServer::Loop::take_request(Client& client, const Request& request) {
  const std::string in = std::exchange(client.in, {});
  const std::string_view message(in.data(), in.size() - sizeof(Proof));
  Proof proof;
  std::memcpy(proof.data(), message.data() + message.size(), sizeof(proof));
  if (!same_proof(proof, client.session.request_proof(message))) {
    client.ended = true;
    return;
  }
  std::string key(message.substr(sizeof(request), request.key_bytes));
  if (request.operation == kPut) {
    return reply(client, put(client, std::move(key),
                             std::string(message.substr(sizeof(request) + request.key_bytes))));
  }
  client.waits = true;
  client.key = std::move(key);
  client.deadline = Clock::now() + std::chrono::milliseconds(request.timeout_ms);
}

// A rank writes keys that end in its own number, each once.
Status TcpStoreServer::Loop::put(const Client& client, std::string key, std::string value) {
  if (!key.ends_with(str_cat("/", client.rank)) || values_.contains(key)) return kNotYours;
  size_t& stored = stored_[static_cast<size_t>(client.rank)];
  const size_t bytes = key.size() + value.size();
  const size_t most = client.rank == 0 ? kMostOfRank0 : kMostOfRank;
  if (stored + bytes > most || stored_in_all_ + bytes > kMostStored) return kFull;
  stored += bytes;
  stored_in_all_ += bytes;
  values_[std::move(key)] = std::make_shared<const std::string>(std::move(value));
  return kFine;
}

void TcpStoreServer::Loop::answer_waiting() {
  const auto now = Clock::now();
  for (Client& client : clients_) {
    if (!client.waits || client.ended) continue;
    const auto found = values_.find(client.key);
    if (found == values_.end() && now < client.deadline) continue;
    client.waits = false;
    if (found != values_.end()) {
      reply(client, kFine, found->second);
    } else {
      reply(client, kTimeout);
    }
  }
}

void TcpStoreServer::Loop::reply(Client& client, Status status,
                                 std::shared_ptr<const std::string> value) {
  const Reply head{status, static_cast<uint32_t>(value ? value->size() : 0)};
  client.head = bytes_of(head);
  const Proof proof = client.session.reply_proof(value ? client.head + *value : client.head);
  client.tail = bytes_of(proof);
  client.value = std::move(value);
  client.sent = 0;
  client.since = Clock::now();
  flush(client);
}

void TcpStoreServer::Loop::flush(Client& client) {
  while (client.replies() && !client.ended) {
    size_t at = client.sent;
    std::string_view rest;
    for (const std::string* piece :
         {&std::as_const(client.head), client.value.get(), &std::as_const(client.tail)}) {
      if (piece == nullptr) continue;
      if (at < piece->size()) {
        rest = std::string_view(*piece).substr(at);
        break;
      }
      at -= piece->size();
    }
    if (rest.empty()) {
      client.head.clear();
      client.value.reset();
      return;
    }
    const int64_t n = client.socket.send_some(rest.data(), std::ssize(rest));
    if (n < 0) client.ended = true;
    if (n <= 0) return;
    client.sent += static_cast<size_t>(n);
  }
}

TcpStoreServer::TcpStoreServer(const StoreAddress& address, StoreJob job) {
  if (address.file >= 0) {
    loop_ = std::make_unique<Loop>(inherited_listener(address.file, address.port), std::move(job));
    return;
  }
  for (int i = 0; i < address.port_count; ++i) {
    bool busy = false;
    const bool last = i + 1 == address.port_count;
    Socket listener = listen_on(address.host, address.port + i, last ? nullptr : &busy);
    if (!listener) continue;
    loop_ = std::make_unique<Loop>(std::move(listener), std::move(job));
    return;
  }
}

TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const { return loop_->listener().local_port(); }
std::string TcpStoreServer::address() const { return loop_->listener().local_address(); }

}  // namespace ds::comm
