#include "comm/sockets/lobby.h"

#include <algorithm>
#include <cerrno>

namespace ds::comm {
namespace {

constexpr std::chrono::seconds kGuestTimeout{10};
constexpr int kAtOnce = 64;  // new guests of one round; each is heard before it may have to go

}  // namespace

bool Guest::hear(size_t bytes) {
  char buffer[256];
  while (in.size() < bytes) {
    const size_t wanted = std::min(sizeof(buffer), bytes - in.size());
    const int64_t n = socket.receive_some(buffer, static_cast<int64_t>(wanted));
    if (n < 0) over = true;
    if (n <= 0) return false;
    in.append(buffer, static_cast<size_t>(n));
  }
  return true;
}

void Guest::tell(std::string_view message) {
  const auto bytes = static_cast<int64_t>(message.size());
  if (socket.send_some(message.data(), bytes) != bytes) over = true;
}

Lobby::Lobby(int members)
    : most_of_address_(static_cast<size_t>(members) + kAtOnce), most_(most_of_address_ + 192) {}

void Lobby::add_to(std::vector<pollfd>& files, const Socket& listener) const {
  const bool closed = Clock::now() < closed_until_;
  files.push_back({.fd = closed ? -1 : listener.file(), .events = POLLIN, .revents = 0});
  for (const Guest& guest : guests_) {
    files.push_back({.fd = guest.socket.file(), .events = POLLIN, .revents = 0});
  }
}

void Lobby::make_room(const std::string& address, const Meet& meet) {
  // Who has said nothing goes before who is about to prove who it is.
  const auto send_off = [&](const auto& counts) {
    std::list<Guest>::iterator first = guests_.end();
    for (auto guest = guests_.begin(); guest != guests_.end(); ++guest) {
      if (!counts(*guest)) continue;
      if (first == guests_.end()) first = guest;
      if (guest->greeted) continue;
      first = guest;
      break;
    }
    if (first == guests_.end()) return;
    meet(*first);  // what it has just said may let it in
    guests_.erase(first);
  };
  const auto of_address = [&](const Guest& guest) { return guest.address == address; };
  if (static_cast<size_t>(std::ranges::count_if(guests_, of_address)) >= most_of_address_) {
    send_off(of_address);
  } else if (guests_.size() >= most_) {
    send_off([](const Guest&) { return true; });
  }
}

void Lobby::accept_from(const Socket& listener, const Meet& meet) {
  if (Clock::now() < closed_until_) return;
  for (int i = 0; i < kAtOnce; ++i) {
    errno = 0;
    std::optional<Socket> socket = listener.accept();
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (!guests_.empty()) guests_.pop_front();
        closed_until_ = Clock::now() + std::chrono::milliseconds(20);
      }
      return;
    }
    std::string address = socket->peer_address();
    make_room(address, meet);
    Guest& guest = guests_.emplace_back();
    guest.socket = std::move(*socket);
    guest.address = std::move(address);
  }
}

void Lobby::serve(const Socket& listener, const std::function<void(Guest&)>& meet) {
  const auto hear_all = [&] {
    const auto now = Clock::now();
    for (Guest& guest : guests_) {
      meet(guest);
      if (now - guest.since > kGuestTimeout) guest.over = true;
    }
    std::erase_if(guests_, [](const Guest& guest) { return guest.over; });
  };
  hear_all();  // nobody has to go while what it said waits to be read
  accept_from(listener, meet);
  hear_all();
}

}  // namespace ds::comm
