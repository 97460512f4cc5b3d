// The own attention kernels where their tiles, steps and warps begin and end: ragged tiles, bands
// that hide whole steps from some warps, masks and bands together, scores of every size.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cuda/gpu_memory.h"
#include "fresh_seed.h"
#include "full_run.h"
#include "kernels/attention_case.h"

namespace ds::testing {
namespace {

constexpr DType kF = DType::kFloat32, kB = DType::kBFloat16, kH = DType::kFloat16;

class OwnAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    device_ = make_cuda_device(0);
    ctx_.device = device_;
    ctx_.pool = &pool_;
    use_memory_of(device_);
  }
  void TearDown() override { case_memory() = CaseMemory(); }

  // Against the reference, twice the same bits, in aligned memory and in other.
  void both(const Spec& spec) {
    SCOPED_TRACE(str_cat(spec.name(), ", seed ", seed_));
    CaseDigest first;
    for (int turn = 0; turn < 3; ++turn) {
      case_memory().shift = turn == 2 ? 1 : 0;
      start_digest();
      const CaseResult result = check(spec, ctx_, seed_);
      EXPECT_GT(digest().tensors, 0);
      EXPECT_LE(result.worst, 1.0) << result.where;
      if (turn == 0) first = digest();
      if (turn == 1) {
        EXPECT_EQ(digest().bits, first.bits) << "other bits in the second run";
      }
    }
    case_memory().shift = 0;
    ++seed_;
  }

  // Every key is the same, so that every score is `score`, whatever is rounded: the results are
  // the mean of the values that a query sees, and the score plus the logarithm of their number.
  void equal_keys(DType dtype, int64_t queries, int64_t dim, float scale, double q, double k,
                  double score) {
    SCOPED_TRACE(str_cat(type_name(dtype), " ", queries, "x", dim, ", scores of ", score));
    const int64_t keys = 70;
    const auto all = [&](int64_t tokens, double value) {
      const Tensor tensor = filled_tensor(dtype, {1, tokens, 1, dim}, 0);
      for_each_element(tensor, [&](int64_t flat, void* at) {
        if (flat % dim == 0) set_element(dtype, at, value);
      });
      return tensor;
    };
    const Tensor v = guarded_tensor(dtype, {1, keys, 1, dim});
    for_each_element(v, [&](int64_t flat, void* at) {
      set_element(dtype, at, static_cast<double>(flat / dim % 2));
    });
    ops::AttentionOptions options;
    options.scale = scale;
    Tensor out = guarded_tensor(dtype, {1, queries, 1, dim});
    Tensor lse = guarded_tensor(kF, {1, 1, queries});
    ops::attention(ctx_, {.q = all(queries, q), .k = all(keys, k), .v = v}, options,
                   {.out = out, .lse = lse});
    const std::vector<double> outs = doubles(out), logs = doubles(lse);
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t seen = keys - queries + i + 1;
      const double mean = static_cast<double>(seen / 2) / static_cast<double>(seen);
      const double log = score + std::log(static_cast<double>(seen));
      EXPECT_NEAR(outs[static_cast<size_t>(i * dim)], mean, 0x1p-8) << "query " << i;
      EXPECT_NEAR(logs[static_cast<size_t>(i)], log, std::abs(log) * 0x1p-20) << "query " << i;
    }
  }

  ThreadPool pool_{1};
  std::shared_ptr<CudaDevice> device_;
  OpContext ctx_;
  uint64_t seed_ = ds::fresh_seed();
};

// Tiles have 64 or 128 own rows and 32 or 64 others; steps have 32 or 64, warps 16 or 32.
TEST_F(OwnAttention, TilesThatEndAnywhere) {
  for (const DType dtype : {kB, kH}) {
    for (const int64_t tokens : {17, 31, 32, 33, 64, 65, 97, 128, 129, 161}) {
      both({"tokens", dtype, 1, 2, 1, tokens, tokens, tokens % 2 == 0 ? 64 : 40});
    }
    for (const int64_t tokens : {33, 64, 130}) {
      both({"tokens", dtype, 1, 2, 2, tokens, tokens, 128, false});
    }
  }
  for (const int64_t tokens : {17, 63, 64, 129}) both({"tokens", kF, 1, 1, 1, tokens, tokens, 64});
}

TEST_F(OwnAttention, HeadSizes) {
  for (const int64_t dim : {8, 16, 24, 48, 64, 80, 96, 120, 128, 160, 256}) {
    both({"dims", dim % 16 == 0 ? kB : kH, 1, 3, 1, 70, 70, dim});
    both(
        {"dims_dropout", dim % 16 == 0 ? kH : kB, 1, 2, 1, 40, 70, dim, true, Mask::kPadding, 0.2});
  }
}

TEST_F(OwnAttention, MoreQueriesThanKeysAndFewer) {
  for (const int64_t dim : {64, 128}) {
    both({"more_keys", kB, 2, 4, 2, 35, 170, dim});
    both({"more_queries", kB, 1, 2, 1, 170, 35, dim});         // the first see nothing
    both({"more_queries", kH, 1, 2, 1, 150, 70, dim, false});  // all see all
  }
}

// A band that is narrower than a step hides other steps from every warp.
TEST_F(OwnAttention, Windows) {
  for (const DType dtype : {kF, kB, kH}) {
    for (const int64_t window : {1, 7, 33, 70}) {
      both({"window", dtype, 1, 2, 1, 150, 150, 64, true, Mask::kNone, 0, false, 0, 1, window});
      both({"window", dtype, 1, 1, 1, 135, 135, 72, false, Mask::kNone, 0, false, 0, 1, window});
    }
  }
  both({"window_gqa", kB, 2, 6, 2, 40, 133, 64, true, Mask::kNone, 0, false, 0, 1, 20});
}

