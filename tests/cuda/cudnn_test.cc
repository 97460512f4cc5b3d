// cuDNN's part in attention, with a stand-in in its place that computes the graphs it is given:
// which calls become graphs, that they are attention, and who computes where cuDNN refuses.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "cuda/emulation/cudnn_stand_in.h"
#include "cuda/emulation/stand_in.h"
#include "cuda/gpu_memory.h"
#include "fresh_seed.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention_case.h"
#include "kernels/cuda/libraries.h"

namespace ds::testing {
namespace {

using kernels::AttentionChoice;
using kernels::GpuPolicy;
using kernels::GpuStream;
using kernels::cudnn::AttentionForm;
using kernels::cudnn::AttentionPass;
using kernels::cudnn::AttentionTry;
using kernels::cudnn::kMostAttentionScratch;
using kernels::cudnn::open_library;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DType kF = DType::kFloat32, kB = DType::kBFloat16, kH = DType::kFloat16;
// Operations of the graphs; the identity ends backward where dq is a sum of shares.
constexpr size_t kForward = 10, kBackward = 17, kMask = 4, kGroups = 2, kIdentity = 1;

CudnnStandIn& cudnn() {
  static CudnnStandIn& it = []() -> CudnnStandIn& {
    void* const library = ::dlopen(DS_CUDNN_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail(Code::kInternal, ::dlerror());
    void* const entry = ::dlsym(library, kCudnnStandInSymbol);
    CudnnStandIn& found = *reinterpret_cast<CudnnStandInEntry*>(entry)();
    found.queue = stand_in::queue_kernel;
    found.current_gpu = [] {
      int gpu = -1;
      cudaGetDevice(&gpu);
      return gpu;
    };
    return found;
  }();
  return it;
}

// Before main: the library looks once, at the first call of any test.
[[maybe_unused]] const bool kChosen = [] {
  ::setenv("DS_CUDNN_LIBRARY", DS_CUDNN_STAND_IN, 1);
  cudnn();
  return true;
}();

// The warnings of a test.
class Warnings {
 public:
  Warnings() { log_set_sink(&Warnings::take, this, nullptr); }
  ~Warnings() { log_set_sink(nullptr, nullptr, nullptr); }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  static void take(void* self, int32_t level, const char*, const char* text) {
    if (level == static_cast<int32_t>(LogLevel::kWarning)) {
      static_cast<Warnings*>(self)->texts_.emplace_back(text);
    }
  }
  std::vector<std::string> texts_;
};

class Cudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = make_cuda_device(0);
    ctx_.device = device_;
    ctx_.pool = &pool_;
    ctx_.gpu.attention = AttentionChoice::kCudnn;
    use_memory_of(device_);
    case_memory().shift = 0;
    forget_runs();
  }
  void TearDown() override {
    const CudnnStandIn fresh;
    cudnn().engines = fresh.engines;
    cudnn().fallback = fresh.fallback;
    cudnn().tells_workspace = true;
    case_memory() = CaseMemory();
    EXPECT_THAT(cudnn().violations, IsEmpty());
    EXPECT_THAT(stand_in::violations(), IsEmpty());
    cudnn().failures.clear();
  }
  static void forget_runs() {
    cudnn().runs.clear();
    cudnn().engines_run.clear();
  }
  // Sizes that no other test has: plans are the process's.
  static int64_t fresh_tokens() {
    static int64_t next = 4;
    return next += 4;
  }
  OpContext strict() const {
    OpContext out = ctx_;
    out.gpu.strict_determinism = true;
    return out;
  }
  OpContext own() const {
    OpContext out = ctx_;
    out.gpu.attention = AttentionChoice::kOwn;
    return out;
  }
  void run(const Spec& spec) { run(spec, ctx_, ctx_); }
  void run(Spec spec, const OpContext& forward, const OpContext& backward) {
    spec.by_cudnn = backward.gpu.attention == AttentionChoice::kCudnn;
    SCOPED_TRACE(str_cat(spec.name(), ", seed ", seed_));
    forget_runs();
    const CaseResult result = check(spec, forward, backward, seed_++);
    EXPECT_LE(result.worst, 1.0) << result.where;
  }

