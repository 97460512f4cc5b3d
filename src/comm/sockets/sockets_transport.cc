// Making meshes, waiting for links, streams and failures over TCP.
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

struct FailureFrame {
  int32_t code;
  uint32_t bytes;
};
constexpr size_t kMostFailure = 2048;

// Connects ranks; every rank of the gather takes part, those of the group (`self` >= 0) with an
// entry.
std::unique_ptr<Transport> connect_group(int self, const std::vector<int>& members,
                                         const std::string& address, const GatherTexts& gather,
                                         Clock::time_point deadline) {
  Socket listener;
  std::string text, trouble;
  const auto attempt = [&](const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      trouble = error.message();
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
  if (self >= 0 && trouble.empty()) {
    attempt([&] {
      std::vector<MeshEntry> entries;
      for (const int member : members) {
        entries.push_back(read_entry(texts[static_cast<size_t>(member)]));
      }
      mesh = connect_mesh(self, listener, entries, deadline);
    });
  }
  const std::vector<std::string> troubles = gather(trouble.substr(0, 1000));
  for (size_t rank = 0; rank < troubles.size(); ++rank) {
    DS_CHECK(troubles[rank].empty(), Code::kComm, "rank ", rank, ": ", troubles[rank]);
  }
  if (self < 0) return nullptr;
  return std::make_unique<SocketsTransport>(self, static_cast<int>(std::ssize(members)),
                                            std::move(mesh), address);
}

}  // namespace

std::unique_ptr<Transport> make_sockets_transport(int rank, int size, const std::string& address,
                                                  const GatherTexts& gather,
                                                  Clock::time_point deadline) {
  std::vector<int> members;
  for (int i = 0; i < size; ++i) members.push_back(i);
  return connect_group(rank, members, address.empty() ? own_address() : address, gather, deadline);
}

SocketsTransport::SocketsTransport(int rank, int size, Mesh mesh, std::string address)
    : Transport(rank, size),
      mesh_(std::move(mesh)),
      address_(std::move(address)),
      wake_file_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      heard_(static_cast<size_t>(size)),
      blocked_(static_cast<size_t>(size)),
      control_closed_(static_cast<size_t>(size)),
      control_in_(static_cast<size_t>(size)) {
  DS_CHECK(wake_file_, Code::kComm, "no event file for communication: ", std::strerror(errno));
}

Tensor SocketsTransport::shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                                       const Shape& shape, MemoryTag tag, const GatherTexts&) {
  return Tensor::zeros(device, dtype, shape, tag);
}

std::unique_ptr<Transport> SocketsTransport::split(const std::vector<int>& members,
                                                   const GatherTexts& gather, const Watch& watch) {
  const auto self = std::ranges::find(members, rank());
  return connect_group(self == members.end() ? -1 : static_cast<int>(self - members.begin()),
                       members, address_, gather, watch.deadline);
}

// ---- waiting ----

void SocketsTransport::wait_for_links(std::span<const int> readable, std::span<const int> writable,
                                      Channel channel, const Watch& watch) {
  std::vector<pollfd> files;
  files.push_back({.fd = wake_file_.file(), .events = POLLIN, .revents = 0});
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || control_closed_[static_cast<size_t>(peer)]) continue;
    files.push_back({.fd = link(kControl, peer).file(), .events = POLLIN, .revents = 0});
  }
  for (const int peer : readable) {
    files.push_back({.fd = link(channel, peer).file(), .events = POLLIN, .revents = 0});
  }
  for (const int peer : writable) {
    files.push_back({.fd = link(channel, peer).file(), .events = POLLOUT, .revents = 0});
  }
  constexpr int64_t kSlice = 500;
  const auto since = Clock::now();
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(watch.deadline - since).count();
  const int ready = ::poll(files.data(), files.size(),
                           static_cast<int>(std::clamp<int64_t>(left + 1, 0, kSlice)));
  watch.slept(since);
  if (files[0].revents != 0) {
    uint64_t rung = 0;
    if (::read(wake_file_.file(), &rung, sizeof(rung)) < 0) rung = 0;  // somebody else took it
  }
  hear_control();
  check_raised();
  if (ready > 0 || Clock::now() < watch.deadline) return;
  std::vector<int> late(readable.begin(), readable.end());
  if (late.empty()) late.assign(writable.begin(), writable.end());
  std::ranges::sort(late);
  fail(Code::kComm, watch.what(), ": ", rank_list(late), " did not arrive within ",
       format_number(static_cast<double>(watch.allowed.count()) / 1000), " s; ", doings());
}

void SocketsTransport::fail_lost(int peer, const Watch& watch) {
  hear_control();
  check_raised();  // it may have said why
  fail(Code::kComm, watch.what(), ": rank ", peer,
       " has closed its connection: its process ended or its communicator is gone; ", doings());
}

