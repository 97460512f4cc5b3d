#include "mesh/row_exchange.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

using Counts = std::vector<int64_t>;

int64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Sums of a table [rows, columns], by row or by column.
Counts sums_by_row(const Counts& table, int columns) {
  Counts out(table.size() / static_cast<size_t>(columns));
  for (size_t i = 0; i < table.size(); ++i) out[i / static_cast<size_t>(columns)] += table[i];
  return out;
}
Counts sums_by_column(const Counts& table, int columns) {
  Counts out(static_cast<size_t>(columns));
  for (size_t i = 0; i < table.size(); ++i) out[i % out.size()] += table[i];
  return out;
}

using Order = std::vector<int>;  // of blocks: which one comes first, and so on

// Of a table [rows, columns] to its transpose.
Order transposed(int rows, int columns) {
  Order out;
  for (int j = 0; j < columns; ++j) {
    for (int i = 0; i < rows; ++i) out.push_back(i * columns + j);
  }
  return out;
}
Order inverse(const Order& order) {
  Order out(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    out[static_cast<size_t>(order[i])] = static_cast<int>(i);
  }
  return out;
}
// First `order`, then `next` of what came out.
Order then(const Order& order, const Order& next) {
  Order out;
  for (const int i : next) out.push_back(order[static_cast<size_t>(i)]);
  return out;
}
Counts in_order(const Counts& counts, const Order& order) {
  Counts out;
  for (const int i : order) out.push_back(counts[static_cast<size_t>(i)]);
  return out;
}
bool same(const Order& order) { return std::ranges::is_sorted(order); }

Tensor like(const Tensor& rows, int64_t count) {
  return Tensor::empty(rows.storage()->device(), rows.dtype(), {count, rows.size(1)},
                       MemoryTag::kCommunication);
}

// Blocks of so many rows each, in another order.
void reorder(const Tensor& from, const Counts& counts, const Order& order, const Tensor& to) {
  const int64_t row = from.size(1) * dtype_size(from.dtype());
  Counts begin(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begin.begin(), int64_t{0});
  const auto* const source = static_cast<const std::byte*>(from.raw());
  auto* target = static_cast<std::byte*>(to.raw());
  for (const int block : order) {
    const int64_t bytes = counts[static_cast<size_t>(block)] * row;
    if (bytes == 0) continue;
    auto* const first = const_cast<std::byte*>(source + begin[static_cast<size_t>(block)] * row);
    copy_rows(*from.storage()->device(), {target, bytes}, {first, bytes}, bytes, 1);
    target += bytes;
  }
}
Tensor reordered(const Tensor& from, const Counts& counts, const Order& order) {
  if (same(order)) return from;
  Tensor out = like(from, from.size(0));
  reorder(from, counts, order, out);
  return out;
}

WorkPtr send(const RankGroup& ranks, const Tensor& out, const Tensor& rows, const Counts& received,
             const Counts& sent, const CollectiveOptions& options) {
  const auto elements = [width = rows.size(1)](Counts counts) {
    for (int64_t& count : counts) count *= width;
    return counts;
  };
  return ranks->all_to_all_v(out.view({out.elements()}), rows.view({rows.elements()}),
                             elements(received), elements(sent), options);
}

// The step that the caller waits for in any case.
CollectiveOptions waiting(CollectiveOptions options) {
  options.blocking = true;
  return options;
}

// A group of some ranks failed. What all of them call says which rank it was in their numbers, or
// what another one has found. The rest must not wait for those that it ended.
[[noreturn]] void end_together(const ExchangeRanks& ranks, const Error& error) {
  constexpr std::chrono::seconds kLong{2};  // a rank that is lost is seen at once
  using State = Communicator::State;
  std::string text = error.message();
  const NodeGroups& nodes = *ranks.nodes;
  if (nodes.across->state() == State::kFailed || nodes.node->state() == State::kFailed) {
    try {
      ranks.all->barrier(
          {.label = "rows",
           .deadline = std::min<std::chrono::milliseconds>(kLong, ranks.all->deadline())});
    } catch (const Error& of_all) {
      text += str_cat("; among all ranks that exchange rows: ", of_all.message());
    }
  }
  for (const RankGroup* const group : {&nodes.across, &nodes.node, &ranks.all}) {
    (*group)->abort(text);
  }
  throw Error(error.code(), text);
}

