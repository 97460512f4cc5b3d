// Who is in a group of ranks, and whether the group goes on: what every call on it asks first.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ds {

// Where the ranks of a group are. A node is a host, or what CommOptions::ranks_per_node pretends.
struct Topology {
  int local_rank = 0;  // among the group's ranks of the same node
  int local_size = 1;
  int node = 0;
  int nodes = 1;
  std::vector<int> node_of = {0};  // by rank; numbered in order of their first rank
};

// Public functions may be called from any thread at any moment.
class GroupState {
 public:
  // kFailed: a peer was lost, a deadline passed, or ranks called different things; later calls
  // throw the same kComm error.
  enum class State { kActive, kFinalized, kAborted, kFailed };

  GroupState(int rank, int size, std::chrono::milliseconds deadline);
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // The label of the split that made it, which its errors show; "" for a group made otherwise.
  const std::string& name() const noexcept { return name_; }
  // By rank: what it is called in the group from which all others were split, which its errors
  // show; empty for that one.
  const std::vector<int>& first_ranks() const noexcept { return first_ranks_; }
  std::chrono::milliseconds deadline() const noexcept { return deadline_; }
  State state() const noexcept { return state_.load(std::memory_order_acquire); }
  const Topology& topology() const noexcept { return topology_; }

 protected:
  ~GroupState() = default;

  // Before the group is used.
  void set_name(std::string_view name) { name_ = name; }
  void set_first_ranks(std::vector<int> ranks) { first_ranks_ = std::move(ranks); }
  void set_topology(Topology topology) { topology_ = std::move(topology); }
  // Throws kAborted, kComm or kState unless the group is active.
  void check_active(std::string_view operation) const;
  // " (group \"tensor\" of ranks 2, 3)", or nothing: what an error ends with.
  std::string in_group() const;
  // Ends an active group with an error: kAborted for Code::kAborted, else kFailed.
  void mark_failed(Code code, std::string_view text) noexcept;
  // Ends an active group in order. False when it has ended otherwise meanwhile.
  bool mark_finalized() noexcept;

 private:
  const int rank_;
  const int size_;
  const std::chrono::milliseconds deadline_;
  std::string name_;
  std::vector<int> first_ranks_;
  Topology topology_;
  std::atomic<State> state_{State::kActive};
  mutable std::mutex reason_mutex_;
  std::string reason_;
};

}  // namespace ds
