// Fresh weights: normal numbers by Box and Muller from counted random bits, so that every element
// is a function of seed, parameter and index alone.
#include <cmath>
#include <numbers>

#include <algorithm>

#include "base/checksum.h"
#include "base/philox.h"
#include "models/weight_loaders.h"
#include "ops/elementwise.h"

namespace ds::models {
namespace {

// Keeps the streams of initialisation apart from those of training steps.
constexpr uint32_t kInitialisationStep = 0xFFFFFFFFu;
constexpr int64_t kGrain = 16384;

// Two normals from two words; (u + 1/2) / 2^32 is never 0.
std::pair<double, double> normal_pair(uint32_t a, uint32_t b) {
  const double radius = std::sqrt(-2 * std::log((a + 0.5) * 0x1.0p-32));
  const double angle = 2 * std::numbers::pi * (b + 0.5) * 0x1.0p-32;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Elements [begin, end) to out[0] on; of each block of four bits only what is wanted is written.
void fill_normal(float* out, int64_t begin, int64_t end, const RandomStream& stream, double std) {
  for (int64_t block = begin / 4 * 4; block < end; block += 4) {
    const Philox4 bits = stream.block(static_cast<uint64_t>(block / 4));
    const auto [a, b] = normal_pair(bits[0], bits[1]);
    const auto [c, d] = normal_pair(bits[2], bits[3]);
    const double values[] = {a, b, c, d};
    for (int64_t j = std::max(begin, block); j < std::min(block + 4, end); ++j) {
      out[j - begin] = static_cast<float>(values[j - block] * std);
    }
  }
}

void fill_uniform(float* out, int64_t begin, int64_t end, const RandomStream& stream,
                  double bound) {
  for (int64_t i = begin; i < end; ++i) {
    const double unit = (stream.bits(static_cast<uint64_t>(i)) + 0.5) * 0x1.0p-32;
    out[i - begin] = static_cast<float>((2 * unit - 1) * bound);
  }
}

class FreshWeights : public nn::WeightLoader {
 public:
  explicit FreshWeights(uint64_t seed) : seed_(seed) {}

  void fill(const OpContext& ctx, nn::ParamId id, const nn::Parameter& p, int64_t begin,
            Tensor& out) const override {
    float* const to = out.data<float>();
    const RandomStream stream{seed_, kInitialisationStep, static_cast<uint32_t>(id)};
    ctx.pool->for_range(out.elements(), kGrain, [&](int64_t first, int64_t last) {
      switch (p.init) {
        case nn::Init::kZeros:
          return std::fill(to + first, to + last, 0.0f);
        case nn::Init::kOnes:
          return std::fill(to + first, to + last, 1.0f);
        case nn::Init::kNormal:
          return fill_normal(to + first, begin + first, begin + last, stream, p.init_std);
        case nn::Init::kUniform:
          return fill_uniform(to + first, begin + first, begin + last, stream, p.init_std);
      }
    });
  }
  uint64_t fingerprint() const override { return mixed(1, seed_); }

 private:
  uint64_t seed_;
};

class JoinedWeights : public nn::WeightLoader {
 public:
  JoinedWeights(std::shared_ptr<const nn::WeightLoader> first, nn::ParamId count,
                std::shared_ptr<const nn::WeightLoader> rest)
      : first_(std::move(first)), count_(count), rest_(std::move(rest)) {}

  void fill(const OpContext& ctx, nn::ParamId id, const nn::Parameter& p, int64_t begin,
            Tensor& out) const override {
    const nn::WeightLoader* const source = id < count_ ? first_.get() : rest_.get();
    if (source != nullptr) return source->fill(ctx, id, p, begin, out);
    ops::fill(ctx, 0.0f, out);
  }
  uint64_t fingerprint() const override {
    const auto of = [](const auto& source) { return source ? source->fingerprint() : 0; };
    return mixed(mixed(mixed(2, of(first_)), static_cast<uint64_t>(count_)), of(rest_));
  }

 private:
  std::shared_ptr<const nn::WeightLoader> first_;
  nn::ParamId count_;
  std::shared_ptr<const nn::WeightLoader> rest_;
};

}  // namespace

uint64_t mixed(uint64_t seed, uint64_t value) {
  const uint64_t words[] = {seed, value};
  return xxh3_64(std::as_bytes(std::span(words)));
}

std::shared_ptr<const nn::WeightLoader> fresh_weights(uint64_t seed) {
  return std::make_shared<FreshWeights>(seed);
}

std::shared_ptr<const nn::WeightLoader> joined_weights(
    std::shared_ptr<const nn::WeightLoader> first, nn::ParamId count,
    std::shared_ptr<const nn::WeightLoader> rest) {
  return std::make_shared<JoinedWeights>(std::move(first), count, std::move(rest));
}

}  // namespace ds::models
