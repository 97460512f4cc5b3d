// Adam with 8-bit states has a loop of its own for blocks that lie in one piece. Cut in the middle
// of every block, so that the general stages take all of it, the same update gives the same bits.
#include <gtest/gtest.h>

#include "kernels/simd_targets.h"  // before Highway: which targets there are

#include <hwy/targets.h>

#include <algorithm>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/text.h"
#include "base/thread_pool.h"
#include "fresh_seed.h"
#include "kernels/optimizer/update.h"

namespace ds::kernels {
namespace {

constexpr int64_t kStages = 1024;  // what the stages take at a time
enum class Masters { kFp32, kCopied, kSplit };

// What an update reads and writes.
struct Arrays {
  std::vector<float> master, grad, scales[2];
  std::vector<bfloat16> weight, narrow_grad;
  std::vector<uint16_t> low;
  std::vector<uint8_t> codes[2];

  explicit Arrays(int64_t count, std::mt19937_64& random) {
    const auto n = static_cast<size_t>(count);
    const size_t blocks = (n + kStateBlock - 1) / kStateBlock;
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& to, size_t size, float scale) {
      to.resize(size);
      for (float& x : to) x = normal(random) * scale;
    };
    fill(master, n, 0.02f);
    fill(grad, n, 1e-3f);
    for (const float x : master) weight.push_back(to_bfloat16(x));
    for (const float x : grad) narrow_grad.push_back(to_bfloat16(x));
    for (size_t i = 0; i < n; ++i) low.push_back(static_cast<uint16_t>(random()));
    for (int which = 0; which < 2; ++which) {
      for (size_t i = 0; i < n; ++i) codes[which].push_back(static_cast<uint8_t>(random()));
      fill(scales[which], blocks, which == 0 ? 1e-3f : 1e-6f);
      for (float& x : scales[which]) x = std::fabs(x);
      scales[which][random() % blocks] = 0;  // a block of zeros
    }
    // -128 is no code.
    for (uint8_t& code : codes[0]) code = code == 0x80 ? 0 : code;
  }

  UpdateArrays view(Masters masters, NumberKind gradient) {
    UpdateArrays a;
    a.n = static_cast<int64_t>(grad.size());
    a.grad_kind = gradient;
    a.grad =
        gradient == NumberKind::kFp32 ? static_cast<const void*>(grad.data()) : narrow_grad.data();
    if (masters == Masters::kSplit) {
      a.weight = weight.data();
      a.low = low.data();
    } else {
      a.master = master.data();
    }
    if (masters == Masters::kCopied) {
      a.model_kind = NumberKind::kBf16;
      a.model = weight.data();
    }
    a.state[0] = {StateKind::kInt8, codes[0].data(), scales[0].data()};
    a.state[1] = {StateKind::kUInt8, codes[1].data(), scales[1].data()};
    return a;
  }
};

void update(Arrays& arrays, Masters masters, NumberKind gradient,
            const std::vector<UpdatePiece>& pieces) {
  UpdateHyper hyper;
  hyper.step = 7;
  hyper.weight_decay = 0.1;
  hyper.grad_scale = 0.5f;
  const UpdateConstants constants[] = {update_constants(UpdateRule::kAdam, hyper)};
  std::vector<int64_t> first;
  const UpdateArrays view = arrays.view(masters, gradient);
  for (int64_t chunk = 0; chunk * kUpdateChunk < view.n; ++chunk) {
    first.push_back(std::count_if(pieces.begin(), pieces.end(), [&](const UpdatePiece& piece) {
      return piece.begin < chunk * kUpdateChunk;
    }));
  }
  first.push_back(static_cast<int64_t>(pieces.size()));
  ThreadPool pool(2);
  optimizer_update(UpdateRule::kAdam, constants, pieces, first, view, pool);
}

using Case = std::tuple<int64_t, Masters, NumberKind>;

class CodedUpdate : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(std::get<0>(GetParam())); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(CodedUpdate, HasTheBitsOfTheStages) {
  const auto [target, masters, gradient] = GetParam();
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  std::mt19937_64 random(seed);
  // More than one chunk, and an end within a block.
  const int64_t n = kUpdateChunk + 5 * kStages + 2 * kStateBlock + 37;
  Arrays whole(n, random), cut = whole;
  std::vector<UpdatePiece> one, many;
  for (int64_t begin = 0; begin < n; begin += kUpdateChunk) {
    one.push_back({begin, std::min(begin + kUpdateChunk, n), 0});
  }
  for (int64_t begin = 0; begin < n;) {
    const int64_t middle = begin / kStages * kStages + 300;
    const int64_t chunk_end = (begin / kUpdateChunk + 1) * kUpdateChunk;
    const int64_t end = std::min({middle > begin ? middle : middle + kStages, chunk_end, n});
    many.push_back({begin, end, 0});
    begin = end;
  }
  const std::vector<uint8_t> before = whole.codes[0];
  update(whole, masters, gradient, one);
  update(cut, masters, gradient, many);
  EXPECT_NE(before, whole.codes[0]);
  for (int which = 0; which < 2; ++which) {
    EXPECT_EQ(whole.codes[which], cut.codes[which]) << which;
    EXPECT_EQ(whole.scales[which], cut.scales[which]) << which;
  }
  EXPECT_EQ(whole.master, cut.master);
  EXPECT_EQ(whole.low, cut.low);
  for (size_t i = 0; i < whole.weight.size(); ++i) {
    ASSERT_EQ(whole.weight[i].bits, cut.weight[i].bits) << i;
  }
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto [target, masters, gradient] = info.param;
  const char* kind = masters == Masters::kFp32    ? "Fp32"
                     : masters == Masters::kSplit ? "Split"
                                                  : "Copied";
  return str_cat(hwy::TargetName(target), kind, gradient == NumberKind::kFp32 ? "Fp32" : "Bf16",
                 "Gradient");
}

INSTANTIATE_TEST_SUITE_P(
    Targets, CodedUpdate,
    ::testing::Combine(::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                       ::testing::Values(Masters::kFp32, Masters::kCopied, Masters::kSplit),
                       ::testing::Values(NumberKind::kFp32, NumberKind::kBf16)),
    name_of);

}  // namespace
}  // namespace ds::kernels
