// Collectives between processes of this host beside the limit that the memory sets: the time in
// which as many bytes are copied with non-temporal stores, measured by the same processes in the
// same run.
//
// Usage: comm_bench [--ranks N] [--transport auto|shm|sockets|hierarchical] [--ranks-per-node N]
//                   [--private] [--smallest BYTES] [--largest BYTES] [--json]
// Forks N ranks that meet at a port of this host. Started by a launcher (torchrun, mpirun, srun, or
// RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the environment) it is one rank.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "comm/factory.h"
#include "comm/logger.h"
#include "kernels/collective/combine.h"

namespace {

using namespace ds;  // NOLINT: a program of the engine

struct Arguments {
  int ranks = 2;
  bool private_buffers = false;
  bool json = false;
  int64_t smallest = 1024;
  int64_t largest = int64_t{64} << 20;
  CommOptions options;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

// Times of one call, the slowest rank's, median of several.
double time_of(Communicator& comm, const Tensor& slot, int calls,
               const std::function<void()>& call) {
  call();
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    comm.barrier();
    const double begin = now();
    call();
    slot.data<double>()[0] = now() - begin;
    comm.all_reduce(slot, ReduceOp::kMax, {.blocking = true})->wait();
    times.push_back(slot.data<double>()[0]);
  }
  return median(std::move(times));
}

struct Row {
  Collective kind;
  int64_t bytes;  // of the whole: what all_reduce reduces, what all_gather gathers
  double seconds;
  double limit;  // least traffic at the rate of the copy
};

std::vector<Row> measure(Communicator& comm, const Arguments& arguments, double* copy_rate) {
  const int n = comm.size();
  const auto device = make_cpu_device();
  const auto buffer = [&](int64_t bytes) {
    return arguments.private_buffers
               ? Tensor::zeros(device, DType::kFloat32, {bytes / 4}, MemoryTag::kCommunication)
               : comm.shared_tensor(device, DType::kFloat32, {bytes / 4},
                                    MemoryTag::kCommunication);
  };
  const Tensor a = buffer(arguments.largest), b = buffer(arguments.largest);
  std::memset(a.raw(), 0, static_cast<size_t>(a.bytes()));
  std::memset(b.raw(), 0, static_cast<size_t>(b.bytes()));
  const Tensor slot = Tensor::zeros(device, DType::kFloat64, {1}, MemoryTag::kOther);

  const auto copy_time = [&] {
    return time_of(comm, slot, 9, [&] { kernels::stream_copy(b.raw(), a.raw(), a.bytes()); });
  };
  std::vector<double> copies{copy_time()};
  std::vector<Row> rows;
  for (const Collective kind : {Collective::kAllReduce, Collective::kAllGather,
                                Collective::kReduceScatter, Collective::kAllToAll}) {
    for (int64_t bytes = arguments.smallest; bytes <= arguments.largest; bytes *= 4) {
      const int64_t whole = bytes / 4 / n * n, piece = whole / n;
      const Tensor all = a.slice(0, 0, whole), other = b.slice(0, 0, whole);
      const Tensor own = all.slice(0, piece * comm.rank(), piece * (comm.rank() + 1));
      const Tensor apart = other.slice(0, 0, piece);
      const CollectiveOptions blocking{.blocking = true};
      const int calls = bytes >= (int64_t{1} << 20) ? 21 : 201;
      const double seconds = time_of(comm, slot, calls, [&] {
        switch (kind) {
          case Collective::kAllReduce:
            return comm.all_reduce(all, ReduceOp::kSum, blocking)->wait();
          case Collective::kAllGather:
            return comm.all_gather(all, own, blocking)->wait();
          case Collective::kReduceScatter:
            return comm.reduce_scatter(apart, all, ReduceOp::kSum, blocking)->wait();
          default:
            return comm.all_to_all(other, all, blocking)->wait();
        }
      });
      // Bytes that have to be read and written, by all ranks together.
      const double size = static_cast<double>(whole) * 4;
      const double moved = kind == Collective::kAllReduce       ? 2.0 * n * size
                           : kind == Collective::kAllGather     ? 2.0 * (n - 1) * size  // in place
                           : kind == Collective::kReduceScatter ? (n + 1.0) * size
                                                                : 2.0 * n * size;
      rows.push_back({kind, whole * 4, seconds, moved});
    }
    copies.push_back(copy_time());
  }
  *copy_rate = 2.0 * static_cast<double>(a.bytes()) * n / median(copies);
  for (Row& row : rows) row.limit /= *copy_rate;
  return rows;
}

void print(const std::vector<Row>& rows, const Arguments& arguments, double copy_rate,
           const char* transport) {
  if (arguments.json) {
    Json document;
    document["ranks"] = arguments.ranks;
    document["transport"] = transport;
    document["shared_buffers"] = !arguments.private_buffers;
    document["stream_copy_bytes_per_second"] = copy_rate;
    for (const Row& row : rows) {
      document["rows"].push_back({{"operation", std::string(collective_name(row.kind))},
                                  {"bytes", row.bytes},
                                  {"seconds", row.seconds},
                                  {"of_copy_limit", row.limit / row.seconds}});
    }
    std::printf("%s\n", dump_json(document, 2).c_str());
    return;
  }
  std::printf("%d ranks, %s, %s buffers; copies with non-temporal stores: %.1f GB/s\n",
              arguments.ranks, transport, arguments.private_buffers ? "private" : "shared",
              copy_rate * 1e-9);
  std::printf("%-16s %12s %12s %14s %14s %10s\n", "operation", "bytes", "us", "S/t GB/s",
              "busbw GB/s", "of limit");
  for (const Row& row : rows) {
    const bool gathers = row.kind == Collective::kAllGather;
    const Bandwidth rate = collective_bandwidth(
        row.kind, gathers ? row.bytes / arguments.ranks : row.bytes, row.seconds, arguments.ranks);
    std::printf("%-16s %12lld %12.1f %14.2f %14.2f %9.0f%%\n",
                std::string(collective_name(row.kind)).c_str(), static_cast<long long>(row.bytes),
                row.seconds * 1e6, static_cast<double>(row.bytes) / row.seconds * 1e-9,
                rate.bus * 1e-9, 100 * row.limit / row.seconds);
  }
}

int run_rank(int rank, const Arguments& arguments) {
  try {
    const auto comm = make_communicator(rank, rank < 0 ? -1 : arguments.ranks, arguments.options);
    double copy_rate = 0;
    const std::vector<Row> rows = measure(*comm, arguments, &copy_rate);
    if (comm->rank() == 0) print(rows, arguments, copy_rate, comm->transport());
    comm->finalize();
    std::fflush(stdout);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

// 0: started by no launcher; -1: it says nonsense.
int world_of_launcher() {
  try {
    const ProcessPlace place = discover_process(process_environment());
    return place.source == "none" ? 0 : place.world;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "comm_bench: %s\n", error.what());
    return -1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (name == "--ranks") {
      arguments.ranks = std::max(1, std::atoi(value()));
    } else if (name == "--private") {
      arguments.private_buffers = true;
    } else if (name == "--json") {
      arguments.json = true;
    } else if (name == "--smallest") {
      arguments.smallest = std::max(1024LL, std::atoll(value()));
    } else if (name == "--largest") {
      arguments.largest = std::max(4096LL, std::atoll(value()));
    } else if (name == "--ranks-per-node") {
      arguments.options.ranks_per_node = std::atoi(value());
    } else if (name == "--transport") {
      const std::string text = R"({"transport": ")" + std::string(value()) + "\"}";
      arguments.options.transport = parse_comm_options(text).transport;
    } else {
      std::fprintf(stderr, "comm_bench: unknown argument %s\n", name.c_str());
      return 2;
    }
  }
  if (const int launched = world_of_launcher(); launched != 0) {
    arguments.ranks = launched;
    return launched < 0 ? 2 : run_rank(-1, arguments);
  }
  arguments.options.master_addr = "127.0.0.1";
  arguments.options.master_port = 20000 + static_cast<int>(::getpid() % 12000);
  std::vector<pid_t> children;
  for (int rank = 1; rank < arguments.ranks; ++rank) {
    const pid_t id = ::fork();
    if (id == 0) ::_exit(run_rank(rank, arguments));
    children.push_back(id);
  }
  int code = run_rank(0, arguments);
  for (const pid_t id : children) {
    int status = 0;
    ::waitpid(id, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) code = 1;
  }
  return code;
}
