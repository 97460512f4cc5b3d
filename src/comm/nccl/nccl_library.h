// NCCL as a library found at run time: what of its binary interface is used, declared here, so that
// neither its header nor the library is needed to build.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "comm/collective.h"
#include "tensor/dtype.h"

namespace ds::comm::nccl {

using Comm = struct NcclComm*;
using CudaStream = void*;

struct UniqueId {
  char bytes[128];
};

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum Type : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum Op : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

// As it was in 2.14: later versions take its size and version and fill in the rest.
inline constexpr int kOldest = 21400;
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldest;
  int blocking = 0;
};

struct Library {
  std::string path;
  int version = 0;

  Result (*get_version)(int*) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*init_rank)(Comm*, int ranks, UniqueId, int rank, Config*) = nullptr;
  Result (*get_async_error)(Comm, Result*) = nullptr;
  Result (*finalize)(Comm) = nullptr;
  Result (*destroy)(Comm) = nullptr;
  Result (*abort)(Comm) = nullptr;
  const char* (*error_string)(Result) = nullptr;
  const char* (*last_error)(Comm) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*all_reduce)(const void*, void*, size_t, Type, Op, Comm, CudaStream) = nullptr;
  Result (*reduce)(const void*, void*, size_t, Type, Op, int root, Comm, CudaStream) = nullptr;
  Result (*reduce_scatter)(const void*, void*, size_t piece, Type, Op, Comm, CudaStream) = nullptr;
  Result (*all_gather)(const void*, void*, size_t piece, Type, Comm, CudaStream) = nullptr;
  Result (*broadcast)(const void*, void*, size_t, Type, int root, Comm, CudaStream) = nullptr;
  Result (*send)(const void*, size_t, Type, int peer, Comm, CudaStream) = nullptr;
  Result (*recv)(void*, size_t, Type, int peer, Comm, CudaStream) = nullptr;
};

// Opens `path`, or what DS_NCCL_LIBRARY names, or libnccl.so.2. Throws kUnsupported with what was
// tried, which functions are missing, or which version was found. It is never closed.
std::shared_ptr<const Library> open_library(const std::string& path);

std::string version_text(int version);  // "2.28.3"

// How NCCL reduces this type; nothing for types that it does not know.
std::optional<Type> reduced_type(DType dtype) noexcept;
Op op_of(ReduceOp op) noexcept;

}  // namespace ds::comm::nccl