// A step between some of the ranks.
template <class Body>
auto step(const ExchangeRanks& ranks, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    end_together(ranks, error);
  }
}

// `teller` is by block of counts: the rank that they are of.
void check_counts(const Tensor& counts, const std::vector<int>& teller) {
  const int64_t parts = counts.elements() / std::ssize(teller);
  int64_t all = 0;
  for (int64_t i = 0; i < counts.elements(); ++i) {
    const int64_t rows = counts.data<int64_t>()[i];
    DS_CHECK(rows >= 0 && rows <= INT32_MAX, Code::kComm, "rank ",
             teller[static_cast<size_t>(i / parts)],
             " of the ranks that exchange rows wants to send ", rows, " of them");
    all += rows;
    DS_CHECK(all <= INT32_MAX, Code::kUnsupported, "more than 2^31 - 1 rows come to one rank, or ",
             "pass through it");
  }
}

Counts rows_of(const Tensor& counts, int blocks) {
  const int64_t parts = counts.elements() / blocks;
  Counts out(static_cast<size_t>(blocks));
  for (int64_t i = 0; i < counts.elements(); ++i) {
    out[static_cast<size_t>(i / parts)] += counts.data<int64_t>()[i];
  }
  return out;
}

// None where two steps are of no use.
RanksByNode nodes_of(const std::vector<int>& members, std::span<const int> node_of) {
  std::vector<int> nodes;
  for (const int rank : members) nodes.push_back(node_of[static_cast<size_t>(rank)]);
  RanksByNode out = ranks_by_node(nodes);
  return std::cmp_less(out.nodes, members.size()) ? out : RanksByNode{};
}

}  // namespace

bool several_on_several_nodes(const MeshShape& mesh, MeshGroup group, int rank,
                              std::span<const int> node_of) {
  return nodes_of(mesh.members(group, rank), node_of).nodes > 0;
}

void check_two_steps(const MeshShape& mesh, MeshGroup group, std::span<const int> node_of,
                     std::string_view key) {
  for (int rank = 0; rank < mesh.world(); ++rank) {
    DS_CHECK(several_on_several_nodes(mesh, group, rank, node_of), Code::kConfig, key,
             ": the ranks that exchange rows with rank ", rank,
             " do not sit on several nodes with as many, and more than one, on each; leave it out, "
             "or use another number of ranks");
  }
}

ExchangeRanks make_exchange_ranks(const Mesh& mesh, MeshGroup group, bool two_steps) {
  ExchangeRanks out{mesh.placed(group), nullptr};
  if (!two_steps) return out;
  RanksByNode nodes = nodes_of(mesh.members(group), mesh.world()->topology().node_of);
  if (nodes.nodes > 0) out.nodes = make_node_groups(out.all, std::move(nodes));
  return out;
}

