#include "comm/messages.h"

#include <algorithm>
#include <cstring>

namespace ds::comm {
namespace {

constexpr uint64_t kMagic = 0x6D657373616765ull;
// Messages that nobody asked for are kept in memory up to this size each.
constexpr int64_t kMostKept = int64_t{1} << 34;

}  // namespace

Messages::Messages(Transport& transport)
    : transport_(transport),
      incoming_(static_cast<size_t>(transport.size())),
      kept_(static_cast<size_t>(transport.size())) {}

void Messages::post(OperationPtr operation) {
  if (operation->record.kind == Collective::kSend) {
    Outgoing outgoing;
    outgoing.header = {kMagic, operation->tag, operation->input.bytes()};
    outgoing.operation = std::move(operation);
    sends_.push_back(std::move(outgoing));
  } else {
    receives_.push_back(std::move(operation));
  }
}

bool Messages::pending() const {
  return !sends_.empty() || !receives_.empty() ||
         std::ranges::any_of(incoming_, [](const Incoming& in) { return in.receiver != nullptr; });
}

bool Messages::progress(const std::function<void(const OperationPtr&)>& finished) {
  bool moved = false;
  // One message after another to each peer.
  std::vector<char> blocked(static_cast<size_t>(transport_.size()));
  for (size_t i = 0; i < sends_.size();) {
    const auto peer = static_cast<size_t>(sends_[i].operation->peer);
    if (blocked[peer]) {
      ++i;
      continue;
    }
    moved = progress_send(sends_[i]) || moved;
    const Outgoing& outgoing = sends_[i];
    if (outgoing.sent == static_cast<int64_t>(sizeof(Header)) + outgoing.header.bytes) {
      const OperationPtr over = outgoing.operation;
      sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(i));
      finished(over);
    } else {
      blocked[peer] = 1;
      ++i;
    }
  }
  std::vector<int> peers;
  for (const OperationPtr& receive : receives_) {
    if (std::ranges::find(peers, receive->peer) == peers.end()) peers.push_back(receive->peer);
  }
  // What begins to arrive is taken to its end, whoever asked for it.
  for (int peer = 0; peer < transport_.size(); ++peer) {
    const Incoming& incoming = incoming_[static_cast<size_t>(peer)];
    if (incoming.header_got > 0 && std::ranges::find(peers, peer) == peers.end()) {
      peers.push_back(peer);
    }
  }
  for (const int peer : peers) moved = progress_receive(peer, finished) || moved;
  return moved;
}

bool Messages::progress_send(Outgoing& outgoing) {
  constexpr auto kHeader = static_cast<int64_t>(sizeof(Header));
  const auto* header = reinterpret_cast<const std::byte*>(&outgoing.header);
  const auto* bytes = static_cast<const std::byte*>(outgoing.operation->input.raw());
  const int peer = outgoing.operation->peer;
  bool moved = false;
  while (outgoing.sent < kHeader + outgoing.header.bytes) {
    const bool in_header = outgoing.sent < kHeader;
    const int64_t at = in_header ? outgoing.sent : outgoing.sent - kHeader;
    const int64_t left = (in_header ? kHeader : outgoing.header.bytes) - at;
    const int64_t n = transport_.write_some(peer, (in_header ? header : bytes) + at, left);
    if (n == 0) break;
    outgoing.sent += n;
    moved = true;
  }
  return moved;
}

OperationPtr Messages::take_receiver(int peer, int64_t tag) {
  const auto found = std::ranges::find_if(receives_, [&](const OperationPtr& receive) {
    return receive->peer == peer && receive->tag == tag;
  });
  if (found == receives_.end()) return nullptr;
  OperationPtr receiver = std::move(*found);
  receives_.erase(found);
  return receiver;
}

namespace {

void check_size(const Operation& receive, int64_t bytes) {
  DS_CHECK(receive.output.bytes() == bytes, Code::kComm, describe(receive.record), " with tag ",
           receive.tag, " from rank ", receive.peer, ": the message has ", bytes,
           " bytes, the tensor ", receive.output.bytes());
}

}  // namespace

void Messages::begin(Incoming& incoming, int peer) {
  const Header& header = incoming.header;
  DS_CHECK(header.magic == kMagic && header.bytes >= 0, Code::kComm, "what rank ", peer,
           " sent is no message");
  incoming.receiver = take_receiver(peer, header.tag);
  if (incoming.receiver) {
    check_size(*incoming.receiver, header.bytes);
  } else {
    DS_CHECK(header.bytes <= kMostKept, Code::kComm, "rank ", peer, " sent a message of ",
             format_bytes(header.bytes), " with tag ", header.tag, " that nobody receives");
  }
}

