// cuDNN's part in attention, with a stand-in in its place that computes the graphs it is given:
// which calls become graphs, that they are attention, and who computes where cuDNN refuses.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstdlib>

#include "cuda/emulation/cudnn_stand_in.h"
#include "cuda/emulation/stand_in.h"
#include "cuda/gpu_memory.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention_case.h"
#include "kernels/cuda/libraries.h"

namespace ds::testing {
namespace {

using kernels::cudnn::Library;
using kernels::cudnn::open_library;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DType kF = DType::kFloat32, kB = DType::kBFloat16, kH = DType::kFloat16;
// Operations of the graphs.
constexpr size_t kForward = 10, kBackward = 17, kMask = 4, kGroups = 2;

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
  ::setenv("DS_CUDNN_ATTENTION", "always", 1);
  cudnn();
  return true;
}();

class Cudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = make_cuda_device(0);
    ctx_.device = device_;
    ctx_.pool = &pool_;
    use_memory_of(device_);
    case_memory().shift = 0;
    const CudnnStandIn fresh;
    cudnn().engines = fresh.engines;
    cudnn().runs.clear();
  }
  void TearDown() override {
    case_memory() = CaseMemory();
    EXPECT_THAT(cudnn().violations, IsEmpty());
    EXPECT_THAT(stand_in::violations(), IsEmpty());
    cudnn().failures.clear();
  }
  // Sizes that no other test has: plans are the process's.
  static int64_t fresh_batch() {
    static int64_t next = 1;
    return next++;
  }
  void run(const Spec& spec) {
    SCOPED_TRACE(str_cat(spec.name(), ", seed ", seed_));
    cudnn().runs.clear();
    const CaseResult result = check(spec, ctx_, seed_++);
    EXPECT_LE(result.worst, 1.0) << result.where;
  }

  ThreadPool pool_{1};
  std::shared_ptr<CudaDevice> device_;
  OpContext ctx_;
  uint64_t seed_ = std::random_device()();
};

TEST_F(Cudnn, GraphsAreAttention) {
  for (const DType dtype : {kB, kH}) {
    for (const int64_t dim : {8, 64, 72}) {
      run({"causal", dtype, 2, 4, 4, 19, 19, dim});
      EXPECT_THAT(cudnn().runs, ElementsAre(kForward + kMask, kBackward + kMask));
      run({"both_ways", dtype, 2, 4, 4, 19, 19, dim, false});
      EXPECT_THAT(cudnn().runs, ElementsAre(kForward, kBackward));
      run({"groups", dtype, 1, 6, 2, 21, 21, dim});
      EXPECT_THAT(cudnn().runs, ElementsAre(kForward + kMask, kBackward + kMask + kGroups));
      run({"packed", dtype, 2, 4, 2, 18, 18, dim, true, Mask::kNone, 0, true});
      EXPECT_EQ(cudnn().runs.size(), 2u);
    }
  }
  EXPECT_EQ(cudnn().handles, 1);
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

// An engine with other bits every time comes first, one that makes no plan second.
TEST_F(Cudnn, AFormIsPlannedOnceWithAnEngineThatRepeatsItsBits) {
  const int64_t batch = 20 + fresh_batch();
  const int before = cudnn().heuristics;
  for (int i = 0; i < 3; ++i) run({"once", kB, batch, 1, 1, 9, 9, 16});
  EXPECT_EQ(cudnn().heuristics - before, 2) << "one for each way";
  EXPECT_EQ(cudnn().runs.size(), 2u);
}

TEST_F(Cudnn, OurKernelsComputeWhatItRefuses) {
  cudnn().engines = {{false, true, 0}};  // nothing repeats its bits
  run({"refused", kB, 20 + fresh_batch(), 1, 1, 9, 9, 16});
  EXPECT_THAT(cudnn().runs, IsEmpty());
  cudnn().engines = {{true, true, int64_t{1} << 40}};  // more scratch than is given
  run({"scratch", kB, 20 + fresh_batch(), 1, 1, 9, 9, 16});
  EXPECT_THAT(cudnn().runs, IsEmpty());
  cudnn().engines = CudnnStandIn().engines;
  cudnn().failures["graph"] = {3001, 4000};  // a pattern that is not known, and a failure
  run({"pattern", kB, 20 + fresh_batch(), 1, 1, 9, 9, 16});
  EXPECT_THAT(cudnn().runs, IsEmpty());
  cudnn().failures["plan"] = {5000, 5000};
  run({"plan", kB, 20 + fresh_batch(), 1, 1, 9, 9, 16});
  EXPECT_THAT(cudnn().runs, IsEmpty());
  // Every descriptor of a graph that came to nothing is gone.
  const int alive = cudnn().descriptors;
  cudnn().failures["graph"] = {3001, 3001};
  run({"none_left", kB, 20 + fresh_batch(), 1, 1, 9, 9, 16});
  EXPECT_EQ(cudnn().descriptors, alive);
}

TEST_F(Cudnn, AFailureWhileRunningIsAnError) {
  Random random(seed_);
  const Tensor q = random_tensor(random, kB, {20 + fresh_batch(), 9, 1, 16});
  Tensor out = guarded_tensor(kB, q.shape()), lse;
  cudnn().failures["cudnnBackendExecute"] = {5000};
  try {
    ops::attention(ctx_, q, q, q, {}, {}, out, lse);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDevice);
    EXPECT_THAT(error.what(), HasSubstr("running a graph failed"));
    EXPECT_THAT(error.what(), HasSubstr("as the test wanted"));
  }
  // Nobody keeps the logarithms: the graph writes them to scratch.
  ops::attention(ctx_, q, q, q, {}, {}, out, lse);
  EXPECT_EQ(cudnn().runs.size(), 1u);
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