  ThreadPool pool_{1};
  std::shared_ptr<CudaDevice> device_;
  OpContext ctx_;
  uint64_t seed_ = ds::fresh_seed();
};

TEST_F(Cudnn, GraphsAreAttention) {
  for (const bool strictly : {false, true}) {
    const OpContext ctx = strictly ? strict() : ctx_;
    const size_t backward = kBackward + (strictly ? 0 : kIdentity);
    for (const DType dtype : {kB, kH}) {
      for (const int64_t dim : {8, 64, 72}) {
        run({"causal", dtype, 2, 4, 4, 19, 19, dim}, ctx, ctx);
        EXPECT_THAT(cudnn().runs, ElementsAre(kForward + kMask, backward + kMask));
        run({"both_ways", dtype, 2, 4, 4, 19, 19, dim, false}, ctx, ctx);
        EXPECT_THAT(cudnn().runs, ElementsAre(kForward, backward));
        run({"groups", dtype, 1, 6, 2, 21, 21, dim}, ctx, ctx);
        EXPECT_THAT(cudnn().runs, ElementsAre(kForward + kMask, backward + kMask + kGroups));
        run({"packed", dtype, 2, 4, 2, 18, 18, dim, true, Mask::kNone, 0, true}, ctx, ctx);
        EXPECT_EQ(cudnn().runs.size(), 2u);
        EXPECT_THAT(cudnn().engines_run, Each(strictly ? 2 : 0));
      }
    }
  }
  EXPECT_EQ(cudnn().handles, 1);
}

// What one of the two keeps of a row, the other reads.
TEST_F(Cudnn, OurKernelsAndItsTakeTurns) {
  const Spec spec{"turns", kB, 2, 4, 2, 37, 37, 64};
  run(spec, own(), ctx_);
  EXPECT_THAT(cudnn().runs, ElementsAre(kBackward + kIdentity + kMask + kGroups));
  run(spec, own(), strict());
  EXPECT_THAT(cudnn().runs, ElementsAre(kBackward + kMask + kGroups));
  run(spec, ctx_, own());
  EXPECT_THAT(cudnn().runs, ElementsAre(kForward + kMask));
  run(spec, own(), own());
  EXPECT_THAT(cudnn().runs, IsEmpty());
}

TEST_F(Cudnn, WhatItDoesNotTake) {
  const std::vector<Spec> others = {
      {"fp32", kF, 1, 2, 2, 20, 20, 16},
      {"dropout", kB, 1, 2, 2, 20, 20, 16, true, Mask::kNone, 0.2},
      {"mask", kB, 1, 2, 2, 20, 20, 16, true, Mask::kPadding},
      {"window", kB, 1, 2, 2, 20, 20, 16, true, Mask::kNone, 0, false, 0, 1, 5},
      {"segments", kB, 1, 2, 2, 20, 20, 16, true, Mask::kNone, 0, false, 0, 1, 0,
       Segments::kPacked},
      {"cache", kB, 1, 2, 2, 20, 30, 16},
      {"odd_size", kB, 1, 2, 2, 20, 20, 12},
      {"wide", kB, 1, 2, 2, 20, 20, 136},
  };
  for (const Spec& spec : others) {
    run(spec);
    EXPECT_THAT(cudnn().runs, IsEmpty()) << spec.name();
  }
  case_memory().shift = 1;  // memory that is not aligned
  run({"shifted", kB, 1, 2, 2, 20, 20, 16});
  EXPECT_THAT(cudnn().runs, IsEmpty());
}

// ---- who computes ----

// Whether a call is cuDNN's by the policy; nothing runs.
bool chosen(const GpuPolicy& policy, int capability, int64_t tokens, int64_t dim,
            AttentionPass pass) {
  GpuStream on;
  on.capability = capability;
  on.policy = policy;
  kernels::AttentionProblem p;
  p.batch = 1;
  p.heads = p.kv_heads = 2;
  p.queries = p.keys = tokens;
  p.head_dim = dim;
  AttentionForm form;
  form.pass = pass;
  form.type = kernels::cudnn::DataType::kBFloat16;
  return kernels::cudnn::attention_form(on, p, form, {}).has_value();
}

TEST_F(Cudnn, ThePolicyChooses) {
  for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
    for (const bool strictly : {false, true}) {
      const auto by = [&](AttentionChoice choice, int capability, int64_t tokens, int64_t dim) {
        return chosen({.attention = choice, .strict_determinism = strictly}, capability, tokens,
                      dim, pass);
      };
      const auto automatic = AttentionChoice::kAuto;
      EXPECT_TRUE(by(automatic, 90, 512, 64));
      EXPECT_TRUE(by(automatic, 90, 512, 128));
      EXPECT_TRUE(by(automatic, 90, 4096, 96));
      EXPECT_FALSE(by(automatic, 90, 511, 64));
      EXPECT_FALSE(by(automatic, 90, 512, 56));
      EXPECT_FALSE(by(automatic, 90, 512, 63));
      EXPECT_FALSE(by(automatic, 90, 512, 129));
      EXPECT_FALSE(by(automatic, 90, 512, 136));
      EXPECT_FALSE(by(automatic, 80, 512, 64));
      EXPECT_FALSE(by(automatic, 100, 512, 64));
      EXPECT_FALSE(by(AttentionChoice::kOwn, 90, 4096, 64));
      EXPECT_TRUE(by(AttentionChoice::kCudnn, 80, 16, 8));
      EXPECT_FALSE(by(AttentionChoice::kCudnn, 90, 16, 12));
    }
  }
}

