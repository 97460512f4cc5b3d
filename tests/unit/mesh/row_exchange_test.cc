// Rows between ranks, straight or in two steps: the same rows in the same order, in fewer messages
// between nodes.
#include "mesh/row_exchange.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "base/text.h"
#include "device/device.h"
#include "fresh_seed.h"
#include "thread_mesh.h"

namespace ds {
namespace {

using mesh_test::error_of;
using mesh_test::run_mesh;
using ::testing::HasSubstr;
using Way = RowExchange::Way;

constexpr int64_t kWidth = 3;

// How many rows go from whom to whom, [sender, receiver, part].
struct Table {
  int ranks = 0;
  int64_t parts = 1;
  std::vector<int64_t> rows;

  int64_t part(int from, int to, int64_t i) const {
    return rows[static_cast<size_t>((from * ranks + to) * parts + i)];
  }
  int64_t sum(int from, int to) const {
    int64_t out = 0;
    for (int64_t i = 0; i < parts; ++i) out += part(from, to, i);
    return out;
  }
};

Table random_table(int ranks, std::mt19937_64& random) {
  Table out{ranks, 2, {}};
  for (int64_t i = 0; i < ranks * ranks * out.parts; ++i) {
    out.rows.push_back(random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 6));
  }
  return out;
}

// The rows from one rank to another, each of which says where it comes from and where it goes.
template <class T>
void append(std::vector<T>& rows, const Table& table, int from, int to) {
  for (int64_t i = 0; i < table.sum(from, to); ++i) {
    for (int64_t j = 0; j < kWidth; ++j) {
      rows.push_back(static_cast<T>(((from * table.ranks + to) * 31 + i) * kWidth + j));
    }
  }
}

template <class T>
Tensor tensor_of(const std::vector<T>& values, DType type) {
  const auto device = make_cpu_device();
  const Tensor out =
      Tensor::empty(device, type, {std::ssize(values) / kWidth, kWidth}, MemoryTag::kOther);
  std::ranges::copy(values, out.data<T>());
  return out;
}
template <class T>
std::vector<T> values_of(const Tensor& x) {
  return {x.data<T>(), x.data<T>() + x.elements()};
}

// What a rank tells the others, in parts.
Tensor told_by(const Table& table, int rank) {
  const Tensor out = Tensor::empty(make_cpu_device(), DType::kInt64, {table.ranks, table.parts},
                                   MemoryTag::kOther);
  for (int to = 0; to < table.ranks; ++to) {
    for (int64_t i = 0; i < table.parts; ++i) {
      out.data<int64_t>()[to * table.parts + i] = table.part(rank, to, i);
    }
  }
  return out;
}

template <class T>
void expect_rows(const RowExchange& exchange, const Table& table, int rank, DType type,
                 bool waiting) {
  std::vector<T> sent, arriving;
  for (int other = 0; other < table.ranks; ++other) {
    append(sent, table, rank, other);
    append(arriving, table, other, rank);
  }
  const CollectiveOptions options{.label = "rows", .blocking = waiting};
  const auto moved = [&](const std::vector<T>& rows, size_t count, Way way) {
    const Tensor out = tensor_of(std::vector<T>(count), type);
    exchange.finish(exchange.start(tensor_of(rows, type), out, way, options), out, way, options);
    return values_of<T>(out);
  };
  EXPECT_EQ(moved(sent, arriving.size(), Way::kOut), arriving);
  EXPECT_EQ(moved(arriving, sent.size(), Way::kHome), sent);
}

void expect_exchanges(const Mesh& mesh, bool two_steps, uint64_t seed) {
  const ExchangeRanks ranks = make_exchange_ranks(mesh, MeshGroup::kWorld, two_steps);
  ASSERT_EQ(ranks.nodes != nullptr, two_steps);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 4; ++round) {
    const Table table = random_table(mesh.size(), random);
    const Tensor told = told_by(table, mesh.rank());
    const Tensor heard =
        Tensor::empty(make_cpu_device(), DType::kInt64, told.shape(), MemoryTag::kOther);
    const RowExchange exchange(ranks, told, heard, "counts");
    for (int from = 0; from < mesh.size(); ++from) {
      EXPECT_EQ(exchange.sent()[static_cast<size_t>(from)], table.sum(mesh.rank(), from));
      EXPECT_EQ(exchange.received()[static_cast<size_t>(from)], table.sum(from, mesh.rank()));
      for (int64_t i = 0; i < table.parts; ++i) {
        EXPECT_EQ(heard.data<int64_t>()[from * table.parts + i], table.part(from, mesh.rank(), i));
      }
    }
    expect_rows<float>(exchange, table, mesh.rank(), DType::kFloat32, true);
    expect_rows<int64_t>(exchange, table, mesh.rank(), DType::kInt64, false);
    expect_rows<uint16_t>(exchange, table, mesh.rank(), DType::kUInt16, false);
  }
}

TEST(RowExchange, MovesRowsOutAndHome) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const auto& [world, per_node] : {std::pair{4, 2}, {6, 2}, {6, 3}, {8, 4}}) {
    CommOptions options;
    options.ranks_per_node = per_node;
    for (const bool two_steps : {false, true}) {
      SCOPED_TRACE(std::to_string(world) + " ranks, " + std::to_string(per_node) + " on a node");
      run_mesh(
          world, {}, [&](const Mesh& mesh) { expect_exchanges(mesh, two_steps, seed); }, options);
    }
  }
}

