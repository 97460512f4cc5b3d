// cuBLASLt's part in matrix products, with a stand-in in its place: what is asked of it and how
// often, and who multiplies where it refuses. The tests of matmul_test.cc and the rows of linear
// layers run in this program too, and so with the stand-in.
#include <gmock/gmock.h>

#include "cuda/cublaslt_world.h"
#include "cuda/gpu_memory.h"
#include "kernels/matmul/cublaslt_library.h"
#include "ops/fp8.h"
#include "ops/linear.h"

namespace ds::testing {
namespace {

using kernels::cublaslt::Library;
using kernels::cublaslt::open_library;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST_F(CublasLt, LibrariesThatCannotBeUsedSayWhy) {
  EXPECT_EQ(open_library("off").reason, "DS_CUBLASLT_LIBRARY is \"off\"");
  const Library missing = open_library("/nowhere/libcublasLt.so.13");
  EXPECT_FALSE(missing.usable());
  EXPECT_THAT(missing.reason, HasSubstr("/nowhere/libcublasLt.so.13"));
  EXPECT_THAT(missing.reason, HasSubstr("DS_CUBLASLT_LIBRARY"));
  EXPECT_THAT(open_library("libc.so.6").reason,
              StartsWith("libc.so.6 is no usable cuBLASLt: it has no cublasLtGetVersion, "));

  for (const auto& [version, usable] :
       {std::pair<size_t, bool>{111103, false}, {120000, true}, {139999, true}, {140000, false}}) {
    cublaslt().version = version;
    const Library found = open_library(DS_CUBLASLT_STAND_IN);
    EXPECT_EQ(found.usable(), usable) << version;
    EXPECT_THAT(found.reason, HasSubstr(usable ? "" : "needs version 12 or newer, below 14"));
  }
  cublaslt().version = 120503;
  EXPECT_EQ(open_library(DS_CUBLASLT_STAND_IN).name,
            str_cat("cuBLASLt 12.5.3 (", DS_CUBLASLT_STAND_IN, ")"));
}

// Own kernels are slower: whoever did not ask for them is warned.
TEST_F(CublasLt, WhoMultipliesIsTold) {
  const LogLines log;
  kernels::cublaslt::announce(open_library("/nowhere/libcublasLt.so.13"));
  EXPECT_THAT(log.warnings(), ElementsAre(::testing::AllOf(HasSubstr("kernels of our own"),
                                                           HasSubstr("/nowhere/"))));
  kernels::cublaslt::announce(open_library("off"));
  kernels::cublaslt::announce(open_library(DS_CUBLASLT_STAND_IN));
  EXPECT_EQ(log.warnings().size(), 1u);
}

TEST_F(CublasLt, ServesEveryLayout) {
  size_t served = 0;
  for (const auto& [in, out] : kTypes) {
    for (int layout = 0; layout < 4; ++layout) {
      Matmul p = shape(12, 21, 33, layout);
      p.alpha = 0.5f;
      check(p, in, out, 2, 1, false, false, 4, true);
      p.accumulate = true;
      check(p, in, out, 2, 1, false, false, 4, true);
      EXPECT_EQ(cublaslt().products.size(), served += 2);
    }
  }
}

// A form that cuBLASLt lacks is multiplied by our own kernel, to the same bounds.
TEST_F(CublasLt, WhatItLacksIsServedByOurOwnKernel) {
  const Matmul p = shape(12, 21, 33);
  check(p, DType::kBFloat16, DType::kBFloat16, 0, 1, true, false, 4, true);  // bias not aligned
  check(p, DType::kBFloat16, DType::kFloat32, 0, 0, true, false, 4, true);   // bias of another type
  check(shape(12, 21, 0), DType::kFloat32, DType::kFloat32, 0, 0, true, false, 4, true);
  EXPECT_THAT(cublaslt().products, IsEmpty());
  EXPECT_EQ(cublaslt().heuristics, 0);

  cublaslt().no_algorithms = true;
  const Matmul fresh = fresh_shape();
  check_bf16(fresh);
  EXPECT_EQ(cublaslt().heuristics, 1);
  check_bf16(fresh);
  EXPECT_EQ(cublaslt().heuristics, 1);  // refusals are remembered
  EXPECT_THAT(cublaslt().products, IsEmpty());
}

TEST_F(CublasLt, AsksOnceForEveryForm) {
  Matmul p = fresh_shape();
  for (int turn = 0; turn < 3; ++turn) check_bf16(p);
  EXPECT_EQ(cublaslt().heuristics, 1);
  EXPECT_THAT(cublaslt().products,
              ElementsAre(CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS));

  int asked = 1;
  check_bf16(p, false);
  EXPECT_EQ(cublaslt().heuristics, ++asked) << "another epilogue";
  p.accumulate = true;
  check_bf16(p, false);
  EXPECT_EQ(cublaslt().heuristics, ++asked) << "accumulation";
  check(p, DType::kBFloat16, DType::kBFloat16, 8, 0, false, false, 4, true);
  EXPECT_EQ(cublaslt().heuristics, ++asked) << "other strides";
  check(p, DType::kBFloat16, DType::kBFloat16, 0, 1, false, false, 4, true);
  EXPECT_EQ(cublaslt().heuristics, ++asked) << "another alignment";
  p.alpha = 0.125f;
  check(p, DType::kBFloat16, DType::kBFloat16, 0, 1, false, false, 4, true);
  EXPECT_EQ(cublaslt().heuristics, asked) << "alpha is no part of the form";
  check(p, DType::kFloat16, DType::kFloat16, 0, 1, false, false, 4, true);
  EXPECT_EQ(cublaslt().heuristics, ++asked) << "another type";
}

TEST_F(CublasLt, EveryGpuHasItsOwnHandleAndChoices) {
  const Matmul p = fresh_shape();
  check_bf16(p);
  device_ = make_cuda_device(1);
  check_bf16(p);
  EXPECT_EQ(cublaslt().heuristics, 2);
  EXPECT_EQ(cublaslt().products.size(), 2u);
}

TEST_F(CublasLt, TakesTheWorkspaceItIsGiven) {
  cublaslt().workspace = 1 << 20;
  cublaslt().least_workspace = 512;
  const Matmul p = fresh_shape();
  check_bf16(p, true, false, true);
  EXPECT_THAT(cublaslt().workspaces, ElementsAre(1 << 20));
  check_bf16(p, true, false, false);  // none of the algorithms does without
  EXPECT_EQ(cublaslt().products.size(), 1u);
  EXPECT_EQ(cublaslt().heuristics, 2);

  cublaslt().least_workspace = 0;
  const Matmul other = fresh_shape();
  check_bf16(other, true, false, false);
  EXPECT_THAT(cublaslt().workspaces, ElementsAre(1 << 20, 0));

  cublaslt().workspace = cublaslt().least_workspace = int64_t{1} << 40;
  check_bf16(fresh_shape());  // more than it may have
  EXPECT_EQ(cublaslt().products.size(), 2u);
}

TEST_F(CublasLt, ActivationsAreFusedWhereTheyAreOurs) {
  Matmul p = fresh_shape();
  p.activation = ActivationKind::kGeluTanh;
  for (const auto& [in, out] : kTypes) {
    cublaslt().products.clear();
    check(p, in, out, 0, 0, false, true, 4, true);
    // Not for fp32, for which its tanh is too rough.
    EXPECT_THAT(cublaslt().products,
                ElementsAre(out == DType::kFloat32 ? CUBLASLT_EPILOGUE_DEFAULT
                                                   : CUBLASLT_EPILOGUE_GELU_AUX));
  }
  cublaslt().products.clear();
  check_bf16(p, true, true);
  p.accumulate = true;
  check_bf16(p, true, true);
  EXPECT_THAT(cublaslt().products,
              ElementsAre(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
  p.accumulate = false;

  // By a kernel of our own after the product: rows of `pre` that the epilogue cannot write, and
  // other functions.
  cublaslt().products.clear();
  const int asked = cublaslt().heuristics;
  pre_more_ = 3;
  check_bf16(p, true, true);
  EXPECT_EQ(cublaslt().heuristics, asked + 1) << "was asked for what it cannot do";
  p.activation = ActivationKind::kRelu;
  check_bf16(p, true, true);
  p.accumulate = true;
  check_bf16(p, false, true);
  EXPECT_THAT(cublaslt().products, ElementsAre(CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS,
                                               CUBLASLT_EPILOGUE_DEFAULT));
}

TEST_F(CublasLt, FallsBackInSteps) {
  Matmul p = fresh_shape();
  p.activation = ActivationKind::kGeluTanh;
  cublaslt().refused = {CUBLASLT_EPILOGUE_GELU_AUX_BIAS};
  check_bf16(p, true, true);
  EXPECT_THAT(cublaslt().products, ElementsAre(CUBLASLT_EPILOGUE_BIAS));
  cublaslt().refused = {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_BIAS};
  p.n = 32;
  check_bf16(p, true, true);
  EXPECT_EQ(cublaslt().products.size(), 1u);
}

TEST_F(CublasLt, FailuresOfAProduct) {
  const Matmul p = fresh_shape();
  cublaslt().failures["cublasLtMatmul"] = {CUBLAS_STATUS_NOT_SUPPORTED};
  check_bf16(p);
  check_bf16(p);  // not tried again
  EXPECT_THAT(cublaslt().products, IsEmpty());

  const auto message = [&](const char* call, cublasStatus_t status, const Matmul& shape) {
    cublaslt().failures[call] = {status};
    try {
      check_bf16(shape);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDevice);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const Matmul other = fresh_shape();
  EXPECT_THAT(message("cublasLtMatmul", CUBLAS_STATUS_EXECUTION_FAILED, other),
              ::testing::AllOf(
                  HasSubstr("CUDA: cuBLASLt 13.1.0"), HasSubstr("CUBLAS_STATUS_EXECUTION_FAILED"),
                  HasSubstr(str_cat("[9, ", other.k, "] and bf16 [", other.k, ", 24]"))));
  EXPECT_THAT(
      message("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_INTERNAL_ERROR, fresh_shape()),
      HasSubstr("choosing an algorithm failed: CUBLAS_STATUS_INTERNAL_ERROR"));
  for (const char* const call : {"cublasLtMatmulDescCreate", "cublasLtMatrixLayoutCreate",
                                 "cublasLtMatmulPreferenceCreate"}) {
    EXPECT_THAT(message(call, CUBLAS_STATUS_NOT_INITIALIZED, fresh_shape()),
                HasSubstr("CUBLAS_STATUS_NOT_INITIALIZED"));
  }
  check_bf16(other);
  EXPECT_EQ(cublaslt().products.size(), 1u);
}

// Last of the GPUs, so that no other test has made its handle.
TEST_F(CublasLt, AGpuOnWhichItDoesNotStart) {
  device_.reset();
  stand_in::reset(4);
  device_ = make_cuda_device(3);
  cublaslt().failures["cublasLtCreate"] = {CUBLAS_STATUS_NOT_INITIALIZED};
  const Matmul p = fresh_shape();
  check_bf16(p);
  check_bf16(p);
  EXPECT_EQ(cublaslt().creates, 1);
  EXPECT_THAT(cublaslt().products, IsEmpty());
  device_.reset();
  stand_in::reset(2);
}

// ---- linear layers ----

class CublasLtLinear : public CublasLt {
 protected:
  void SetUp() override {
    CublasLt::SetUp();
    use_memory_of(device_);
    case_memory().shift = 0;
  }
  void TearDown() override {
    x_ = w_ = dy_ = Tensor();
    case_memory() = CaseMemory();
    CublasLt::TearDown();
  }
  void fill_operands(DType dtype) {
    Random random(seed_);
    x_ = random_tensor(random, dtype, {40, 24});
    w_ = random_tensor(random, dtype, {32, 24});
    dy_ = random_tensor(random, dtype, {40, 32});
  }

  ThreadPool pool_{1};
  Tensor x_, w_, dy_;
};

TEST_F(CublasLtLinear, ActivationHasTheSameBitsWithAndWithoutPre) {
  const OpContext ctx{device_, &pool_};
  fill_operands(DType::kBFloat16);
  Tensor pre = guarded_tensor(DType::kBFloat16, {40, 32});
  Tensor with = guarded_tensor(DType::kBFloat16, {40, 32}),
         without = guarded_tensor(DType::kBFloat16, {40, 32});
  Tensor none;
  ops::linear_activation(ctx, x_, w_, Tensor(), ops::Activation::kGeluTanh, pre, with);
  ops::linear_activation(ctx, x_, w_, Tensor(), ops::Activation::kGeluTanh, none, without);
  EXPECT_EQ(doubles(with), doubles(without));
  EXPECT_THAT(cublaslt().products,
              ElementsAre(CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX));
}

TEST_F(CublasLtLinear, TheGradientOfTheBiasComesWithThatOfTheWeight) {
  const OpContext ctx{device_, &pool_};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const bool refused : {false, true}) {
      SCOPED_TRACE(refused);
      fill_operands(dtype);
      cublaslt().products.clear();
      if (refused) cublaslt().refused = {CUBLASLT_EPILOGUE_BGRADB};
      // The cache remembers; another number of rows is another form.
      const Tensor dy = refused ? dy_.slice(0, 0, 39) : dy_, x = refused ? x_.slice(0, 0, 39) : x_;
      Tensor dw = filled_tensor(DType::kFloat32, {32, 24}, 1);
      Tensor db = filled_tensor(DType::kFloat32, {32}, 3);
      ops::linear_grad_weight_bias(ctx, dy, x, dw, db, false);
      const uint32_t expected = refused ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BGRADB;
      EXPECT_THAT(cublaslt().products, ElementsAre(expected));
      const std::vector<double> sums = doubles(db), numbers = doubles(dy);
      for (size_t column = 0; column < 32; ++column) {
        double sum = 3;
        for (size_t at = column; at < numbers.size(); at += 32) sum += numbers[at];
        EXPECT_NEAR(sums[column], sum, 1e-4);
      }
    }
    cublaslt().refused.clear();
  }
}

// The derivative of GELU in the product, which the reference of the rows has checked too; where it
// is refused, a kernel of our own after the product, which sums the bias' gradient as well.
TEST_F(CublasLtLinear, TheDerivativeOfGeluComesWithTheProduct) {
  const OpContext ctx{device_, &pool_};
  Random random(seed_);
  fill_operands(DType::kBFloat16);
  const Tensor pre = random_tensor(random, DType::kBFloat16, {40, 24});
  Tensor fused = guarded_tensor(DType::kBFloat16, {40, 24}), apart = copy_of(fused);
  Tensor db = filled_tensor(DType::kFloat32, {24}, 3);
  const auto gradient = [&](ops::Gelu kind, const Tensor& at, Tensor& to) {
    cublaslt().products.clear();
    return ops::linear_grad_input_gelu(ctx, dy_, w_, at, kind, to, db);
  };
  EXPECT_FALSE(gradient(ops::Gelu::kTanh, pre, fused));
  EXPECT_THAT(cublaslt().products, ElementsAre(CUBLASLT_EPILOGUE_DGELU));
  EXPECT_THAT(doubles(db), ::testing::Each(3));
  EXPECT_TRUE(gradient(ops::Gelu::kErf, pre, apart)) << "another function";
  EXPECT_THAT(cublaslt().products, ElementsAre(CUBLASLT_EPILOGUE_DEFAULT));

  case_memory().shift = 1;  // which the epilogue cannot read
  const Tensor skew = copy_of(pre);
  case_memory().shift = 0;
  EXPECT_TRUE(gradient(ops::Gelu::kTanh, skew, apart));
  EXPECT_THAT(cublaslt().products, ElementsAre(CUBLASLT_EPILOGUE_DEFAULT));
  // Two roundings more; |dy w| stays below 5 sqrt(32), of which the product's rounding is a 256th.
  const std::vector<double> expected = doubles(apart), actual = doubles(fused);
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 0x1p-6 * (std::abs(expected[i]) + 0.2)) << i;
  }
  const std::vector<double> sums = doubles(db);
  EXPECT_THAT(sums, ::testing::Each(::testing::Ne(3)));

  cublaslt().refused = {CUBLASLT_EPILOGUE_DGELU};
  dy_ = dy_.slice(0, 0, 39);  // another form
  Tensor fewer = guarded_tensor(DType::kBFloat16, {39, 24});
  EXPECT_TRUE(gradient(ops::Gelu::kTanh, pre.slice(0, 0, 39), fewer));
  EXPECT_THAT(cublaslt().products, ElementsAre(CUBLASLT_EPILOGUE_DEFAULT));
  EXPECT_EQ(doubles(fewer), doubles(apart.slice(0, 0, 39)));
}

// ---- codes of 8 bits; the rows of fp8 have compared what comes out ----

class CublasLtFp8 : public CublasLtLinear {
 protected:
  // Cast from random numbers, with and without each of the two copies.
  ops::Fp8Tensor codes(ops::Fp8Format format, int64_t rows, int64_t columns) {
    Random random(seed_++);
    const OpContext ctx{device_, &pool_};
    const auto number = [] { return filled_tensor(DType::kFloat32, {1}, 0); };
    ops::Fp8Scaling scaling{number(), number(), number()};
    ops::Fp8Tensor out;
    out.format = format;
    out.codes = guarded_tensor(DType::kUInt8, {rows, columns});
    out.transposed = guarded_tensor(DType::kUInt8, {columns, rows});
    const Tensor x = random_tensor(random, DType::kBFloat16, {rows, columns});
    ops::fp8_first_scale(ctx, x, format, 0, scaling);
    Tensor no_sums;
    ops::fp8_cast(ctx, x, scaling, out, no_sums);
    return out;
  }
  // y by the product of codes, and by widened ones.
  std::vector<double> y(const ops::Fp8Tensor& x, const ops::Fp8Tensor& w, const Tensor& bias) {
    const OpContext ctx{device_, &pool_};
    const auto rows = [](const ops::Fp8Tensor& t) {
      return t.codes ? t.codes.size(0) : t.transposed.size(1);
    };
    Tensor to = guarded_tensor(DType::kBFloat16, {rows(x), rows(w)});
    cublaslt().products.clear();
    ops::fp8_linear(ctx, x, w, bias, to);
    return doubles(to);
  }
};

TEST_F(CublasLtFp8, AreMultipliedByIt) {
  const OpContext ctx{device_, &pool_};
  for (const ops::Fp8Format gradients : {ops::Fp8Format::kE5M2, ops::Fp8Format::kE4M3}) {
    const ops::Fp8Tensor x = codes(ops::Fp8Format::kE4M3, 48, 32),
                         w = codes(ops::Fp8Format::kE4M3, 16, 32), dy = codes(gradients, 48, 16);
    const Tensor bias = filled_tensor(DType::kBFloat16, {16}, 3);
    cublaslt().products.clear();
    Tensor to = guarded_tensor(DType::kBFloat16, {48, 16});
    cublaslt().fast.clear();
    ops::fp8_linear(ctx, x, w, bias, to, true);
    Tensor dx = guarded_tensor(DType::kBFloat16, {48, 32});
    ops::fp8_linear_grad_input(ctx, dy, w, dx);
    Tensor dw = filled_tensor(DType::kFloat32, {16, 32}, 1);
    ops::fp8_linear_grad_weight(ctx, dy, x, dw, true);
    EXPECT_THAT(cublaslt().products, ElementsAre(CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT,
                                                 CUBLASLT_EPILOGUE_DEFAULT));
    EXPECT_THAT(cublaslt().fast, ElementsAre(1, 0, 0));
    ops::fp8_linear(ctx, x, w, bias, to);
    EXPECT_EQ(cublaslt().fast.back(), 0) << "is asked for";
  }
}

TEST_F(CublasLtFp8, WhatItLacksIsWidened) {
  const auto e4m3 = ops::Fp8Format::kE4M3, e5m2 = ops::Fp8Format::kE5M2;
  ops::Fp8Tensor x = codes(e4m3, 64, 32), w = codes(e4m3, 32, 32);
  const std::vector<double> served = y(x, w, Tensor());
  const int asked = cublaslt().heuristics;
  // Without the copy that it reads; in bf16 cuBLASLt multiplies them then, to other roundings.
  x.codes = Tensor();
  const std::vector<double> widened = y(x, w, Tensor());
  EXPECT_EQ(cublaslt().heuristics, asked + 1) << "a product of bf16";
  for (size_t i = 0; i < served.size(); ++i) {
    EXPECT_NEAR(widened[i], served[i], 0x1p-7 * std::abs(served[i]) + 1e-5) << i;
  }
  // Two of E5M2, sizes, alignment: it is not asked for codes at all (which the stand-in would
  // refuse, and answer for bf16 then).
  y(codes(e5m2, 64, 48), codes(e5m2, 32, 48), Tensor());
  y(codes(e4m3, 24, 32), codes(e4m3, 32, 32), Tensor());
  case_memory().shift = 4;
  const ops::Fp8Tensor skew = codes(e4m3, 80, 32);
  case_memory().shift = 0;
  y(skew, codes(e4m3, 32, 32), Tensor());
  EXPECT_EQ(cublaslt().heuristics, asked + 4);

  cublaslt().no_algorithms = true;
  EXPECT_FALSE(y(codes(e4m3, 96, 32), codes(e4m3, 32, 32), Tensor()).empty());
  EXPECT_THAT(cublaslt().products, IsEmpty());
}

// A code that is NaN makes its row of the result NaN, however it is multiplied.
TEST_F(CublasLtFp8, NanPassesThrough) {
  ops::Fp8Tensor x = codes(ops::Fp8Format::kE4M3, 32, 16), w = codes(ops::Fp8Format::kE4M3, 16, 16);
  device_->default_stream().synchronize();
  x.codes.data<uint8_t>()[5 * 16 + 3] = 0x7F;
  for (const bool by_codes : {true, false}) {
    if (!by_codes) cublaslt().no_algorithms = true;
    const ops::Fp8Tensor& second = by_codes ? w : (w = codes(ops::Fp8Format::kE4M3, 48, 16));
    const std::vector<double> out = y(x, second, Tensor());
    const size_t columns = out.size() / 32;
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / columns == 5) << i;
  }
}

}  // namespace
}  // namespace ds::testing
