// Matrix products beside oneDNN's and the arithmetic peak, interleaved in one run.
//
//   matmul_bench [fp32|bf16|fp16] [forward|grad_input|grad_weight] [--threads N] [--repeats N]
//   [--best]
//
// oneDNN is the yardstick: the weights packed beforehand in the layout that it asks for, which is
// not timed, one single-threaded primitive per thread of the same pool, each with a share of the
// rows (of the columns where there are few rows). Medians, or the best with --best, for a machine
// that is not alone; the last line is JSON.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool.h"
#include "bench/limits.h"
#include "kernels/matmul/matmul.h"

#if DS_HAVE_ONEDNN
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace ds::bench {
namespace {

using kernels::Matmul;
using kernels::MatmulType;

enum class Kind { kForward, kGradInput, kGradWeight };
constexpr const char* kKindNames[] = {"forward", "grad_input", "grad_weight"};
constexpr const char* kTypeNames[] = {"fp32", "bf16", "fp16"};

// Tokens, outputs and inputs of a linear layer.
struct Shape {
  int64_t tokens, outputs, inputs;
};

// Of GPT-2 124M with 4 x 256 tokens, and the others of the comparisons in docs/benchmarks.md.
constexpr Shape kShapes[] = {{1024, 768, 768},   {1024, 2304, 768},  {1024, 3072, 768},
                             {1024, 768, 3072},  {1024, 50257, 768}, {4096, 2304, 768},
                             {2048, 2048, 2048}, {256, 2304, 768},   {64, 3072, 768},
                             {16, 3072, 768},    {8, 3072, 768},     {1, 3072, 768}};

struct Case {
  Kind kind;
  MatmulType type;
  Shape shape;

  int64_t m() const { return kind == Kind::kGradWeight ? shape.outputs : shape.tokens; }
  int64_t n() const { return kind == Kind::kForward ? shape.outputs : shape.inputs; }
  int64_t k() const {
    return kind == Kind::kForward     ? shape.inputs
           : kind == Kind::kGradInput ? shape.outputs
                                      : shape.tokens;
  }
  double flops() const {
    return 2.0 * static_cast<double>(m()) * static_cast<double>(n()) * static_cast<double>(k());
  }
  // Weight gradients are fp32.
  MatmulType out() const { return kind == Kind::kGradWeight ? MatmulType::kFloat32 : type; }
};

int64_t type_size(MatmulType type) { return type == MatmulType::kFloat32 ? 4 : 2; }

// On large pages, as the engine's memory is.
class Buffer {
 public:
  static constexpr int64_t kPage = int64_t{2} << 20;
  explicit Buffer(int64_t bytes)
      : data_(std::aligned_alloc(kPage, static_cast<size_t>((bytes + kPage - 1) / kPage * kPage)),
              std::free) {
    if (!data_) throw std::bad_alloc();
    madvise(data_.get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
    std::memset(data_.get(), 0, static_cast<size_t>(bytes));
  }
  void* get() const { return data_.get(); }

 private:
  std::unique_ptr<void, void (*)(void*)> data_;
};

Buffer random_matrix(MatmulType type, int64_t elements) {
  Buffer buffer(elements * type_size(type));
  std::minstd_rand random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < elements; ++i) {
    const float value = uniform(random);
    if (type == MatmulType::kFloat32) static_cast<float*>(buffer.get())[i] = value;
    if (type == MatmulType::kBFloat16) static_cast<bfloat16*>(buffer.get())[i] = to_bfloat16(value);
    if (type == MatmulType::kFloat16) static_cast<float16*>(buffer.get())[i] = to_float16(value);
  }
  return buffer;
}

Matmul problem(const Case& c, const void* a, const void* b, void* out) {
  Matmul p;
  p.m = c.m();
  p.n = c.n();
  p.k = c.k();
  p.in = c.type;
  p.out = c.out();
  const bool ta = c.kind == Kind::kGradWeight, tb = c.kind == Kind::kForward;
  p.a = {a, ta ? p.m : p.k, ta};
  p.b = {b, tb ? p.k : p.n, tb};
  p.c = out;
  p.c_stride = p.n;
  return p;
}

#if DS_HAVE_ONEDNN
// The product in shares, one per thread. Empty for fp16, which this library's CPU code lacks.
class Yardstick {
 public:
  Yardstick(const Case& c, const Matmul& p, int threads) {
    if (c.type == MatmulType::kFloat16) return;
    const bool by_rows = p.m >= 256 * threads;
    const int64_t total = by_rows ? p.m : p.n;
    const int64_t share = (total / threads + 63) / 64 * 64;
    for (int64_t at = 0; at < total; at += share) {
      const int64_t size = std::min(share, total - at);
      add(p, by_rows ? at : 0, by_rows ? size : p.m, by_rows ? 0 : at, by_rows ? p.n : size);
    }
  }

  bool empty() const { return shares_.empty(); }

  void run(ThreadPool& pool) {
    pool.run(static_cast<int64_t>(shares_.size()), [&](int64_t i) {
      omp_set_num_threads(1);
      dnnl::stream stream(engine_);
      Share& share = shares_[static_cast<size_t>(i)];
      share.primitive.execute(stream, share.arguments);
      stream.wait();
    });
  }

 private:
  struct Share {
    dnnl::matmul primitive;
    std::unordered_map<int, dnnl::memory> arguments;
  };

  static dnnl::memory::data_type type(MatmulType t) {
    return t == MatmulType::kFloat32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  }

  void add(const Matmul& p, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    using memory = dnnl::memory;
    const auto bytes = [](const void* data, int64_t elements, MatmulType t) {
      return const_cast<std::byte*>(static_cast<const std::byte*>(data) + elements * type_size(t));
    };
    const memory::dims a_strides =
        p.a.transposed ? memory::dims{1, p.a.stride} : memory::dims{p.a.stride, 1};
    const memory::dims b_strides =
        p.b.transposed ? memory::dims{1, p.b.stride} : memory::dims{p.b.stride, 1};
    const memory::desc a({rows, p.k}, type(p.in), a_strides);
    const memory::desc b({p.k, columns}, type(p.in), b_strides);
    const memory::desc packed({p.k, columns}, type(p.in), memory::format_tag::any);
    const memory::desc c({rows, columns}, type(p.out), memory::dims{p.c_stride, 1});
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, packed, c), engine_);
    memory from(b, engine_, bytes(p.b.data, column * b_strides[1], p.in));
    pages_.emplace_back(static_cast<int64_t>(description.weights_desc().get_size()));
    memory weights(description.weights_desc(), engine_, pages_.back().get());
    dnnl::stream stream(engine_);
    dnnl::reorder(from, weights).execute(stream, from, weights);
    stream.wait();
    shares_.push_back(
        {dnnl::matmul(description),
         {{DNNL_ARG_SRC, memory(a, engine_, bytes(p.a.data, row * a_strides[0], p.in))},
          {DNNL_ARG_WEIGHTS, weights},
          {DNNL_ARG_DST, memory(c, engine_, bytes(p.c, row * p.c_stride + column, p.out))}}});
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  std::vector<Share> shares_;
  std::vector<Buffer> pages_;  // of the packed weights
};
#else
class Yardstick {
 public:
  Yardstick(const Case&, const Matmul&, int) {}
  bool empty() const { return true; }
  void run(ThreadPool&) {}
};
#endif

double seconds(const std::function<void()>& body, int64_t times) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) body();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(times);
}

