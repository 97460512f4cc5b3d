// Every collective against plain loops: element types, ranks, odd sizes, private and shared memory,
// over every transport, with the same bits everywhere.
#include "fresh_seed.h"
#include "unit/comm/support.h"

namespace ds::testing {
namespace {

constexpr DType kAllTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                               DType::kInt8,    DType::kInt16,   DType::kInt32,   DType::kInt64,
                               DType::kUInt8,   DType::kUInt16,  DType::kUInt32,  DType::kUInt64,
                               DType::kBool};
class Collectives : public ::testing::TestWithParam<Maker> {
 protected:
  void SetUp() override { RecordProperty("seed", std::to_string(ds::run_seed())); }
};

Tensor tensor_of(Communicator& comm, bool shared, DType dtype, int64_t elements) {
  if (!shared) return make_tensor(dtype, elements);
  return comm.shared_tensor(cpu(), dtype, Shape{elements}, MemoryTag::kCommunication);
}

std::vector<std::byte> input_of(DType dtype, int64_t elements, int rank) {
  return random_bytes(dtype, elements,
                      ds::run_seed() + static_cast<uint64_t>(rank) * 1000003 +
                          static_cast<uint64_t>(elements) * 17);
}

std::vector<std::vector<std::byte>> inputs_of(DType dtype, int64_t elements, int size) {
  std::vector<std::vector<std::byte>> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(input_of(dtype, elements, rank));
  return inputs;
}

std::vector<std::byte> piece_of(const std::vector<std::byte>& whole, int64_t begin, int64_t bytes) {
  return {whole.begin() + begin, whole.begin() + begin + bytes};
}

std::string place(Communicator& comm, DType dtype, int64_t elements, bool shared) {
  return str_cat("rank ", comm.rank(), " of ", comm.size(), ", ", dtype_name(dtype), " x ",
                 elements, shared ? " shared" : " private", ", DS_TEST_SEED=", ds::run_seed());
}

// Small enough to travel with the record, and larger than one staging chunk.
std::vector<int64_t> sizes(DType dtype) {
  const int64_t chunk = (256 << 10) / dtype_size(dtype);
  return {0, 1, 7, 1025, 3 * 1024 + 5, chunk + 9};
}

struct Prepared {
  std::vector<std::vector<std::byte>> inputs;  // by rank: `size` pieces of n elements
  std::vector<std::byte> expected[4];          // by ReduceOp, where there is one
};

// Calls body(communicator, prepared) for every type, size and kind of memory.
void for_every_case(const Maker& maker, bool reductions,
                    const std::function<void(Communicator&, DType, int64_t n, bool shared,
                                             const Prepared&)>& body) {
  for (const int size : world_sizes()) {
    const World world = maker.make(size, quick_options());
    for (const DType dtype : kAllTypes) {
      if (dtype == DType::kBool && reductions) continue;
      for (const int64_t n : sizes(dtype)) {
        Prepared prepared{inputs_of(dtype, n * size, size), {}};
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
          if (!reductions || (op == ReduceOp::kAverage && !dtype_is_floating(dtype))) continue;
          if (n > 5000 && op != ReduceOp::kSum) continue;
          prepared.expected[static_cast<int>(op)] = reduced(dtype, prepared.inputs, op, size);
        }
        expect_ok(run_ranks(world, [&](Communicator& comm) {
          for (const bool shared : {false, true}) body(comm, dtype, n, shared, prepared);
        }));
      }
    }
  }
}

TEST_P(Collectives, ReductionsOfEveryType) {
  for_every_case(
      GetParam(), true,
      [](Communicator& comm, DType dtype, int64_t n, bool shared, const Prepared& prepared) {
        const auto& inputs = prepared.inputs;
        const int size = comm.size();
        const std::string where = place(comm, dtype, n, shared);
        const auto& mine = inputs[static_cast<size_t>(comm.rank())];
        const Tensor whole = tensor_of(comm, shared, dtype, n * size);
        const Tensor piece = make_tensor(dtype, n);
        const int64_t bytes = piece.bytes();
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
          if (op == ReduceOp::kAverage && !dtype_is_floating(dtype)) continue;
          if (n > 5000 && op != ReduceOp::kSum) continue;
          const auto& expected = prepared.expected[static_cast<int>(op)];
          put(whole, mine);
          comm.all_reduce(whole, op)->wait();
          EXPECT_TRUE(equal_bytes(whole, expected))
              << "all_reduce " << reduce_op_name(op) << " " << where;
          put(whole, mine);
          comm.reduce_scatter(piece, whole, op, {.blocking = true})->wait();
          EXPECT_TRUE(equal_bytes(piece, piece_of(expected, bytes * comm.rank(), bytes)))
              << "reduce_scatter " << reduce_op_name(op) << " " << where;
          const int root = size - 1;
          comm.reduce(whole, op, root)->wait();
          EXPECT_TRUE(equal_bytes(whole, comm.rank() == root ? expected : mine))
              << "reduce " << reduce_op_name(op) << " " << where;
        }
        // In place.
        put(whole, mine);
        const Tensor own = whole.slice(0, n * comm.rank(), n * (comm.rank() + 1));
        comm.reduce_scatter(own, whole, ReduceOp::kSum)->wait();
        EXPECT_TRUE(equal_bytes(own, piece_of(prepared.expected[0], bytes * comm.rank(), bytes)))
            << "reduce_scatter in place " << where;
      });
}

