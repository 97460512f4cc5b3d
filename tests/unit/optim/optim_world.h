// What the optimizer tests share: random tensors in a flat space, and optimizers over them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "base/float16.h"
#include "config/config.h"
#include "kernels/optimizer/split_master.h"
#include "nearly_normal.h"
#include "optim/optimizer.h"

namespace ds::optim::testing {

inline OptimizerConfig parse_optimizer(const std::string& json) {
  return load_config("{\"train_batch_size\": 1, \"optimizer\": " + json + "}").optimizer.value();
}

// Tensors at multiples of 32 elements, as the flat layout places them.
inline std::vector<TensorPlace> make_places(const std::vector<Shape>& shapes, int32_t groups = 1,
                                            const std::string& name = "layer") {
  std::vector<TensorPlace> places;
  int64_t at = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t n = shapes[i].elements();
    places.push_back({name + std::to_string(i) + ".weight", shapes[i], at, at + n,
                      static_cast<int32_t>(i) % groups, i % 3 != 1});
    at += (n + 31) / 32 * 32;
  }
  return places;
}

inline int64_t span_of(const std::vector<TensorPlace>& places) {
  return places.empty() ? 0 : (places.back().end + 31) / 32 * 32;
}

struct WorldOptions {
  DType gradients = DType::kFloat32;
  DType model = DType::kFloat32;  // fp32: there is no copy
  bool split = false;
  int threads = 1;
  uint64_t seed = 1;
};

// Flat tensors with padding that is zero.
class World {
 public:
  World(std::vector<TensorPlace> places, const WorldOptions& options)
      : places_(std::move(places)),
        options_(options),
        pool_(options.threads),
        ctx_{make_cpu_device(), &pool_},
        random_(options.seed) {
    const int64_t n = span_of(places_);
    const auto zeros = [&](DType dtype) {
      return Tensor::zeros(ctx_.device, dtype, {n}, MemoryTag::kOther);
    };
    Tensor masters = zeros(DType::kFloat32);
    for_elements([&](const TensorPlace&, int64_t i) {
      masters.data<float>()[i] = static_cast<float>(0.2 * ds::testing::nearly_normal(random_));
    });
    flat_.gradients = zeros(options.gradients);
    if (options.split) {
      flat_.model = zeros(DType::kBFloat16);
      flat_.low_halves = zeros(DType::kUInt16);
      kernels::split_masters(n, masters.data<float>(), flat_.model.memory().data<bfloat16>(),
                             static_cast<uint16_t*>(flat_.low_halves.memory().raw()), pool_);
    } else {
      flat_.masters = masters;
      if (options.model != DType::kFloat32) flat_.model = zeros(options.model);
    }
    // Exact in bf16 and fp16 too, so that the type of gradients does not matter.
    noise_.resize(static_cast<size_t>(n) + kSkips);
    for (float& value : noise_) {
      const double x = std::ldexp(
          std::nearbyint(std::ldexp(0.01 + 0.05 * ds::testing::nearly_normal(random_), 18)), -18);
      value = to_float(to_bfloat16(static_cast<float>(x)));
    }
  }

  template <class Fn>
  void for_elements(const Fn& fn) {
    for (const TensorPlace& place : places_) {
      for (int64_t i = place.begin; i < place.end; ++i) fn(place, i);
    }
  }

  // Gradients of the next step: one sample, read from another place every time.
  void next_gradients() {
    const size_t skip = random_() % kSkips;
    for_elements([&](const TensorPlace&, int64_t i) {
      const float value = noise_[static_cast<size_t>(i) + skip];
      switch (options_.gradients) {
        case DType::kFloat32:
          flat_.gradients.memory().data<float>()[i] = value;
          break;
        case DType::kBFloat16:
          flat_.gradients.memory().data<bfloat16>()[i] = to_bfloat16(value);
          break;
        default:
          static_cast<float16*>(flat_.gradients.memory().raw())[i] = to_float16(value);
      }
    });
  }

  double gradient(int64_t i) const {
    switch (options_.gradients) {
      case DType::kFloat32:
        return flat_.gradients.memory().data<float>()[i];
      case DType::kBFloat16:
        return to_float(flat_.gradients.memory().data<bfloat16>()[i]);
      default:
        return to_float(static_cast<const float16*>(flat_.gradients.memory().raw())[i]);
    }
  }

  float master(int64_t i) const {
    if (!options_.split) return flat_.masters.memory().data<float>()[i];
    return kernels::join_master(flat_.model.memory().data<bfloat16>()[i],
                                static_cast<const uint16_t*>(flat_.low_halves.memory().raw())[i]);
  }

  std::vector<uint32_t> master_bits() {
    std::vector<uint32_t> bits;
    for (int64_t i = 0; i < span_of(places_); ++i) {
      bits.push_back(std::bit_cast<uint32_t>(master(i)));
    }
    return bits;
  }

  std::unique_ptr<Optimizer> optimizer(const OptimizerConfig& config) {
    return make_optimizer(config, owned_places(places_, 0, span_of(places_)), ctx_.device);
  }

  UpdateStep step_of(const Optimizer& optimizer, float grad_scale = 1) const {
    UpdateStep step;
    step.rates.assign(optimizer.base_rates().begin(), optimizer.base_rates().end());
    step.grad_scale = grad_scale;
    return step;
  }

  const std::vector<TensorPlace>& places() const { return places_; }
  FlatTensors& flat() { return flat_; }
  const OpContext& ctx() const { return ctx_; }

 private:
  static constexpr size_t kSkips = 1000;

  std::vector<TensorPlace> places_;
  WorldOptions options_;
  ThreadPool pool_;
  OpContext ctx_;
  std::mt19937_64 random_;
  std::vector<float> noise_;
  FlatTensors flat_;
};

// Of the error that `body` throws; kOk without one.
inline Code code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

}  // namespace ds::optim::testing
