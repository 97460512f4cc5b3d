// Times operators on a GPU beside the limits that bind them, measured in the same run: the rate of
// copies within the GPU's memory, and of a large bf16 product through our own linear layer.
//
//   gpu_bench [--device cuda:0] [--filter TEXT] [--without TEXT] [--repeats 5]
//             [--tiny] [--list]
//
// Prints a table to standard error and JSON to standard output. A time is that of one of many
// calls, queued one after another from an idle GPU until it is idle again; of several such turns
// the median. A row that fails says why, and the exit status is 1. --device cpu --tiny is for
// trying the program itself.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gpu_rows.h"
#include "device/open_device.h"
#include "ops/linear.h"
#include "tensor/transfer.h"

namespace {

using Json = nlohmann::ordered_json;
using ds::OpContext;

struct Options {
  std::string device = "cuda:0";
  std::string filter;   // of the rows' names
  std::string without;  // leaves out what contains it
  ds::kernels::GpuPolicy policy;
  int repeats = 5;
  bool tiny = false;
  bool list = false;
};

[[noreturn]] void refuse(const std::string& what) {
  throw std::runtime_error(what +
                           "\nusage: gpu_bench [--device cuda:0] [--filter TEXT] [--without TEXT] "
                           "[--attention auto|own|cudnn] [--repeats 5] [--tiny] [--list]");
}

ds::kernels::AttentionChoice attention_choice(const std::string& text) {
  using enum ds::kernels::AttentionChoice;
  if (text == "auto") return kAuto;
  if (text == "own") return kOwn;
  if (text == "cudnn") return kCudnn;
  refuse("--attention is auto, own or cudnn, not \"" + text + "\"");
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (++i == argc) refuse(name + " needs a value");
      return argv[i];
    };
    if (name == "--device") {
      o.device = value();
    } else if (name == "--filter") {
      o.filter = value();
    } else if (name == "--without") {
      o.without = value();
    } else if (name == "--attention") {
      o.policy.attention = attention_choice(value());
    } else if (name == "--repeats") {
      o.repeats = std::atoi(value().c_str());
    } else if (name == "--tiny") {
      o.tiny = true;
    } else if (name == "--list") {
      o.list = true;
    } else {
      refuse("unknown option " + name);
    }
  }
  if (o.repeats < 1) refuse("--repeats must be at least 1");
  return o;
}

// Seconds of one of `calls` calls.
template <class Body>
double time_calls(ds::Device& device, int calls, const Body& body) {
  device.default_stream().synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) body();
  device.default_stream().synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
}

