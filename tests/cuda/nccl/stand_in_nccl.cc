#include "cuda/nccl/stand_in_nccl.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "comm/nccl/nccl_library.h"
#include "cuda/emulation/stand_in.h"

namespace stand_in = ds::testing::stand_in;
namespace nccl = ds::comm::nccl;
using nccl::Comm;
using nccl::Result;

namespace {

enum class Kind { kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kRecv };

struct Launch;
struct Part {
  Kind kind;
  const void* input;
  void* output;
  size_t count;  // of a piece, where there are pieces
  nccl::Type type;
  nccl::Op op;
  int peer;  // or root
  Comm comm;
  CUstream_st* stream;
  std::shared_ptr<Launch> launch = {};
};
struct Launch {
  std::vector<Part> parts;
  size_t left = 0;
  bool arrived = false;
};

struct Clique {
  std::vector<Comm> ranks;
  int begun = 0, finalized = 0;
  std::map<uint64_t, std::vector<Part>> collectives;  // by number
  std::map<std::pair<int, int>, std::deque<Part>> sends, receives;
};

}  // namespace

namespace ds::comm::nccl {
struct NcclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  CUcontext gpu = nullptr;
  bool ended = false, finalizing = false;
  Result reported = kSuccess;
  uint64_t collectives = 0;         // that its stream has come to
  std::shared_ptr<Launch> pending;  // reaches its stream when the communicator was asked twice
  int asked = 0;
};
}  // namespace ds::comm::nccl