double typical(std::vector<double> values, bool best) {
  std::sort(values.begin(), values.end());
  return values[best ? 0 : values.size() / 2];
}

struct Result {
  double ours = 0, yardstick = 0;  // FLOP/s; the yardstick's 0 without one
};

Result measure(const Case& c, ThreadPool& pool, int repeats, bool best) {
  const Buffer a = random_matrix(c.type, c.m() * c.k()), b = random_matrix(c.type, c.k() * c.n());
  const Buffer out(c.m() * c.n() * type_size(c.out())),
      peer_out(c.m() * c.n() * type_size(c.out()));
  const Matmul ours = problem(c, a.get(), b.get(), out.get());
  const Matmul theirs = problem(c, a.get(), b.get(), peer_out.get());
  Yardstick yardstick(c, theirs, pool.threads());
  const auto run_ours = [&] { kernels::matmul(ours, pool); };
  const auto run_theirs = [&] { yardstick.run(pool); };
  constexpr double kPiece = 0.01;  // seconds per timed piece
  const double once = std::max(seconds(run_ours, 2), 1e-7);
  const auto times = std::max<int64_t>(1, static_cast<int64_t>(kPiece / once));
  if (!yardstick.empty()) run_theirs();
  std::vector<double> our_times, their_times;
  for (int i = 0; i < repeats; ++i) {
    our_times.push_back(seconds(run_ours, times));
    if (!yardstick.empty()) their_times.push_back(seconds(run_theirs, times));
  }
  Result result;
  result.ours = c.flops() / typical(our_times, best);
  if (!yardstick.empty()) result.yardstick = c.flops() / typical(their_times, best);
  return result;
}

