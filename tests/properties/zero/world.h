// What the drivers of this folder share: parameters of the caller with gradients that are exact in
// every type, so that expected weights can be named to the bit, and models that train themselves.
#pragma once

#include <gmock/gmock.h>

#include "unit/zero/own_world.h"

namespace ds::properties {

using namespace zero_test;

inline const std::shared_ptr<Device>& host() {
  static const std::shared_ptr<Device> device = make_cpu_device();
  return device;
}

inline DType type_of(const std::string& precision) {
  return precision == "fp16"   ? DType::kFloat16
         : precision == "bf16" ? DType::kBFloat16
                               : DType::kFloat32;
}

// fp32, bf16 or fp16, whose scale of 256 no short run moves; LAMB takes no static one.
inline Json precision_config(const std::string& precision) {
  if (precision == "bf16") return {{"bf16", {{"enabled", true}}}};
  if (precision == "fp16") return {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}};
  return Json::object();
}

// Any optimizer, with what it takes to have it at every stage.
inline Json optimizer_config(const std::string& type, Json params = Json::object()) {
  if (!params.contains("lr")) params["lr"] = 0.03125;
  return {{"optimizer", {{"type", type}, {"params", params}}},
          {"zero_optimization", {{"reduce_scatter", type != "Muon"}}},
          {"zero_allow_untested_optimizer", true}};
}

inline Json patched(Json config, const std::vector<Json>& changes) {
  for (const Json& change : changes) config.merge_patch(change);
  return config;
}

// A configuration for gradients of the caller: no clipping, whose factor would be no power of 2.
inline Json given_config(int stage, const std::vector<Json>& changes = {}) {
  return patched(
      own_config(stage, {{"stage3_param_persistence_threshold", 0}}, {{"gradient_clipping", 0}}),
      changes);
}

// A whole multiple of 1/8 in [-5/8, 5/8]: exact in every type, also as a sum over ranks.
inline float exact_gradient(int64_t id, int64_t i, int64_t rank, int64_t step) {
  return static_cast<float>((id * 13 + i * 7 + rank * 5 + step * 3) % 11 - 5) / 8;
}

template <class Fn>
Tensor tensor_of(const Shape& shape, const Fn& value_at) {
  Tensor out = Tensor::empty(host(), DType::kFloat32, shape, MemoryTag::kOther);
  for (int64_t i = 0; i < out.elements(); ++i) out.data<float>()[i] = value_at(i);
  return out;
}

// Parameters p0, p1, ... of the caller; those of `frozen` do not train. Values are multiples of
// 1/8, too.
inline std::shared_ptr<models::Model> given_model(const std::vector<Shape>& shapes,
                                                  DType dtype = DType::kFloat32,
                                                  const std::vector<size_t>& frozen = {}) {
  nn::ParameterSet set;
  for (size_t i = 0; i < shapes.size(); ++i) {
    nn::Parameter p;
    p.name = str_cat("p", i);
    p.shape = shapes[i];
    p.dtype = dtype;
    p.trainable = std::find(frozen.begin(), frozen.end(), i) == frozen.end();
    set.add(p);
  }
  auto model = models::Model::from_parameters(std::move(set));
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    model->set(str_cat("p", i),
               tensor_of(shapes[i], [&](int64_t at) { return exact_gradient(id, at, 3, 1); }));
  }
  return model;
}

// Adds value_at(i) to the gradient of a parameter, with the loss scale on it.
template <class Fn>
void give(Engine& engine, int64_t index, const Fn& value_at) {
  const Shape& shape = engine.model()->parameters()[static_cast<nn::ParamId>(index)].shape;
  const auto scale = static_cast<float>(engine.loss_scale());
  const Tensor gradient = tensor_of(shape, [&](int64_t i) { return scale * value_at(i); });
  const Tensor* const one = &gradient;
  engine.gradients().add({&index, 1}, {&one, 1});
}

// What this rank has of all parameters in a step; of those alone that `wanted` takes.
template <class Fn>
void give_exact(Engine& engine, int64_t rank, int64_t step, const Fn& wanted) {
  const nn::ParameterSet& set = engine.model()->parameters();
  for (int64_t id = set.size() - 1; id >= 0; --id) {
    if (!set[static_cast<nn::ParamId>(id)].trainable || !wanted(id)) continue;
    give(engine, id, [&](int64_t i) { return exact_gradient(id, i, rank, step); });
  }
}
inline void give_exact(Engine& engine, int64_t rank, int64_t step) {
  give_exact(engine, rank, step, [](int64_t) { return true; });
}

// Every weight, fp32, parameter after parameter (every rank).
inline std::vector<float> values(Engine& engine) {
  std::vector<float> out;
  const nn::ParameterSet& set = engine.model()->parameters();
  for (nn::ParamId id = 0; id < set.size(); ++id) {
    const std::vector<float> one = flat(engine.model()->get(set[id].name));
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

inline bool all_finite(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

// One process that is given the mean of what `world` ranks have: what they must come to.
template <class Fn>
std::vector<float> one_process(const Json& config, const std::vector<Shape>& shapes, DType dtype,
                               int steps, int world, const Fn& value_at) {
  Json alone = config;
  alone["zero_optimization"]["stage"] = 0;
  Engine engine(dump_json(alone), given_model(shapes, dtype), nullptr);
  for (int step = 0; step < steps; ++step) {
    for (int64_t id = 0; id < static_cast<int64_t>(shapes.size()); ++id) {
      give(engine, id, [&](int64_t i) {
        float sum = 0;
        for (int rank = 0; rank < world; ++rank) sum += value_at(id, i, rank, step);
        return sum / static_cast<float>(world);
      });
    }
    EXPECT_TRUE(engine.step().applied);
  }
  return values(engine);
}

inline MicroBatch token_batch(int rank, int64_t step) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 16; ++i) ids.push_back((i * 5 + rank * 11 + step * 7) % 61);
  const Tensor tokens = ids_tensor(ids, 2);
  return {tokens, tokens, Tensor(), Tensor(), Tensor()};
}

}  // namespace ds::properties