namespace {

struct World {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  std::vector<std::unique_ptr<nccl::NcclComm>> comms;  // also those that were ended
  std::map<std::string, std::deque<Result>> failures;
  std::string violation;
  bool hold = false, hold_begin = false;
  int ids = 0, launches = 0;
};
World& world() {
  static World it;
  return it;
}
using Lock = std::lock_guard<std::mutex>;

thread_local int t_depth = 0;
thread_local std::vector<Part> t_parts;

void violate(const std::string& text) {
  if (world().violation.empty()) world().violation = text;
}

bool take_failure(const char* call, Result* result) {
  auto& waiting = world().failures[call];
  if (waiting.empty()) return false;
  *result = waiting.front();
  waiting.pop_front();
  return true;
}

// ---- what operations do ----

size_t size_of(nccl::Type type) {
  static constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[type];
}

template <class T>
T combined(T a, T b, nccl::Op op) {
  if (op == nccl::kMin) return b < a ? b : a;
  if (op == nccl::kMax) return b > a ? b : a;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class T, class Wide = T>
void reduce_as(const std::vector<const void*>& inputs, size_t from, size_t count, nccl::Op op,
               std::vector<char>& result) {
  const auto wide = [](const T& value) {
    if constexpr (std::is_same_v<T, Wide>)
      return value;
    else
      return ds::to_float(value);
  };
  result.resize(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    Wide sum = wide(static_cast<const T*>(inputs[0])[from + i]);
    for (size_t k = 1; k < inputs.size(); ++k) {
      sum = combined<Wide>(sum, wide(static_cast<const T*>(inputs[k])[from + i]), op);
    }
    if (op == nccl::kAvg) sum = static_cast<Wide>(sum / static_cast<Wide>(inputs.size()));
    T value;
    if constexpr (std::is_same_v<T, Wide>)
      value = sum;
    else
      value = ds::from_float<T>(sum);
    std::memcpy(result.data() + i * sizeof(T), &value, sizeof(T));
  }
}

void reduce(const std::vector<const void*>& inputs, size_t from, const Part& like,
            std::vector<char>& result) {
  const auto as = [&]<class T>(T) { reduce_as<T>(inputs, from, like.count, like.op, result); };
  switch (like.type) {
    case nccl::kInt8:
      return as(int8_t{});
    case nccl::kUint8:
      return as(uint8_t{});
    case nccl::kInt32:
      return as(int32_t{});
    case nccl::kUint32:
      return as(uint32_t{});
    case nccl::kInt64:
      return as(int64_t{});
    case nccl::kUint64:
      return as(uint64_t{});
    case nccl::kFloat32:
      return as(float{});
    case nccl::kFloat64:
      return as(double{});
    case nccl::kFloat16:
      return reduce_as<ds::float16, float>(inputs, from, like.count, like.op, result);
    case nccl::kBfloat16:
      return reduce_as<ds::bfloat16, float>(inputs, from, like.count, like.op, result);
  }
}

// All ranks are there, in order of ranks: their inputs are read before any output is written.
void carry_out(const std::vector<Part>& ranks) {
  const Part& like = ranks.front();
  const size_t bytes = like.count * size_of(like.type);
  std::vector<const void*> inputs;
  for (const Part& part : ranks) inputs.push_back(part.input);
  std::vector<std::vector<char>> results(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<char>& result = results[rank];
    switch (like.kind) {
      case Kind::kAllReduce:
        reduce(inputs, 0, like, result);
        break;
      case Kind::kReduce:
        if (static_cast<int>(rank) == like.peer) reduce(inputs, 0, like, result);
        break;
      case Kind::kReduceScatter:
        reduce(inputs, rank * like.count, like, result);
        break;
      case Kind::kAllGather:
        for (const void* input : inputs) {
          const auto* const from = static_cast<const char*>(input);
          result.insert(result.end(), from, from + bytes);
        }
        break;
      case Kind::kBroadcast: {
        const auto* const from = static_cast<const char*>(inputs[static_cast<size_t>(like.peer)]);
        result.assign(from, from + bytes);
        break;
      }
      default:
        break;
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!results[rank].empty()) {
      std::memcpy(ranks[rank].output, results[rank].data(), results[rank].size());
    }
    --ranks[rank].launch->left;
  }
}

bool same(const Part& a, const Part& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.peer == b.peer;
}

void meet(const Part& mine) {
  Clique& clique = *mine.comm->clique;
  const int rank = mine.comm->rank;
  if (mine.kind == Kind::kSend || mine.kind == Kind::kRecv) {
    const bool sends = mine.kind == Kind::kSend;
    const auto pair = sends ? std::pair(rank, mine.peer) : std::pair(mine.peer, rank);
    auto& others = (sends ? clique.receives : clique.sends)[pair];
    if (others.empty()) {
      (sends ? clique.sends : clique.receives)[pair].push_back(mine);
      return;
    }
    const Part other = others.front();
    others.pop_front();
    const Part& from = sends ? mine : other;
    const Part& to = sends ? other : mine;
    if (from.count != to.count || from.type != to.type) violate("a message of another size");
    std::memcpy(to.output, from.input, std::min(from.count, to.count) * size_of(to.type));
    --mine.launch->left;
    --other.launch->left;
    return;
  }
  auto& ranks = clique.collectives[mine.comm->collectives++];
  ranks.push_back(mine);
  if (ranks.size() < clique.ranks.size()) return;
  std::ranges::sort(ranks, {}, [](const Part& part) { return part.comm->rank; });
  for (const Part& part : ranks) {
    if (!same(part, ranks.front())) return;  // NCCL would hang, or worse
  }
  carry_out(ranks);
}

// Asked by the stream of a rank whose turn it is.
bool may_end(const std::shared_ptr<Launch>& launch) {
  const Lock lock(world().mutex);
  const Comm comm = launch->parts.front().comm;
  if (comm->ended) return true;
  if (world().hold) return false;
  if (!launch->arrived) {
    launch->arrived = true;
    for (Part part : launch->parts) {
      part.launch = launch;
      meet(part);
    }
  }
  return launch->left == 0;
}

// Calls of one communicator only: what the library makes.
Result close_group() {
  if (t_parts.empty()) return nccl::kSuccess;
  const auto launch = std::make_shared<Launch>();
  launch->parts.swap(t_parts);
  launch->left = launch->parts.size();
  const Lock lock(world().mutex);
  const Comm comm = launch->parts.front().comm;
  if (comm->ended) violate("a call with a communicator that was ended");
  if (comm->pending) violate("a call while the one before is in progress");
  if (stand_in::current_context() != comm->gpu) violate("a call without the GPU being current");
  comm->pending = launch;
  comm->asked = 0;
  ++world().launches;
  return nccl::kInProgress;
}

Result add(const char* call, Part part) {
  {
    const Lock lock(world().mutex);
    Result result = nccl::kSuccess;
    if (take_failure(call, &result)) return result;
  }
  t_parts.push_back(part);
  return t_depth == 0 ? close_group() : nccl::kSuccess;
}

CUstream_st* stream_of(nccl::CudaStream stream) { return static_cast<CUstream_st*>(stream); }

}  // namespace

#define STAND_IN_ASKED(call)                       \
  {                                                \
    const Lock lock(world().mutex);                \
    Result asked = nccl::kSuccess;                 \
    if (take_failure(#call, &asked)) return asked; \
  }

extern "C" {

Result ncclGetVersion(int* version) {
  *version = 22803;
  return nccl::kSuccess;
}

Result ncclGetUniqueId(nccl::UniqueId* id) {
  STAND_IN_ASKED(ncclGetUniqueId);
  const Lock lock(world().mutex);
  *id = {};
  const std::string text = "stand-in " + std::to_string(++world().ids);
  std::memcpy(id->bytes, text.data(), text.size());
  return nccl::kSuccess;
}

Result ncclCommInitRankConfig(Comm* comm, int ranks, nccl::UniqueId id, int rank,
                              nccl::Config* config) {
  STAND_IN_ASKED(ncclCommInitRankConfig);
  const Lock lock(world().mutex);
  if (config->blocking != 0 || config->magic != 0xcafebeef || config->size != 24 ||
      config->version != 21400) {
    violate("a configuration that NCCL 2.14 does not know, or a blocking one");
    return nccl::kInvalidArgument;
  }
  auto& clique = world().cliques[std::string(id.bytes, sizeof(id.bytes))];
  if (!clique) {
    clique = std::make_shared<Clique>();
    clique->ranks.resize(static_cast<size_t>(ranks));
  }
  world().comms.push_back(std::make_unique<nccl::NcclComm>());
  *comm = world().comms.back().get();
  (*comm)->clique = clique;
  (*comm)->rank = rank;
  (*comm)->gpu = stand_in::current_context();
  if ((*comm)->gpu == nullptr) violate("a communicator without a current GPU");
  clique->ranks[static_cast<size_t>(rank)] = *comm;
  ++clique->begun;
  return nccl::kInProgress;
}

Result ncclCommGetAsyncError(Comm comm, Result* state) {
  std::shared_ptr<Launch> launch;
  {
    const Lock lock(world().mutex);
    if (comm->ended) violate("a question to a communicator that was ended");
    *state = comm->reported;
    if (comm->reported != nccl::kSuccess) return nccl::kSuccess;
    const Clique& clique = *comm->clique;
    if (world().hold_begin || clique.begun < static_cast<int>(clique.ranks.size()) ||
        (comm->finalizing && clique.finalized < static_cast<int>(clique.ranks.size()))) {
      *state = nccl::kInProgress;
      return nccl::kSuccess;
    }
    if (!comm->pending) return nccl::kSuccess;
    if (++comm->asked < 2) {
      *state = nccl::kInProgress;
      return nccl::kSuccess;
    }
    launch.swap(comm->pending);
  }
  // NCCL launches in a thread of its own on its GPU, whichever thread asks. Not with the lock: the
  // stand-in of CUDA calls may_end under its own.
  const CUcontext before = stand_in::current_context();
  stand_in::set_current_context(comm->gpu);
  if (stand_in::queue_work(launch->parts.front().stream, [launch] { return may_end(launch); },
                           {}) != cudaSuccess) {
    *state = nccl::kUnhandledCudaError;
  }
  stand_in::set_current_context(before);
  return nccl::kSuccess;
}

Result ncclCommFinalize(Comm comm) {
  STAND_IN_ASKED(ncclCommFinalize);
  const Lock lock(world().mutex);
  comm->finalizing = true;
  ++comm->clique->finalized;
  return nccl::kInProgress;
}

Result ncclCommDestroy(Comm comm) {
  const Lock lock(world().mutex);
  if (!comm->finalizing) violate("ncclCommDestroy of a communicator that was not finalized");
  comm->ended = true;
  return nccl::kSuccess;
}

Result ncclCommAbort(Comm comm) {
  const Lock lock(world().mutex);
  if (comm->ended) violate("ncclCommAbort of a communicator that was ended");
  comm->ended = true;
  Clique& clique = *comm->clique;
  const auto forget = [&](auto& table) {
    for (auto& [key, parts] : table) {
      std::erase_if(parts, [&](const Part& part) { return part.comm == comm; });
    }
  };
  forget(clique.collectives);
  forget(clique.sends);
  forget(clique.receives);
  return nccl::kSuccess;
}

const char* ncclGetErrorString(Result result) {
  switch (result) {
    case nccl::kUnhandledCudaError:
      return "unhandled cuda error";
    case nccl::kSystemError:
      return "unhandled system error";
    case nccl::kInvalidUsage:
      return "invalid usage";
    case nccl::kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "another error";
  }
}

const char* ncclGetLastError(Comm) { return "as the stand-in was told"; }

Result ncclGroupStart() {
  ++t_depth;
  return nccl::kSuccess;
}

Result ncclGroupEnd() {
  --t_depth;
  {
    const Lock lock(world().mutex);
    Result asked = nccl::kSuccess;
    if (take_failure("ncclGroupEnd", &asked)) {
      t_parts.clear();
      return asked;
    }
  }
  return t_depth == 0 ? close_group() : nccl::kSuccess;
}

Result ncclAllReduce(const void* input, void* output, size_t count, nccl::Type type, nccl::Op op,
                     Comm comm, nccl::CudaStream stream) {
  return add("ncclAllReduce",
             {Kind::kAllReduce, input, output, count, type, op, -1, comm, stream_of(stream)});
}

Result ncclReduce(const void* input, void* output, size_t count, nccl::Type type, nccl::Op op,
                  int root, Comm comm, nccl::CudaStream stream) {
  return add("ncclReduce",
             {Kind::kReduce, input, output, count, type, op, root, comm, stream_of(stream)});
}

Result ncclReduceScatter(const void* input, void* output, size_t piece, nccl::Type type,
                         nccl::Op op, Comm comm, nccl::CudaStream stream) {
  return add("ncclReduceScatter",
             {Kind::kReduceScatter, input, output, piece, type, op, -1, comm, stream_of(stream)});
}

Result ncclAllGather(const void* input, void* output, size_t piece, nccl::Type type, Comm comm,
                     nccl::CudaStream stream) {
  return add("ncclAllGather", {Kind::kAllGather, input, output, piece, type, nccl::kSum, -1, comm,
                               stream_of(stream)});
}

Result ncclBroadcast(const void* input, void* output, size_t count, nccl::Type type, int root,
                     Comm comm, nccl::CudaStream stream) {
  return add("ncclBroadcast", {Kind::kBroadcast, input, output, count, type, nccl::kSum, root, comm,
                               stream_of(stream)});
}

Result ncclSend(const void* input, size_t count, nccl::Type type, int peer, Comm comm,
                nccl::CudaStream stream) {
  return add("ncclSend",
             {Kind::kSend, input, nullptr, count, type, nccl::kSum, peer, comm, stream_of(stream)});
}

Result ncclRecv(void* output, size_t count, nccl::Type type, int peer, Comm comm,
                nccl::CudaStream stream) {
  return add("ncclRecv", {Kind::kRecv, nullptr, output, count, type, nccl::kSum, peer, comm,
                          stream_of(stream)});
}

const ds::testing::NcclControl* stand_in_nccl_control() {
  static const ds::testing::NcclControl control = {
      .reset =
          [] {
            const Lock lock(world().mutex);
            world().cliques.clear();
            world().comms.clear();
            world().failures.clear();
            world().violation.clear();
            world().hold = world().hold_begin = false;
            world().launches = 0;
          },
      .fail_next =
          [](const char* call, int result) {
            const Lock lock(world().mutex);
            world().failures[call].push_back(static_cast<Result>(result));
          },
      .report =
          [](int rank, int result) {
            const Lock lock(world().mutex);
            for (const auto& comm : world().comms) {
              if (rank < 0 || comm->rank == rank) comm->reported = static_cast<Result>(result);
            }
          },
      .hold_begin =
          [](bool on) {
            const Lock lock(world().mutex);
            world().hold_begin = on;
          },
      .hold =
          [](bool on) {
            const Lock lock(world().mutex);
            world().hold = on;
          },
      .live =
          [] {
            const Lock lock(world().mutex);
            int live = 0;
            for (const auto& comm : world().comms) live += !comm->ended;
            return live;
          },
      .launches =
          [] {
            const Lock lock(world().mutex);
            return world().launches;
          },
      .violation = [] { return world().violation.c_str(); },
  };
  return &control;
}

}  // extern "C"
