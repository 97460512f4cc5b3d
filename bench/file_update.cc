// Updates of AdamW whose masters, gradients and moments lie in files, beside the limit of the disk
// for the same reads and writes, and beside a straightforward sequence that reads a part, updates
// it and writes it back, all in one run, in turn; and the same update in memory, which is the
// arithmetic alone. With each row goes the processor time that it took.
//
// usage: file_update --folder DIR [--elements N] [--rounds N] [--part N] [--threads N] [--what
// ROWS] The limit: two threads of plain calls past the page cache, one that reads four arrays and
// one that writes three, as an update must; the best of several sizes of a call. Removes what it
// wrote.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "io/file.h"
#include "optim/optimizer.h"
#include "zero/state_files.h"

namespace {

namespace fs = std::filesystem;
using ds::ArrayStore;
using ds::Tensor;
using ds::io::Buffer;
using ds::io::File;

constexpr int kReads = 4, kWrites = 3;  // arrays of an update: masters, two moments; gradients
constexpr int64_t kItem = sizeof(float);

struct Arguments {
  fs::path folder;
  int64_t elements = int64_t{256} << 20;
  int64_t rounds = 5;
  int64_t part = ds::zero::StateFiles::kMostElements;  // elements that an update takes at a time
  int threads = 2;
  std::string what;  // rows whose names have it; all where it is empty
};

template <class Body>
double seconds(const Body& body) {
  const auto began = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Processor time of this process so far: of its own code, and of the system in its name.
struct CpuTime {
  double user = 0, system = 0;
};

CpuTime cpu_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return {of(usage.ru_utime), of(usage.ru_stime)};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Plain calls, past the page cache, on memory and offsets that suit it.
void move(const File& file, bool write, int64_t offset, std::byte* data, int64_t bytes) {
  while (bytes > 0) {
    const ssize_t n = write ? ::pwrite(file.direct_fd(), data, static_cast<size_t>(bytes), offset)
                            : ::pread(file.direct_fd(), data, static_cast<size_t>(bytes), offset);
    if (n <= 0) ds::fail_errno(write ? "cannot write" : "cannot read", file.path());
    data += n;
    offset += n;
    bytes -= n;
  }
}

File make_file(const fs::path& folder, const char* name, int64_t bytes) {
  File file = File::unnamed(folder / name);
  DS_CHECK(file.direct(), ds::Code::kUnsupported, folder.string(),
           " has no files past the page cache, so that there is no limit to compare with");
  file.reserve(0, bytes);
  const Buffer zeros(int64_t{8} << 20);
  std::memset(zeros.data(), 0, static_cast<size_t>(zeros.size()));
  for (int64_t at = 0; at < bytes; at += zeros.size()) {
    move(file, true, at, zeros.data(), std::min(zeros.size(), bytes - at));
  }
  file.sync();
  return file;
}

// What the disk does with what an update must move, and nothing else.
class Limit {
 public:
  Limit(const Arguments& a) : bytes_(a.elements * kItem) {
    for (int i = 0; i < kReads; ++i) files_.push_back(make_file(a.folder, "limit", bytes_));
  }

  // Both directions at once, each by so many threads, in calls of so many bytes.
  double run(int threads, int64_t block) const {
    return seconds([&] {
      std::vector<std::thread> all;
      for (const bool write : {false, true}) {
        for (int t = 0; t < threads; ++t) {
          all.emplace_back([this, write, t, threads, block] {
            const Buffer buffer(block);
            std::memset(buffer.data(), 1, static_cast<size_t>(block));
            for (int i = 0; i < (write ? kWrites : kReads); ++i) {
              for (int64_t at = t * block; at < bytes_; at += threads * block) {
                move(files_[static_cast<size_t>(i)], write, at, buffer.data(),
                     std::min(block, bytes_ - at));
              }
            }
          });
        }
      }
      for (std::thread& one : all) one.join();
    });
  }

 private:
  const int64_t bytes_;
  std::vector<File> files_;
};

// Arrays in files that are read when they are mapped and written when they are closed.
class PlainStore final : public ArrayStore {
 public:
  PlainStore(File file, const ds::optim::ArrayRequest& request, int64_t part,
             std::shared_ptr<ds::Device> device)
      : ArrayStore(request.dtype, request.elements),
        file_(std::move(file)),
        part_(part),
        device_(std::move(device)),
        buffer_(part * kItem) {}
  int64_t part_elements() const override { return part_; }
  void flush() override {}

 protected:
  Tensor open(int64_t begin, int64_t end, ds::Access access) override {
    auto storage = std::make_shared<ds::Storage>(ds::DeviceKind::kCpu, 0, buffer_.data(),
                                                 buffer_.size(), false, [] {});
    Tensor out(std::move(storage), 0, dtype(), {end - begin});
    if (access != ds::Access::kWrite) {
      move(file_, false, begin * kItem, buffer_.data(), (end - begin) * kItem);
    }
    return out;
  }
  void write_back(Tensor memory, int64_t begin) override {
    move(file_, true, begin * kItem, buffer_.data(), memory.bytes());
  }
  void drop(Tensor) noexcept override {}

 private:
  const File file_;
  const int64_t part_;
  const std::shared_ptr<ds::Device> device_;
  const Buffer buffer_;  // one range at a time is mapped
};

class PlainFiles final : public ds::optim::ArrayFactory {
 public:
  PlainFiles(const Arguments& a, std::shared_ptr<ds::Device> device)
      : arguments_(a), device_(std::move(device)) {}
  bool makes(ds::optim::ArrayRole) const override { return true; }
  std::shared_ptr<ArrayStore> make(const ds::optim::ArrayRequest& request) override {
    return std::make_shared<PlainStore>(
        make_file(arguments_.folder, "plain", request.elements * kItem), request, arguments_.part,
        device_);
  }
  int64_t most_elements() const override { return arguments_.part; }

 private:
  const Arguments& arguments_;
  const std::shared_ptr<ds::Device> device_;
};

// An optimizer over masters and gradients of a factory.
class Update {
 public:
  Update(const Arguments& a, std::shared_ptr<ds::optim::ArrayFactory> arrays,
         const ds::OpContext& ctx)
      : ctx_(ctx) {
    using ds::optim::ArrayRole;
    const auto make = [&](ArrayRole role, const char* name) {
      if (arrays == nullptr) {
        return ds::optim::FlatTensor(
            Tensor::zeros(ctx.device, ds::DType::kFloat32, {a.elements}, ds::MemoryTag::kOther));
      }
      return ds::optim::FlatTensor(arrays->make({role, name, ds::DType::kFloat32, a.elements}),
                                   false);
    };
    flat_.masters = make(ArrayRole::kMasters, "masters");
    flat_.gradients = make(ArrayRole::kGradients, "gradients");
    flat_.model =
        Tensor::zeros(ctx.device, ds::DType::kBFloat16, {a.elements}, ds::MemoryTag::kParameters);
    ds::OptimizerConfig config;
    config.type = ds::OptimizerType::kAdamW;
    config.lr = 1e-3;
    optimizer_ =
        ds::optim::make_optimizer(config, {{"w", {a.elements}, 0, a.elements, 0, true, 0, 0, 1, 1}},
                                  ctx.device, {}, nullptr, std::move(arrays));
  }
  // With what rests in the end.
  double run() {
    return seconds([&] {
      ds::optim::UpdateStep step;
      step.rates.assign(optimizer_->base_rates().begin(), optimizer_->base_rates().end());
      optimizer_->step(ctx_, step, flat_);
      flat_.masters.flush();
    });
  }

 private:
  const ds::OpContext ctx_;
  ds::optim::FlatTensors flat_;
  std::unique_ptr<ds::optim::Optimizer> optimizer_;
};

std::shared_ptr<ds::optim::ArrayFactory> our_files(const Arguments& a, bool pipelined,
                                                   const ds::OpContext& ctx) {
  ds::io::FileArrayOptions files;
  files.folder = a.folder;
  files.part_bytes = 0;
  files.kept_bytes = int64_t{64} << 20;  // as engines do
  files.read_ahead = files.write_behind = pipelined;
  files.queue = {.depth = 16, .block_bytes = int64_t{8} << 20};
  ds::zero::StateFileOptions options;
  options.optimizer = files;
  options.sub_group_elements = a.part;
  return std::make_shared<ds::zero::StateFiles>(options, ctx.device);
}

ds::Json measure(const Arguments& a) {
  const auto device = ds::make_cpu_device();
  ds::ThreadPool pool(a.threads);
  const ds::OpContext ctx{device, &pool};
  struct Row {
    std::string name;
    std::function<double()> run;
    std::vector<double> times, user, system;

    void measure() {
      const CpuTime before = cpu_time();
      times.push_back(run());
      const CpuTime after = cpu_time();
      user.push_back(after.user - before.user);
      system.push_back(after.system - before.system);
    }
  };
  const Limit limit(a);
  Update pipelined(a, our_files(a, true, ctx), ctx), in_turn(a, our_files(a, false, ctx), ctx),
      plain(a, std::make_shared<PlainFiles>(a, device), ctx), in_memory(a, nullptr, ctx);
  std::vector<Row> rows;
  for (const int threads : {1, 4}) {
    for (const int64_t mib : {1, 8}) {
      rows.push_back({ds::str_cat("limit, ", threads, " threads, calls of ", mib, " MiB"),
                      [&limit, threads, mib] { return limit.run(threads, mib << 20); },
                      {},
                      {},
                      {}});
    }
  }
  const auto add = [&rows](const char* name, auto body) {
    rows.push_back({name, std::move(body), {}, {}, {}});
  };
  add("update, pipeline_read and pipeline_write", [&] { return pipelined.run(); });
  add("update, neither", [&] { return in_turn.run(); });
  add("read, update, write by plain calls", [&] { return plain.run(); });
  add("update in memory", [&] { return in_memory.run(); });
  std::erase_if(rows, [&a](const Row& row) { return row.name.find(a.what) == std::string::npos; });
  for (Row& row : rows) row.run();  // caches of the system, memory
  // In another order every time: what a disk still does for one row delays the next.
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(1);
  for (int64_t round = 0; round < a.rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) rows[i].measure();
  }
  double best = 0;
  for (const Row& row : rows) {
    const double time = median(row.times);
    if (row.name.starts_with("limit") && (best == 0 || time < best)) best = time;
  }
  const double bytes = static_cast<double>(a.elements) * kItem * (kReads + kWrites);
  ds::Json out = {{"elements", a.elements}, {"bytes_moved", bytes}, {"rows", ds::Json::array()}};
  for (const Row& row : rows) {
    const double time = median(row.times);
    std::cout << row.name << ": " << time << " s, " << bytes / time / 1e9 << " GB/s, "
              << 100 * best / time << " % of the limit; processor time " << median(row.user)
              << " s, the system's " << median(row.system) << " s\n";
    out["rows"].push_back({{"what", row.name},
                           {"seconds", row.times},
                           {"user_seconds", row.user},
                           {"system_seconds", row.system},
                           {"gb_s", bytes / time / 1e9},
                           {"of_limit", best / time}});
  }
  return out;
}

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--folder") a.folder = argv[i + 1];
    if (name == "--elements") a.elements = std::atoll(argv[i + 1]);
    if (name == "--rounds") a.rounds = std::atoll(argv[i + 1]);
    if (name == "--part") a.part = std::atoll(argv[i + 1]);
    if (name == "--threads") a.threads = std::atoi(argv[i + 1]);
    if (name == "--what") a.what = argv[i + 1];
  }
  // Whole parts, so that plain calls need no more than whole pages.
  a.part = ds::zero::StateFiles::most_of(a.part);
  a.elements = std::max<int64_t>(1, a.elements / a.part) * a.part;
  DS_CHECK(!a.folder.empty() && a.rounds > 0 && a.threads > 0, ds::Code::kInvalidArgument,
           "usage: file_update --folder DIR [--elements N] [--rounds N] [--part N] [--threads N] "
           "[--what ROWS]");
  return a;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::cout << ds::dump_json(measure(parse(argc, argv))) << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