// Strict backward needs more than what the notes of engines say.
TEST_F(Cudnn, StrictBackwardIsItsOnHopperAlone) {
  GpuStream on;
  on.native = device_->default_stream().native();
  const DeviceScope scope(*device_);
  const auto planned = [&](AttentionPass pass, int capability, bool strictly, int64_t tokens) {
    on.capability = capability;
    AttentionForm form;
    form.pass = pass;
    form.type = kernels::cudnn::DataType::kBFloat16;
    form.batch = form.heads = form.kv_heads = 1;
    form.queries = form.keys = tokens;
    form.head_dim = 16;
    form.strict = strictly;
    form.row_batch = tokens;
    return kernels::cudnn::attention_workspace(on, form).has_value();
  };
  Warnings warnings;
  EXPECT_TRUE(planned(AttentionPass::kBackward, 90, true, fresh_tokens()));
  EXPECT_TRUE(planned(AttentionPass::kBackward, 80, false, fresh_tokens()));
  EXPECT_TRUE(planned(AttentionPass::kForward, 80, true, fresh_tokens()));
  EXPECT_THAT(warnings.texts(), IsEmpty());
  EXPECT_FALSE(planned(AttentionPass::kBackward, 80, true, fresh_tokens()));
  ASSERT_EQ(warnings.texts().size(), 1u);
  EXPECT_THAT(warnings.texts()[0], HasSubstr("compute capability 9.0"));
}

// ---- engines ----

TEST_F(Cudnn, AFormIsPlannedOnceByTheFirstEngineThatCanBeHad) {
  const int64_t tokens = fresh_tokens();
  const int before = cudnn().heuristics;
  for (int i = 0; i < 3; ++i) run({"once", kB, 2, 1, 1, tokens, tokens, 16});
  EXPECT_EQ(cudnn().heuristics - before, 2) << "one for each way";
  EXPECT_THAT(cudnn().engines_run, ElementsAre(0, 0));
  // A stricter form is another: the first engine has other bits every time, the second no plan.
  for (int i = 0; i < 3; ++i) run({"once", kB, 2, 1, 1, tokens, tokens, 16}, strict(), strict());
  EXPECT_EQ(cudnn().heuristics - before, 4);
  EXPECT_THAT(cudnn().engines_run, ElementsAre(2, 2));
}

TEST_F(Cudnn, LaterEnginesAreTriedAndThenTheFallback) {
  Warnings warnings;
  for (const bool tells : {true, false}) {
    cudnn().tells_workspace = tells;
    const auto next = [&] {
      const int64_t tokens = fresh_tokens();
      run({"later", kB, 1, 1, 1, tokens, tokens, 16});
    };
    cudnn().engines = {{true, true, int64_t{3} << 30}, {true, false, 0}, {true, true, 768}};
    cudnn().fallback = {};
    next();
    EXPECT_THAT(cudnn().engines_run, ElementsAre(2, 2));
    cudnn().engines.pop_back();
    cudnn().fallback = {{true, false, 0}, {true, true, 256}};
    next();
    EXPECT_THAT(cudnn().engines_run, ElementsAre(101, 101));
    // Whatever the failure, a later engine may do.
    cudnn().engines = {{true, true, 0}, {true, true, 0}};
    cudnn().failures["plan"] = {5000, 5000};
    next();
    EXPECT_THAT(cudnn().engines_run, ElementsAre(101, 0));
  }
  EXPECT_THAT(warnings.texts(), IsEmpty());
}

