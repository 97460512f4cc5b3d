// What tests of model families share: fresh random batches, one training pass, gradients as lists.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "attached_state.h"
#include "models/inputs.h"
#include "models/model.h"
#include "nn/loss.h"

namespace ds::testing {

struct Texts {
  std::vector<std::vector<int32_t>> ids, labels, types, segments;
  std::vector<std::vector<int>> masks;
};

// Rows of equal length; later rows have padding at the front or, for `encoder`, at the end.
inline Texts random_texts(std::mt19937_64& random, size_t batch, size_t length, int32_t vocab,
                          bool encoder = false) {
  std::uniform_int_distribution<int32_t> token(0, vocab - 1);
  Texts out;
  for (size_t b = 0; b < batch; ++b) {
    out.ids.emplace_back();
    out.labels.emplace_back();
    out.masks.emplace_back();
    out.types.emplace_back();
    for (size_t t = 0; t < length; ++t) {
      const bool padding = encoder ? t >= length - b : t < b;
      out.ids[b].push_back(token(random));
      out.labels[b].push_back(padding || token(random) < 5 ? -100 : token(random));
      out.masks[b].push_back(padding ? 0 : 1);
      out.types[b].push_back(t > length / 3);
    }
  }
  return out;
}

template <class T>
Tensor matrix(models::Model& model, DType dtype, const std::vector<std::vector<T>>& rows) {
  Tensor out = Tensor::empty(
      model.device(), dtype,
      {static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size())}, MemoryTag::kOther);
  auto* to = static_cast<T*>(out.raw());
  for (const auto& row : rows) to = std::copy(row.begin(), row.end(), to);
  return out;
}

inline models::Batch make_batch(models::Model& model, const OpContext& ctx, const Texts& texts) {
  const models::ArchitectureInfo& info = model.architecture().info();
  models::Batch batch;
  batch.ids =
      models::token_ids(ctx, matrix(model, DType::kInt32, texts.ids), "ids", info.vocab_size);
  batch.position_ids = models::position_ids(ctx, batch.ids.size(0), batch.ids.size(1), 0);
  batch.key_mask = models::key_mask(ctx, matrix(model, DType::kInt32, texts.masks), batch.ids);
  if (info.token_types > 0) batch.token_types = matrix(model, DType::kInt32, texts.types);
  return batch;
}

struct Pass {
  int64_t segments = 0;
  int threads = 1;
};

// One forward and backward; gradients are left in the model's state. For a classifier the first
// label of each row counts.
inline double run_pass(models::Model& model, const Texts& texts, const Pass& pass = {}) {
  ThreadPool pool(pass.threads);
  const OpContext ctx{model.device(), &pool};
  train_state(model).gradients().allocate();
  nn::TapeOptions options;
  options.seed = 7;
  options.step = 3;
  nn::Tape tape(ctx, train_state(model).weights(), &train_state(model).gradients(), options);
  const models::Batch batch = make_batch(model, ctx, texts);
  Tensor labels = matrix(model, DType::kInt32, texts.labels);
  const models::ArchitectureInfo& info = model.architecture().info();
  int64_t valid = info.vocab_size;
  if (info.head == models::Head::kClassification) {
    valid = info.classes;
    Tensor classes =
        Tensor::empty(model.device(), DType::kInt32, {labels.size(0)}, MemoryTag::kOther);
    for (int64_t b = 0; b < labels.size(0); ++b) {
      classes.data<int32_t>()[b] =
          texts.ids[static_cast<size_t>(b)][0] % static_cast<int32_t>(valid);
    }
    labels = classes;
  }
  models::ForwardOptions forward;
  forward.recompute.segments = pass.segments;
  nn::RouterRecord routers;
  forward.routers = &routers;
  const nn::Value logits = model.architecture().logits(tape, batch, forward);
  int64_t counted = 0;
  const nn::Value loss = nn::cross_entropy(tape, logits, labels, valid, counted);
  Tensor one = ctx.workspace(DType::kFloat32, {});
  *one.data<float>() = 1;
  loss.slot->add(ctx, one, true);
  tape.backward();
  return static_cast<double>(*loss.data.data<float>()) + routers.loss();
}

inline std::vector<float> values(const Tensor& x) {
  return {x.data<float>(), x.data<float>() + x.elements()};
}

// Moves every parameter, so that biases and norms are tested for real.
inline void disturb(models::Model& model, std::mt19937_64& random, float spread = 0.2f) {
  std::normal_distribution<float> normal(0, spread);
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const std::string& name = model.parameters()[id].name;
    const Tensor value = model.get(name);
    for (int64_t i = 0; i < value.elements(); ++i) value.data<float>()[i] += normal(random);
    model.set(name, value);
  }
}

}  // namespace ds::testing
