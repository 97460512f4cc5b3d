// Whether cuDNN's attention repeats its bits: twenty runs of a layer forward and backward, into
// outputs that hold something else each time. The strict mode has to. The other need not; how far
// its runs are apart is printed, and they may differ by a rounding only.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <random>

#include "cuda/gpu_memory.h"
#include "fresh_seed.h"
#include "kernels/attention/attention_cudnn.h"
#include "ops/attention.h"
#include "ops/op.h"

namespace ds::testing {
namespace {

using kernels::AttentionChoice;
using kernels::GpuStream;
// Without it ops::run would take the host's threads here, and nothing would be asked of cuDNN.
static_assert(ops::kWithCuda);

constexpr DType kB = DType::kBFloat16;
constexpr int kRuns = 20;

struct Layer {
  const char* name;
  int64_t batch, tokens, heads, kv_heads, dim;
};
#ifdef DS_SMALL_SHAPES
constexpr bool kSmall = true;
constexpr Layer kLayers[] = {{"small", 2, 20, 4, 2, 16}};
#else
constexpr bool kSmall = false;
constexpr Layer kLayers[] = {{"GPT-2 124M", 32, 1024, 12, 12, 64},
                             {"GPT-2 1.5B", 8, 1024, 25, 25, 64},
                             {"Llama 7B", 2, 2048, 32, 8, 128}};
#endif

// What a run wrote, and what it is compared with.
struct Outputs {
  Tensor out, lse, dq, dk, dv;
  std::array<Tensor*, 5> all() { return {&out, &lse, &dq, &dk, &dv}; }
};
constexpr const char* kNames[] = {"out", "lse", "dq", "dk", "dv"};

Outputs outputs_of(const Layer& s) {
  return {guarded_tensor(kB, {s.batch, s.tokens, s.heads, s.dim}),
          guarded_tensor(DType::kFloat32, {s.batch, s.heads, s.tokens}),
          guarded_tensor(kB, {s.batch, s.tokens, s.heads, s.dim}),
          guarded_tensor(kB, {s.batch, s.tokens, s.kv_heads, s.dim}),
          guarded_tensor(kB, {s.batch, s.tokens, s.kv_heads, s.dim})};
}

struct Difference {
  int64_t elements = 0;  // with other bits
  double largest = 0;    // in units of what one rounding may be: more than 1 is none
};

// fp32 sums in another order, then rounded: a step of the type, or of sums that cancel.
Difference compare_bits(const Tensor& a, const Tensor& b) {
  Difference out;
  const auto* const x = static_cast<const char*>(a.raw());
  const auto* const y = static_cast<const char*>(b.raw());
  const int64_t size = dtype_size(a.dtype());
  double top = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    top = std::max(top, std::abs(element_as_double(a.dtype(), x + i * size)));
  }
  for (int64_t i = 0; i < a.elements(); ++i) {
    if (std::memcmp(x + i * size, y + i * size, static_cast<size_t>(size)) == 0) continue;
    ++out.elements;
    const double p = element_as_double(a.dtype(), x + i * size);
    const double q = element_as_double(a.dtype(), y + i * size);
    const double step = 0x1p-7 * std::max(std::abs(p), std::abs(q)) + 0x1p-16 * top;
    const double apart = std::abs(p - q) / step;
    out.largest = std::max(out.largest, std::isnan(apart) ? HUGE_VAL : apart);
  }
  return out;
}

class CudnnBits : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    if (!kernels::cudnn::library().usable()) {
      GTEST_SKIP() << "needs cuDNN: " << kernels::cudnn::library().reason;
    }
    device_ = make_cuda_device(0);
    if (device_->capability() != 90) GTEST_SKIP() << "needs compute capability 9.0";
    use_memory_of(device_);
    case_memory().shift = 0;
    ctx_.device = device_;
    ctx_.pool = &pool_;
    ctx_.gpu.attention = AttentionChoice::kCudnn;
  }
  void TearDown() override { case_memory() = CaseMemory(); }

  void fill(Tensor& tensor) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      tensor.data<bfloat16>()[i] = to_bfloat16(normal(random_));
    }
  }
  void make(const Layer& s) {
    q_ = guarded_tensor(kB, {s.batch, s.tokens, s.heads, s.dim});
    dout_ = guarded_tensor(kB, q_.shape());
    k_ = guarded_tensor(kB, {s.batch, s.tokens, s.kv_heads, s.dim});
    v_ = guarded_tensor(kB, k_.shape());
    for (Tensor* tensor : {&q_, &dout_, &k_, &v_}) fill(*tensor);
    options_.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.dim)));
  }
  // Backward starts from the first run's forward: that it differs must not count twice.
  void run(Outputs& o, const Outputs& first, int poison) {
    for (Tensor* tensor : o.all()) {
      std::memset(tensor->raw(), poison, static_cast<size_t>(tensor->bytes()));
    }
    ops::attention(ctx_, {.q = q_, .k = k_, .v = v_}, options_, {.out = o.out, .lse = o.lse});
    ops::attention_backward(ctx_, {.q = q_, .k = k_, .v = v_}, options_,
                            {.out = first.out, .lse = first.lse}, dout_,
                            {.dq = o.dq, .dk = o.dk, .dv = o.dv});
    case_memory().synchronize();
  }
  // Our own kernels would repeat their bits, and say nothing about cuDNN's.
  bool is_cudnns(Outputs& o) {
    bool both = false;
    ops::run(ctx_, [&](auto& on) {
      if constexpr (std::is_same_v<std::decay_t<decltype(on)>, GpuStream>) {
        using kernels::HeadView;
        const auto in = [](const Tensor& t) {
          return HeadView<const bfloat16>{t.data<bfloat16>(), t.stride(0), t.stride(1),
                                          t.stride(2)};
        };
        const auto to = [](const Tensor& t) {
          return HeadView<bfloat16>{t.data<bfloat16>(), t.stride(0), t.stride(1), t.stride(2)};
        };
        kernels::AttentionProblem p;
        p.batch = q_.size(0);
        p.queries = p.keys = q_.size(1);
        p.heads = q_.size(2);
        p.kv_heads = k_.size(2);
        p.head_dim = q_.size(3);
        float* const lse = o.lse.data<float>();
        const kernels::AttentionForward<bfloat16> forward{
            .p = p, .q = in(q_), .k = in(k_), .v = in(v_), .out = to(o.out), .lse = lse};
        const kernels::AttentionBackward<bfloat16> backward{
            .p = p,
            .q = in(q_),
            .k = in(k_),
            .v = in(v_),
            .g = {in(dout_), in(o.out), lse, to(o.dq), to(o.dk), to(o.dv)}};
        both = kernels::cudnn::AttentionCall(on, forward) &&
               kernels::cudnn::AttentionCall(on, backward);
      }
    });
    return both;
  }
  // The differences of all later runs from the first.
  std::array<Difference, 5> twenty_runs(const Layer& layer) {
    Outputs first = outputs_of(layer), later = outputs_of(layer);
    EXPECT_TRUE(is_cudnns(first)) << layer.name;
    run(first, first, 0xFF);
    std::array<Difference, 5> worst{};
    for (int i = 1; i < kRuns; ++i) {
      run(later, first, i % 2 == 0 ? 0xFF : 0x3E);
      for (size_t t = 0; t < 5; ++t) {
        const Difference found = compare_bits(*first.all()[t], *later.all()[t]);
        worst[t].elements = std::max(worst[t].elements, found.elements);
        worst[t].largest = std::max(worst[t].largest, found.largest);
      }
    }
    return worst;
  }

  ThreadPool pool_{1};
  std::shared_ptr<CudaDevice> device_;
  OpContext ctx_;
  std::mt19937 random_{ds::fresh_seed()};
  Tensor q_, k_, v_, dout_;
  ops::AttentionOptions options_;
};

TEST_F(CudnnBits, TwentyRunsRepeatTheirBits) {
  std::cout << kernels::cudnn::library().name << "\n";
  int64_t loose = 0;
  for (const Layer& layer : kLayers) {
    make(layer);
    for (const bool strictly : {true, false}) {
      ctx_.gpu.strict_determinism = strictly;
      const std::array<Difference, 5> found = twenty_runs(layer);
      for (size_t t = 0; t < 5; ++t) {
        const std::string what =
            str_cat(layer.name, strictly ? ", strict, " : ", default, ", kNames[t]);
        std::cout << what << ": " << found[t].elements << " elements differ, by "
                  << found[t].largest << " roundings\n"
                  << std::flush;
        RecordProperty(what, str_cat(found[t].elements));
        EXPECT_LE(found[t].largest, 1.0) << what;
        if (strictly) {
          EXPECT_EQ(found[t].elements, 0) << what;
        }
        loose += strictly ? 0 : found[t].elements;
      }
    }
  }
  // The stand-in's first engine has other bits every time: if that is not seen, nothing is.
  if (kSmall) {
    EXPECT_GT(loose, 0);
  }
}

}  // namespace
}  // namespace ds::testing
