// The communicator's public half over a group of one process: arguments, states, groups.
#include "comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>

#include "comm/factory.h"
#include "device/cuda_device.h"

namespace ds {
namespace {

using ::testing::HasSubstr;

Tensor make(DType dtype, const Shape& shape) {
  return Tensor::zeros(make_cpu_device(), dtype, shape, MemoryTag::kCommunication);
}

Tensor numbered(const Shape& shape) {
  Tensor t = make(DType::kFloat32, shape);
  for (int64_t i = 0; i < t.elements(); ++i) t.data<float>()[i] = static_cast<float>(i);
  return t;
}

void expect_error(Code code, const char* text, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    EXPECT_THAT(error.message(), HasSubstr(text));
  }
}

TEST(Communicator, CollectivesOfOne) {
  const auto comm = make_single_communicator();
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  Tensor a = numbered({2, 3});
  const WorkPtr work = comm->all_reduce(a, ReduceOp::kSum, {.label = "a", .deadline = {}});
  work->wait();
  EXPECT_TRUE(work->done());
  EXPECT_EQ(a.data<float>()[5], 5);
  comm->all_reduce(a, ReduceOp::kAverage)->wait();
  Tensor out = make(DType::kFloat32, {6});
  comm->all_gather(out, a)->wait();
  EXPECT_EQ(std::memcmp(out.raw(), a.raw(), static_cast<size_t>(a.bytes())), 0);
  Tensor part = make(DType::kFloat32, {6});
  comm->reduce_scatter(part, out, ReduceOp::kMax)->wait();
  EXPECT_EQ(std::memcmp(part.raw(), a.raw(), static_cast<size_t>(a.bytes())), 0);
  comm->all_gather(out, out)->wait();  // in place
  comm->broadcast(a, 0)->wait();
  comm->barrier();
}

TEST(Communicator, ArgumentsAreChecked) {
  const auto comm = make_single_communicator();
  const Tensor a = numbered({4}), b = numbered({3}), i = make(DType::kInt32, {4});
  const Tensor flags = make(DType::kBool, {4});
  constexpr Code kBad = Code::kInvalidArgument;
  expect_error(kBad, "tensor is missing", [&] { comm->all_reduce(Tensor(), ReduceOp::kSum); });
  expect_error(kBad, "bool", [&] { comm->all_reduce(flags, ReduceOp::kSum); });
  expect_error(kBad, "average of int32", [&] { comm->all_reduce(i, ReduceOp::kAverage); });
  comm->all_reduce(i, ReduceOp::kMin)->wait();
  const Tensor turned(a.storage(), 0, DType::kFloat32, {2, 2}, std::array<int64_t, 2>{1, 2});
  expect_error(kBad, "not contiguous", [&] { comm->all_reduce(turned, ReduceOp::kSum); });
  expect_error(kBad, "not 1 times", [&] { comm->all_gather(a, b); });
  expect_error(kBad, "they must agree", [&] { comm->all_gather(a, i); });
  expect_error(kBad, "not 1 times", [&] { comm->reduce_scatter(b, a, ReduceOp::kSum); });
  expect_error(kBad, "root 1", [&] { comm->broadcast(a, 1); });
  expect_error(kBad, "root -1", [&] { comm->broadcast(a, -1); });
  expect_error(kBad, "deadline",
               [&] { comm->barrier({.label = "", .deadline = std::chrono::milliseconds(0)}); });
  const auto locked = std::make_shared<Storage>(DeviceKind::kCpu, 0, a.raw(), a.bytes(), true,
                                                std::function<void()>());
  const Tensor read_only(locked, 0, DType::kFloat32, {4});
  expect_error(Code::kState, "read-only", [&] { comm->all_reduce(read_only, ReduceOp::kSum); });
  comm->broadcast(read_only, 0)->wait();  // the root only reads
}

TEST(Communicator, Finalized) {
  const auto comm = make_single_communicator();
  comm->finalize();
  comm->finalize();
  EXPECT_EQ(comm->state(), Communicator::State::kFinalized);
  expect_error(Code::kState, "finalized", [&] { comm->barrier(); });
  expect_error(Code::kState, "finalized", [&] { comm->split(0, 0); });
  comm->abort("too late");
  EXPECT_EQ(comm->state(), Communicator::State::kFinalized);
}

TEST(Communicator, AbortedFromAnotherThread) {
  const auto comm = make_single_communicator();
  const auto group = comm->split(3, 0);
  const auto inner = group->split(0, 0);
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(comm->split(-1, 0), nullptr);
  std::thread([&] { comm->abort("rank 0 lost its disk"); }).join();
  comm->abort("a second reason");
  expect_error(Code::kAborted, "lost its disk", [&] { comm->barrier(); });
  expect_error(Code::kAborted, "parent group", [&] { group->barrier(); });
  expect_error(Code::kAborted, "parent group", [&] { inner->barrier(); });
  expect_error(Code::kAborted, "aborted", [&] { comm->finalize(); });
}

TEST(Communicator, FinalizeAndAbortRace) {
  for (int i = 0; i < 200; ++i) {
    const auto comm = make_single_communicator();
    std::thread aborter([&] { comm->abort("now"); });
    try {
      comm->finalize();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kAborted);
    }
    aborter.join();
    EXPECT_NE(comm->state(), Communicator::State::kActive);
  }
}