// The median of turns of some 30 ms.
template <class Body>
double median_seconds(ds::Device& device, int repeats, const Body& body) {
  time_calls(device, 2, body);  // what is made at the first call
  const double once = time_calls(device, 1, body);
  const int calls = std::clamp(static_cast<int>(0.03 / std::max(once, 1e-9)), 1, 2000);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(time_calls(device, calls, body));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Limits {
  double copy = 0;    // bytes read and written per second
  double matrix = 0;  // FLOP per second
  double to_gpu = 0;  // bytes per second from locked host memory, and back
  double to_host = 0;
};

Limits measure_limits(const OpContext& ctx, const Options& o) {
  Limits limits;
  {
    const int64_t bytes = o.tiny ? int64_t{1} << 20 : int64_t{1} << 30;
    const ds::Tensor from = ds::bench::varied_tensor(ctx, ds::DType::kFloat32, {bytes / 4});
    const ds::Tensor to =
        ds::Tensor::zeros(ctx.device, ds::DType::kFloat32, {bytes / 4}, ds::MemoryTag::kOther);
    const double seconds = median_seconds(*ctx.device, o.repeats, [&] {
      ctx.device->copy(to.raw(), from.raw(), bytes, ctx.device->default_stream());
    });
    limits.copy = 2 * static_cast<double>(bytes) / seconds;
    const ds::Tensor host = ds::Tensor::zeros(ds::host_memory_of(ctx.device), ds::DType::kFloat32,
                                              {bytes / 16}, ds::MemoryTag::kOther);
    const auto rate = [&](const ds::Tensor& target, const ds::Tensor& source) {
      return static_cast<double>(host.bytes()) / median_seconds(*ctx.device, o.repeats, [&] {
               ctx.device->copy(target.raw(), source.raw(), host.bytes(),
                                ctx.device->default_stream());
             });
    };
    limits.to_gpu = rate(to, host);
    limits.to_host = rate(host, from);
  }
  const int64_t n = o.tiny ? 64 : 8192;
  const ds::Tensor x = ds::bench::varied_tensor(ctx, ds::DType::kBFloat16, {n, n});
  const ds::Tensor w = ds::bench::varied_tensor(ctx, ds::DType::kBFloat16, {n, n});
  ds::Tensor y = ds::Tensor::zeros(ctx.device, ds::DType::kBFloat16, {n, n}, ds::MemoryTag::kOther);
  const double seconds =
      median_seconds(*ctx.device, o.repeats, [&] { ds::ops::linear(ctx, x, w, {}, y); });
  limits.matrix =
      2 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
  return limits;
}

// Shares are added once both measurements of the limits are there.
Json time_row(const OpContext& ctx, const Options& o, const ds::testing::OpCase& row) {
  Json out = {{"name", row.name}};
  try {
    const std::function<void()> body = row.prepare(ctx);
    const double seconds = median_seconds(*ctx.device, o.repeats, body);
    out["milliseconds"] = seconds * 1e3;
    out["bound"] = row.flops > 0 ? "matrix" : "copy";
    out["rate"] = (row.flops > 0 ? row.flops : row.bytes) / seconds;
  } catch (const std::exception& error) {
    out["error"] = error.what();
  }
  ctx.device->trim();
  return out;
}

int run(const Options& o) {
  std::vector<ds::testing::OpCase> rows =
      ds::bench::gpu_rows(o.tiny ? ds::bench::RowSizes::kTiny : ds::bench::RowSizes::kFull);
  std::erase_if(rows, [&](const auto& row) {
    const auto has = [&](const std::string& text) {
      return row.name.find(text) != std::string::npos;
    };
    return !has(o.filter) || (!o.without.empty() && has(o.without));
  });
  if (rows.empty()) refuse("no row's name contains \"" + o.filter + "\"");
  if (o.list) {
    for (const auto& row : rows) std::cout << row.name << "\n";
    return 0;
  }
  ds::ThreadPool pool(0);
  const OpContext ctx{ds::open_device(o.device), &pool, o.policy};
  Json out = {{"device", ctx.device->describe()}, {"rows", Json::array()}};
  const Limits before = measure_limits(ctx, o);
  bool failed = false;
  for (const auto& row : rows) out["rows"].push_back(time_row(ctx, o, row));
  const Limits after = measure_limits(ctx, o);
  const Limits best{std::max(before.copy, after.copy), std::max(before.matrix, after.matrix),
                    std::max(before.to_gpu, after.to_gpu), std::max(before.to_host, after.to_host)};
  out["limits"] = {
      {"copy_bytes_per_s", best.copy},          {"bf16_flops_per_s", best.matrix},
      {"host_to_gpu_bytes_per_s", best.to_gpu}, {"gpu_to_host_bytes_per_s", best.to_host},
      {"before", {before.copy, before.matrix}}, {"after", {after.copy, after.matrix}}};
  std::fprintf(stderr, "%s: copies %.3g TB/s, bf16 products %.4g TFLOP/s\n",
               ctx.device->describe().c_str(), best.copy * 1e-12, best.matrix * 1e-12);
  for (Json& row : out["rows"]) {
    const std::string name = row.at("name");
    if (row.contains("error")) {
      failed = true;
      std::fprintf(stderr, "%-48s %s\n", name.c_str(), row.at("error").get<std::string>().c_str());
      continue;
    }
    const bool matrix = row.at("bound") == "matrix";
    const double rate = row.at("rate"), share = rate / (matrix ? best.matrix : best.copy);
    row["share"] = share;
    std::fprintf(stderr, "%-48s %10.4f ms %8.2f %s  %5.1f %% of %s\n", name.c_str(),
                 row.at("milliseconds").get<double>(), rate * (matrix ? 1e-12 : 1e-9),
                 matrix ? "TFLOP/s" : "GB/s", share * 100, matrix ? "products" : "copies");
  }
  std::cout << out.dump() << std::endl;
  return failed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "gpu_bench: " << error.what() << "\n";
    return 2;
  }
}
