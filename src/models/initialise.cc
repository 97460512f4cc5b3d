// Fresh weights: normal numbers by Box and Muller from counted random bits, so that every element
// is a function of seed, parameter and index alone.
#include <cmath>
#include <numbers>

#include "base/philox.h"
#include "models/model.h"

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

void fill_normal(float* out, int64_t begin, int64_t end, const RandomStream& stream, double std) {
  for (int64_t i = begin; i < end; i += 4) {  // chunks begin at multiples of four
    const Philox4 bits = stream.block(static_cast<uint64_t>(i / 4));
    const auto [a, b] = normal_pair(bits[0], bits[1]);
    const auto [c, d] = normal_pair(bits[2], bits[3]);
    const double values[] = {a, b, c, d};
    for (int64_t j = i; j < std::min(i + 4, end); ++j) {
      out[j] = static_cast<float>(values[j - i] * std);
    }
  }
}

void fill_uniform(float* out, int64_t begin, int64_t end, const RandomStream& stream,
                  double bound) {
  for (int64_t i = begin; i < end; ++i) {
    const double unit = (stream.bits(static_cast<uint64_t>(i)) + 0.5) * 0x1.0p-32;
    out[i] = static_cast<float>((2 * unit - 1) * bound);
  }
}

}  // namespace

void initialise_parameters(const OpContext& ctx, zero::ParameterState& state, uint64_t seed,
                           nn::ParamId first) {
  const nn::ParameterSet& parameters = state.parameters();
  for (nn::ParamId id = first; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    float* const out = state.master(id).data<float>();
    const RandomStream stream{seed, kInitialisationStep, static_cast<uint32_t>(id)};
    ctx.pool->for_range(p.shape.elements(), kGrain, [&](int64_t begin, int64_t end) {
      switch (p.init) {
        case nn::Init::kZeros:
          return std::fill(out + begin, out + end, 0.0f);
        case nn::Init::kOnes:
          return std::fill(out + begin, out + end, 1.0f);
        case nn::Init::kNormal:
          return fill_normal(out, begin, end, stream, p.init_std);
        case nn::Init::kUniform:
          return fill_uniform(out, begin, end, stream, p.init_std);
      }
    });
  }
  state.masters_changed(ctx);
}

}  // namespace ds::models
