// `ds bench io`: how fast files are read and written, with one set of options or with the best of
// many.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "files.h"
#include "format.h"

namespace tool {
namespace {

namespace fs = std::filesystem;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct IoOptions {
  int64_t io_size = int64_t{400} << 20;
  int64_t block_size = int64_t{1} << 20;
  int64_t queue_depth = 32;
  int64_t parallel = 1;
  int64_t loops = 3;
  int64_t warmup_loops = 1;
  bool include_warmup_time = false;
  bool different_file = false;
  bool single_submit = false;
  bool sequential_requests = false;
  bool validate = false;
  bool use_gds = false, gpu = false;
  std::string backend = "auto";
  std::string folder = ".";
  bool read = false;
  bool sweep = false;
  bool no_read = false, no_write = false;
  std::string save;
  bool json = false;
};

// One set of what the configuration's `aio` holds.
struct Setting {
  int64_t block_size, queue_depth, parallel;
  bool single_submit, overlap_events;
};

Json aio_json(const Setting& setting, const std::string& backend) {
  Json out = {{"block_size", setting.block_size},
              {"queue_depth", setting.queue_depth},
              {"intra_op_parallelism", setting.parallel},
              {"single_submit", setting.single_submit},
              {"overlap_events", setting.overlap_events}};
  if (backend != "auto") out["backend"] = backend;
  return out;
}

const char* backend_name(ds_io_backend backend) {
  if (backend == DS_IO_URING) return "io_uring";
  if (backend == DS_IO_LIBAIO) return "libaio";
  return "threads";
}

// Files of this run alone, which go with it.
class Files {
 public:
  Files(const std::string& folder, int64_t count) {
    if (!folder_exists(folder)) throw Failure(folder + " is no folder");
    std::string pattern = (fs::path(folder) / "ds-bench-io-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw Failure("cannot make a folder in " + folder);
    }
    folder_ = pattern;
    for (int64_t i = 0; i < count; ++i) {
      paths_.push_back((folder_ / ("file-" + std::to_string(i))).string());
    }
  }
  ~Files() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  const std::string& of_loop(int64_t loop) const {
    return paths_[static_cast<size_t>(loop) % paths_.size()];
  }
  const std::vector<std::string>& all() const { return paths_; }

