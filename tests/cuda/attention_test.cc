// Attention on a GPU beyond the rows of the operator table: head sizes between those that kernels
// are made for, caches of keys, splits of keys, long walks over tiles, nothing to see, refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cuda/attention_policies.h"
#include "cuda/gpu_memory.h"
#include "fresh_seed.h"
#include "full_run.h"
#include "kernels/attention_case.h"

namespace ds::testing {
namespace {

constexpr DType kF = DType::kFloat32, kB = DType::kBFloat16, kH = DType::kFloat16;

class GpuAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    device_ = make_cuda_device(0);
    ctx_.device = device_;
    ctx_.pool = &pool_;
    ctx_.gpu = attention_policies().back();
    use_memory_of(device_);
  }
  void TearDown() override { case_memory() = CaseMemory(); }

  using Check = CaseResult (*)(const Spec&, const OpContext&, uint64_t);

  // Against the reference: memory that is not aligned, and twice the same bits with memory that is.
  void run_check(Spec spec, Check check_one) {
    for (const kernels::GpuPolicy& policy : attention_policies()) {
      OpContext ctx = ctx_;
      ctx.gpu = policy;
      const bool own = policy.attention == kernels::AttentionChoice::kOwn;
      spec.by_cudnn = !own;
      SCOPED_TRACE(str_cat(spec.name(), ", seed ", seed_, ", strict ", policy.strict_determinism));
      CaseDigest first;
      for (int turn = 0; turn < 3; ++turn) {
        case_memory().shift = turn == 0 ? 1 : 0;
        start_digest();
        const CaseResult result = check_one(spec, ctx, seed_);
        EXPECT_GT(digest().tensors, 0);
        EXPECT_LE(result.worst, 1.0) << result.where;
        if (turn == 1) first = digest();
        // cuDNN promises it in the strict mode alone.
        if (turn == 2 && (own || policy.strict_determinism)) {
          EXPECT_EQ(digest().bits, first.bits) << "other bits in the second run";
        }
      }
    }
    ++seed_;
  }
  void both(const Spec& spec) { run_check(spec, check); }
  void forward(const Spec& spec) { run_check(spec, check_forward); }

  // Keys or values of `keys` tokens in a cache that has room for more.
  static Tensor cached(Random& random, DType dtype, const Shape& shape, int64_t room) {
    const Tensor cache =
        random_tensor(random, dtype, {shape[0], shape[1] + room, shape[2], shape[3]});
    return cache.slice(1, 0, shape[1]);
  }

  ThreadPool pool_{1};
  std::shared_ptr<CudaDevice> device_;
  OpContext ctx_;
  uint64_t seed_ = ds::fresh_seed();
};

TEST_F(GpuAttention, HeadSizesBetweenThoseOfKernels) {
  for (const DType dtype : {kF, kB, kH}) {
    for (const int64_t dim : {1, 7, 63, 65, 72, 96, 127, 129, 200, 255, 256}) {
      both({"sizes", dtype, 1, 2, 1, 70, 70, dim});
    }
  }
}

// What cuDNN takes, where it is asked.
TEST_F(GpuAttention, WholeSequences) {
  constexpr int64_t kDims[] = {64, 80, 128};
  for (int type = 0; type < 2; ++type) {
    for (int size = 0; size < 3; ++size) {
      for (int causal = 0; causal < 2; ++causal) {
        const DType dtype = type == 0 ? kB : kH;
        const bool band = causal == 1;
        const int one = type + size + causal;
        if (in_sample(one)) both({"heads", dtype, 2, 2, 2, 67, 67, kDims[size], band});
        if (in_sample(one + 1)) {
          both({"groups", dtype, 1, 4, 2, 68, 68, kDims[size], band, Mask::kNone, 0, true});
        }
      }
    }
  }
}

TEST_F(GpuAttention, WideHeadsWithEverything) {
  constexpr DType kTypes[] = {kF, kB, kH};
  for (int type = 0; type < 3; ++type) {
    for (int wide = 0; wide < 2; ++wide) {
      const DType dtype = kTypes[type];
      const int64_t dim = wide == 0 ? 100 : 160;
      const Spec specs[] = {
          {"mask_dropout", dtype, 2, 4, 2, 67, 141, dim, true, Mask::kPadding, 0.3, false, 5, 1,
           60},
          {"empty_rows", dtype, 2, 2, 1, 66, 66, dim, false, Mask::kSomeEmpty, 0, true},
          {"segments", dtype, 1, 4, 2, 150, 150, dim, true, Mask::kRandom, 0.1, true, 0, 1, 0,
           Segments::kPacked}};
      for (int kind = 0; kind < 3; ++kind) {
        if (in_sample(type + wide + kind)) both(specs[kind]);
      }
    }
  }
}

// Tiles are looked for 32 at a time.
TEST_F(GpuAttention, LongWalksSkipTiles) {
  both({"segments", kF, 1, 1, 1, 2200, 2200, 4, true, Mask::kNone, 0, false, 0, 1, 0,
        Segments::kPacked});
  both({"mask", kB, 1, 1, 1, 130, 2500, 8, false, Mask::kPadding});
}