// Where the next bytes go. Memory of our own grows with what arrives, whatever the header claims.
std::span<std::byte> Messages::room_for(Incoming& incoming) {
  constexpr int64_t kFirst = int64_t{1} << 20;
  const int64_t bytes = incoming.header.bytes;
  if (incoming.receiver) {
    auto* const target = static_cast<std::byte*>(incoming.receiver->output.raw());
    return {target + incoming.got, static_cast<size_t>(bytes - incoming.got)};
  }
  if (incoming.got == std::ssize(incoming.kept)) {
    incoming.kept.resize(static_cast<size_t>(std::min(bytes, std::max(kFirst, 2 * incoming.got))));
  }
  return std::span(incoming.kept).subspan(static_cast<size_t>(incoming.got));
}

bool Messages::progress_receive(int peer,
                                const std::function<void(const OperationPtr&)>& finished) {
  constexpr auto kHeader = static_cast<int64_t>(sizeof(Header));
  Incoming& incoming = incoming_[static_cast<size_t>(peer)];
  std::deque<Kept>& kept = kept_[static_cast<size_t>(peer)];
  bool moved = false;
  for (auto it = kept.begin(); it != kept.end();) {
    const OperationPtr receiver = take_receiver(peer, it->tag);
    if (!receiver) {
      ++it;
      continue;
    }
    check_size(*receiver, static_cast<int64_t>(it->bytes.size()));
    if (!it->bytes.empty()) {
      std::memcpy(receiver->output.raw(), it->bytes.data(), it->bytes.size());
    }
    it = kept.erase(it);
    finished(receiver);
    moved = true;
  }
  const auto wanted = [&] {
    return std::ranges::any_of(receives_, [&](const OperationPtr& r) { return r->peer == peer; });
  };
  while (incoming.header_got > 0 || wanted()) {
    if (incoming.header_got < kHeader) {
      const int64_t n = transport_.read_some(
          peer, reinterpret_cast<std::byte*>(&incoming.header) + incoming.header_got,
          kHeader - incoming.header_got);
      if (n == 0) return moved;
      moved = true;
      incoming.header_got += n;
      if (incoming.header_got < kHeader) continue;
      begin(incoming, peer);
    }
    while (incoming.got < incoming.header.bytes) {
      const std::span<std::byte> room = room_for(incoming);
      const int64_t n = transport_.read_some(peer, room.data(), std::ssize(room));
      if (n == 0) return moved;
      moved = true;
      incoming.got += n;
    }
    Incoming over = std::move(incoming);
    incoming = Incoming();
    if (over.receiver) {
      finished(over.receiver);
    } else {
      kept.push_back({over.header.tag, std::move(over.kept)});
    }
  }
  return moved;
}

void Messages::look() {
  for (const Outgoing& outgoing : sends_) outgoing.operation->deadline.look();
  for (const OperationPtr& receive : receives_) receive->deadline.look();
  for (const Incoming& incoming : incoming_) {
    if (incoming.receiver) incoming.receiver->deadline.look();
  }
}

Operation& Messages::most_urgent() const {
  Operation* first = nullptr;
  const auto consider = [&](Operation& operation) {
    if (first == nullptr || operation.deadline.at < first->deadline.at) first = &operation;
  };
  for (const Outgoing& outgoing : sends_) consider(*outgoing.operation);
  for (const OperationPtr& receive : receives_) consider(*receive);
  for (const Incoming& incoming : incoming_) {
    if (incoming.receiver) consider(*incoming.receiver);
  }
  DS_CHECK(first != nullptr, Code::kInternal, "no message is pending");
  return *first;
}

std::vector<int> Messages::awaited() const {
  std::vector<int> peers;
  const auto add = [&](int peer) {
    if (std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
  };
  for (const Outgoing& outgoing : sends_) add(outgoing.operation->peer);
  for (const OperationPtr& receive : receives_) add(receive->peer);
  for (const Incoming& incoming : incoming_) {
    if (incoming.receiver) add(incoming.receiver->peer);
  }
  return peers;
}

std::vector<OperationPtr> Messages::take_all() {
  std::vector<OperationPtr> all(receives_.begin(), receives_.end());
  for (const Outgoing& outgoing : sends_) all.push_back(outgoing.operation);
  for (Incoming& incoming : incoming_) {
    if (incoming.receiver) all.push_back(std::move(incoming.receiver));
    incoming = Incoming();
  }
  receives_.clear();
  sends_.clear();
  return all;
}

}  // namespace ds::comm