 private:
  fs::path folder_;
  std::vector<std::string> paths_;
};

// What is moved: in memory that stays in place where the limit of such memory allows it.
struct Memory {
  libds::Tensor tensor;
  bool pinned = false;
};

Memory make_memory(int64_t bytes) {
  Memory out;
  try {
    out = {libds::Tensor::pinned(DS_UINT8, {bytes}), true};
  } catch (const libds::Error& error) {
    if (error.status() != DS_ERR_OUT_OF_MEMORY) throw;
    out = {libds::Tensor(DS_UINT8, {bytes}), false};
  }
  auto* const data = static_cast<uint8_t*>(out.tensor.info().data);
  uint64_t state = 1;
  for (int64_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<uint8_t>(state >> 56);
  }
  return out;
}

struct Speed {
  double seconds = 0;  // of one loop, on average
  double gib_per_s = 0;
  std::vector<double> loops;
};

Speed measure(const libds::Io& io, const Files& files, const Memory& memory, const IoOptions& o,
              bool read) {
  Speed out;
  for (int64_t loop = 0; loop < o.warmup_loops + o.loops; ++loop) {
    const std::string& path = files.of_loop(loop);
    const auto began = std::chrono::steady_clock::now();
    if (read) {
      io.read(path, memory.tensor);
    } else {
      io.write(path, memory.tensor);
    }
    const auto took = std::chrono::steady_clock::now() - began;
    if (loop < o.warmup_loops && !o.include_warmup_time) continue;
    out.loops.push_back(std::chrono::duration<double>(took).count());
  }
  double total = 0;
  for (const double seconds : out.loops) total += seconds;
  const auto count = static_cast<double>(out.loops.size());
  out.seconds = total / count;
  out.gib_per_s = static_cast<double>(o.io_size) * count / kGiB / std::max(total, 1e-9);
  return out;
}

Json speed_json(const Speed& speed) {
  return {
      {"seconds", speed.seconds}, {"gib_per_s", speed.gib_per_s}, {"loop_seconds", speed.loops}};
}

libds::Io make_io(const Setting& setting, const IoOptions& o) {
  Json options = aio_json(setting, o.backend);
  if (o.validate) options["validate"] = true;
  if (o.use_gds) options["use_gds"] = true;
  return libds::Io(options.dump());
}

Files make_files(const IoOptions& o) {
  return Files(o.folder, o.different_file ? o.loops + o.warmup_loops : 1);
}

// A file that is read must be there, and one that is written anew is slower the first time.
void write_files(const libds::Io& io, const Files& files, const Memory& memory) {
  for (const std::string& path : files.all()) io.write_file(path, memory.tensor);
}

int run_once(const IoOptions& o) {
  const Setting setting{o.block_size, o.queue_depth, o.parallel, o.single_submit,
                        !o.sequential_requests};
  const libds::Io io = make_io(setting, o);
  const Files files = make_files(o);
  const Memory memory = make_memory(o.io_size);
  if (o.read) write_files(io, files, memory);
  const Speed speed = measure(io, files, memory, o, o.read);
  const char* const backend = backend_name(io.info().backend);
  const char* const direction = o.read ? "read" : "write";
  if (o.json) {
    std::cout << Json{{"direction", direction},
                      {"io_size", o.io_size},
                      {"backend", backend},
                      {"pinned", memory.pinned},
                      {"aio", aio_json(setting, o.backend)},
                      {direction, speed_json(speed)}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << format("%s by %s, %s memory: %.4f s, %.2f GiB/s (mean of %zu)\n", direction,
                        backend, memory.pinned ? "pinned" : "ordinary", speed.seconds,
                        speed.gib_per_s, speed.loops.size());
  }
  return kDone;
}

// What the sweep tries, in the order of the table that it prints.
std::vector<Setting> settings() {
  std::vector<Setting> out;
  for (const int64_t block : {int64_t{1} << 20, int64_t{8} << 20}) {
    for (const int64_t depth : {32, 128}) {
      for (const bool overlap : {true, false}) {
        for (const bool single : {false, true}) {
          for (const int64_t parallel : {1, 2, 4, 8}) {
            out.push_back({block, depth, parallel, single, overlap});
          }
        }
      }
    }
  }
  return out;
}

void print_row(const Json& row) {
  const Json& aio = row.at("aio");
  const auto speed = [&](const char* direction) {
    return row.contains(direction) ? row.at(direction).at("gib_per_s").get<double>() : 0.0;
  };
  std::cout << format("%10lld %6lld %9lld %7s %8s %10.2f %10.2f\n",
                      static_cast<long long>(aio.at("block_size").get<int64_t>()),
                      static_cast<long long>(aio.at("queue_depth").get<int64_t>()),
                      static_cast<long long>(aio.at("intra_op_parallelism").get<int64_t>()),
                      aio.at("single_submit").get<bool>() ? "yes" : "no",
                      aio.at("overlap_events").get<bool>() ? "yes" : "no", speed("read"),
                      speed("write"))
            << std::flush;
}

double sum_of(const Json& row) {
  double sum = 0;
  for (const char* direction : {"read", "write"}) {
    if (row.contains(direction)) sum += row.at(direction).at("gib_per_s").get<double>();
  }
  return sum;
}

int run_sweep(const IoOptions& o) {
  const Files files = make_files(o);
  const Memory memory = make_memory(o.io_size);
  Json rows = Json::array();
  std::string backend;
  if (!o.json) {
    std::cout << format("%10s %6s %9s %7s %8s %10s %10s\n", "block_size", "depth", "parallel",
                        "single", "overlap", "read GiB/s", "write GiB/s");
  }
  size_t best = 0;
  for (const Setting& setting : settings()) {
    const libds::Io io = make_io(setting, o);
    backend = backend_name(io.info().backend);
    if (rows.empty()) write_files(io, files, memory);
    Json row = {{"aio", aio_json(setting, o.backend)}};
    if (!o.no_read) row["read"] = speed_json(measure(io, files, memory, o, true));
    if (!o.no_write) row["write"] = speed_json(measure(io, files, memory, o, false));
    if (!o.json) print_row(row);
    rows.push_back(std::move(row));
    if (sum_of(rows.back()) > sum_of(rows[best])) best = rows.size() - 1;
  }
  const Json section = {{"aio", rows[best].at("aio")}};
  if (!o.save.empty()) write_text(o.save, section.dump(2) + "\n");
  if (o.json) {
    std::cout << Json{{"io_size", o.io_size},     {"backend", backend}, {"pinned", memory.pinned},
                      {"aio", section.at("aio")}, {"best", rows[best]}, {"rows", std::move(rows)}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << "best, by " << backend << ":\n" << section.dump(2) << "\n";
  }
  return kDone;
}

int run_bench_io(const IoOptions& given) {
  IoOptions o = given;
  if (o.gpu) throw UsageError("--gpu: files are moved from and to host memory only");
  if (o.sweep && o.no_read && o.no_write)
    throw UsageError("--no-read and --no-write leave nothing");
  if (!o.sweep && (o.no_read || o.no_write || !o.save.empty())) {
    throw UsageError("--no-read, --no-write and --save belong to --sweep");
  }
  if (o.sweep && o.read) throw UsageError("--read is for one measurement; --sweep has --no-write");
  return o.sweep ? run_sweep(o) : run_once(o);
}

// An option by its name with dashes and, as DeepSpeed's tools have it, with underscores.
std::string both(const std::string& name) {
  std::string other = name;
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? name : name + "," + other;
}

void add_request_options(CLI::App& sub, IoOptions& o) {
  sub.add_option(both("--block-size"), o.block_size, "bytes of a request to the system")
      ->transform(CLI::AsSizeValue(false))
      ->check(at_least(1))
      ->capture_default_str();
  sub.add_option(both("--queue-depth"), o.queue_depth, "requests under way, of each thread")
      ->check(at_least(1))
      ->capture_default_str();
  sub.add_option(both("--io-parallel") + ",--intra-op-parallelism,--intra_op_parallelism",
                 o.parallel, "threads that share a read or write; also --intra-op-parallelism")
      ->check(at_least(1))
      ->capture_default_str();
  sub.add_flag(both("--single-submit"), o.single_submit, "a system call for each request");
  sub.add_flag(both("--sequential-requests"), o.sequential_requests,
               "all requests under way end before more begin");
  sub.add_option("--backend", o.backend, "auto, io_uring, libaio or threads")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "io_uring", "libaio", "threads"}))
      ->capture_default_str();
  sub.add_flag("--gpu", o.gpu, "not possible: host memory only");
  sub.add_flag(both("--use-gds"), o.use_gds, "not possible: there is no GPUDirect Storage");
  sub.add_flag("--validate", o.validate, "compare what was moved with what the file holds; timed");
}

void add_loop_options(CLI::App& sub, IoOptions& o) {
  sub.add_option("--folder", o.folder, "of the files that are written, and removed at the end")
      ->type_name("FOLDER")
      ->capture_default_str();
  sub.add_option(both("--io-size"), o.io_size, "bytes that a read or write moves")
      ->transform(CLI::AsSizeValue(false))
      ->check(at_least(1))
      ->capture_default_str();
  sub.add_option("--loops", o.loops, "reads or writes that are measured; 1 with --sweep")
      ->check(at_least(1));
  sub.add_option(both("--warmup-loops"), o.warmup_loops,
                 "of them, before those that are measured; 0 with --sweep")
      ->check(at_least(0));
  sub.add_flag(both("--include-warmup-time"), o.include_warmup_time, "measure those, too");
  sub.add_flag(both("--different-file-each-iteration"), o.different_file,
               "a file of its own for each");
}

}  // namespace

CLI::App* add_bench_io(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand(
      "io", "Measure writing of files, reading with --read, or find the best `aio` with --sweep");
  auto options = std::make_shared<IoOptions>();
  IoOptions& o = *options;
  add_loop_options(*sub, o);
  add_request_options(*sub, o);
  sub->add_flag("--read", o.read, "read instead of writing");
  sub->add_flag("--sweep", o.sweep,
                "64 sets of options in both directions; print the `aio` section of the best");
  sub->add_flag(both("--no-read"), o.no_read, "with --sweep: write only");
  sub->add_flag(both("--no-write"), o.no_write, "with --sweep: read only");
  sub->add_option("--save", o.save, "with --sweep: the file that gets the best section")
      ->type_name("FILE.json");
  sub->add_flag("--json", o.json, "print JSON");
  sub->callback([&action, options, sub] {
    if (options->sweep && sub->count("--loops") == 0) options->loops = 1;
    if (options->sweep && sub->count("--warmup-loops") == 0) options->warmup_loops = 0;
    action = [options] { return run_bench_io(*options); };
  });
  return sub;
}

}  // namespace tool
