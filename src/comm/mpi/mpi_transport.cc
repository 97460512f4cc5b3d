// Streams of messages over MPI.
#include "comm/mpi/mpi_transport.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <thread>

#include "base/text.h"

namespace ds::comm {

MpiTransport::MpiTransport(std::shared_ptr<MpiWorld> world, int rank, std::vector<int> members,
                           int64_t group)
    : StreamTransport(rank, static_cast<int>(std::ssize(members))),
      world_(std::move(world)),
      members_(std::move(members)),
      group_(group),
      lanes_(new Lanes[kChannels]) {
  world_->group_taken(group_);
  world_->tag_of(group_, kControl);  // the last one
  for (int channel = 0; channel < kChannels; ++channel) {
    lanes_[static_cast<size_t>(channel)].out.resize(members_.size());
    lanes_[static_cast<size_t>(channel)].in.resize(members_.size());
  }
}

MpiTransport::~MpiTransport() { leave(); }

// The same on every rank: a sender fills at most what its receiver has room for.
int64_t MpiTransport::slot_bytes(Channel channel) const {
  constexpr int64_t kMost = int64_t{16} << 20;  // of a direction, over all peers
  switch (channel) {
    case kData:
      return std::clamp<int64_t>(kMost / size(), 16 << 10, 512 << 10);
    case kStream:
      return std::clamp<int64_t>(kMost / size(), 16 << 10, 64 << 10);
    case kControl:
      break;
  }
  return 4 << 10;
}

bool MpiTransport::test(Slot& slot, int peer) {
  if (!slot.active) return true;
  bool done = false;
  int bytes = 0;
  if (const int error = world_->mpi().test(&slot.request, &done, &bytes)) {
    slot.active = false;
    world_->mark_failed();
    world_->fail_with(error, str_cat("a message between rank ", rank(), " and rank ", peer));
  }
  if (!done) return false;
  slot.active = false;
  slot.filled = bytes;
  slot.taken = 0;
  return true;
}

void MpiTransport::post(Channel channel, int peer, Slot& slot) {
  slot.data.resize(static_cast<size_t>(slot_bytes(channel)));
  const int error =
      world_->mpi().receive(world_->comm(), slot.data.data(), static_cast<int>(slot.data.size()),
                            world_rank(peer), world_->tag_of(group_, channel), &slot.request);
  if (error != 0) world_->fail_with(error, str_cat("a receive from rank ", peer));
  slot.active = true;
}

// There is something to receive, be it the end.
bool MpiTransport::readable(Channel channel, int peer) {
  Lane& lane = lanes_[channel].in[static_cast<size_t>(peer)];
  if (lane.ended) return true;
  if (!lane.begun) {
    for (Slot& slot : lane.slots) post(channel, peer, slot);
    lane.begun = true;
  }
  Slot& slot = lane.slots[lane.next];
  if (!test(slot, peer)) return false;
  if (slot.filled == 0) lane.ended = true;  // an empty message is the last one
  return true;
}

bool MpiTransport::writable(Channel channel, int peer) {
  Lane& lane = lanes_[channel].out[static_cast<size_t>(peer)];
  return test(lane.slots[lane.next], peer);
}

int64_t MpiTransport::receive_some(Channel channel, int peer, void* data, int64_t bytes) {
  if (!readable(channel, peer)) return 0;
  Lane& lane = lanes_[channel].in[static_cast<size_t>(peer)];
  if (lane.ended) return -1;
  Slot& slot = lane.slots[lane.next];
  const int64_t n = std::min(bytes, slot.filled - slot.taken);
  std::memcpy(data, slot.data.data() + slot.taken, static_cast<size_t>(n));
  slot.taken += n;
  if (slot.taken == slot.filled) {
    post(channel, peer, slot);
    lane.next = (lane.next + 1) % kSlots;
  }
  return n;
}

int64_t MpiTransport::send_some(Channel channel, int peer, const void* data, int64_t bytes) {
  // A peer that has left takes nothing. Failures are sent to whoever still listens; another thread
  // may be receiving them.
  if (channel != kControl && readable(channel, peer) &&
      lanes_[channel].in[static_cast<size_t>(peer)].ended) {
    return -1;
  }
  if (!writable(channel, peer)) return 0;
  Lane& lane = lanes_[channel].out[static_cast<size_t>(peer)];
  Slot& slot = lane.slots[lane.next];
  const int64_t n = std::min(bytes, slot_bytes(channel));
  const auto* const from = static_cast<const std::byte*>(data);
  slot.data.assign(from, from + n);
  const int error =
      world_->mpi().send(world_->comm(), slot.data.data(), static_cast<int>(n), world_rank(peer),
                         world_->tag_of(group_, channel), &slot.request);
  if (error != 0) world_->fail_with(error, str_cat("a send to rank ", peer));
  slot.active = true;
  lane.next = (lane.next + 1) % kSlots;
  return n;
}

// MPI tells nobody when something arrives: ask, first often, then less so, so that ranks that share
// a core get on.
bool MpiTransport::wait_for_links(std::span<const int> readables, std::span<const int> writables,
                                  Channel channel, Clock::time_point deadline) {
  constexpr auto kSlice = std::chrono::milliseconds(2);
  const auto end = std::min(deadline, Clock::now() + kSlice);
  for (int turn = 0;; ++turn) {
    const bool ready =
        woken_.exchange(false) ||
        std::ranges::any_of(readables, [&](int peer) { return readable(channel, peer); }) ||
        std::ranges::any_of(writables, [&](int peer) { return writable(channel, peer); });
    if (ready) return true;
    if (Clock::now() >= end) return false;
    if (turn < 20) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(turn < 100 ? 20 : 100));
    }
  }
}

