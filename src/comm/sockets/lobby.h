// Those who have connected and have not proven who they are. They cost little and keep nobody out:
// few bytes are read of each, they have little time, and when they are too many, of one address or
// in all, the one who has waited longest goes.
#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "comm/sockets/job_secret.h"
#include "comm/sockets/socket.h"

namespace ds::comm {

struct Guest {
  Socket socket;
  std::string address;
  Clock::time_point since = Clock::now();
  std::string in;        // what it said so far
  bool greeted = false;  // its first message was right, and it has our nonce
  Nonce nonce{};
  bool over = false;  // it has gone, is refused, or has been let in

  // Reads until `in` has so many bytes; true when it has. A guest that has closed is over.
  bool hear(size_t bytes);
  // Sends a short message at once; who cannot take it is over.
  void tell(std::string_view message);
};

class Lobby {
 public:
  // `members`: how many may come that belong here, all from one address perhaps.
  explicit Lobby(int members);

  // The listener and the guests, for poll().
  void add_to(std::vector<pollfd>& files, const Socket& listener) const;
  // Lets in who waits at the listener, then calls `meet` for every guest, which sets `over`; those
  // are gone on return, and who took too long.
  void serve(const Socket& listener, const std::function<void(Guest&)>& meet);
  size_t size() const { return guests_.size(); }

 private:
  using Meet = std::function<void(Guest&)>;
  void accept_from(const Socket& listener, const Meet& meet);
  void make_room(const std::string& address, const Meet& meet);

  const size_t most_of_address_, most_;
  std::list<Guest> guests_;           // who came first is first
  Clock::time_point closed_until_{};  // no files are left for more connections
};

}  // namespace ds::comm