TEST_P(Collectives, MovementsOfEveryType) {
  for_every_case(
      GetParam(), false,
      [](Communicator& comm, DType dtype, int64_t n, bool shared, const Prepared& prepared) {
        const auto& inputs = prepared.inputs;
        const int rank = comm.rank(), size = comm.size();
        const std::string where = place(comm, dtype, n, shared);
        const auto& mine = inputs[static_cast<size_t>(rank)];
        const int64_t bytes = n * dtype_size(dtype);
        std::vector<std::byte> gathered, turned;
        for (const auto& input : inputs) {
          const auto first = piece_of(input, 0, bytes);
          const auto own = piece_of(input, bytes * rank, bytes);
          gathered.insert(gathered.end(), first.begin(), first.end());
          turned.insert(turned.end(), own.begin(), own.end());
        }
        const std::vector<std::byte> zeros(mine.size());
        const Tensor a = tensor_of(comm, shared, dtype, n * size), b = make_tensor(dtype, n),
                     c = make_tensor(dtype, n * size);
        // Into private memory from shared, into shared from private, in place.
        put(a, mine);
        comm.all_gather(c, a.slice(0, 0, n))->wait();
        EXPECT_TRUE(equal_bytes(c, gathered)) << "all_gather " << where;
        put(b, piece_of(mine, 0, bytes));
        comm.all_gather(a, b)->wait();
        EXPECT_TRUE(equal_bytes(a, gathered)) << "all_gather " << where;
        put(a, zeros);
        const Tensor own = a.slice(0, rank * n, (rank + 1) * n);
        put(own, piece_of(mine, 0, bytes));
        comm.all_gather(a, own)->wait();
        EXPECT_TRUE(equal_bytes(a, gathered)) << "all_gather in place " << where;

        put(a, mine);
        comm.all_to_all(c, a)->wait();
        EXPECT_TRUE(equal_bytes(c, turned)) << "all_to_all " << where;
        put(c, mine);
        comm.all_to_all(a, c)->wait();
        EXPECT_TRUE(equal_bytes(a, turned)) << "all_to_all " << where;

        for (int root = 0; root < size; ++root) {
          const auto& roots = inputs[static_cast<size_t>(root)];
          put(a, mine);
          comm.broadcast(a, root)->wait();
          EXPECT_TRUE(equal_bytes(a, roots)) << "broadcast " << where;
          put(a, mine);
          put(c, zeros);
          comm.gather(c, a.slice(0, 0, n), root)->wait();
          EXPECT_TRUE(equal_bytes(c, rank == root ? gathered : zeros)) << "gather " << where;
          comm.scatter(b, a, root)->wait();
          EXPECT_TRUE(equal_bytes(b, piece_of(roots, bytes * rank, bytes))) << "scatter " << where;
        }
      });
}

