// Rows that every rank of a group sends to every other one, as many to each as it likes: straight
// to their rank or, where the ranks sit on several nodes, in two steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/node_groups.h"

namespace ds {

// A group and the way that rows take through it.
struct ExchangeRanks {
  RankGroup all;                            // or none
  std::shared_ptr<const NodeGroups> nodes;  // null: straight to their rank
  explicit operator bool() const { return static_cast<bool>(all); }
};

// Whether the ranks of the group that `rank` is in sit on several nodes, with as many, and more
// than one, on each: then two steps are of use. `node_of` is by rank of the world.
bool several_on_several_nodes(const MeshShape& mesh, MeshGroup group, int rank,
                              std::span<const int> node_of);
// Throws kConfig, `key` first, unless all groups of this kind sit so.
void check_two_steps(const MeshShape& mesh, MeshGroup group, std::span<const int> node_of,
                     std::string_view key);

// The group of this kind that this rank is in; with `two_steps` it goes in two steps if that is of
// use. Collective over the group, and over the world where the mesh has not made it yet.
ExchangeRanks make_exchange_ranks(const Mesh& mesh, MeshGroup group, bool two_steps);

// How many rows go from whom to whom, and how they go. In two steps, rows go first to the rank of
// their sender's place on their receiver's node, with all others that this rank sends there, and
// then within that node; on the way home back by the same ranks. So each rank sends one message to
// every other node where it would send one to each of its ranks. (The hierarchical
// all-to-all of DeepSpeed-MoE, Rajbhandari et al., arXiv:2201.05596, whose steps come in the other
// order: here the long way comes first, so that rows are on it while the caller computes.)
class RowExchange {
 public:
  enum class Way { kOut, kHome };

  // Collective. `told` is in the host's memory, [rank, part] of int64: how many rows each rank gets
  // of this one, in parts; `heard` gets how many come of each. Throws kComm where a rank tells
  // nonsense.
  RowExchange(ExchangeRanks ranks, const Tensor& told, const Tensor& heard, std::string_view label);

  // Rows by rank.
  const std::vector<int64_t>& sent() const { return sent_; }
  const std::vector<int64_t>& received() const { return received_; }
  int64_t rows_sent() const;
  int64_t rows_received() const;

  // Rows on their way.
  class Flight {
   public:
    explicit operator bool() const { return work_ != nullptr; }

   private:
    friend class RowExchange;
    WorkPtr work_;
    Tensor arrived_;  // where they are after the step in flight; none: in their place
  };
  // Collective: `rows` [n, width], those for rank 0 first, or on the way home those of rank 0.
  // `out` [m, width] is made of as many as come, in the order of the ranks, when finish() returns,
  // which is collective, too. Both are touched by nobody in between.
  Flight start(const Tensor& rows, const Tensor& out, Way way,
               const CollectiveOptions& options) const;
  void finish(Flight flight, const Tensor& out, Way way, const CollectiveOptions& options) const;

 private:
  Tensor tell(const Tensor& told, std::string_view label);
  void start_between_nodes(const Tensor& rows, const Tensor& out, bool home,
                           const CollectiveOptions& options, Flight& flight) const;
  Tensor out_within(const Tensor& arrived, const CollectiveOptions& options) const;
  Tensor home_within(const Tensor& rows, const CollectiveOptions& options) const;
  std::vector<int> order_within() const;

  ExchangeRanks ranks_;
  std::vector<int64_t> sent_, received_;
  // In two steps: rows that pass through this rank, from the rank of its place on each node to each
  // place of its own node.
  std::vector<int64_t> through_;
};

}  // namespace ds
