// What the size of a checkpoint's checksummed chunks costs: a blob is written, read whole, and read
// in slices as one of many ranks reads its pieces of large tensors, past the page cache.
//
// usage: checkpoint_chunks --folder DIR [--bytes N] [--rounds N] [--threads N]
// In every round each size has its turn, in another order; medians are compared. Removes what it
// wrote.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/blob.h"
#include "checkpoint/bulk_read.h"

namespace {

namespace fs = std::filesystem;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr int64_t kChunks[] = {1024 * kKiB, 512 * kKiB, 256 * kKiB, 128 * kKiB, 64 * kKiB};
// Bytes of a slice, of a tensor of 4 MiB each.
constexpr int64_t kSlices[] = {1024 * kKiB, 256 * kKiB, 50 * kKiB};
constexpr int64_t kTensor = 4 * kMiB;

struct Arguments {
  fs::path folder;
  int64_t bytes = 1024 * kMiB, rounds = 5;
  int threads = 2;
};

Arguments parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--folder") out.folder = argv[i + 1];
    if (key == "--bytes") out.bytes = std::atoll(argv[i + 1]) / kTensor * kTensor;
    if (key == "--rounds") out.rounds = std::atoll(argv[i + 1]);
    if (key == "--threads") out.threads = std::atoi(argv[i + 1]);
  }
  DS_CHECK(!out.folder.empty() && out.bytes > 0 && out.rounds > 0, ds::Code::kInvalidArgument,
           "usage: checkpoint_chunks --folder DIR [--bytes N] [--rounds N] [--threads N]");
  return out;
}

double seconds(const std::function<void()>& body) {
  const auto began = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments),
        pool_(arguments.threads),
        source_(arguments.bytes),
        target_(arguments.bytes) {
    std::mt19937_64 random(1);
    auto* const words = reinterpret_cast<uint64_t*>(source_.data());
    for (int64_t i = 0; i < arguments.bytes / 8; ++i) words[i] = random();
    std::fill_n(target_.data(), arguments.bytes, std::byte{0});
  }

  void run() {
    for (int64_t round = 0; round <= arguments_.rounds; ++round) {
      std::vector<int64_t> order(std::begin(kChunks), std::end(kChunks));
      std::shuffle(order.begin(), order.end(), random_);
      for (const int64_t chunk : order) turn(chunk, round > 0);  // the first makes the files
    }
    print();
  }

 private:
  static std::string file(int64_t chunk) { return "chunks-" + std::to_string(chunk) + ".bin"; }

  void turn(int64_t chunk, bool counts) {
    const fs::path path = arguments_.folder / file(chunk);
    std::map<std::string, double> took;
    ds::BlobRecord record;
    took["write"] = seconds([&] {
      ds::BlobWriter writer(arguments_.folder, file(chunk), {.chunk_bytes = chunk, .pool = &pool_});
      writer.begin(static_cast<uint64_t>(arguments_.bytes));
      writer.write_lasting({source_.data(), static_cast<size_t>(arguments_.bytes)});
      record = writer.finish();
    });
    took["read"] = seconds([&] { read(path, record, kTensor); });
    for (const int64_t slice : kSlices) {
      took["slices of " + std::to_string(slice / kKiB) + " KiB"] =
          seconds([&] { read(path, record, slice); });
    }
    std::error_code ignored;
    fs::remove(path, ignored);
    if (!counts) return;
    for (const auto& [what, time] : took) times_[what][chunk].push_back(time);
  }

  void read(const fs::path& path, const ds::BlobRecord& record, int64_t slice) {
    std::vector<ds::BlobPart> parts;
    for (int64_t at = 0; at < arguments_.bytes; at += kTensor) {
      // Somewhere in its tensor, as pieces of ranks are.
      const int64_t begin = at + (kTensor - slice) / 3 / 64 * 64;
      parts.push_back({.offset = static_cast<uint64_t>(begin),
                       .bytes = static_cast<uint64_t>(slice),
                       .target = target_.data() + begin});
    }
    ds::BulkRead reader(path, record, &pool_);
    reader.run(parts, [&](uint64_t index) -> bool {
      ds::fail(ds::Code::kCorrupt, "chunk ", index, " is damaged");
    });
  }

  void print() const {
    std::cout << "| chunks, KiB |";
    for (const auto& [what, of] : times_) std::cout << ' ' << what << ", s |";
    std::cout << "\n| --- |";
    for (size_t i = 0; i < times_.size(); ++i) std::cout << " --- |";
    std::cout << std::fixed << std::setprecision(3) << '\n';
    for (const int64_t chunk : kChunks) {
      std::cout << "| " << chunk / kKiB << " |";
      for (const auto& [what, of] : times_) std::cout << ' ' << median(of.at(chunk)) << " |";
      std::cout << '\n';
    }
  }

  const Arguments arguments_;
  ds::ThreadPool pool_;
  ds::io::Buffer source_, target_;
  std::mt19937 random_{2};
  std::map<std::string, std::map<int64_t, std::vector<double>>> times_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    Bench(parse(argc, argv)).run();
  } catch (const ds::Error& error) {
    std::cerr << "checkpoint_chunks: " << error.message() << '\n';
    return 1;
  }
  return 0;
}
