#include "comm/sockets/mesh.h"

#include <poll.h>

#include <algorithm>
#include <list>
#include <sstream>
#include <thread>

namespace ds::comm {
namespace {

constexpr uint64_t kMeshMagic = 0x6873656D2D7364ull;  // "ds-mesh"

struct MeshHello {
  uint64_t magic;
  uint64_t token;
  uint32_t rank;
  uint32_t channel;
};

// A connection that has not said who it is.
struct Stranger {
  Socket socket;
  MeshHello hello{};
  int64_t got = 0;
  Clock::time_point since = Clock::now();
};

// True when it is over with the stranger: it has a place now, or is not one of us.
bool greet(Stranger& stranger, int rank, uint64_t token, Mesh& mesh, int& missing) {
  const int64_t n =
      stranger.socket.receive_some(reinterpret_cast<std::byte*>(&stranger.hello) + stranger.got,
                                   static_cast<int64_t>(sizeof(MeshHello)) - stranger.got);
  constexpr std::chrono::seconds kPatience{10};
  if (n < 0 || Clock::now() - stranger.since > kPatience) return true;
  stranger.got += n;
  if (stranger.got < static_cast<int64_t>(sizeof(MeshHello))) return false;
  const MeshHello& hello = stranger.hello;
  if (hello.magic != kMeshMagic || hello.token != token || hello.channel >= kChannels ||
      hello.rank >= mesh.links[0].size() || static_cast<int>(hello.rank) <= rank) {
    return true;
  }
  Socket& link = mesh.links[hello.channel][hello.rank];
  if (link) return true;
  link = std::move(stranger.socket);
  --missing;
  return true;
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
                  Clock::time_point deadline) {
  const auto size = static_cast<int>(std::ssize(entries));
  Mesh mesh;
  for (auto& links : mesh.links) links.resize(entries.size());
  for (int peer = 0; peer < rank; ++peer) {
    const MeshEntry& entry = entries[static_cast<size_t>(peer)];
    for (uint32_t channel = 0; channel < kChannels; ++channel) {
      std::string why;
      std::optional<Socket> link;
      while (!(link = connect_to(entry.address, entry.port, deadline, &why)) &&
             Clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      const MeshHello hello{kMeshMagic, entries[0].token, static_cast<uint32_t>(rank), channel};
      DS_CHECK(link && link->send_all(&hello, sizeof(hello), deadline), Code::kComm, "rank ", peer,
               " cannot be reached at ", printable(entry.address), " port ", entry.port, ": ", why,
               "; give every rank a host_address that others can reach");
      mesh.links[channel][static_cast<size_t>(peer)] = std::move(*link);
    }
  }
  int missing = (size - 1 - rank) * kChannels;
  std::list<Stranger> strangers;
  std::vector<pollfd> files;
  while (missing > 0) {
    files.assign(1, {.fd = listener.file(), .events = POLLIN, .revents = 0});
    for (const Stranger& stranger : strangers) {
      files.push_back({.fd = stranger.socket.file(), .events = POLLIN, .revents = 0});
    }
    ::poll(files.data(), files.size(), 50);
    std::erase_if(strangers,
                  [&](Stranger& s) { return greet(s, rank, entries[0].token, mesh, missing); });
    const size_t most = entries.size() * kChannels + 64;
    while (strangers.size() < most) {
      std::optional<Socket> socket = listener.accept();
      if (!socket) break;
      strangers.emplace_back().socket = std::move(*socket);
    }
    if (missing > 0 && Clock::now() >= deadline) {
      std::vector<int> absent;
      for (int peer = rank + 1; peer < size; ++peer) {
        const bool there = std::ranges::all_of(mesh.links, [&](const std::vector<Socket>& links) {
          return static_cast<bool>(links[static_cast<size_t>(peer)]);
        });
        if (!there) absent.push_back(peer);
      }
      fail(Code::kComm, rank_list(absent), " did not connect to rank ", rank, " at ",
           printable(entries[static_cast<size_t>(rank)].address), " port ",
           entries[static_cast<size_t>(rank)].port,
           "; give every rank a host_address that others can reach");
    }
  }
  return mesh;
}

}  // namespace ds::comm
