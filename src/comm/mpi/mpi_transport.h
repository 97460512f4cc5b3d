// The transport over MPI: byte streams made of messages, tested and never waited for, so that
// deadlines, failures and aborts work as everywhere.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/plugin.h"
#include "comm/options.h"
#include "comm/stream_transport.h"

namespace ds::comm {

// This library's copy of an MPI communicator, shared by the groups that are split from it.
class MpiWorld {
 public:
  // Loads the plug-in, begins MPI where the program has not, and copies the communicator of the
  // options; collective over it. Throws kUnsupported without a plug-in.
  explicit MpiWorld(const CommOptions& options);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  const MpiFunctions& mpi() const { return *functions_; }
  MpiFunctions::Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  [[noreturn]] void fail_with(int error, std::string_view what) const;

  // Groups are kept apart by tags. The members of a new one agree on the largest number that any
  // of them has free.
  int64_t next_group() const { return next_group_; }
  void group_taken(int64_t number) { next_group_ = std::max<int64_t>(next_group_, number + 1); }
  int tag_of(int64_t group, Channel channel) const;
  void mark_failed() { orderly_ = false; }

 private:
  const MpiFunctions* functions_ = nullptr;
  MpiFunctions::Comm comm_ = nullptr;
  int rank_ = 0, size_ = 0, largest_tag_ = 0;
  std::atomic<int64_t> next_group_{1};
  std::atomic<bool> orderly_{true};
};

class MpiTransport : public StreamTransport {
 public:
  // `members`: ranks of the world, by rank of the group.
  MpiTransport(std::shared_ptr<MpiWorld> world, int rank, std::vector<int> members, int64_t group);
  ~MpiTransport() override;

  const char* name() const noexcept override { return "mpi"; }
  void wake() noexcept override { woken_ = true; }
  std::unique_ptr<Transport> split(const std::vector<int>& members, const GatherTexts& gather,
                                   const Watch& watch) override;

 protected:
  int64_t send_some(Channel channel, int peer, const void* data, int64_t bytes) override;
  int64_t receive_some(Channel channel, int peer, void* data, int64_t bytes) override;
  bool wait_for_links(std::span<const int> readable, std::span<const int> writable, Channel channel,
                      Clock::time_point deadline) override;

 private:
  static constexpr int kSlots = 2;  // messages of a stream that are under way at once
  // What MPI reads and writes lies in memory of its own: it may outlive a call that failed.
  struct Slot {
    std::vector<std::byte> data;
    MpiFunctions::Request request = 0;
    bool active = false;
    int64_t filled = 0, taken = 0;  // of a message received
  };
  struct Lane {  // one direction between two ranks
    Slot slots[kSlots];
    int next = 0;
    bool begun = false, ended = false;
  };
  struct Lanes {
    std::vector<Lane> out, in;  // by peer
  };
  int world_rank(int peer) const { return members_[static_cast<size_t>(peer)]; }
  int64_t slot_bytes(Channel channel) const;
  bool test(Slot& slot, int peer);  // false: still under way
  void post(Channel channel, int peer, Slot& slot);
  bool readable(Channel channel, int peer);
  bool writable(Channel channel, int peer);
  void leave() noexcept;

  const std::shared_ptr<MpiWorld> world_;
  const std::vector<int> members_;
  const int64_t group_;
  std::unique_ptr<Lanes[]> lanes_;  // by channel
  std::atomic<bool> woken_{false};
};

// Ranks give each other texts over a transport, before there is a group.
GatherTexts gather_over(Transport& transport, std::chrono::milliseconds deadline);

}  // namespace ds::comm