TEST_F(GpuAttention, ManyRowsAndSplitsOfFewQueries) {
  for (const DType dtype : {kF, kB, kH}) {
    forward({"heads", dtype, 2, 40, 2, 1, 300, 64});
    forward({"queries", dtype, 1, 6, 2, 16, 700, 80, true, Mask::kRandom});
    forward({"one_split", dtype, 2, 3, 1, 5, 90, 33, false});
    forward({"wide", dtype, 1, 2, 1, 2, 600, 256, true, Mask::kPadding});
  }
  // More splits than threads join at once.
  forward({"splits", kB, 1, 1, 1, 1, 33100, 8});
}

// A sequence gets the same bits whatever else is in the batch, and whether its keys lie in a cache.
TEST_F(GpuAttention, BitsDoNotDependOnTheBatch) {
  Random random(seed_);
  for (const DType dtype : {kF, kB}) {
    for (const int64_t queries : {1, 40}) {
      const Tensor q = random_tensor(random, dtype, {3, queries, 4, 40});
      const Tensor k = cached(random, dtype, {3, 600, 2, 40}, 50);
      const Tensor v = cached(random, dtype, {3, 600, 2, 40}, 50);
      ops::AttentionOptions options;
      options.scale = 0.2f;
      Tensor all = guarded_tensor(dtype, q.shape()),
             one = guarded_tensor(dtype, {1, queries, 4, 40});
      Tensor all_lse = guarded_tensor(kF, {3, 4, queries}),
             lse = guarded_tensor(kF, {1, 4, queries});
      ops::attention(ctx_, {.q = q, .k = k, .v = v}, options, {.out = all, .lse = all_lse});
      const Tensor k_alone = copy_of(k.slice(0, 1, 2)), v_alone = copy_of(v.slice(0, 1, 2));
      ops::attention(ctx_, {.q = q.slice(0, 1, 2), .k = k_alone, .v = v_alone}, options,
                     {.out = one, .lse = lse});
      EXPECT_EQ(doubles(one), doubles(all.slice(0, 1, 2))) << type_name(dtype) << " " << queries;
      EXPECT_EQ(doubles(lse), doubles(all_lse.slice(0, 1, 2)));
      EXPECT_TRUE(std::isfinite(doubles(one)[0]));
    }
  }
}

TEST_F(GpuAttention, NothingToSee) {
  Random random(seed_);
  const ops::AttentionOptions options;
  for (const int64_t queries : {3, 30}) {
    const Tensor q = random_tensor(random, kB, {2, queries, 2, 8});
    const Tensor k = guarded_tensor(kB, {2, 0, 2, 8});
    Tensor out = guarded_tensor(kB, q.shape()), lse = guarded_tensor(kF, {2, 2, queries});
    ops::attention(ctx_, {.q = q, .k = k, .v = k}, options, {.out = out, .lse = lse});
    for (const double value : doubles(out)) ASSERT_EQ(value, 0);
    for (const double value : doubles(lse)) {
      ASSERT_EQ(value, -std::numeric_limits<double>::infinity());
    }
    Tensor dq = guarded_tensor(kB, q.shape()), dk = guarded_tensor(kB, k.shape()), dv = dk;
    ops::attention_backward(ctx_, {.q = q, .k = k, .v = k}, options, {.out = out, .lse = lse}, q,
                            {.dq = dq, .dk = dk, .dv = dv});
    for (const double value : doubles(dq)) ASSERT_EQ(value, 0);
  }
  const Tensor q = guarded_tensor(kB, {2, 0, 2, 8}), k = random_tensor(random, kB, {2, 70, 2, 8});
  const Tensor lse = guarded_tensor(kF, {2, 2, 0});
  Tensor dq = q, dk = guarded_tensor(kB, k.shape()), dv = guarded_tensor(kB, k.shape());
  ops::attention_backward(ctx_, {.q = q, .k = k, .v = k}, options, {.out = q, .lse = lse}, q,
                          {.dq = dq, .dk = dk, .dv = dv});
  for (const Tensor& tensor : {dk, dv}) {
    for (const double value : doubles(tensor)) ASSERT_EQ(value, 0);
  }
}

TEST_F(GpuAttention, RefusesWhatLiesElsewhere) {
  const Tensor q = filled_tensor(kF, {1, 4, 2, 8}, 1), none;
  Tensor out = guarded_tensor(kF, q.shape()), lse = guarded_tensor(kF, {1, 2, 4});
  const auto cpu = make_cpu_device();
  const auto elsewhere = [&](DType dtype, const Shape& shape) {
    return Tensor::empty(cpu, dtype, shape, MemoryTag::kOther);
  };
  const auto refuse = [&](const char* name, const Tensor& key, const Tensor& mask,
                          const ops::AttentionOptions& options) {
    try {
      ops::attention(ctx_, {.q = q, .k = key, .v = q, .key_mask = mask}, options,
                     {.out = out, .lse = lse});
      ADD_FAILURE() << name << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };
  ops::AttentionOptions options;
  refuse("k", elsewhere(kF, q.shape()), none, options);
  refuse("key_mask", q, elsewhere(DType::kUInt8, {1, 4}), options);
  options.segments = elsewhere(DType::kInt32, {1, 4});
  refuse("segments", q, none, options);
}

}  // namespace
}  // namespace ds::testing