TEST_P(Collectives, CountsByRank) {
  std::mt19937_64 random(ds::run_seed());
  for (const int size : world_sizes()) {
    const World world = GetParam().make(size, quick_options());
    for (int round = 0; round < 6; ++round) {
      const int64_t most = round % 2 == 0 ? 50 : 90000;
      const auto ranks = static_cast<size_t>(size);
      std::vector<std::vector<int64_t>> counts(ranks, std::vector<int64_t>(ranks));
      for (auto& row : counts) {
        for (int64_t& count : row) count = static_cast<int64_t>(random() % 3 * random() % most);
      }
      const uint64_t seed = random();
      expect_ok(run_ranks(world, [&](Communicator& comm) {
        const auto self = static_cast<size_t>(comm.rank());
        for (const bool shared : {false, true}) {
          // all_gather_v by the first row.
          int64_t total = 0;
          std::vector<std::byte> expected;
          for (size_t i = 0; i < ranks; ++i) {
            const auto theirs = random_bytes(DType::kInt16, counts[0][i], seed + i);
            expected.insert(expected.end(), theirs.begin(), theirs.end());
            total += counts[0][i];
          }
          // Shared buffers have one size on every rank.
          const auto own = counts[0][self];
          const Tensor input = tensor_of(comm, shared, DType::kInt16, total).slice(0, 0, own);
          put(input, random_bytes(DType::kInt16, own, seed + self));
          const Tensor output = make_tensor(DType::kInt16, total);
          comm.all_gather_v(output, input, counts[0])->wait();
          EXPECT_TRUE(equal_bytes(output, expected)) << "DS_TEST_SEED=" << ds::run_seed();

          // all_to_all_v: rank i sends counts[i][j] to rank j.
          std::vector<int64_t> receive;
          int64_t sent = 0, received = 0, largest = 0;
          for (size_t i = 0; i < ranks; ++i) {
            sent += counts[self][i];
            receive.push_back(counts[i][self]);
            received += counts[i][self];
            for (size_t j = 0; j < ranks; ++j) largest += counts[i][j];
          }
          std::vector<std::byte> turned;
          for (size_t i = 0; i < ranks; ++i) {
            int64_t before = 0, all = 0;
            for (size_t j = 0; j < ranks; ++j) {
              before += j < self ? counts[i][j] : 0;
              all += counts[i][j];
            }
            const auto theirs = piece_of(random_bytes(DType::kInt16, all, seed + 7 * i), before * 2,
                                         counts[i][self] * 2);
            turned.insert(turned.end(), theirs.begin(), theirs.end());
          }
          const Tensor from = tensor_of(comm, shared, DType::kInt16, largest).slice(0, 0, sent);
          put(from, random_bytes(DType::kInt16, sent, seed + 7 * self));
          const Tensor to = make_tensor(DType::kInt16, received);
          comm.all_to_all_v(to, from, receive, counts[self])->wait();
          EXPECT_TRUE(equal_bytes(to, turned)) << "DS_TEST_SEED=" << ds::run_seed();
        }
      }));
    }
  }
}

TEST_P(Collectives, NotANumberIsKept) {
  const World world = GetParam().make(3, quick_options());
  expect_ok(run_ranks(world, [&](Communicator& comm) {
    for (const int64_t n : {int64_t{4}, int64_t{5000}}) {
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
        const Tensor t = make_tensor(DType::kFloat32, n);
        for (int64_t i = 0; i < n; ++i) t.data<float>()[i] = static_cast<float>(i);
        if (comm.rank() == 1) t.data<float>()[n - 1] = std::nanf("");
        comm.all_reduce(t, op)->wait();
        EXPECT_TRUE(std::isnan(t.data<float>()[n - 1])) << reduce_op_name(op);
        EXPECT_FALSE(std::isnan(t.data<float>()[0]));
      }
    }
  }));
}

TEST_P(Collectives, ManyInFlight) {
  const World world = GetParam().make(3, quick_options());
  expect_ok(run_ranks(world, [&](Communicator& comm) {
    std::mt19937_64 random(ds::run_seed() + static_cast<uint64_t>(comm.rank()));
    std::vector<Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 60; ++i) {
      tensors.push_back(make_tensor(DType::kFloat32, 100 * i + 1));
      for (int64_t k = 0; k < tensors.back().elements(); ++k) {
        tensors.back().data<float>()[k] = static_cast<float>(comm.rank() + i);
      }
      works.push_back(comm.all_reduce(tensors.back(), ReduceOp::kSum));
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    for (size_t i = works.size(); i-- > 0;) {
      works[i]->wait();
      EXPECT_EQ(works[i]->participants(), 3);
      const Tensor& t = tensors[i];
      for (int64_t k = 0; k < t.elements(); ++k) {
        ASSERT_EQ(t.data<float>()[k], static_cast<float>(3 + 3 * i));
      }
    }
  }));
}

TEST_P(Collectives, Messages) {
  const World world = GetParam().make(3, quick_options());
  expect_ok(run_ranks(world, [&](Communicator& comm) {
    // Everybody to everybody at once, large, with two tags, received in the other order.
    const int64_t n = 40000;
    std::vector<WorkPtr> works;
    std::vector<Tensor> kept;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == comm.rank()) continue;
      for (const int tag : {5, 6}) {
        kept.push_back(make_tensor(DType::kInt32, n + tag));
        std::fill_n(kept.back().data<int32_t>(), n + tag, comm.rank() * 100 + peer * 10 + tag);
        works.push_back(comm.send(kept.back(), peer, tag));
      }
    }
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == comm.rank()) continue;
      for (const int tag : {6, 5}) {
        const Tensor got = make_tensor(DType::kInt32, n + tag);
        comm.recv(got, peer, tag)->wait();
        EXPECT_EQ(got.data<int32_t>()[0], peer * 100 + comm.rank() * 10 + tag);
        EXPECT_EQ(got.data<int32_t>()[n + tag - 1], peer * 100 + comm.rank() * 10 + tag);
      }
    }
    for (const WorkPtr& work : works) work->wait();
    comm.barrier();
    // Order within a tag.
    const int next = (comm.rank() + 1) % 3, previous = (comm.rank() + 2) % 3;
    for (int i = 0; i < 20; ++i) {
      const Tensor t = make_tensor(DType::kInt32, 1);
      t.data<int32_t>()[0] = i;
      works.push_back(comm.send(t, next, 1));
    }
    for (int i = 0; i < 20; ++i) {
      const Tensor t = make_tensor(DType::kInt32, 1);
      comm.recv(t, previous, 1)->wait();
      EXPECT_EQ(t.data<int32_t>()[0], i);
    }
    for (const WorkPtr& work : works) work->wait();
  }));
}