TEST(CommOptions, Parsed) {
  EXPECT_EQ(parse_comm_options("").deadline, std::chrono::minutes(30));
  EXPECT_EQ(parse_comm_options("{}").deadline, std::chrono::minutes(30));
  EXPECT_EQ(parse_comm_options(R"({"timeout_seconds": 2.5})").deadline,
            std::chrono::milliseconds(2500));
  expect_error(Code::kConfig, "timeout_seconds",
               [] { parse_comm_options(R"({"timeout_second": 1})"); });
  expect_error(Code::kConfig, "object", [] { parse_comm_options("3"); });
  const CommOptions all = parse_comm_options(
      R"({"transport": "sockets", "ranks_per_node": 4, "checked": true, "master_addr": "h",
          "master_port": 1234, "host_address": "10.0.0.1", "job_id": "j",
          "rendezvous_timeout_seconds": 20})");
  EXPECT_EQ(all.transport, TransportKind::kSockets);
  EXPECT_EQ(all.ranks_per_node, 4);
  EXPECT_TRUE(all.checked);
  EXPECT_EQ(all.master_addr, "h");
  EXPECT_EQ(all.master_port, 1234);
  EXPECT_EQ(all.host_address, "10.0.0.1");
  EXPECT_EQ(all.job_id, "j");
  EXPECT_EQ(all.rendezvous_deadline, std::chrono::seconds(20));
  const auto refused = [](const char* text, const char* json) {
    expect_error(Code::kConfig, text, [&] { parse_comm_options(json); });
  };
  refused("known are: auto, self, shm, sockets, hierarchical, mpi, nccl",
          R"({"transport": "tcp"})");
  const CommOptions mpi = parse_comm_options(
      R"({"transport": "hierarchical", "across": "mpi", "mpi_communicator": -7, "mpi_plugin": "p"})");
  EXPECT_TRUE(mpi.mpi_across);
  EXPECT_EQ(mpi.mpi_communicator, -7);
  EXPECT_EQ(mpi.mpi_plugin, "p");
  refused("known are: sockets, mpi", R"({"transport": "hierarchical", "across": "tcp"})");
  refused("what lies between the nodes", R"({"across": "mpi"})");
  refused("need /transport \"mpi\"", R"({"mpi_communicator": 1})");
  refused("need /transport \"mpi\"", R"({"transport": "shm", "mpi_plugin": "p"})");
  EXPECT_EQ(parse_comm_options(R"({"transport": "nccl", "nccl_library": "l"})").nccl_library, "l");
  refused("needs /transport \"nccl\"", R"({"nccl_library": "l"})");
  refused("between -2147483648", R"({"transport": "mpi", "mpi_communicator": 4294967296})");
  refused("did you mean \"ranks_per_node\"", R"({"rank_per_node": 1})");
  refused("between 0 and 65535", R"({"master_port": 70000})");
  refused("between 0 and", R"({"ranks_per_node": 18446744073709551615})");
  refused("whole number", R"({"ranks_per_node": 1.5})");
  refused("true or false", R"({"checked": 1})");
  refused("must be text", R"({"job_id": 3})");
  refused("without zero bytes", "{\"job_id\": \"a\\u0000b\"}");
}

TEST(MpiPlugin, WhatIsMissingIsSaid) {
  const auto refused = [](const char* text, const char* json) {
    expect_error(Code::kUnsupported, text,
                 [&] { make_communicator(-1, -1, parse_comm_options(json)); });
  };
  refused("MPI needs the plug-in libds_mpi.so, which is built when MPI is found",
          R"({"transport": "mpi", "mpi_plugin": "/nowhere/libds_mpi.so"})");
  refused("is no plug-in of this library", R"({"transport": "mpi", "mpi_plugin": "libm.so.6"})");
}

TEST(Nccl, WhatIsMissingIsSaid) {
  const CommOptions options =
      parse_comm_options(R"({"transport": "nccl", "nccl_library": "/nowhere/libnccl.so.2"})");
  std::string why_none;
  const bool none = list_cuda_devices(&why_none).empty();
  expect_error(Code::kUnsupported, none ? why_none.c_str() : "/nowhere/libnccl.so.2",
               [&] { make_local_group(2, options); });
  EXPECT_STREQ(make_communicator(0, 1, options)->transport(), "self") << "alone it needs none";
}

}  // namespace
}  // namespace ds
