// Fresh weights from counted random bits, so that every element is a function of seed, parameter
// and index alone.
#include <algorithm>

#include "base/checksum.h"
#include "base/philox.h"
#include "kernels/random/normal.h"
#include "models/weight_loaders.h"
#include "ops/elementwise.h"

namespace ds::models {
namespace {

// Keeps the streams of initialisation apart from those of training steps.
constexpr uint32_t kInitialisationStep = 0xFFFFFFFFu;
constexpr int64_t kGrain = 16384;

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
          return kernels::fill_normal({.stream = stream,
                                       .begin = begin + first,
                                       .count = last - first,
                                       .deviation = p.init_std,
                                       .out = to + first});
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
  void fill_slice(const OpContext& ctx, nn::ParamId id, const nn::Parameter& p, int64_t begin,
                  Tensor& out) const override {
    const nn::WeightLoader* const source = id < count_ ? first_.get() : rest_.get();
    if (source != nullptr) return source->fill_slice(ctx, id, p, begin, out);
    ops::fill(ctx, 0.0f, out);
  }
  uint64_t fingerprint() const override {
    const auto of = [](const auto& source) { return source ? source->fingerprint() : 0; };
    return mixed(mixed(mixed(2, of(first_)), static_cast<uint64_t>(count_)), of(rest_));
  }

  const nn::WeightLoader* first() const { return first_.get(); }

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

bool makes_fresh_weights(const nn::WeightLoader& loader) {
  if (dynamic_cast<const FreshWeights*>(&loader) != nullptr) return true;
  const auto* const joined = dynamic_cast<const JoinedWeights*>(&loader);
  return joined != nullptr && joined->first() != nullptr && makes_fresh_weights(*joined->first());
}

std::shared_ptr<const nn::WeightLoader> joined_weights(
    std::shared_ptr<const nn::WeightLoader> first, nn::ParamId count,
    std::shared_ptr<const nn::WeightLoader> rest) {
  return std::make_shared<JoinedWeights>(std::move(first), count, std::move(rest));
}

}  // namespace ds::models
