// Making meshes and waiting for links.
#include "comm/sockets/sockets_transport.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "comm/shm/segment.h"

namespace ds::comm {
namespace {

// The first address of this host that is not its own loop.
std::string own_address() {
  ifaddrs* list = nullptr;
  std::string found;
  if (::getifaddrs(&list) == 0) {
    for (const ifaddrs* entry = list; entry != nullptr && found.empty(); entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
      char host[NI_MAXHOST];
      if (::getnameinfo(entry->ifa_addr, sizeof(sockaddr_in), host, sizeof(host), nullptr, 0,
                        NI_NUMERICHOST) == 0 &&
          std::strncmp(host, "127.", 4) != 0) {
        found = host;
      }
    }
    ::freeifaddrs(list);
  }
  return found.empty() ? "127.0.0.1" : found;
}

// Connects ranks; every rank of the gather takes part, those of the group (`self` >= 0) with an
// entry.
std::unique_ptr<Transport> connect_group(int self, const std::vector<int>& members,
                                         const std::string& address, const JobSecret& secret,
                                         const GatherTexts& gather, Clock::time_point deadline) {
  Socket listener;
  std::string text, failure;
  const auto attempt = [&](const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      failure = error.message();
    }
  };
  if (self >= 0) {
    attempt([&] {
      listener = listen_on(address, 0);
      text = write_entry({address, listener.local_port(), random_nonce()});
    });
  }
  const std::vector<std::string> texts = gather(text);
  Mesh mesh;
  if (self >= 0 && failure.empty()) {
    attempt([&] {
      std::vector<MeshEntry> entries;
      for (const int member : members) {
        entries.push_back(read_entry(texts[static_cast<size_t>(member)]));
      }
      mesh = connect_mesh(self, listener, entries, secret, deadline);
    });
  }
  const std::vector<std::string> failures = gather(failure.substr(0, 1000));
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    DS_CHECK(failures[rank].empty(), Code::kComm, "rank ", rank, ": ", peer_text(failures[rank]));
  }
  if (self < 0) return nullptr;
  return std::make_unique<SocketsTransport>(self, static_cast<int>(std::ssize(members)),
                                            std::move(mesh), address, secret);
}

}  // namespace

std::unique_ptr<Transport> make_sockets_transport(int rank, int size, const std::string& address,
                                                  const JobSecret& secret,
                                                  const GatherTexts& gather,
                                                  Clock::time_point deadline) {
  std::vector<int> members;
  for (int i = 0; i < size; ++i) members.push_back(i);
  return connect_group(rank, members, address.empty() ? own_address() : address, secret, gather,
                       deadline);
}

SocketsTransport::SocketsTransport(int rank, int size, Mesh mesh, std::string address,
                                   JobSecret secret)
    : StreamTransport(rank, size),
      mesh_(std::move(mesh)),
      address_(std::move(address)),
      secret_(std::move(secret)),
      wake_file_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  DS_CHECK(wake_file_, Code::kComm, "no event file for communication: ", std::strerror(errno));
}

std::unique_ptr<Transport> SocketsTransport::split(const std::vector<int>& members,
                                                   const GatherTexts& gather, const Watch& watch) {
  const auto self = std::ranges::find(members, rank());
  return connect_group(self == members.end() ? -1 : static_cast<int>(self - members.begin()),
                       members, address_, secret_, gather, watch.end());
}

bool SocketsTransport::wait_for_links(std::span<const int> readable, std::span<const int> writable,
                                      Channel channel, Clock::time_point deadline) {
  std::vector<pollfd> files;
  files.push_back({.fd = wake_file_.file(), .events = POLLIN, .revents = 0});
  for (int peer = 0; peer < size(); ++peer) {
    if (!listens_to(peer)) continue;
    files.push_back({.fd = link(kControl, peer).file(), .events = POLLIN, .revents = 0});
  }
  for (const int peer : readable) {
    files.push_back({.fd = link(channel, peer).file(), .events = POLLIN, .revents = 0});
  }
  for (const int peer : writable) {
    files.push_back({.fd = link(channel, peer).file(), .events = POLLOUT, .revents = 0});
  }
  constexpr int64_t kSlice = 500;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  const int ready = ::poll(files.data(), files.size(),
                           static_cast<int>(std::clamp<int64_t>(left + 1, 0, kSlice)));
  if (files[0].revents != 0) {
    uint64_t rung = 0;
    if (::read(wake_file_.file(), &rung, sizeof(rung)) < 0) rung = 0;  // somebody else took it
  }
  return ready > 0;
}

void SocketsTransport::wake() noexcept {
  const uint64_t one = 1;
  if (::write(wake_file_.file(), &one, sizeof(one)) < 0) return;  // rung often enough
}

}  // namespace ds::comm
