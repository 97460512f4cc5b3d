#include "comm/sockets/mesh.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <sstream>
#include <thread>

#include "comm/sockets/lobby.h"

namespace ds::comm {

using namespace mesh_wire;  // NOLINT: the words of this protocol

JobSecret mesh_wire::mesh_secret(const JobSecret& job, uint64_t token, int size) {
  const int32_t world = size;
  return job.derive({"ds mesh 2", bytes_of(token), bytes_of(world)});
}

Proof mesh_wire::answer_proof(const JobSecret& mesh, int acceptor, const Hello& hello,
                              const Nonce& nonce) {
  const int32_t rank = acceptor;
  return mesh.prove({"answer", bytes_of(rank), bytes_of(hello), bytes_of(nonce)});
}

Proof mesh_wire::hello_proof(const JobSecret& mesh, int acceptor, const Hello& hello,
                             const Nonce& nonce) {
  const int32_t rank = acceptor;
  return mesh.prove({"hello", bytes_of(rank), bytes_of(hello), bytes_of(nonce)});
}

namespace {

// A connection to a rank before this one.
struct Visit {
  int peer;
  Hello hello;
  Socket socket;  // empty: to be made again
  std::string in;
  Clock::time_point since{};
  bool proven = false;  // to the peer; it has to let this rank in
};

// What the connections of one rank need until all are there.
class Meeting {
 public:
  Meeting(int rank, const Socket& listener, const std::vector<MeshEntry>& entries,
          const JobSecret& secret, Clock::time_point deadline)
      : rank_(rank),
        size_(static_cast<int>(std::ssize(entries))),
        listener_(listener),
        entries_(entries),
        secret_(mesh_secret(secret, entries[0].token, size_)),
        deadline_(deadline),
        missing_((size_ - 1 - rank) * kChannels),
        lobby_(static_cast<int>(kChannels) * size_) {
    for (auto& links : mesh_.links) links.resize(entries.size());
    for (int peer = 0; peer < rank; ++peer) {
      for (uint32_t channel = 0; channel < kChannels; ++channel) {
        visits_.push_back({peer, {kMagic, static_cast<uint32_t>(rank), channel, {}}, {}, {}});
      }
    }
  }

  Mesh run() {
    while (missing_ > 0 || !visits_.empty()) {
      for (Visit& visit : visits_) begin(visit);
      wait_for_events();
      std::erase_if(visits_, [this](Visit& visit) { return proceed(visit); });
      lobby_.serve(listener_, [this](Guest& guest) { greet(guest); });
      if ((missing_ > 0 || !visits_.empty()) && Clock::now() >= deadline_) fail_late();
    }
    return std::move(mesh_);
  }

 private:
  void begin(Visit& visit);
  bool proceed(Visit& visit);  // true when the peer has proven who it is
  void greet(Guest& guest);
  void wait_for_events() const;
  [[noreturn]] void fail_late() const;

