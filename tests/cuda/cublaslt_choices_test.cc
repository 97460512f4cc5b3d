// What cuBLASLt refuses, how often it is asked and told, and which of its algorithms are taken:
// the first, or those that were timed, here or by another process.
#include <cstring>

#include "cuda/cublaslt_world.h"
#include "kernels/matmul/product_choices.h"
#include "ops/fp8.h"

namespace ds::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CublasLt, WhatItRefusesIsToldOnceAndMultipliedByOurKernels) {
  for (const char* const call :
       {"cublasLtMatmul", "cublasLtMatmulDescSetAttribute", "cublasLtMatmulDescCreate",
        "cublasLtMatrixLayoutCreate", "cublasLtMatmulAlgoGetHeuristic"}) {
    for (const cublasStatus_t status : {CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_ARCH_MISMATCH}) {
      SCOPED_TRACE(str_cat(call, " ", static_cast<int>(status)));
      const LogLines log;
      const Matmul p = fresh_shape();
      cublaslt().products.clear();
      cublaslt().failures[call] = {status};
      check_bf16(p);
      check_bf16(p);
      EXPECT_THAT(cublaslt().products, IsEmpty());
      EXPECT_THAT(log.warnings(),
                  ElementsAre(AllOf(HasSubstr("refuses the product of bf16 [9, "),
                                    HasSubstr("24] (transposed) to bf16, with a bias"),
                                    HasSubstr("kernels of our own"))));
    }
  }
}

// A bias that moves is set in a description that is there; one that the library does not take makes
// the form ours.
TEST_F(CublasLt, APointerThatIsRefusedLater) {
  const LogLines log;
  const Matmul p = fresh_shape();
  check_bf16(p);
  EXPECT_EQ(cublaslt().products.size(), 1u);
  const Matrix elsewhere = matrix(DType::kBFloat16, 1, 24, 0, 0);  // what check() takes next moves
  cublaslt().failures["cublasLtMatmulDescSetAttribute"] = {CUBLAS_STATUS_INVALID_VALUE};
  check_bf16(p);
  EXPECT_EQ(cublaslt().products.size(), 1u);
  EXPECT_EQ(log.warnings().size(), 1u);
}

// Many forms have no algorithm, and other forms of the same product take their place.
TEST_F(CublasLt, WhatItHasNotIsNoWarning) {
  const LogLines log;
  cublaslt().no_algorithms = true;
  check_bf16(fresh_shape());
  cublaslt().no_algorithms = false;
  cublaslt().refused = {CUBLASLT_EPILOGUE_BIAS};
  check_bf16(fresh_shape());
  EXPECT_THAT(log.warnings(), IsEmpty());
  EXPECT_THAT(cublaslt().products, IsEmpty());
}

TEST_F(CublasLt, DescribesAFormOnce) {
  const Matmul p = fresh_shape();
  check_bf16(p);
  const int made = cublaslt().described;
  EXPECT_GT(made, 0);
  for (int turn = 0; turn < 3; ++turn) check_bf16(p);  // with operands elsewhere
  EXPECT_EQ(cublaslt().described, made);
}

TEST_F(CublasLt, Tf32IsForOperandsOfFp32) {
  policy_.tf32 = true;
  const Matmul p = fresh_shape();
  check_bf16(p);
  check(p, DType::kFloat32, DType::kFloat32, 0, 0, true, false, 4, true);
  policy_.tf32 = false;
  check(p, DType::kFloat32, DType::kFloat32, 0, 0, true, false, 4, true);
  EXPECT_THAT(cublaslt().compute,
              ElementsAre(CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F));
}

// ---- algorithms that are timed ----

class CublasLtTimed : public CublasLt {
 protected:
  void SetUp() override {
    CublasLt::SetUp();
    policy_.time_products = true;
    cublaslt().seconds = {5e-5, 4e-5, 2e-5, 3e-5};
    kernels::forget_timed_products(stream(4));
    kernels::open_timing(stream(4));
  }
  void TearDown() override {
    kernels::close_timing(stream(4));
    cublaslt().seconds = {1e-5};
    CublasLt::TearDown();
  }
  // The algorithms of a product, in the order in which they ran.
  std::vector<int> algorithms_of(const Matmul& p, DType out = DType::kBFloat16,
                                 bool with_workspace = true) {
    cublaslt().algorithms.clear();
    check(p, DType::kBFloat16, out, 0, 0, false, false, 4, with_workspace);
    return cublaslt().algorithms;
  }
  std::vector<std::byte> exported() {
    const DeviceScope scope(*device_);
    return kernels::export_timed_products(stream(4));
  }
  std::string import(const std::vector<std::byte>& bytes) {
    const DeviceScope scope(*device_);
    return kernels::import_timed_products(bytes, stream(4));
  }
};

