#include "models/rotary_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tensor/transfer.h"

namespace ds::models {
namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 24;

RotaryScaling read_scaling(const ConfigReader& read) {
  // Old configurations write `type`; when both are there they must agree.
  const std::string type = read.text("rope_type", read.text("type", "default"));
  const std::string old = read.text("type", type);
  DS_CHECK(old == type, Code::kConfig, read.where(), ": rope_type is ", printable(type),
           " but type is ", printable(old));
  if (type == "default") return RotaryScaling::kDefault;
  if (type == "linear") return RotaryScaling::kLinear;
  if (type == "dynamic") return RotaryScaling::kDynamic;
  if (type == "llama3") return RotaryScaling::kLlama3;
  if (type == "yarn") return RotaryScaling::kYarn;
  fail(Code::kUnsupported, read.where(), ": rope_type ", printable(type),
       " is not available; default, linear, dynamic, llama3 and yarn are");
}

void read_yarn(const ConfigReader& read, RotaryConfig& c) {
  c.beta_fast = read.number("beta_fast", 32, 0, 1e6);
  c.beta_slow = read.number("beta_slow", 1, 0, 1e6);
  if (c.beta_fast == 0) c.beta_fast = 32;  // as the reference reads zero: not given
  if (c.beta_slow == 0) c.beta_slow = 1;
  c.truncate = read.flag("truncate", true);
  const double mscale = read.number("mscale", 0, 0, 1e6);
  const double mscale_all = read.number("mscale_all_dim", 0, 0, 1e6);
  c.magnitude_of_all = mscale_all;
  const auto magnitude = [&](double m) {
    return c.factor <= 1 ? 1.0 : 0.1 * m * std::log(c.factor) + 1.0;
  };
  const double inferred =
      mscale != 0 && mscale_all != 0 ? magnitude(mscale) / magnitude(mscale_all) : magnitude(1);
  c.attention_factor = read.number("attention_factor", inferred, 1e-6, 1e6);
}

double inverse_power(const RotaryConfig& c, double theta, int64_t pair) {
  return std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(c.channels));
}

double llama3_frequency(const RotaryConfig& c, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(c.original_positions);
  if (wavelength < original / c.high_frequency_factor) return frequency;
  if (wavelength > original / c.low_frequency_factor) return frequency / c.factor;
  const double smooth = (original / wavelength - c.low_frequency_factor) /
                        (c.high_frequency_factor - c.low_frequency_factor);
  return (1 - smooth) * frequency / c.factor + smooth * frequency;
}

// The pair of channels that turns so many times over the original length.
double yarn_pair(const RotaryConfig& c, double turns) {
  return static_cast<double>(c.channels) *
         std::log(static_cast<double>(c.original_positions) / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(c.theta));
}

}  // namespace

RotaryConfig read_rotary(const ConfigReader& read, int64_t head_size, int64_t max_positions,
                         const RotaryDefaults& defaults) {
  RotaryConfig c;
  c.max_positions = max_positions;
  const double old_theta = read.number(defaults.theta_key, defaults.theta, 1.0 + 1e-9, 1e15);
  const double old_partial = read.number(defaults.partial_key, defaults.partial, 0, 1 + 1e-9);
  const Json* parameters = read.object("rope_parameters");
  const Json* old = read.object("rope_scaling");
  DS_CHECK(parameters == nullptr || old == nullptr || *parameters == *old, Code::kConfig,
           read.where(), ": rope_parameters and rope_scaling differ; keep one of them");
  if (parameters == nullptr) parameters = old;
  const Json none = Json::object();
  const ConfigReader rope(parameters == nullptr ? none : *parameters,
                          read.where() + (old == nullptr ? ": rope_parameters" : ": rope_scaling"));
  for (const auto& [key, value] : (parameters == nullptr ? none : *parameters).items()) {
    DS_CHECK(!value.is_object(), Code::kUnsupported, rope.where(), ": ", printable(key),
             " is an object of its own; rotary parameters per layer type are not available");
  }
  c.scaling = read_scaling(rope);
  c.theta = rope.number("rope_theta", old_theta, 1.0 + 1e-9, 1e15);
  const double partial = rope.number("partial_rotary_factor", old_partial, 0, 1 + 1e-9);
  DS_CHECK(defaults.partial_allowed || partial == 1, Code::kUnsupported, read.where(),
           ": partial_rotary_factor ", format_number(partial),
           " is not available for this model_type, whose heads turn whole");
  c.channels = static_cast<int64_t>(static_cast<double>(head_size) * partial);
  DS_CHECK(c.channels >= 2 && c.channels % 2 == 0, Code::kConfig, read.where(), ": ", c.channels,
           " of ", head_size, " channels of a head would turn; an even number of at least 2 must");
  if (c.scaling == RotaryScaling::kDefault) {
    rope.ignore({"factor", "original_max_position_embeddings"});
  } else {
    DS_CHECK(rope.has("factor") || c.scaling == RotaryScaling::kYarn, Code::kConfig, rope.where(),
             ": factor is missing");
    c.factor = rope.number("factor", 1, 1, 1e6);
  }
  if (c.scaling == RotaryScaling::kDynamic) {
    DS_CHECK(c.channels > 2, Code::kConfig, rope.where(),
             ": dynamic scaling needs more than 2 turning channels");
    rope.ignore({"original_max_position_embeddings"});
  }
  if (c.scaling == RotaryScaling::kLlama3 || c.scaling == RotaryScaling::kYarn) {
    c.original_positions =
        rope.count("original_max_position_embeddings", max_positions, kMaxPositions);
    // Some configurations keep it beside the parameters; that one counts.
    c.original_positions =
        read.count("original_max_position_embeddings", c.original_positions, kMaxPositions);
    if (!rope.has("factor")) {
      c.factor = std::max(
          1.0, static_cast<double>(max_positions) / static_cast<double>(c.original_positions));
    }
  }
  if (c.scaling == RotaryScaling::kLlama3) {
    c.low_frequency_factor = rope.number("low_freq_factor", 1, 1e-6, 1e6);
    c.high_frequency_factor = rope.number("high_freq_factor", 4, 1e-6, 1e6);
    DS_CHECK(c.low_frequency_factor < c.high_frequency_factor, Code::kConfig, rope.where(),
             ": low_freq_factor must be below high_freq_factor");
  }
  if (c.scaling == RotaryScaling::kYarn) read_yarn(rope, c);
  rope.finish();
  return c;
}

