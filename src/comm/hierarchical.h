// The transport of ranks on several hosts, some of which share one: blocks between ranks of a host
// go through shared memory, all others over TCP; what many ranks of a host need crosses the network
// once. Sums are still made in rank order.
#pragma once

#include <memory>
#include <vector>

#include "comm/shm/shm_transport.h"
#include "comm/sockets/sockets_transport.h"
#include "comm/transport.h"

namespace ds::comm {

class HierarchicalTransport : public Transport {
 public:
  // `node_of` by rank. `local` is the group of this rank's node, in the order of ranks.
  HierarchicalTransport(std::unique_ptr<Transport> local, std::unique_ptr<Transport> all,
                        std::vector<int> node_of);

  const char* name() const noexcept override { return "hierarchical"; }
  void exchange(const Record& mine, std::span<const std::byte> payload,
                const Watch& watch) override;
  const Record& record(int rank) const override { return all_->record(rank); }
  const std::byte* payload(int rank) const override { return all_->payload(rank); }
  Place locate(const void* data, int64_t bytes) const override {
    return local_->locate(data, bytes);
  }
  void move(const Movement& movement, const Watch& watch) override;
  void reduce(const Reduction& reduction, const Watch& watch) override;
  int64_t write_some(int peer, const std::byte* data, int64_t bytes) override;
  int64_t read_some(int peer, std::byte* data, int64_t bytes) override {
    return all_->read_some(peer, data, bytes);
  }
  void wait_for_streams(std::span<const int> peers, const Watch& watch) override {
    all_->wait_for_streams(peers, watch);
  }
  void wake() noexcept override { all_->wake(); }
  void announce(const Record& record, bool busy) noexcept override {
    local_->announce(record, busy);
  }
  Tensor shared_tensor(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                       MemoryTag tag, const GatherTexts& gather) override;
  std::unique_ptr<Transport> split(const std::vector<int>& members, const GatherTexts& gather,
                                   const Watch& watch) override;
  void raise(Code code, std::string_view text) noexcept override;
  void check_raised() const override;
  std::optional<Traffic> sent_across() const override { return sent_; }

 private:
  bool near(int rank) const {
    return node_of_[static_cast<size_t>(rank)] == node_of_[static_cast<size_t>(this->rank())];
  }
  // Like move, for blocks that lie in memory of the program or in scratch memory (`stage`, as no
  // record tells where it is).
  void move_blocks(const Movement& movement, bool stage, const Watch& watch);
  void move_local(const Movement& movement, bool stage, const Watch& watch);
  void gather_by_columns(const Movement& movement, const Watch& watch);
  bool has_columns() const { return columns_; }

  const std::unique_ptr<Transport> local_;
  const std::unique_ptr<Transport> all_;
  const std::vector<int> node_of_;
  std::vector<std::vector<int>> members_;  // by node, rising
  std::vector<int> local_index_;           // by rank, within its node
  bool columns_ = true;                    // every node has as many ranks
  Traffic sent_;                           // across nodes alone
  Record last_;                            // for the records of the node
  std::vector<std::byte> scratch_;
};

// The gather of the ranks of one node, made of one of all: each node's ranks see their own texts.
GatherTexts gather_of_node(const GatherTexts& gather, std::vector<int> members);

}  // namespace ds::comm
