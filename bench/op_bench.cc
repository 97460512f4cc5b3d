// Times the rows of the operator table. Counters beside the times: GFLOP/s and GB/s of the row's
// counted work, and their share of the limits measured at the start of the same run.
//
//   op_bench [--threads N] [--benchmark_filter=REGEX ...]
//
// A row whose name contains "bf16" is compared with the bf16 arithmetic limit, others with fp32;
// its bytes with the limit of their kind: reading (%read), optimizer updates (%mixed), else the
// better of plain and streaming copy (%copy).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "bench/limits.h"
#include "kernels/all_cases.h"

namespace {

// How a row's least traffic divides into reads and writes, by the first part of its name.
enum class Traffic { kCopy, kRead, kMixed };
Traffic traffic_of(const std::string& name) {
  const auto begins = [&](const char* start) { return name.rfind(start, 0) == 0; };
  for (const char* start : {"adam", "adagrad", "lion", "sgd", "lamb"}) {
    if (begins(start)) return Traffic::kMixed;
  }
  for (const char* start : {"sum", "max_abs", "first_non_finite", "add_column_sums", "gemv",
                            "quantized_gemv", "cross_entropy/forward"}) {
    if (begins(start)) return Traffic::kRead;
  }
  return Traffic::kCopy;
}

void count_bytes(benchmark::State& state, const std::string& name, double rate,
                 const ds::bench::Limits& limits) {
  state.counters["GB/s"] = rate * 1e-9;
  switch (traffic_of(name)) {
    case Traffic::kRead:
      state.counters["%read"] = 100 * rate / limits.read;
      break;
    case Traffic::kMixed:
      state.counters["%mixed"] = 100 * rate / limits.mixed;
      break;
    case Traffic::kCopy:
      state.counters["%copy"] = 100 * rate / std::max(limits.copy, limits.stream_copy);
      break;
  }
}

void time_row(benchmark::State& state, const ds::testing::OpCase& row, const ds::OpContext& ctx,
              const ds::bench::Limits& limits) {
  const std::function<void()> body = row.prepare(ctx);
  body();  // page faults and caches of the first call are not the operator's time
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) body();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
      static_cast<double>(state.iterations());
  if (row.flops > 0) {
    const bool bf16 = row.name.find("bf16") != std::string::npos;
    const double rate = row.flops / seconds;
    state.counters["GFLOP/s"] = rate * 1e-9;
    state.counters["%peak"] = 100 * rate / (bf16 ? limits.bf16_flops : limits.fp32_flops);
  }
  if (row.bytes > 0 && limits.copy > 0) count_bytes(state, row.name, row.bytes / seconds, limits);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 0;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--threads") != 0) continue;
    threads = std::atoi(argv[i + 1]);
    std::copy(argv + i + 2, argv + argc + 1, argv + i);  // with the closing null
    argc -= 2;
    break;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;

  ds::ThreadPool pool(threads);
  const ds::bench::Limits limits = ds::bench::measure_limits(pool);
  std::fprintf(stderr, "%d threads; limits: %s\n", pool.threads(),
               ds::bench::limits_text(limits).c_str());
  benchmark::AddCustomContext("threads", std::to_string(pool.threads()));
  benchmark::AddCustomContext("limits", ds::bench::limits_text(limits));
  const ds::OpContext ctx{ds::make_cpu_device(), &pool};
  for (const ds::testing::CaseFamily& family : ds::testing::all_case_families()) {
    for (const ds::testing::OpCase& row : family.cases()) {
      if (!row.prepare) continue;
      benchmark::RegisterBenchmark(
          row.name.c_str(),
          [row, &ctx, &limits](benchmark::State& state) { time_row(state, row, ctx, limits); })
          ->Unit(benchmark::kMicrosecond)
          ->MeasureProcessCPUTime()
          ->UseRealTime();
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