TEST_F(Cudnn, OurKernelsComputeWhatItRefusesAndALogSaysSoOnce) {
  Warnings warnings;
  size_t seen = 0;
  // Both ways are refused, once each, with the reason.
  const auto refused = [&](const OpContext& ctx, const char* reason) {
    const int64_t tokens = fresh_tokens();
    for (int i = 0; i < 2; ++i) {
      run({"refused", kB, 1, 2, 1, tokens, tokens, 16}, ctx, ctx);
      EXPECT_THAT(cudnn().runs, IsEmpty());
    }
    ASSERT_EQ(warnings.texts().size(), seen + 2) << reason;
    for (const char* way : {"forward of attention", "backward of attention"}) {
      EXPECT_THAT(warnings.texts()[seen], HasSubstr(way));
      EXPECT_THAT(warnings.texts()[seen], HasSubstr(reason));
      EXPECT_THAT(warnings.texts()[seen], HasSubstr(str_cat("1 x ", tokens, " tokens, 2 heads")));
      ++seen;
    }
  };
  cudnn().engines = {{false, true, 0}};
  refused(strict(), "no engine promises the same bits");
  cudnn().engines = {};
  refused(ctx_, "no engine supports the graph");
  cudnn().engines = {{true, true, int64_t{3} << 30}};
  refused(ctx_, "need 3.00 GiB of scratch, more than 1.00 GiB");
  cudnn().engines = CudnnStandIn().engines;
  cudnn().failures["graph"] = {3001, 4000};  // a pattern that is not known, and a failure
  refused(ctx_, "as the test wanted");
  cudnn().engines = {{true, true, 0}};
  cudnn().failures["plan"] = {5000, 5000};
  refused(ctx_, "as the test wanted");
  // Every descriptor of a graph that came to nothing is gone.
  const int alive = cudnn().descriptors;
  cudnn().failures["graph"] = {3001, 3001};
  refused(ctx_, "as the test wanted");
  EXPECT_EQ(cudnn().descriptors, alive);
}

// ---- calls that are cut ----

TEST_F(Cudnn, ACallIsCutOverTheBatchAndTheHeads) {
  const size_t forward = kForward + kMask;
  for (const bool strictly : {false, true}) {
    const OpContext ctx = strictly ? strict() : ctx_;
    const size_t backward = kBackward + kMask + kGroups + (strictly ? 0 : kIdentity);
    for (const bool packed : {false, true}) {
      const int64_t tokens = fresh_tokens();
      // Slices of two sequences, and one that is left.
      cudnn().engines = {{true, true, 512, 2}};
      run({"rest", kB, 5, 4, 2, tokens, tokens, 16, true, Mask::kNone, 0, packed}, ctx, ctx);
      EXPECT_THAT(cudnn().runs,
                  ElementsAre(forward, forward, forward, backward, backward, backward));
      // One sequence at a time, and two heads of keys of its four.
      cudnn().engines = {{true, true, 512, 1, 4}};
      run({"heads", kH, 2, 8, 4, tokens, tokens, 16, true, Mask::kNone, 0, packed}, ctx, ctx);
      EXPECT_EQ(cudnn().runs.size(), 8u);
      EXPECT_THAT(cudnn().engines_run, Each(0));
    }
  }
  // Rows of a slice must begin where cuDNN can read them.
  Warnings warnings;
  cudnn().engines = {{true, true, 512, 1}};
  run({"odd", kB, 2, 1, 1, 23, 23, 16});
  EXPECT_THAT(cudnn().runs, IsEmpty());
  ASSERT_EQ(warnings.texts().size(), 2u);
  EXPECT_THAT(warnings.texts()[0], HasSubstr("aligned to 16 bytes"));
}

// Sizes of slices, for engines that need so much for every sequence and head of keys.
TEST(CudnnSlices, TakeWhatHasRoom) {
  struct Case {
    int64_t batch, kv_heads, bytes_each;
    int64_t slice_batch, slice_heads;
  };
  constexpr int64_t kMiB = int64_t{1} << 20;
  const std::vector<Case> cases = {
      {32, 12, kMiB, 32, 12},      // everything
      {32, 12, 4 * kMiB, 16, 12},  // 21 would have room, in two slices
      {9, 1, 125 * kMiB, 5, 1},    // 8 would, and leave one
      {10, 1, 256 * kMiB, 4, 1},
      {4, 8, 130 * kMiB, 1, 4},  // a sequence needs a little more than 1 GiB
      {1, 12, 200 * kMiB, 1, 4},
      {7, 25, 900 * kMiB, 1, 1},
  };
  for (const Case& c : cases) {
    AttentionForm form;
    form.batch = c.batch;
    form.kv_heads = c.kv_heads;
    form.heads = 3 * c.kv_heads;
    form.queries = form.keys = 4;
    form.row_batch = form.heads * form.queries;
    int tries = 0;
    const auto attempt = [&](const AttentionForm& slice) {
      ++tries;
      EXPECT_EQ(slice.heads, 3 * slice.kv_heads);
      EXPECT_EQ(slice.row_batch, form.row_batch);
      const int64_t bytes = slice.batch * slice.kv_heads * c.bytes_each;
      if (bytes <= kMostAttentionScratch) return AttentionTry{};
      return AttentionTry{"too much", bytes};
    };
    std::string refusal;
    const auto slice = attention_slice(form, attempt, refusal);
    ASSERT_TRUE(slice) << refusal;
    EXPECT_EQ(slice->batch, c.slice_batch) << c.batch << " x " << c.kv_heads;
    EXPECT_EQ(slice->kv_heads, c.slice_heads) << c.batch << " x " << c.kv_heads;
    EXPECT_LE(tries, 5);
  }
}