TEST_F(CublasLtTimed, TheFastestIsKept) {
  const Matmul p = fresh_shape();
  const std::vector<int> first = algorithms_of(p);
  EXPECT_EQ(first.size(), 17u) << "each once to warm up and three times, and the product";
  EXPECT_EQ(first.back(), 2);
  EXPECT_THAT(algorithms_of(p), ElementsAre(2));
  EXPECT_EQ(kernels::timed_products(stream(4)), 1);
  // Who does not want that has the first, meanwhile and afterwards.
  policy_.time_products = false;
  EXPECT_THAT(algorithms_of(p), ElementsAre(0));
  policy_.time_products = true;
  kernels::close_timing(stream(4));
  EXPECT_THAT(algorithms_of(p), ElementsAre(2));
  EXPECT_THAT(algorithms_of(fresh_shape()), ElementsAre(0)) << "a form that comes later";
}

// The one that does not run is not taken; where none does, the form is ours.
TEST_F(CublasLtTimed, WhatDoesNotRunIsLeftOut) {
  const LogLines log;
  cublaslt().failures["cublasLtMatmul"] = {CUBLAS_STATUS_NOT_SUPPORTED};  // the first
  EXPECT_EQ(algorithms_of(fresh_shape()).back(), 2);
  EXPECT_THAT(log.warnings(), IsEmpty());
  cublaslt().seconds = {5e-5};
  cublaslt().failures["cublasLtMatmul"] = {CUBLAS_STATUS_INVALID_VALUE};
  EXPECT_THAT(algorithms_of(fresh_shape()), IsEmpty());
  EXPECT_THAT(log.warnings(), ElementsAre(HasSubstr("timing: CUBLAS_STATUS_INVALID_VALUE")));
  cublaslt().failures["cublasLtMatmul"] = {CUBLAS_STATUS_EXECUTION_FAILED};
  EXPECT_THROW(algorithms_of(fresh_shape()), Error);
}

// Runs that are timed add to nothing: check() compares with one addition, and the bits are those of
// one product by the algorithm. With scratch for the result in the workspace, and without.
TEST_F(CublasLtTimed, WhatIsAddedToIsAddedToOnce) {
  for (const bool roomy : {false, true}) {
    Matmul p = fresh_shape();
    p.in = MatmulType::kBFloat16;
    p.accumulate = true;
    const Matrix a = matrix(DType::kBFloat16, p.m, p.k, 0, 0),
                 b = matrix(DType::kBFloat16, p.n, p.k, 0, 0),
                 c = matrix(DType::kFloat32, p.m, p.n, 0, 0);
    const std::shared_ptr<void> workspace = memory(roomy ? 1 << 20 : 4096);
    p.a = {a.view.raw(), a.stride, false};
    p.b = {b.view.raw(), b.stride, true};
    p.c = c.view.raw();
    p.c_stride = c.stride;
    p.workspace = workspace.get();
    p.workspace_bytes = roomy ? 1 << 20 : 4096;
    Random random(seed_);
    fill_random(random, a.whole);
    fill_random(random, b.whole);
    std::vector<std::vector<double>> results;
    for (int turn = 0; turn < 3; ++turn) {
      Random same(7);
      fill_random(same, c.whole);
      cublaslt().algorithms.clear();
      policy_.time_products = turn < 2;
      const DeviceScope scope(*device_);
      const int blocks = stand_in::live().blocks;
      kernels::matmul(p, stream(4));
      EXPECT_EQ(stand_in::live().blocks, blocks);
      device_->default_stream().synchronize();
      results.push_back(doubles(c.view));
      EXPECT_EQ(cublaslt().algorithms.size(), turn == 0 ? 17u : 1u);
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_NE(results[0], results[2]) << "another algorithm has the same bits: nothing is seen";
  }
}

TEST_F(CublasLtTimed, WithoutMemoryForTheResultTheFirstIsTaken) {
  Matmul p = fresh_shape();
  p.accumulate = true;
  const int64_t bytes = 4096;
  const std::shared_ptr<void> a = memory(9 * p.k * 4), b = memory(24 * p.k * 4), c = memory(9 * 96),
                              workspace = memory(bytes);
  p.a = {a.get(), p.k, false};
  p.b = {b.get(), p.k, true};
  p.c = c.get();
  p.c_stride = 24;
  p.workspace = workspace.get();
  p.workspace_bytes = bytes;
  stand_in::fail_next("cudaMalloc", cudaErrorMemoryAllocation);
  const DeviceScope scope(*device_);
  kernels::matmul(p, stream(4));
  kernels::matmul(p, stream(4));
  device_->default_stream().synchronize();
  EXPECT_THAT(cublaslt().algorithms, ElementsAre(0, 0));
}

TEST_F(CublasLtTimed, NothingIsTimedWhileAStreamRecords) {
  Matmul p = fresh_shape();
  const std::shared_ptr<void> memory_of_all = memory(1 << 20);
  p.a = {memory_of_all.get(), p.k, false};
  p.b = p.a;
  p.b.transposed = true;
  p.c = static_cast<std::byte*>(memory_of_all.get()) + (1 << 19);
  p.c_stride = 24;
  const std::shared_ptr<void> workspace = memory(4096);
  p.workspace = workspace.get();
  p.workspace_bytes = 4096;
  const DeviceScope scope(*device_);
  {
    const auto graph =
        device_->record(device_->make_graph_memory(), [&] { kernels::matmul(p, stream(4)); });
    EXPECT_THAT(cublaslt().algorithms, ElementsAre(0));
  }
  kernels::matmul(p, stream(4));
  EXPECT_EQ(cublaslt().algorithms.back(), 2);
  device_->default_stream().synchronize();
}

// ---- choices of another process ----

TEST_F(CublasLtTimed, ChoicesAreTakenOver) {
  std::vector<Matmul> forms;
  for (int i = 0; i < 5; ++i) {
    forms.push_back(fresh_shape());
    forms.back().accumulate = i % 2 == 1;
    algorithms_of(forms.back(), i < 3 ? DType::kBFloat16 : DType::kFloat32);
  }
  const std::vector<std::byte> bytes = exported();
  kernels::forget_timed_products(stream(4));
  kernels::close_timing(stream(4));
  EXPECT_EQ(kernels::timed_products(stream(4)), 0);
  EXPECT_THAT(algorithms_of(forms[0]), ElementsAre(0));  // which the import replaces

  EXPECT_EQ(import(bytes), "");
  EXPECT_EQ(kernels::timed_products(stream(4)), 5);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(
        algorithms_of(forms[static_cast<size_t>(i)], i < 3 ? DType::kBFloat16 : DType::kFloat32),
        ElementsAre(2));
  }
  EXPECT_EQ(exported(), bytes);
}