std::unique_ptr<Transport> MpiTransport::split(const std::vector<int>& members,
                                               const GatherTexts& gather, const Watch&) {
  const std::vector<std::string> texts = gather(str_cat(world_->next_group()));
  const auto self = std::ranges::find(members, rank());
  if (self == members.end()) return nullptr;
  int64_t group = 0;
  std::vector<int> world_ranks;
  for (const int member : members) {
    int64_t free = 0;
    std::istringstream(texts[static_cast<size_t>(member)]) >> free;
    group = std::max(group, free);
    world_ranks.push_back(world_rank(member));
  }
  return std::make_unique<MpiTransport>(world_, static_cast<int>(self - members.begin()),
                                        std::move(world_ranks), group);
}

// Tells the peers, and takes back what MPI was lent. What it does not give back in time is left to
// it for ever.
void MpiTransport::leave() noexcept {
  try {
    const auto end = Clock::now() + std::chrono::milliseconds(raised() ? 200 : 2000);
    std::vector<std::pair<Slot*, int>> open;
    std::vector<MpiFunctions::Request> last;
    for (int channel = 0; channel < kChannels; ++channel) {
      Lanes& lanes = lanes_[static_cast<size_t>(channel)];
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        MpiFunctions::Request request = 0;
        const int tag = world_->tag_of(group_, static_cast<Channel>(channel));
        if (world_->mpi().send(world_->comm(), nullptr, 0, world_rank(peer), tag, &request) == 0) {
          last.push_back(request);
        }
        for (Slot& slot : lanes.out[static_cast<size_t>(peer)].slots) {
          if (slot.active) open.emplace_back(&slot, peer);
        }
        for (Slot& slot : lanes.in[static_cast<size_t>(peer)].slots) {
          if (!slot.active) continue;
          world_->mpi().cancel(&slot.request);
          open.emplace_back(&slot, peer);
        }
      }
    }
    while (true) {
      std::erase_if(open, [&](const auto& item) { return test(*item.first, item.second); });
      std::erase_if(last, [&](MpiFunctions::Request& request) {
        bool done = false;
        int bytes = 0;
        return world_->mpi().test(&request, &done, &bytes) != 0 || done;
      });
      if (open.empty() && last.empty()) break;
      if (Clock::now() > end) break;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (raised() || !last.empty() || !open.empty()) world_->mark_failed();
    if (open.empty()) return;
  } catch (const std::exception&) {
    world_->mark_failed();
  }
  (void)lanes_.release();
}

}  // namespace ds::comm
