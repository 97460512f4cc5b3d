#include "engine/plan_rates.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/text.h"
#include "engine/stopwatch.h"
#include "io/buffer.h"
#include "io/engine.h"
#include "io/file.h"
#include "ops/linear.h"

namespace ds {
namespace {

constexpr double kEnough = 0.15;             // seconds that a rate is measured for
constexpr double kDefaultFarBytes = 1.25e9;  // 10 Gbit/s
constexpr double kDefaultGpuBytes = 5e11;    // less than that of any GPU for training of late
constexpr int64_t kMostSide = 2048, kMostRows = 1024;

// The best of a few runs of `work` per second, after one that does not count.
template <class Work>
double best_rate(double work_per_run, const Work& work) {
  work();
  double best = 0, spent = 0;
  for (int run = 0; run < 20 && (spent < kEnough || run < 2); ++run) {
    const Stopwatch watch;
    work();
    const double seconds = std::max(watch.seconds(), 1e-9);
    spent += seconds;
    best = std::max(best, work_per_run / seconds);
  }
  return best;
}

// Inputs and outputs of the model's largest projection, cut to what is quick.
std::pair<int64_t, int64_t> product_sides(const PlanContext& plan) {
  int64_t in = 1024, out = 1024, most = 0;
  for (nn::ParamId id = 0; id < plan.model.parameters->size(); ++id) {
    const nn::Parameter& p = (*plan.model.parameters)[id];
    if (!p.projection || p.shape.elements() <= most) continue;
    most = p.shape.elements();
    out = p.shape[0];
    in = p.shape[1];
  }
  return {std::min(in, kMostSide), std::min(out, kMostSide)};
}

}  // namespace

Json PlanRates::to_json() const {
  Json out = {
      {"product_flops", product_flops}, {"pass_flops", pass_flops}, {"memory_bytes", memory_bytes}};
  if (gpu_memory_bytes > 0) out["gpu_memory_bytes"] = gpu_memory_bytes;
  if (read_bytes > 0) out["read_bytes"] = read_bytes;
  if (write_bytes > 0) out["write_bytes"] = write_bytes;
  if (near_bytes > 0) out["near_bytes"] = near_bytes;
  if (far_bytes > 0) out["far_bytes"] = far_bytes;
  return out;
}

double RateMeter::given(const char* name) const {
  const auto found = given_.find(name);
  return found == given_.end() ? 0 : found->get<double>();
}

double RateMeter::product_flops(const PlanContext& plan, int64_t rows) {
  if (const double rate = given("product_flops"); rate > 0) return rate;
  rows = std::clamp<int64_t>(rows, 1, kMostRows);
  double& known = products_[rows];
  if (known > 0) return known;
  const auto [in, out] = product_sides(plan);
  const OpContext ctx{make_cpu_device(), &pool_};
  const auto zeros = [&](const Shape& shape) {
    return Tensor::zeros(ctx.device, plan.type, shape, MemoryTag::kOther);
  };
  const Tensor x = zeros({rows, in}), w = zeros({out, in});
  Tensor y = zeros({rows, out});
  known = best_rate(2.0 * static_cast<double>(rows) * static_cast<double>(in * out),
                    [&] { ops::linear(ctx, x, w, Tensor(), y); });
  return known;
}

// Backward computes two products for each of forward's.
double RateMeter::pass_flops(const PlanContext& plan, int64_t samples, const Flops& token) {
  if (const double rate = given("pass_flops"); rate > 0) return rate;
  const int64_t rows = samples * std::max<int64_t>(plan.length(), 1);
  if (given("product_flops") > 0) return product_flops(plan, rows);
  const auto [known, fresh] = passes_.try_emplace(std::min(rows, kMostRows));
  if (fresh) known->second = time_pass(plan, samples, pool_);
  if (!known->second) return product_flops(plan, rows);
  const double layers = plan.model.architecture->info().layers;
  return 3 * (token.blocks + token.rest) / (layers * known->second->block + known->second->rest);
}

double RateMeter::memory_bytes() {
  if (const double rate = given("memory_bytes"); rate > 0) return rate;
  if (memory_ > 0) return memory_;
  constexpr int64_t kBytes = int64_t{64} << 20, kPiece = int64_t{1} << 20;
  const auto device = make_cpu_device();
  const auto room = [&] {
    return Tensor::zeros(device, DType::kUInt8, {kBytes}, MemoryTag::kOther);
  };
  const Tensor from = room(), to = room();
  memory_ = best_rate(2.0 * kBytes, [&] {
    pool_.for_range(kBytes, kPiece, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data<uint8_t>() + begin, from.data<uint8_t>() + begin,
                  static_cast<size_t>(end - begin));
    });
  });
  return memory_;
}

double RateMeter::gpu_memory_bytes() const {
  const double rate = given("gpu_memory_bytes");
  return rate > 0 ? rate : kDefaultGpuBytes;
}

void RateMeter::measure_disk(const PlanContext& plan, const std::string& folder) {
  read_ = given("read_bytes");
  write_ = given("write_bytes");
  if (read_ > 0 && write_ > 0) return;
  constexpr int64_t kBytes = int64_t{128} << 20, kPart = int64_t{32} << 20;
  const AioConfig& aio = plan.config.aio;
  io::Engine engine({{.depth = std::clamp(aio.queue_depth, 1, 4096),
                      .block_bytes = std::clamp<int64_t>(aio.block_size, 1 << 12, 1 << 30) /
                                     io::kAlignment * io::kAlignment,
                      .threads = std::clamp(aio.intra_op_parallelism, 1, 64)}});
  const std::filesystem::path path =
      std::filesystem::path(folder) / str_cat("ds-", ::getpid(), "-", ::gettid(), ".rate");
  io::File file(path, io::Access::kNew);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  file.reserve(0, kBytes);
  io::Buffer buffer(kBytes);
  std::memset(buffer.data(), 1, static_cast<size_t>(kBytes));
  const auto move = [&](bool write) {
    const Stopwatch watch;
    for (int64_t at = 0; at < kBytes; at += kPart) {
      const std::span<std::byte> part(buffer.data() + at, static_cast<size_t>(kPart));
      if (write) {
        engine.write(file, at, part);
      } else {
        engine.read(file, at, part);
      }
    }
    engine.wait_all();
    return static_cast<double>(kBytes) / std::max(watch.seconds(), 1e-9);
  };
  move(true);
  const double written = move(true), read = move(false);
  if (write_ == 0) write_ = written;
  if (read_ == 0) read_ = read;
}

// Between processes of a host a byte is written by one and read by another.
double RateMeter::near_bytes() {
  const double rate = given("near_bytes");
  return rate > 0 ? rate : memory_bytes() / 4;
}

double RateMeter::far_bytes() const {
  const double rate = given("far_bytes");
  return rate > 0 ? rate : kDefaultFarBytes;
}

}  // namespace ds