  const int rank_, size_;
  const Socket& listener_;
  const std::vector<MeshEntry>& entries_;
  const JobSecret secret_;
  const Clock::time_point deadline_;
  int missing_;
  Mesh mesh_;
  std::list<Visit> visits_;
  std::string why_ = "it does not answer";
  Lobby lobby_;
};

void Meeting::begin(Visit& visit) {
  if (visit.socket || Clock::now() - visit.since < std::chrono::milliseconds(30)) return;
  visit.since = Clock::now();
  const MeshEntry& entry = entries_[static_cast<size_t>(visit.peer)];
  // Others wait for this rank meanwhile, but not long.
  const auto end = std::min(deadline_, visit.since + std::chrono::seconds(2));
  std::string failure;
  std::optional<Socket> socket = connect_to(entry.address, entry.port, end, &failure);
  if (!socket) {
    why_ = failure;
    return;
  }
  visit.hello.nonce = new_nonce();
  visit.in.clear();
  visit.proven = false;
  if (socket->send_all(&visit.hello, sizeof(visit.hello), end)) visit.socket = std::move(*socket);
}

bool Meeting::proceed(Visit& visit) {
  if (!visit.socket) return false;
  Answer answer;
  std::array<char, sizeof(answer)> buffer;
  const size_t whole = sizeof(answer) + (visit.proven ? sizeof(kLetIn) : 0);
  const auto wanted = static_cast<int64_t>(whole - visit.in.size());
  const int64_t n = visit.socket.receive_some(buffer.data(), wanted);
  if (n < 0) visit.socket = Socket();  // had to make room for others, perhaps: again
  if (n > 0) visit.in.append(buffer.data(), static_cast<size_t>(n));
  if (!visit.socket || visit.in.size() < whole) return false;
  if (visit.proven) {
    mesh_.links[visit.hello.channel][static_cast<size_t>(visit.peer)] = std::move(visit.socket);
    return true;
  }
  std::memcpy(&answer, visit.in.data(), sizeof(answer));
  if (answer.magic != kMagic ||
      !same_proof(answer.proof, answer_proof(secret_, visit.peer, visit.hello, answer.nonce))) {
    why_ = "what listens there does not know the secret of this job";
    visit.socket = Socket();
    return false;
  }
  const Proof proof = hello_proof(secret_, visit.peer, visit.hello, answer.nonce);
  visit.proven = visit.socket.send_all(&proof, sizeof(proof), deadline_);
  if (!visit.proven) visit.socket = Socket();
  return false;
}

void Meeting::greet(Guest& guest) {
  Hello hello;
  const bool whole = guest.hear(sizeof(hello));
  const size_t shown = std::min(guest.in.size(), sizeof(kMagic));
  if (std::memcmp(guest.in.data(), &kMagic, shown) != 0) guest.over = true;
  if (guest.over || !whole) return;
  std::memcpy(&hello, guest.in.data(), sizeof(hello));
  if (!guest.greeted) {
    if (hello.channel >= kChannels || hello.rank >= static_cast<uint32_t>(size_) ||
        static_cast<int>(hello.rank) <= rank_) {
      guest.over = true;
      return;
    }
    guest.nonce = new_nonce();
    guest.greeted = true;
    const Answer answer{kMagic, guest.nonce, answer_proof(secret_, rank_, hello, guest.nonce)};
    guest.tell(bytes_of(answer));
  }
  Proof proof;
  if (guest.over || !guest.hear(sizeof(hello) + sizeof(proof))) return;
  guest.over = true;
  std::memcpy(proof.data(), guest.in.data() + sizeof(hello), sizeof(proof));
  if (!same_proof(proof, hello_proof(secret_, rank_, hello, guest.nonce))) return;
  Socket& link = mesh_.links[hello.channel][hello.rank];
  if (link || guest.socket.send_some(&kLetIn, sizeof(kLetIn)) != sizeof(kLetIn)) return;
  link = std::move(guest.socket);
  --missing_;
}

void Meeting::wait_for_events() const {
  std::vector<pollfd> files;
  if (missing_ > 0) lobby_.add_to(files, listener_);
  for (const Visit& visit : visits_) {
    files.push_back({.fd = visit.socket.file(), .events = POLLIN, .revents = 0});
  }
  ::poll(files.data(), files.size(), 30);
}

void Meeting::fail_late() const {
  constexpr char kReachable[] = "; give every rank a host_address that others can reach";
  const auto place = [&](int peer) {
    const MeshEntry& entry = entries_[static_cast<size_t>(peer)];
    return str_cat(printable(entry.address), " port ", entry.port);
  };
  if (!visits_.empty()) {
    const int peer = visits_.front().peer;
    fail(Code::kComm, "rank ", peer, " cannot be reached at ", place(peer), ": ", why_, kReachable);
  }
  std::vector<int> absent;
  for (int peer = rank_ + 1; peer < size_; ++peer) {
    const bool there = std::ranges::all_of(mesh_.links, [&](const std::vector<Socket>& links) {
      return static_cast<bool>(links[static_cast<size_t>(peer)]);
    });
    if (!there) absent.push_back(peer);
  }
  fail(Code::kComm, rank_list(absent), " did not connect to rank ", rank_, " at ", place(rank_),
       kReachable);
}

}  // namespace

std::string write_entry(const MeshEntry& entry) {
  return str_cat(entry.port, " ", entry.token, " ", entry.address);
}

MeshEntry read_entry(const std::string& text) {
  MeshEntry entry;
  std::istringstream in(text);
  in >> entry.port >> entry.token;
  std::getline(in >> std::ws, entry.address);
  DS_CHECK(!entry.address.empty() && entry.port > 0 && entry.port < 65536, Code::kComm,
           "a peer's address \"", printable(text), "\" cannot be read");
  return entry;
}

Mesh connect_mesh(int rank, const Socket& listener, const std::vector<MeshEntry>& entries,
                  const JobSecret& secret, Clock::time_point deadline) {
  return Meeting(rank, listener, entries, secret, deadline).run();
}

}  // namespace ds::comm