RowExchange::RowExchange(ExchangeRanks ranks, const Tensor& told, const Tensor& heard,
                         std::string_view label)
    : ranks_(std::move(ranks)), sent_(rows_of(told, ranks_.all.size)) {
  if (ranks_.nodes) {
    copy_tensor(step(ranks_, [&] { return tell(told, label); }), heard);
  } else {
    ranks_.all->all_to_all(heard, told, {.label = label, .blocking = true})->wait();
  }
  std::vector<int> everybody(static_cast<size_t>(ranks_.all.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  check_counts(heard, everybody);
  received_ = rows_of(heard, ranks_.all.size);
}

// The way that the rows will take; the ranks on the way keep what they need of it.
Tensor RowExchange::tell(const Tensor& told, std::string_view label) {
  const NodeGroups& nodes = *ranks_.nodes;
  const CollectiveOptions options{.label = label, .blocking = true};
  const int64_t parts = told.elements() / ranks_.all.size;
  const Counts each(static_cast<size_t>(ranks_.all.size), 1);  // one row of parts for each rank
  const Tensor rows = told.view({ranks_.all.size, parts});
  const Tensor passing = like(rows, ranks_.all.size), heard = like(rows, ranks_.all.size);
  nodes.across->all_to_all(passing, reordered(rows, each, nodes.ranks), options)->wait();
  std::vector<int> teller;
  for (int i = 0; i < ranks_.all.size; ++i) {
    teller.push_back(nodes.rank_at(i / nodes.node.size, nodes.node.rank));
  }
  check_counts(passing, teller);
  through_ = rows_of(passing, ranks_.all.size);
  const Order turned = transposed(nodes.across.size, nodes.node.size);
  nodes.node->all_to_all(heard, reordered(passing, each, turned), options)->wait();
  return reordered(heard, each, inverse(order_within()));
}

int64_t RowExchange::rows_sent() const { return sum_of(sent_); }
int64_t RowExchange::rows_received() const { return sum_of(received_); }

RowExchange::Flight RowExchange::start(const Tensor& rows, const Tensor& out, Way way,
                                       const CollectiveOptions& options) const {
  const bool home = way == Way::kHome;
  Flight flight;
  if (!ranks_.nodes) {
    flight.work_ =
        send(ranks_.all, out, rows, home ? sent_ : received_, home ? received_ : sent_, options);
    return flight;
  }
  step(ranks_, [&] { start_between_nodes(rows, out, home, options, flight); });
  return flight;
}

void RowExchange::start_between_nodes(const Tensor& rows, const Tensor& out, bool home,
                                      const CollectiveOptions& options, Flight& flight) const {
  const NodeGroups& nodes = *ranks_.nodes;
  const int places = nodes.node.size;
  const Counts own = sums_by_row(in_order(sent_, nodes.ranks), places);
  const Counts passing = sums_by_row(through_, places);
  const Tensor packed = home ? home_within(rows, options) : reordered(rows, sent_, nodes.ranks);
  if (!home || !same(nodes.ranks)) flight.arrived_ = like(rows, sum_of(home ? own : passing));
  flight.work_ = send(nodes.across, flight.arrived_ ? flight.arrived_ : out, packed,
                      home ? own : passing, home ? passing : own, options);
}

void RowExchange::finish(Flight flight, const Tensor& out, Way way,
                         const CollectiveOptions& options) const {
  if (!ranks_.nodes) return flight.work_->wait();
  const NodeGroups& nodes = *ranks_.nodes;
  step(ranks_, [&] { flight.work_->wait(); });
  if (!flight.arrived_) return;
  if (way == Way::kHome) {
    return reorder(flight.arrived_, in_order(sent_, nodes.ranks), inverse(nodes.ranks), out);
  }
  const Order by_place = order_within();
  const Tensor arrived = step(ranks_, [&] { return out_within(flight.arrived_, options); });
  reorder(arrived, in_order(received_, by_place), inverse(by_place), out);
}

// In which blocks of all ranks lie between the steps: by place, those of each by node.
std::vector<int> RowExchange::order_within() const {
  const NodeGroups& nodes = *ranks_.nodes;
  return then(nodes.ranks, transposed(nodes.across.size, nodes.node.size));
}

// From the ranks on the way to the receivers: rows that came by place, those of each from all
// nodes.
Tensor RowExchange::out_within(const Tensor& arrived, const CollectiveOptions& options) const {
  const NodeGroups& nodes = *ranks_.nodes;
  const Tensor packed =
      reordered(arrived, through_, transposed(nodes.across.size, nodes.node.size));
  Tensor out = like(arrived, rows_received());
  send(nodes.node, out, packed, sums_by_row(in_order(received_, order_within()), nodes.across.size),
       sums_by_column(through_, nodes.node.size), waiting(options))
      ->wait();
  return out;
}

// The reverse: to the ranks on the way, by node.
Tensor RowExchange::home_within(const Tensor& rows, const CollectiveOptions& options) const {
  const NodeGroups& nodes = *ranks_.nodes;
  const Order by_place = order_within();
  const Order turned = transposed(nodes.across.size, nodes.node.size);
  const Tensor passing = like(rows, sum_of(through_));
  send(nodes.node, passing, reordered(rows, received_, by_place),
       sums_by_column(through_, nodes.node.size),
       sums_by_row(in_order(received_, by_place), nodes.across.size), waiting(options))
      ->wait();
  return reordered(passing, in_order(through_, turned), inverse(turned));
}

}  // namespace ds