TEST_F(CublasLtTimed, ChoicesThatAreNotForHereAreRefused) {
  const Matmul p = fresh_shape();
  algorithms_of(p);
  const std::vector<std::byte> bytes = exported();
  kernels::forget_timed_products(stream(4));
  kernels::close_timing(stream(4));
  const auto refusal = [&](size_t at, int64_t value) {
    std::vector<std::byte> bad = bytes;
    std::memcpy(bad.data() + at, &value, sizeof value);
    return import(bad);
  };
  const size_t head = 8 * 3 + 256;
  ASSERT_EQ(bytes.size(), head + 26 * 8);
  EXPECT_THAT(refusal(0, 5), HasSubstr("not choices of this version"));
  EXPECT_THAT(refusal(8, 130000), HasSubstr("cuBLASLt 130000, and here it is 130100"));
  EXPECT_THAT(refusal(16, 80), HasSubstr("another kind of GPU"));
  EXPECT_THAT(refusal(24, 0x2000), HasSubstr("another kind of GPU, and here it is Stand-in"));
  EXPECT_THAT(refusal(head + 24 * 8, 7), HasSubstr("does not propose here what was chosen"));
  EXPECT_THAT(refusal(head + 24 * 8, -1), HasSubstr("does not propose here"));
  EXPECT_THAT(refusal(head + 25 * 8, 17), HasSubstr("does not propose here"));
  for (size_t field = 0; field < 24; ++field) {
    for (const int64_t value : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
      EXPECT_THAT(refusal(head + field * 8, value), HasSubstr("of no product")) << field;
    }
  }
  EXPECT_THAT(import({}), HasSubstr("there cuBLASLt is not used"));
  for (size_t size = 1; size < bytes.size(); ++size) {
    if (size == head) continue;  // no choices, which is what it says
    EXPECT_NE(import({bytes.begin(), bytes.begin() + static_cast<int64_t>(size)}), "") << size;
  }
  std::vector<std::byte> twice = bytes;
  twice.insert(twice.end(), bytes.begin() + static_cast<int64_t>(head), bytes.end());
  EXPECT_THAT(import(twice), HasSubstr("of one form"));
  // Any change at all: refused, or another form that exists.
  const LogLines log;
  Random random(seed_);
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<std::byte> bad = bytes;
    bad[random() % bad.size()] ^= static_cast<std::byte>(1 + random() % 255);
    import(bad);
  }
  kernels::forget_timed_products(stream(4));
  EXPECT_EQ(import(bytes), "");
  EXPECT_EQ(kernels::timed_products(stream(4)), 1);
}

}  // namespace
}  // namespace ds::testing
