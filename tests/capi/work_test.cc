// Collectives that go on beside the program: every kind and type against plain loops, what is told
// when they fail, and memory that ranks share.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>

#include "base/text.h"
#include "capi/ranks.h"
#include "capi/world.h"
#include "fresh_seed.h"
#include "unit/comm/support.h"

namespace capi_test {
namespace {

using libds::Comm;
using libds::Tensor;
using libds::Work;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Tensor tensor_of(ds::DType dtype, const Bytes& bytes) {
  const int64_t elements = static_cast<int64_t>(bytes.size()) / ds::dtype_size(dtype);
  ds_tensor* out = nullptr;
  EXPECT_DS_OK(ds_tensor_create(static_cast<int32_t>(dtype), &elements, 1, &out));
  EXPECT_DS_OK(ds_tensor_write(out, bytes.data(), static_cast<int64_t>(bytes.size())));
  return Tensor(out);
}

Bytes bytes_of(const Tensor& tensor, ds::DType dtype) {
  Bytes out(static_cast<size_t>(tensor.elements() * ds::dtype_size(dtype)));
  EXPECT_DS_OK(ds_tensor_read(tensor.get(), out.data(), static_cast<int64_t>(out.size())));
  return out;
}

ds_collective call_of(int32_t kind, const Tensor* output, const Tensor* input = nullptr) {
  ds_collective call{};
  call.kind = kind;
  call.output = output == nullptr ? nullptr : output->get();
  call.input = input == nullptr ? nullptr : input->get();
  return call;
}

// The part of `bytes` that holds elements [first, first + count).
Bytes part_of(const Bytes& bytes, ds::DType dtype, int64_t first, int64_t count) {
  const int64_t size = ds::dtype_size(dtype);
  return {bytes.begin() + first * size, bytes.begin() + (first + count) * size};
}

void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

constexpr int kWorld = 3;

// Every kind with every type, all under way at once, against what single ranks computed.
TEST(Work, EveryKindAndType) {
  const uint64_t seed = ds::run_seed();
  SCOPED_TRACE(ds::str_cat("seed ", seed));
  run_ranks(kWorld, [seed](Comm& comm) {
    const int rank = comm.rank();
    for (int type = DS_FLOAT32; type <= DS_BOOL; ++type) {
      const auto dtype = static_cast<ds::DType>(type);
      SCOPED_TRACE(ds::str_cat(ds::dtype_name(dtype), ", rank ", rank));
      constexpr int64_t kPiece = 700;  // 3 pieces of 8 bytes do not fit a record
      std::vector<Bytes> inputs, pieces;
      for (int peer = 0; peer < kWorld; ++peer) {
        const auto salt = static_cast<uint64_t>(type * 10 + peer);
        inputs.push_back(ds::testing::random_bytes(dtype, kWorld * kPiece, seed + salt));
        pieces.push_back(part_of(inputs.back(), dtype, 0, kPiece));
      }
      const Bytes& own = inputs[static_cast<size_t>(rank)];
      std::vector<std::tuple<std::string, Work, Tensor, Bytes>> started;
      std::vector<Tensor> kept;
      kept.reserve(4);  // references to its elements stay
      const auto start = [&](const char* name, const ds_collective& call, Tensor& output,
                             Bytes expected) {
        started.emplace_back(name, comm.start(call), std::move(output), std::move(expected));
      };
      const Bytes zeros_whole(own.size()), zeros_piece(pieces[0].size());
      kept.push_back(tensor_of(dtype, own));
      kept.push_back(tensor_of(dtype, pieces[static_cast<size_t>(rank)]));
      const Tensor &whole = kept[0], &piece = kept[1];

      if (dtype != ds::DType::kBool) {
        const Bytes sum = ds::testing::reduced(dtype, inputs, ds::ReduceOp::kSum, 1);
        const Bytes most = ds::testing::reduced(dtype, inputs, ds::ReduceOp::kMax, 1);
        Tensor a = tensor_of(dtype, own), b = tensor_of(dtype, own);
        Tensor c = tensor_of(dtype, zeros_piece);
        start("all_reduce", call_of(DS_COLLECTIVE_ALL_REDUCE, &a), a, sum);
        ds_collective reduce = call_of(DS_COLLECTIVE_REDUCE, &b);
        reduce.op = DS_REDUCE_MAX;
        reduce.root = 1;
        start("reduce", reduce, b, rank == 1 ? most : own);
        start("reduce_scatter", call_of(DS_COLLECTIVE_REDUCE_SCATTER, &c, &whole), c,
              part_of(sum, dtype, rank * kPiece, kPiece));
      }
      Bytes all, turned;
      for (int peer = 0; peer < kWorld; ++peer) {
        const auto i = static_cast<size_t>(peer);
        append(all, pieces[i]);
        append(turned, part_of(inputs[i], dtype, rank * kPiece, kPiece));
      }
      Tensor gathered = tensor_of(dtype, zeros_whole), exchanged = tensor_of(dtype, zeros_whole);
      start("all_gather", call_of(DS_COLLECTIVE_ALL_GATHER, &gathered, &piece), gathered, all);
      start("all_to_all", call_of(DS_COLLECTIVE_ALL_TO_ALL, &exchanged, &whole), exchanged, turned);
      Tensor given = tensor_of(dtype, own);
      ds_collective broadcast = call_of(DS_COLLECTIVE_BROADCAST, &given);
      broadcast.root = 2;
      start("broadcast", broadcast, given, inputs[2]);
      Tensor collected = tensor_of(dtype, zeros_whole), dealt = tensor_of(dtype, zeros_piece);
      ds_collective gather =
          call_of(DS_COLLECTIVE_GATHER, rank == 1 ? &collected : nullptr, &piece);
      gather.root = 1;
      start("gather", gather, collected, rank == 1 ? all : zeros_whole);
      ds_collective scatter = call_of(DS_COLLECTIVE_SCATTER, &dealt, rank == 2 ? &whole : nullptr);
      scatter.root = 2;
      start("scatter", scatter, dealt, part_of(inputs[2], dtype, rank * kPiece, kPiece));

      // Pieces of any size: rank r gives r + 1 elements to everybody, and 2 more for itself.
      const int64_t from_each[kWorld] = {1, 2, 3};
      Bytes uneven;
      for (int peer = 0; peer < kWorld; ++peer) {
        append(uneven, part_of(inputs[static_cast<size_t>(peer)], dtype, 0, peer + 1));
      }
      kept.push_back(tensor_of(dtype, part_of(own, dtype, 0, rank + 1)));
      Tensor joined = tensor_of(dtype, Bytes(uneven.size()));
      ds_collective gather_v = call_of(DS_COLLECTIVE_ALL_GATHER, &joined, &kept.back());
      gather_v.output_counts = from_each;
      start("all_gather with counts", gather_v, joined, uneven);
      int64_t in[kWorld], out[kWorld];
      Bytes uneven_turned;
      for (int peer = 0; peer < kWorld; ++peer) {
        in[peer] = rank + 1;
        out[peer] = peer + 1;
        append(uneven_turned,
               part_of(inputs[static_cast<size_t>(peer)], dtype, rank * (peer + 1), peer + 1));
      }
      kept.push_back(tensor_of(dtype, part_of(own, dtype, 0, kWorld * (rank + 1))));
      Tensor swapped = tensor_of(dtype, Bytes(uneven_turned.size()));
      ds_collective exchange_v = call_of(DS_COLLECTIVE_ALL_TO_ALL, &swapped, &kept.back());
      exchange_v.output_counts = out;
      exchange_v.input_counts = in;
      start("all_to_all with counts", exchange_v, swapped, uneven_turned);

      // A ring, posted before anybody waits.
      Tensor arrived = tensor_of(dtype, zeros_piece);
      const int left = (rank + kWorld - 1) % kWorld, right = (rank + 1) % kWorld;
      started.emplace_back("send", comm.send(piece, right, 7), Tensor(), Bytes());
      Work receive = comm.recv(arrived, left, 7);
      started.emplace_back("recv", std::move(receive), std::move(arrived),
                           pieces[static_cast<size_t>(left)]);
      started.emplace_back("barrier", comm.start(call_of(DS_COLLECTIVE_BARRIER, nullptr)), Tensor(),
                           Bytes());
      for (const auto& [name, work, output, expected] : started) {
        EXPECT_GE(work.wait(), 2) << name;
        EXPECT_TRUE(work.done()) << name;
        EXPECT_TRUE(!output || bytes_of(output, dtype) == expected) << name;
      }
    }
  });
}

// A collective is under way until the last rank starts it; handles may go meanwhile.
TEST(Work, GoesOnBesideTheProgram) {
  std::atomic<bool> seen_waiting{false};
  run_ranks(2, [&](Comm& comm) {
    Tensor last = Tensor::from(std::vector<float>(3, 1.0f));
    if (comm.rank() == 0) {
      Work dropped, work;
      {
        Tensor counted = Tensor::from(std::vector<float>(5000, 1.0f));
        work = comm.start_all_reduce(counted);
        dropped = comm.start_all_reduce(counted);
      }
      EXPECT_FALSE(work.done());
      dropped = Work();
      seen_waiting = true;
      EXPECT_EQ(work.wait(), 2);
      EXPECT_TRUE(work.done());
    } else {
      while (!seen_waiting) std::this_thread::yield();
      Tensor first = Tensor::from(std::vector<float>(5000, 1.0f));
      Tensor second = Tensor::from(std::vector<float>(5000, 2.0f));
      const Work one = comm.start_all_reduce(first), two = comm.start_all_reduce(second);
      two.wait();
      one.wait();
      EXPECT_EQ(values_of(first)[4999], 2.0f);
    }
    comm.all_reduce(last);
    EXPECT_EQ(values_of(last), (std::vector<float>{2, 2, 2}));
  });
}

std::string failure_of(const Work& work, ds_status_code expected) {
  try {
    work.wait();
  } catch (const libds::Error& error) {
    EXPECT_EQ(error.status(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no failure";
  return "";
}

// Ranks that leave their group as it is, because it failed.
void run_failing_ranks(int32_t world, const std::function<void(Comm&)>& body) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Comm comm(rank, world, R"({"timeout_seconds": 60})", &store);
        body(comm);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Work, LateRanksAreNamedAtTheDeadline) {
  std::atomic<bool> over{false};
  run_failing_ranks(2, [&](Comm& comm) {
    if (comm.rank() == 1) {
      while (!over) std::this_thread::yield();
      return;
    }
    Tensor tensor = Tensor::from(std::vector<float>{1});
    ds_collective call = call_of(DS_COLLECTIVE_ALL_REDUCE, &tensor);
    call.timeout_ms = 100;
    call.label = "layer.weight";
    const Work work = comm.start(call);
    const std::string text = failure_of(work, DS_ERR_COMM);
    EXPECT_THAT(text, HasSubstr("rank 1"));
    EXPECT_THAT(text, HasSubstr("layer.weight"));
    EXPECT_EQ(failure_of(work, DS_ERR_COMM), text);  // a second wait tells the same
    EXPECT_TRUE(work.done());
    over = true;
  });
}

TEST(Work, AbortFromAnotherThreadEndsTheWait) {
  std::atomic<int> over{0};
  run_failing_ranks(2, [&](Comm& comm) {
    Tensor tensor = Tensor::from(std::vector<float>{1});
    if (comm.rank() == 0) {
      const Work work = comm.recv(tensor, 1, 3);
      std::thread other([&] { comm.abort(); });
      failure_of(work, DS_ERR_ABORTED);
      other.join();
      ++over;
    } else {
      const Work work = comm.recv(tensor, 0, 4);
      failure_of(work, DS_ERR_ABORTED);
      ++over;
    }
    while (over < 2) std::this_thread::yield();
    EXPECT_THROW(comm.start_all_reduce(tensor), libds::Error);
  });
}

TEST(Work, MismatchNamesRankAndTensor) {
  run_failing_ranks(3, [](Comm& comm) {
    Tensor tensor = Tensor::from(std::vector<float>(comm.rank() == 1 ? 5 : 4));
    ds_collective call = call_of(DS_COLLECTIVE_ALL_REDUCE, &tensor);
    call.label = comm.rank() == 1 ? "odd.weight" : "even.weight";
    const std::string text = failure_of(comm.start(call), DS_ERR_COMM);
    EXPECT_THAT(text, HasSubstr("rank 1 called"));
    EXPECT_THAT(text, HasSubstr("odd.weight"));
  });
}

// Wrong descriptors start nothing and leave the group as it was.
TEST(Work, RefusesWrongDescriptors) {
  Comm comm(0, 1);
  Tensor four = Tensor::from(std::vector<float>(4)), other = Tensor::from(std::vector<float>(4));
  const Tensor three = Tensor::from(std::vector<float>(3));
  const int64_t counts[] = {4};
  struct Wrong {
    const char* text;
    ds_collective call;
  };
  const auto with = [&](ds_collective call, const auto& change) {
    change(call);
    return call;
  };
  const ds_collective reduce = call_of(DS_COLLECTIVE_ALL_REDUCE, &four);
  const ds_collective gather = call_of(DS_COLLECTIVE_ALL_GATHER, &four, &other);
  using C = ds_collective&;
  const Wrong wrong[] = {
      {"kind is 0", call_of(0, &four)},
      {"kind is 12", call_of(12, &four)},
      {"output is NULL", call_of(DS_COLLECTIVE_ALL_REDUCE, nullptr)},
      {"input is NULL", call_of(DS_COLLECTIVE_ALL_GATHER, &four)},
      {"input is set", call_of(DS_COLLECTIVE_ALL_REDUCE, &four, &other)},
      {"output is set", call_of(DS_COLLECTIVE_SEND, &four, &other)},
      {"op is 9", with(reduce, [](C c) { c.op = 9; })},
      {"timeout_ms is -1", with(reduce, [](C c) { c.timeout_ms = -1; })},
      {"reserved is 1", with(reduce, [](C c) { c.reserved = 1; })},
      {"has counts", with(reduce, [&](C c) { c.output_counts = counts; })},
      {"takes output_counts alone", with(gather, [&](C c) { c.input_counts = counts; })},
      {"only one of output_counts", with(call_of(DS_COLLECTIVE_ALL_TO_ALL, &four, &other),
                                         [&](C c) { c.output_counts = counts; })},
      {"root 1 is not in a group",
       with(call_of(DS_COLLECTIVE_BROADCAST, &four), [](C c) { c.root = 1; })},
      {"is this rank itself", call_of(DS_COLLECTIVE_SEND, nullptr, &other)},
      {"4 elements", call_of(DS_COLLECTIVE_ALL_GATHER, &four, &three)},
      {"not UTF-8", with(reduce, [](C c) { c.label = "\xff"; })},
  };
  for (const Wrong& one : wrong) {
    SCOPED_TRACE(one.text);
    try {
      comm.start(one.call);
      ADD_FAILURE() << "accepted";
    } catch (const libds::Error& error) {
      EXPECT_EQ(error.status(), DS_ERR_INVALID_ARGUMENT) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(one.text));
    }
  }
  EXPECT_EQ(comm.start(reduce).wait(), 1);
}

// Buffers that ranks share go through collectives where they lie, and their subgroups too.
TEST(Work, SharedTensorsAreOrdinaryTensors) {
  run_ranks(2, [](Comm& comm) {
    Tensor mine = comm.shared_tensor(DS_BFLOAT16, {2, 3000});
    EXPECT_EQ(mine.shape(), (std::vector<int64_t>{2, 3000}));
    std::vector<uint16_t> values(6000, ds::to_bfloat16(static_cast<float>(comm.rank() + 1)).bits);
    EXPECT_DS_OK(ds_tensor_write(mine.get(), values.data(), 12000));
    libds::Comm again = comm.split(0);
    const Work work = again.start_all_reduce(mine, DS_REDUCE_AVERAGE);
    work.wait();
    EXPECT_DS_OK(ds_tensor_read(mine.get(), values.data(), 12000));
    for (const uint16_t bits : values) ASSERT_EQ(bits, ds::to_bfloat16(1.5f).bits);
    again.finalize();
    EXPECT_THROW(comm.shared_tensor(99, {1}), libds::Error);
  });
}

}  // namespace
}  // namespace capi_test
