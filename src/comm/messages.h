// Point-to-point messages over the byte streams of a transport: matched by sender and tag in the
// order of sending; what nobody has asked for yet is kept aside.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "comm/operation.h"

namespace ds::comm {

class Messages {
 public:
  explicit Messages(Transport& transport);

  void post(OperationPtr operation);
  bool pending() const;
  // Moves what can move now; false when nothing could. `finished` gets every message that is over.
  bool progress(const std::function<void(const OperationPtr&)>& finished);
  // The message whose deadline comes first, and whom messages wait for.
  Operation& most_urgent() const;
  // The time of each that is pending goes on; see Deadline.
  void look();
  std::vector<int> awaited() const;
  // Gives up; returns what was pending.
  std::vector<OperationPtr> take_all();

 private:
  struct Header {
    uint64_t magic;
    int64_t tag;
    int64_t bytes;
  };
  // A message that comes in from a peer: its header, then its bytes to where they belong.
  struct Incoming {
    Header header{};
    int64_t header_got = 0;
    int64_t got = 0;
    OperationPtr receiver;        // null: kept aside
    std::vector<std::byte> kept;  // no larger than twice what has come
  };
  struct Outgoing {
    OperationPtr operation;
    Header header{};
    int64_t sent = 0;  // of header and bytes
  };
  struct Kept {
    int64_t tag;
    std::vector<std::byte> bytes;
  };

  bool progress_send(Outgoing& outgoing);
  bool progress_receive(int peer, const std::function<void(const OperationPtr&)>& finished);
  void begin(Incoming& incoming, int peer);
  static std::span<std::byte> room_for(Incoming& incoming);
  OperationPtr take_receiver(int peer, int64_t tag);

  Transport& transport_;
  std::deque<Outgoing> sends_;
  std::deque<OperationPtr> receives_;
  std::vector<Incoming> incoming_;      // by peer
  std::vector<std::deque<Kept>> kept_;  // by peer
};

}  // namespace ds::comm