TEST_P(Collectives, Subgroups) {
  CommOptions options = quick_options();
  options.ranks_per_node = 2;
  const World world = GetParam().make(4, options);
  expect_ok(run_ranks(world, [&](Communicator& comm) {
    const int rank = comm.rank();
    EXPECT_EQ(comm.topology().node, rank / 2);
    EXPECT_EQ(comm.topology().nodes, 2);
    EXPECT_EQ(comm.topology().local_rank, rank % 2);
    EXPECT_EQ(comm.topology().local_size, 2);
    const Tensor shared =
        comm.shared_tensor(cpu(), DType::kFloat32, {50000}, MemoryTag::kCommunication);
    const CommPtr node = comm.split(rank / 2, rank);
    const CommPtr across = comm.split(rank % 2, -rank);
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(node->size(), 2);
    EXPECT_EQ(node->rank(), rank % 2);
    EXPECT_EQ(node->topology().nodes, 1);
    EXPECT_EQ(across->rank(), 1 - rank / 2);  // by falling rank
    EXPECT_EQ(across->topology().nodes, 2);
    std::fill_n(shared.data<float>(), 50000, static_cast<float>(rank + 1));
    node->all_reduce(shared, ReduceOp::kSum)->wait();
    EXPECT_EQ(shared.data<float>()[49999], static_cast<float>(rank / 2 == 0 ? 3 : 7));
    across->all_reduce(shared, ReduceOp::kSum)->wait();
    EXPECT_EQ(shared.data<float>()[0], 10);
    const CommPtr some = comm.split(rank == 3 ? -1 : 7, 0);
    EXPECT_EQ(some == nullptr, rank == 3);
    if (some) {
      // Shared by the subgroup only: the whole group stages it.
      const Tensor inner =
          some->shared_tensor(cpu(), DType::kFloat32, {5000}, MemoryTag::kCommunication);
      std::fill_n(inner.data<float>(), 5000, 1.0f);
      some->all_reduce(inner, ReduceOp::kSum)->wait();
      EXPECT_EQ(inner.data<float>()[4999], 3);
      comm.all_reduce(inner, ReduceOp::kSum)->wait();
      EXPECT_EQ(inner.data<float>()[4999], 10);
    } else {
      const Tensor mine = make_tensor(DType::kFloat32, 5000);
      std::fill_n(mine.data<float>(), 5000, 1.0f);
      comm.all_reduce(mine, ReduceOp::kSum)->wait();
      EXPECT_EQ(mine.data<float>()[0], 10);
    }
    comm.finalize();
    EXPECT_EQ(comm.state(), Communicator::State::kFinalized);
  }));
}

TEST_P(Collectives, TrafficIsCounted) {
  CommOptions options = quick_options();
  options.ranks_per_node = 2;
  const World world = GetParam().make(4, options);
  expect_ok(run_ranks(world, [&](Communicator& comm) {
    const Tensor whole = make_tensor(DType::kInt8, 40000), piece = make_tensor(DType::kInt8, 10000);
    comm.reduce_scatter(piece, whole, ReduceOp::kSum)->wait();
    comm.all_gather(whole, piece)->wait();
    comm.all_gather(whole, piece)->wait();
    const auto of = [&](Collective kind) { return comm.traffic()[static_cast<size_t>(kind)]; };
    EXPECT_EQ(of(Collective::kReduceScatter).calls, 1);
    EXPECT_EQ(of(Collective::kReduceScatter).within_node, 10000);
    EXPECT_EQ(of(Collective::kReduceScatter).across_nodes, 20000);
    EXPECT_EQ(of(Collective::kAllGather).calls, 2);
    EXPECT_EQ(of(Collective::kAllGather).within_node, 20000);
    // Pairwise, a block goes to both ranks of the other node.
    const bool once = std::string_view(comm.transport()) == "hierarchical";
    EXPECT_EQ(of(Collective::kAllGather).across_nodes, once ? 20000 : 40000);
    EXPECT_EQ(of(Collective::kAllReduce).calls, 0);
  }));
}

INSTANTIATE_TEST_SUITE_P(Transports, Collectives, ::testing::ValuesIn(makers()), maker_name);

}  // namespace
}  // namespace ds::testing
