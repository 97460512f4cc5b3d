#include "comm/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"

namespace ds::comm::nccl {
namespace {

constexpr char kAdvice[] =
    "; install NCCL 2.14 or newer, or name its file with DS_NCCL_LIBRARY or nccl_library of the "
    "communicator's configuration";

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

std::string library_path(const std::string& path) {
  if (!path.empty()) return path;
  const char* const variable = std::getenv("DS_NCCL_LIBRARY");
  return variable != nullptr && *variable != '\0' ? variable : "libnccl.so.2";
}

}  // namespace

std::string version_text(int version) {
  return str_cat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

std::shared_ptr<const Library> open_library(const std::string& path) {
  auto found = std::make_shared<Library>();
  Library& nccl = *found;
  nccl.path = library_path(path);
  void* const library = ::dlopen(nccl.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    fail(Code::kUnsupported, "NCCL cannot be opened: ", why != nullptr ? why : nccl.path, kAdvice);
  }
  DS_CHECK(find(library, "ncclGetVersion", &nccl.get_version), Code::kUnsupported,
           "NCCL: ", nccl.path, " has no ncclGetVersion, so it is not NCCL", kAdvice);
  const Result result = nccl.get_version(&nccl.version);
  DS_CHECK(result == kSuccess, Code::kUnsupported, "NCCL: ", nccl.path,
           " does not tell its version (error ", static_cast<int>(result), ")", kAdvice);
  // Before 2.9 the number was made in another way, and smaller.
  DS_CHECK(nccl.version >= kOldest, Code::kUnsupported, "NCCL: ", nccl.path, " is version ",
           nccl.version < 10000 ? str_cat("code ", nccl.version) : version_text(nccl.version),
           ", which cannot begin without blocking", kAdvice);

  std::vector<std::string> missing;
  const auto need = [&](const char* name, auto* function) {
    if (!find(library, name, function)) missing.emplace_back(name);
  };
  need("ncclGetUniqueId", &nccl.get_unique_id);
  need("ncclCommInitRankConfig", &nccl.init_rank);
  need("ncclCommGetAsyncError", &nccl.get_async_error);
  need("ncclCommFinalize", &nccl.finalize);
  need("ncclCommDestroy", &nccl.destroy);
  need("ncclCommAbort", &nccl.abort);
  need("ncclGetErrorString", &nccl.error_string);
  need("ncclGetLastError", &nccl.last_error);
  need("ncclGroupStart", &nccl.group_start);
  need("ncclGroupEnd", &nccl.group_end);
  need("ncclAllReduce", &nccl.all_reduce);
  need("ncclReduce", &nccl.reduce);
  need("ncclReduceScatter", &nccl.reduce_scatter);
  need("ncclAllGather", &nccl.all_gather);
  need("ncclBroadcast", &nccl.broadcast);
  need("ncclSend", &nccl.send);
  need("ncclRecv", &nccl.recv);
  DS_CHECK(missing.empty(), Code::kUnsupported, "NCCL: ", nccl.path, " says that it is version ",
           version_text(nccl.version), " and lacks ", join(missing, ", "), kAdvice);
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