// A group in which the ranks of a node do not follow each other.
TEST(RowExchange, NodesMayBeMixed) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CommOptions options;
  options.ranks_per_node = 3;
  run_mesh(
      6, {},
      [&](const Mesh& mesh) {
        const int place[] = {4, 0, 3, 1, 5, 2};
        const Mesh mixed(mesh.world()->split(0, place[mesh.rank()], {.label = "mixed"}));
        expect_exchanges(mixed, true, seed);
      },
      options);
}

// Six ranks on two nodes: three messages to the other node in one step, and one in two.
TEST(RowExchange, TwoStepsSendFewerMessagesBetweenNodes) {
  CommOptions options;
  options.ranks_per_node = 3;
  for (const bool two_steps : {false, true}) {
    run_mesh(
        6, {},
        [&](const Mesh& mesh) {
          const ExchangeRanks ranks = make_exchange_ranks(mesh, MeshGroup::kWorld, two_steps);
          const Table table{6, 1, std::vector<int64_t>(36, 2)};
          const Tensor told = told_by(table, mesh.rank());
          const TrafficTable before = mesh.world()->total_traffic();
          const RowExchange exchange(ranks, told, told_by(table, mesh.rank()), "counts");
          expect_rows<float>(exchange, table, mesh.rank(), DType::kFloat32, true);
          const TrafficTable after = mesh.world()->total_traffic();
          const auto sent = [&](Collective kind, auto of) {
            const auto i = static_cast<size_t>(kind);
            return after[i].*of - before[i].*of;
          };
          const int64_t messages = two_steps ? 1 : 3, calls = two_steps ? 2 : 1;
          EXPECT_EQ(sent(Collective::kAllToAll, &Traffic::messages_across), messages);
          EXPECT_EQ(sent(Collective::kAllToAll, &Traffic::calls), calls);
          EXPECT_EQ(sent(Collective::kAllToAll, &Traffic::across_nodes), 3 * 8);
          EXPECT_EQ(sent(Collective::kAllToAllV, &Traffic::messages_across), 2 * messages);
          EXPECT_EQ(sent(Collective::kAllToAllV, &Traffic::calls), 2 * calls);
          // Each row crosses once, and two thirds then go on to another rank of the node.
          const int64_t row = kWidth * 4, other = 3 * 2 * row, same = 2 * 2 * row;
          EXPECT_EQ(sent(Collective::kAllToAllV, &Traffic::across_nodes), 2 * other);
          EXPECT_EQ(sent(Collective::kAllToAllV, &Traffic::within_node),
                    2 * (two_steps ? 2 * same : same));
        },
        options);
  }
}

TEST(RowExchange, GoesStraightWhereTwoStepsAreOfNoUse) {
  for (const auto& [world, per_node] : {std::pair{4, 4}, {4, 1}, {3, 2}}) {
    CommOptions options;
    options.ranks_per_node = per_node;
    run_mesh(
        world, {},
        [](const Mesh& mesh) {
          EXPECT_EQ(make_exchange_ranks(mesh, MeshGroup::kWorld, true).nodes, nullptr);
          const std::string why = error_of(Code::kConfig, [&] {
            check_two_steps(mesh.shape(), MeshGroup::kWorld, mesh.world()->topology().node_of,
                            "/key");
          });
          EXPECT_THAT(why, HasSubstr("/key: the ranks that exchange rows with rank 0 do not sit"));
        },
        options);
  }
  // Two groups, of which the second one sits on one node.
  const MeshShape mesh(8, {.expert = 4});
  const int node_of[] = {0, 0, 1, 1, 2, 2, 2, 2};
  EXPECT_TRUE(several_on_several_nodes(mesh, MeshGroup::kExpert, 1, node_of));
  EXPECT_FALSE(several_on_several_nodes(mesh, MeshGroup::kExpert, 5, node_of));
  EXPECT_THAT(
      error_of(Code::kConfig, [&] { check_two_steps(mesh, MeshGroup::kExpert, node_of, "/key"); }),
      HasSubstr("with rank 4 do not"));
}

// Who receives nonsense, or is to pass it on, says who told it.
TEST(RowExchange, RefusesNonsense) {
  CommOptions options;
  options.ranks_per_node = 2;
  for (const int64_t rows : {int64_t{-1}, int64_t{1} << 40}) {
    for (const bool two_steps : {false, true}) {
      run_mesh(
          4, {},
          [&](const Mesh& mesh) {
            Table table{4, 1, std::vector<int64_t>(16, 1)};
            table.rows[1 * 4 + 2] = rows;
            const Tensor told = told_by(table, mesh.rank());
            const ExchangeRanks ranks = make_exchange_ranks(mesh, MeshGroup::kWorld, two_steps);
            const auto exchange = [&] {
              RowExchange(ranks, told, told_by(table, mesh.rank()), "counts");
            };
            // Rank 3 is of the place of rank 1 on the node of rank 2.
            if (mesh.rank() == (two_steps ? 3 : 2)) {
              EXPECT_THAT(error_of(Code::kComm, exchange),
                          HasSubstr(str_cat("rank 1 of the ranks that exchange rows wants to send ",
                                            rows, " of them")));
              mesh.world()->abort("nonsense");
            } else {
              try {
                exchange();
              } catch (const Error& error) {
                EXPECT_EQ(error.code(), Code::kAborted);
              }
            }
          },
          options);
    }
  }
}

}  // namespace
}  // namespace ds
