// The transport of ranks that share memory. Collectives read and write peers' shared tensors where
// they lie; private memory goes through slots in chunks. All waits are for step counters in shared
// memory, so a wait always knows which rank it is for.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/shm/control.h"
#include "comm/shm/futex.h"
#include "comm/shm/region.h"
#include "comm/transport.h"

namespace ds::comm {

class ShmTransport : public Transport {
 public:
  // Collective over `gather`. `identity` has the ranks' numbers in the first group, for the table.
  // Throws kComm on every rank when the ranks share no memory, after as many gathers as otherwise.
  static std::unique_ptr<ShmTransport> make(int rank, int size,
                                            std::shared_ptr<SegmentSource> source,
                                            std::shared_ptr<RegionTable> table,
                                            std::vector<int> identity, const GatherTexts& gather);
  // The transports of ranks that are threads of this process, made at once.
  static std::vector<std::unique_ptr<ShmTransport>> make_local(int size);
  ~ShmTransport() override;

  const char* name() const noexcept override { return "shm"; }
  void exchange(const Record& mine, std::span<const std::byte> payload,
                const Watch& watch) override;
  const Record& record(int rank) const override;
  const std::byte* payload(int rank) const override;
  Place locate(const void* data, int64_t bytes) const override;
  void move(const Movement& movement, const Watch& watch) override;
  void reduce(const Reduction& reduction, const Watch& watch) override;
  int64_t write_some(int peer, const std::byte* data, int64_t bytes) override;
  int64_t read_some(int peer, std::byte* data, int64_t bytes) override;
  void wait_for_streams(std::span<const int> peers, const Watch& watch) override;
  void wake() noexcept override;
  void announce(const Record& record, bool busy) noexcept override;
  Tensor shared_tensor(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                       MemoryTag tag, const GatherTexts& gather) override;
  std::unique_ptr<Transport> split(const std::vector<int>& members, const GatherTexts& gather,
                                   const Watch& watch) override;
  void raise(Code code, std::string_view text) noexcept override;
  void check_raised() const override;

  // How messages call the ranks, where this group is a part of another.
  void call_ranks(std::vector<int> names) { names_ = std::move(names); }
  // All ranks pass a point together.
  void sync(const Watch& watch);

 private:
  ShmTransport(int rank, int size, std::shared_ptr<Segment> control,
               std::shared_ptr<SegmentSource> source, std::shared_ptr<RegionTable> table,
               std::vector<int> identity);
  void meet();  // collective, once all have mapped the control memory

  std::byte* slot(int rank) const { return control_.slot(rank, rounds_); }  // of this round

  // Waiting (shm_wait.cc).
  void await_step(int peer, uint32_t target, const Watch& watch);
  bool reached(int rank, uint32_t target) const {
    return static_cast<int32_t>(control_.of(rank).step.load(std::memory_order_acquire) - target) >=
           0;
  }
  void check_peers(std::span<const int> peers, const Watch& watch, uint32_t target, bool streams);
  bool process_ended(int rank);
  std::string rank_states() const;  // what every rank does
  int name_of(int rank) const { return names_.empty() ? rank : names_[static_cast<size_t>(rank)]; }

  // Ways to reduce and move.
  std::byte* shared(const Place& place, int rank) const {
    return table_->resolve(place, identity_[static_cast<size_t>(rank)]);
  }
  bool inputs_shared(const std::vector<char>& of_ranks) const;
  bool outputs_shared(const std::vector<char>& of_ranks) const;
  void reduce_whole_direct(const Reduction& reduction, const Watch& watch);
  void reduce_whole_staged(const Reduction& reduction, const Watch& watch);
  void reduce_pieces_direct(const Reduction& reduction, const Watch& watch);
  void reduce_pieces_staged(const Reduction& reduction, const Watch& watch);
  void pull(const Movement& movement);
  void push(const Movement& movement);
  void move_staged(const Movement& movement, const Watch& watch);

  const ControlMemory control_;
  const std::shared_ptr<SegmentSource> source_;
  const std::shared_ptr<RegionTable> table_;
  const std::vector<int> identity_;
  SpinWait spin_wait_;
  std::vector<int> names_;
  std::vector<int> process_files_;  // pidfds by rank; -1: a thread of this process, or none given
  uint32_t step_ = 0;
  uint32_t exchanges_ = 0;
  uint32_t rounds_ = 0;
  uint32_t bell_seen_ = 0;
  std::vector<const std::byte*> inputs_;  // reused by every reduction
  std::vector<std::byte*> outputs_;
};

// Rank `leader` of the gather creates a segment and all others of the group open it. Collective
// over the gather; every rank throws where one fails. Ranks outside (`member` false) get null.
std::shared_ptr<Segment> share_segment(int self, int leader, bool member, size_t bytes,
                                       SegmentSource& source, const GatherTexts& gather);

}  // namespace ds::comm
