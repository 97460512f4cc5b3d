// `ds bench comm`: the speed of collectives in the group that this process was launched in.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <vector>

#include "command.h"
#include "files.h"
#include "format.h"
#include "median.h"

namespace tool {
namespace {

struct CommOptions {
  int64_t largest = int64_t{64} << 20;
  int64_t repeats = 9;
  std::string config = "{}";
  bool json = false;
};

struct Row {
  const char* name;
  int64_t bytes;
  double seconds;
  double bus_share;  // of the algorithm's bandwidth
};

template <class Fn>
double time_of(libds::Comm& comm, int64_t repeats, const Fn& fn) {
  std::vector<double> times;
  fn();  // warms up
  for (int64_t i = 0; i < repeats; ++i) {
    comm.barrier();
    const auto began = std::chrono::steady_clock::now();
    fn();
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  // The slowest rank's, so that all ranks report the same.
  libds::Tensor worst = libds::Tensor::from(std::vector<double>{median(times)});
  comm.all_reduce(worst, DS_REDUCE_MAX);
  return worst.item();
}

// Sizes are of the whole: what an all-reduce sums, a gather delivers, a scatter starts from.
std::vector<Row> measure(libds::Comm& comm, const CommOptions& o) {
  constexpr int64_t kLeast = 1 << 10, kStep = 16;
  const int64_t n = comm.size();
  const double others = static_cast<double>(n - 1) / static_cast<double>(n);
  std::vector<Row> rows;
  for (int64_t bytes = kLeast; bytes <= o.largest; bytes *= kStep) {
    const int64_t piece = std::max<int64_t>(1, bytes / 4 / n), whole = piece * n;
    libds::Tensor all(DS_FLOAT32, {whole}), part(DS_FLOAT32, {piece}), other(DS_FLOAT32, {whole});
    const auto add = [&](const char* name, double share, const auto& fn) {
      rows.push_back({name, whole * 4, time_of(comm, o.repeats, fn), share});
    };
    add("all_reduce", 2 * others, [&] { comm.all_reduce(all); });
    add("reduce_scatter", others, [&] { comm.reduce_scatter(part, all); });
    add("all_gather", others, [&] { comm.all_gather(all, part); });
    add("all_to_all", others, [&] { comm.all_to_all(other, all); });
    add("broadcast", 1, [&] { comm.broadcast(all, 0); });
  }
  return rows;
}

int run_bench_comm(const CommOptions& o) {
  libds::Comm comm(-1, -1, o.config);
  const std::vector<Row> rows = measure(comm, o);
  if (comm.rank() == 0) {
    const Json about = parse_json(comm.report(), "the group's report");
    Json list = Json::array();
    for (const Row& row : rows) {
      const double algorithm = static_cast<double>(row.bytes) / row.seconds / 1e9;
      list.push_back({{"operation", row.name},
                      {"bytes", row.bytes},
                      {"microseconds", row.seconds * 1e6},
                      {"algbw_gb_per_s", algorithm},
                      {"busbw_gb_per_s", algorithm * row.bus_share}});
    }
    if (o.json) {
      std::cout << Json{{"ranks", comm.size()},
                        {"transport", about.at("transport")},
                        {"rows", std::move(list)}}
                       .dump(2)
                << "\n";
    } else {
      std::cout << comm.size() << " ranks, " << about.at("transport").get<std::string>() << "\n"
                << format("%-16s %12s %14s %12s %12s\n", "operation", "bytes", "microseconds",
                          "algbw GB/s", "busbw GB/s");
      for (const Json& row : list) {
        std::cout << format(
            "%-16s %12lld %14.1f %12.2f %12.2f\n", row["operation"].get<std::string>().c_str(),
            static_cast<long long>(row["bytes"].get<int64_t>()), row["microseconds"].get<double>(),
            row["algbw_gb_per_s"].get<double>(), row["busbw_gb_per_s"].get<double>());
      }
    }
  }
  comm.finalize();
  return kDone;
}

}  // namespace

CLI::App* add_bench_comm(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand(
      "comm", "Measure collectives among the ranks of a launcher, such as ds launch");
  auto options = std::make_shared<CommOptions>();
  sub->add_option("--largest", options->largest, "bytes of the largest tensor")
      ->check(at_least(1024))
      ->capture_default_str();
  sub->add_option("--repeats", options->repeats, "of which the median counts")
      ->check(at_least(1))
      ->capture_default_str();
  sub->add_option("--comm-config", options->config,
                  "communication options as JSON (docs/communication.md)")
      ->type_name("JSON");
  sub->add_flag("--json", options->json, "print JSON");
  sub->callback([&action, options] { action = [options] { return run_bench_comm(*options); }; });
  return sub;
}

}  // namespace tool