// What was last heard of each rank.
std::string SocketsTransport::doings() const {
  std::vector<std::string> parts;
  constexpr int kMost = 16;
  for (int peer = 0; peer < size() && peer < kMost; ++peer) {
    if (peer == rank()) continue;
    const Heard& heard = heard_[static_cast<size_t>(peer)];
    const Record& last =
        heard.records[0].sequence > heard.records[1].sequence ? heard.records[0] : heard.records[1];
    parts.push_back(last.sequence == 0 ? str_cat("rank ", peer, " has not been heard yet")
                                       : str_cat("rank ", peer, " was last heard in operation ",
                                                 last.sequence, ", ", describe(last)));
  }
  if (size() > kMost) parts.push_back(str_cat("and ", size() - kMost, " more ranks"));
  return join(parts, "; ");
}

// ---- streams ----

int64_t SocketsTransport::write_some(int peer, const std::byte* data, int64_t bytes) {
  if (bytes == 0) return 0;
  const int64_t n = link(kStream, peer).send_some(data, bytes);
  blocked_[static_cast<size_t>(peer)] = n < bytes;
  if (n < 0) {
    hear_control();
    check_raised();
    fail(Code::kComm, "a message to rank ", peer,
         ": it has closed its connection: its process ended or its communicator is gone");
  }
  return n;
}

int64_t SocketsTransport::read_some(int peer, std::byte* data, int64_t bytes) {
  if (bytes == 0) return 0;
  const int64_t n = link(kStream, peer).receive_some(data, bytes);
  if (n < 0) {
    hear_control();
    check_raised();
    fail(Code::kComm, "a message from rank ", peer,
         ": it has closed its connection: its process ended or its communicator is gone");
  }
  return n;
}

void SocketsTransport::wait_for_streams(std::span<const int> peers, const Watch& watch) {
  std::vector<int> writable;
  for (const int peer : peers) {
    if (blocked_[static_cast<size_t>(peer)]) writable.push_back(peer);
  }
  wait_for_links(peers, writable, kStream, watch);
}

void SocketsTransport::wake() noexcept {
  const uint64_t one = 1;
  if (::write(wake_file_.file(), &one, sizeof(one)) < 0) return;  // rung often enough
}

// ---- failures ----

void SocketsTransport::raise_here(Code code, std::string text) noexcept {
  {
    const std::lock_guard lock(raised_mutex_);
    if (raised_) return;
    raised_code_ = code;
    raised_text_ = std::move(text);
    raised_ = true;
  }
  wake();
}

void SocketsTransport::raise(Code code, std::string_view text) noexcept {
  if (raised_) return;
  try {
    const std::string_view cut = text.substr(0, kMostFailure - 100);
    const std::string told = code == Code::kAborted ? str_cat("rank ", rank(), " aborted the group",
                                                              cut.empty() ? "" : ": ", cut)
                                                    : str_cat(cut, " (found by rank ", rank(), ")");
    const FailureFrame frame{static_cast<int32_t>(code), static_cast<uint32_t>(told.size())};
    std::string bytes(reinterpret_cast<const char*>(&frame), sizeof(frame));
    bytes += told;
    raise_here(code, std::string(text));
    const std::lock_guard lock(control_mutex_);
    for (int peer = 0; peer < size(); ++peer) {
      // The connection carries nothing else: so little always fits.
      if (peer != rank()) {
        link(kControl, peer).send_some(bytes.data(), static_cast<int64_t>(bytes.size()));
      }
    }
  } catch (...) {  // no memory for the text: peers see the connections close
    raise_here(code, {});
  }
}

void SocketsTransport::check_raised() const {
  if (!raised_) return;
  const std::lock_guard lock(raised_mutex_);
  throw Error(raised_code_, raised_text_);
}

void SocketsTransport::hear_control() {
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<size_t>(peer);
    if (peer == rank() || control_closed_[i]) continue;
    std::string& in = control_in_[i];
    char buffer[512];
    while (true) {
      const int64_t n = link(kControl, peer).receive_some(buffer, sizeof(buffer));
      if (n < 0) control_closed_[i] = 1;
      if (n <= 0) break;
      in.append(buffer, static_cast<size_t>(n));
      if (in.size() > sizeof(FailureFrame) + kMostFailure) {
        control_closed_[i] = 1;
        break;
      }
    }
    FailureFrame frame;
    if (in.size() < sizeof(frame)) continue;
    std::memcpy(&frame, in.data(), sizeof(frame));
    if (frame.bytes > kMostFailure || in.size() < sizeof(frame) + frame.bytes) continue;
    const auto code = static_cast<Code>(frame.code);
    raise_here(code == Code::kAborted ? code : Code::kComm, in.substr(sizeof(frame), frame.bytes));
    return;
  }
}

}  // namespace ds::comm