int run(int argc, char** argv) {
  std::vector<bool> types(3), kinds(3);
  int threads = 0, repeats = 9;
  bool best = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    bool known = argument == "--best";
    best = best || known;
    for (size_t j = 0; j < 3; ++j) {
      if (argument == kTypeNames[j]) types[j] = known = true;
      if (argument == kKindNames[j]) kinds[j] = known = true;
    }
    if (i + 1 < argc && argument == "--threads") threads = std::atoi(argv[++i]), known = true;
    if (i + 1 < argc && argument == "--repeats") repeats = std::atoi(argv[++i]), known = true;
    if (!known || repeats < 1) {
      std::fprintf(stderr,
                   "usage: matmul_bench [fp32|bf16|fp16] [forward|grad_input|grad_weight] "
                   "[--threads N] [--repeats N] [--best]\n");
      return 2;
    }
  }
  const auto none = [](const std::vector<bool>& v) {
    return std::none_of(v.begin(), v.end(), [](bool b) { return b; });
  };
  if (none(types)) types = {true, true, true};
  if (none(kinds)) kinds = {true, true, true};

  ThreadPool pool(threads);
  const Limits before = measure_limits(pool);
  std::printf("%d threads; peak fp32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n", pool.threads(),
              before.fp32_flops / 1e9, before.bf16_flops / 1e9);
  std::printf("%-12s %-5s %6s %6s %6s %10s %10s %8s %8s  %s\n", "product", "type", "m", "n", "k",
              "GFLOP/s", "oneDNN", "ratio", "of peak", "kernel");
  std::string json;
  for (size_t t = 0; t < 3; ++t) {
    for (size_t kind = 0; kind < 3; ++kind) {
      if (!types[t] || !kinds[kind]) continue;
      for (const Shape& shape : kShapes) {
        const Case c{static_cast<Kind>(kind), static_cast<MatmulType>(t), shape};
        if (c.kind != Kind::kForward && shape.tokens < 64) continue;
        const Result r = measure(c, pool, repeats, best);
        const double peak = c.type == MatmulType::kBFloat16 ? before.bf16_flops : before.fp32_flops;
        const double ratio = r.yardstick > 0 ? r.ours / r.yardstick : 0;
        std::printf("%-12s %-5s %6lld %6lld %6lld %10.0f %10.0f %8.2f %7.0f%%  %s\n",
                    kKindNames[kind], kTypeNames[t], static_cast<long long>(c.m()),
                    static_cast<long long>(c.n()), static_cast<long long>(c.k()), r.ours / 1e9,
                    r.yardstick / 1e9, ratio, 100 * r.ours / peak,
                    kernels::matmul_kernel_name(c.type));
        std::fflush(stdout);
        char line[256];
        std::snprintf(line, sizeof line,
                      "%s{\"product\":\"%s\",\"type\":\"%s\",\"m\":%lld,\"n\":%lld,\"k\":%lld,"
                      "\"gflops\":%.1f,\"onednn_gflops\":%.1f,\"of_peak\":%.3f}",
                      json.empty() ? "" : ",", kKindNames[kind], kTypeNames[t],
                      static_cast<long long>(c.m()), static_cast<long long>(c.n()),
                      static_cast<long long>(c.k()), r.ours / 1e9, r.yardstick / 1e9,
                      r.ours / peak);
        json += line;
      }
    }
  }
  std::printf(
      "{\"threads\":%d,\"fp32_peak_gflops\":%.1f,\"bf16_peak_gflops\":%.1f,\"rows\":[%s]}\n",
      pool.threads(), before.fp32_flops / 1e9, before.bf16_flops / 1e9, json.c_str());
  return 0;
}

}  // namespace
}  // namespace ds::bench

int main(int argc, char** argv) { return ds::bench::run(argc, argv); }