std::vector<double> rotary_frequencies(const RotaryConfig& c, int64_t length) {
  const int64_t pairs = c.channels / 2;
  double theta = c.theta;
  if (c.scaling == RotaryScaling::kDynamic && length > c.max_positions) {
    const auto channels = static_cast<double>(c.channels);
    const double growth =
        c.factor * static_cast<double>(length) / static_cast<double>(c.max_positions) -
        (c.factor - 1);
    theta *= std::pow(growth, channels / (channels - 2));
  }
  double low = 0, high = 0;
  if (c.scaling == RotaryScaling::kYarn) {
    low = yarn_pair(c, c.beta_fast);
    high = yarn_pair(c, c.beta_slow);
    if (c.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(c.channels - 1));
    if (low == high) high += 0.001;
  }
  std::vector<double> out(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) {
    double f = inverse_power(c, theta, i);
    if (c.scaling == RotaryScaling::kLinear) f /= c.factor;
    if (c.scaling == RotaryScaling::kLlama3) f = llama3_frequency(c, f);
    if (c.scaling == RotaryScaling::kYarn) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      f = f / c.factor * ramp + f * (1 - ramp);
    }
    out[static_cast<size_t>(i)] = f;
  }
  return out;
}

int64_t rotary_positions(const RotaryConfig& c) {
  double reach = static_cast<double>(c.max_positions);
  if (c.scaling == RotaryScaling::kLinear || c.scaling == RotaryScaling::kDynamic) {
    reach *= c.factor;
  }
  if (c.scaling == RotaryScaling::kYarn) {
    reach = std::max(reach, c.factor * static_cast<double>(c.original_positions));
  }
  return static_cast<int64_t>(std::min(reach, static_cast<double>(kMaxPositions)));
}

int64_t RotaryTables::reach(const Tensor& position_ids) {
  const Tensor readable =
      on_host(position_ids)
          ? position_ids
          : to_host(position_ids, host_memory_of(position_ids.storage()->device()));
  const int32_t* const ids = readable.data<int32_t>();
  return readable.elements() == 0 ? 1
                                  : int64_t{*std::max_element(ids, ids + readable.elements())} + 1;
}

nn::RotaryTable RotaryTables::rows(const OpContext& ctx, const Tensor& position_ids,
                                   int64_t positions) const {
  const int64_t needed = positions > 0 ? positions : reach(position_ids);
  DS_CHECK(needed <= kMaxPositions, Code::kInvalidArgument, "position ", needed - 1,
           " lies beyond the last possible one, ", kMaxPositions - 1);
  const std::lock_guard lock(mutex_);
  // Only dynamic scaling asks for the length, and only beyond the trained one.
  const int64_t length = config_.scaling == RotaryScaling::kDynamic
                             ? std::max(needed, config_.max_positions)
                             : config_.max_positions;
  const bool here = table_.cos && table_.cos.storage()->device() == ctx.device;
  if (here && table_.cos.size(0) >= needed && length_ == length) return table_;
  // Growing by doubling keeps decoding from making a table per token.
  int64_t rows = 64;
  while (rows < needed) rows *= 2;
  const int64_t pairs = config_.channels / 2;
  const std::vector<double> frequencies = rotary_frequencies(config_, length);
  const std::shared_ptr<Device> host = host_memory_of(ctx.device);
  nn::RotaryTable table{Tensor::empty(host, DType::kFloat32, {rows, pairs}, MemoryTag::kOther),
                        Tensor::empty(host, DType::kFloat32, {rows, pairs}, MemoryTag::kOther)};
  float* const cos = table.cos.data<float>();
  float* const sin = table.sin.data<float>();
  ctx.pool->for_range(rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < pairs; ++i) {
        // The angle is rounded as the reference rounds it: fp32 frequency times fp32 position.
        const auto frequency = static_cast<float>(frequencies[static_cast<size_t>(i)]);
        const double angle = static_cast<float>(r) * frequency;
        cos[r * pairs + i] = static_cast<float>(std::cos(angle) * config_.attention_factor);
        sin[r * pairs + i] = static_cast<float>(std::sin(angle) * config_.attention_factor);
      }
    }
  });
  table_ = {to_device(table.cos, ctx.device, MemoryTag::kOther),
            to_device(table.sin, ctx.device, MemoryTag::kOther)};
  length_ = length;
  return table_;
}

}  // namespace ds::models