TEST_F(OwnAttention, MasksSegmentsAndDropoutWithTheBand) {
  constexpr DType kTypes[] = {kF, kB, kH};
  for (int type = 0; type < 3; ++type) {
    for (int wide = 0; wide < 2; ++wide) {
      const DType dtype = kTypes[type];
      const int64_t dim = wide == 0 ? 64 : 128;
      const Spec specs[] = {{"mask", dtype, 2, 4, 2, 70, 135, dim, true, Mask::kRandom},
                            {"empty", dtype, 2, 2, 1, 130, 130, dim, false, Mask::kSomeEmpty, 0.1},
                            {"packed", dtype, 1, 2, 1, 200, 200, dim, true, Mask::kNone, 0, true, 0,
                             1, 0, Segments::kPacked},
                            {"mixed", dtype, 1, 2, 1, 140, 140, dim, false, Mask::kRandom, 0.25,
                             false, 3, 1, 50, Segments::kMixed}};
      for (int kind = 0; kind < 4; ++kind) {
        if (in_sample(type + wide + kind)) both(specs[kind]);
      }
    }
  }
}

// Scores of about 1e4 decide everything between keys, and nothing overflows.
TEST_F(OwnAttention, LargeScores) {
  for (const DType dtype : {kF, kB, kH}) {
    both({"large", dtype, 1, 2, 1, 70, 70, 64, true, Mask::kNone, 0, false, 0, 80});
    both({"large", dtype, 1, 2, 1, 70, 130, 128, false, Mask::kRandom, 0, false, 0, 80});
  }
}

// The maximum is subtracted by the multiplication's fused addition: its rounding must not count
// where scores are far larger than the logarithms that matter.
TEST_F(OwnAttention, EqualScoresOfEverySize) {
  for (const int64_t queries : {1, 40}) {
    for (const int64_t dim : {8, 100, 128, 200}) {
      for (const DType dtype : {kF, kB, kH}) {
        equal_keys(dtype, queries, dim, 0.7f, 0, 1, 0);
        equal_keys(dtype, queries, dim, 0.7f, 128, 112, 0.7f * 14336.0);
        equal_keys(dtype, queries, dim, 0.7f, -128, 112, 0.7f * -14336.0);
        equal_keys(dtype, queries, dim, 0.7f, 30720, 28672, 0.7f * 30720.0 * 28672.0);
        equal_keys(dtype, queries, dim, 0.7f, 30720, -28672, 0.7f * 30720.0 * -28672.0);
        equal_keys(dtype, queries, dim, -0.7f, 30720, 28672, -0.7f * 30720.0 * 28672.0);
      }
      equal_keys(kF, queries, dim, 0.7f, 0x1.1p50, 0x1.3p51, 0.7f * 0x1.1p50 * 0x1.3p51);
      equal_keys(kB, queries, dim, 0.7f, 0x1.1p50, 0x1.3p51, 0.7f * 0x1.1p50 * 0x1.3p51);
    }
  }
}

// A score that does not fit fp32 shows in the results; one that does not once it is scaled, in lse.
TEST_F(OwnAttention, OverflowShows) {
  for (const DType dtype : {kF, kB}) {
    for (const int64_t queries : {1, 40}) {
      for (const double k : {0x1p55, 0x1p64}) {
        const Tensor q = filled_tensor(dtype, {1, queries, 1, 64}, 0x1p61);
        const Tensor keys = filled_tensor(dtype, {1, 70, 1, 64}, k);
        Tensor out = guarded_tensor(dtype, q.shape());
        Tensor lse = guarded_tensor(kF, {1, 1, queries});
        ops::AttentionOptions options;
        options.scale = 64;
        ops::attention(ctx_, {.q = q, .k = keys, .v = keys}, options, {.out = out, .lse = lse});
        EXPECT_EQ(std::isnan(doubles(out)[0]), k == 0x1p64) << type_name(dtype) << " " << queries;
        EXPECT_FALSE(std::isfinite(doubles(lse)[0])) << type_name(dtype) << " " << queries;
      }
    }
  }
}

// A negative scale is a positive one and queries of the other sign: the same bits.
TEST_F(OwnAttention, NegativeScale) {
  for (const DType dtype : {kF, kB, kH}) {
    for (const int64_t queries : {3, 100}) {
      for (const int64_t dim : {64, 128}) {
        const Spec spec{"negative", dtype,       1, 2,     1, queries, 100, dim,
                        true,       Mask::kNone, 0, false, 0, 2,       45};
        Inputs x = make_inputs(spec, seed_);
        const auto turn = [&] {
          for_each_element(x.in.q, [&](int64_t flat, void* at) {
            set_element(dtype, at, -x.q[static_cast<size_t>(flat)]);
          });
          x.options.scale = -x.options.scale;
        };
        x.options.scale = std::abs(x.options.scale);
        const Results plain = run_operator(ctx_, x);
        turn();
        const Results turned = run_operator(ctx_, x);
        SCOPED_TRACE(str_cat(spec.name(), ", seed ", seed_));
        EXPECT_EQ(doubles(plain.out), doubles(turned.out));
        EXPECT_EQ(doubles(plain.lse), doubles(turned.lse));
        EXPECT_EQ(doubles(plain.grads.k), doubles(turned.grads.k));
        EXPECT_EQ(doubles(plain.grads.v), doubles(turned.grads.v));
        std::vector<double> dq = doubles(turned.grads.q);
        for (double& value : dq) value = -value;
        EXPECT_EQ(doubles(plain.grads.q), dq);
        ++seed_;
      }
    }
  }
}

}  // namespace
}  // namespace ds::testing
