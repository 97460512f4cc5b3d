#include "comm/nccl/nccl_library.h"

#include "base/dynamic_library.h"
#include "base/error.h"

namespace ds::comm::nccl {
namespace {

constexpr char kAdvice[] =
    "; install NCCL 2.14 or newer, or name its file with DS_NCCL_LIBRARY or nccl_library of the "
    "communicator's configuration";

constexpr const char* kNames[] = {"libnccl.so.2"};
constexpr LibraryPlaces kPlaces = {"NCCL", "DS_NCCL_LIBRARY", kNames};

}  // namespace

std::string version_text(int version) {
  return str_cat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

std::shared_ptr<const Library> open_library(const std::string& path) {
  auto found = std::make_shared<Library>();
  Library& nccl = *found;
  DynamicLibrary library = DynamicLibrary::open(kPlaces, path.empty() ? kPlaces.named() : path);
  DS_CHECK(library, Code::kUnsupported, library.reason(), kAdvice);
  nccl.path = library.name();
  library.need(nccl.get_version, "ncclGetVersion");
  DS_CHECK(nccl.get_version != nullptr, Code::kUnsupported, library.reason(), kAdvice);
  const Result result = nccl.get_version(&nccl.version);
  DS_CHECK(result == kSuccess, Code::kUnsupported, "NCCL: ", nccl.path,
           " does not tell its version (error ", static_cast<int>(result), ")", kAdvice);
  // Before 2.9 the number was made in another way, and smaller.
  DS_CHECK(nccl.version >= kOldest, Code::kUnsupported, "NCCL: ", nccl.path, " is version ",
           nccl.version < 10000 ? str_cat("code ", nccl.version) : version_text(nccl.version),
           ", which cannot begin without blocking", kAdvice);

  library.need(nccl.get_unique_id, "ncclGetUniqueId");
  library.need(nccl.init_rank, "ncclCommInitRankConfig");
  library.need(nccl.get_async_error, "ncclCommGetAsyncError");
  library.need(nccl.finalize, "ncclCommFinalize");
  library.need(nccl.destroy, "ncclCommDestroy");
  library.need(nccl.abort, "ncclCommAbort");
  library.need(nccl.error_string, "ncclGetErrorString");
  library.need(nccl.last_error, "ncclGetLastError");
  library.need(nccl.group_start, "ncclGroupStart");
  library.need(nccl.group_end, "ncclGroupEnd");
  library.need(nccl.all_reduce, "ncclAllReduce");
  library.need(nccl.reduce, "ncclReduce");
  library.need(nccl.reduce_scatter, "ncclReduceScatter");
  library.need(nccl.all_gather, "ncclAllGather");
  library.need(nccl.broadcast, "ncclBroadcast");
  library.need(nccl.send, "ncclSend");
  library.need(nccl.recv, "ncclRecv");
  DS_CHECK(library.missing().empty(), Code::kUnsupported, "NCCL: ", nccl.path,
           " says that it is version ", version_text(nccl.version), " and lacks ",
           join(library.missing(), ", "), kAdvice);
  return found;
}

std::optional<Type> reduced_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return kFloat32;
    case DType::kFloat64:
      return kFloat64;
    case DType::kFloat16:
      return kFloat16;
    case DType::kBFloat16:
      return kBfloat16;
    case DType::kInt8:
      return kInt8;
    case DType::kUInt8:
      return kUint8;
    case DType::kInt32:
      return kInt32;
    case DType::kUInt32:
      return kUint32;
    case DType::kInt64:
      return kInt64;
    case DType::kUInt64:
      return kUint64;
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kBool:
      break;
  }
  return {};
}

Op op_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kAverage:
      return kAvg;
    case ReduceOp::kMin:
      return kMin;
    case ReduceOp::kMax:
      return kMax;
    case ReduceOp::kSum:
      break;
  }
  return kSum;
}

}  // namespace ds::comm::nccl