// Where slices begin in memory that cuDNN reads in packs.
TEST(CudnnSlices, BeginAtMultiplesOf16Bytes) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto cut = [&](int64_t batch, int64_t bytes_each, std::string& refusal) {
    AttentionForm form;
    form.batch = batch;
    form.heads = form.kv_heads = 1;
    form.queries = form.keys = form.row_batch = 3;
    const auto attempt = [&](const AttentionForm& slice) {
      const int64_t bytes = slice.batch * bytes_each;
      if (bytes <= kMostAttentionScratch) return AttentionTry{};
      return AttentionTry{"too much", bytes};
    };
    return attention_slice(form, attempt, refusal);
  };
  std::string refusal;
  const auto fours = cut(8, 256 * kMiB, refusal);
  ASSERT_TRUE(fours) << refusal;
  EXPECT_EQ(fours->batch, 4);
  EXPECT_FALSE(cut(8, 512 * kMiB, refusal));
  EXPECT_THAT(refusal, HasSubstr("aligned to 16 bytes"));
}

// ---- running ----

TEST_F(Cudnn, AFailureWhileRunningIsAnError) {
  Random random(seed_);
  const Tensor q = random_tensor(random, kB, {1, fresh_tokens(), 1, 16});
  Tensor out = guarded_tensor(kB, q.shape()), lse;
  cudnn().failures["cudnnBackendExecute"] = {5000};
  try {
    ops::attention(ctx_, {.q = q, .k = q, .v = q}, {}, {.out = out, .lse = lse});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDevice);
    EXPECT_THAT(error.what(), HasSubstr("running a graph failed"));
    EXPECT_THAT(error.what(), HasSubstr("as the test wanted"));
  }
  // Nobody keeps the logarithms: the graph writes them to scratch.
  ops::attention(ctx_, {.q = q, .k = q, .v = q}, {}, {.out = out, .lse = lse});
  EXPECT_EQ(cudnn().runs.size(), 1u);
}

// A handle has one stream at a time, and threads have one handle.
TEST_F(Cudnn, ThreadsShareAHandle) {
  Random random(seed_);
  const Tensor q = random_tensor(random, kB, {1, 12, 1, 8});
  std::vector<Tensor> outs;
  for (int i = 0; i < 4; ++i) outs.push_back(guarded_tensor(kB, q.shape()));
  std::vector<std::thread> threads;
  for (Tensor& out : outs) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        Tensor lse;
        ops::attention(ctx_, {.q = q, .k = q, .v = q}, {}, {.out = out, .lse = lse});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cudnn().runs.size(), 200u);
}

TEST(CudnnLibrary, OpensWhatCanBeUsed) {
  EXPECT_TRUE(open_library(DS_CUDNN_STAND_IN).usable());
  EXPECT_THAT(open_library(DS_CUDNN_STAND_IN).name, HasSubstr("cuDNN 9.19.0"));
  EXPECT_THAT(open_library("off").reason, HasSubstr("\"off\""));
  EXPECT_THAT(open_library("/nowhere/libcudnn.so").reason, HasSubstr("was not found"));
  EXPECT_THAT(open_library("libm.so.6").reason, HasSubstr("it has no cudnnGetVersion"));
  cudnn().version = 8907;
  EXPECT_THAT(open_library(DS_CUDNN_STAND_IN).reason, HasSubstr("needs version 9"));
  cudnn().version = 91900;
}

TEST(CudnnLibrary, IsReported) {
  const std::vector<kernels::VendorLibrary> found = kernels::vendor_libraries();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].name, "cuDNN");
  EXPECT_TRUE(found[1].usable);
  EXPECT_THAT(found[1].text, HasSubstr("cuDNN 9.19.0"));
  EXPECT_FALSE(found[0].text.empty());
}

}  // namespace
}  // namespace ds::testing
