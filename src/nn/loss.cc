#include "nn/loss.h"

#include <algorithm>
#include <cmath>

#include "nn/loss_parts.h"
#include "nn/profile.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"

namespace ds::nn {

Tensor sum_of(const OpContext& ctx, const Tensor& losses) {
  Tensor sum = ctx.workspace(DType::kFloat64, {1});
  if (!on_host(losses)) {
    ops::sum(ctx, losses, sum);
    return sum;
  }
  double total = 0;
  const float* const loss = losses.data<float>();
  for (int64_t i = 0; i < losses.elements(); ++i) total += loss[i];
  *sum.data<double>() = total;
  return sum;
}

void record_gradient(Tape& tape, const Value& logits, const Tensor& gradient,
                     const std::shared_ptr<GradientSlot>& slot) {
  tape.record([gradient, shape = logits.data.shape(), in = logits.slot,
               expected = tape.loss_gradient(), slot](Tape& t) {
    if (!*slot) return;
    const float upstream = *slot->gradient().data<float>();
    Tensor dlogits = gradient;
    if (upstream != expected) ops::scale(t.ctx(), dlogits, upstream / expected, dlogits);
    in->add(t.ctx(), dlogits.view(shape), true);
  });
}

Labels place_labels(const Tensor& labels, const std::shared_ptr<Device>& device) {
  DS_CHECK(on_host(labels), Code::kInternal, "labels are read on the host");
  const int64_t rows = labels.elements();
  if (labels.dtype() == DType::kFloat32) return {labels.view({rows}), rows};
  const int32_t* const label = labels.data<int32_t>();
  return {to_device(labels.view({rows}), device),
          rows - std::count(label, label + rows, ops::kIgnoreLabel)};
}

SummedLoss summed_cross_entropy(Tape& tape, const Value& logits, const Labels& labels,
                                int64_t valid) {
  const OperatorScope op(tape, "cross_entropy");
  const int64_t vocab = logits.data.shape()[-1];
  const int64_t rows = logits.data.elements() / vocab;
  if (op) op.work(Arithmetic::elementwise(rows * valid), Arithmetic::elementwise(rows * valid));
  const Tensor flat = logits.data.view({rows, vocab});
  Tensor losses = tape.new_activation(DType::kFloat32, {rows});
  // While training, the logits become their gradient in the same pass that reads them: nothing
  // else looks at them any more.
  const bool fused = tape.recording() && logits.slot;
  Tensor gradient = flat;
  if (fused && tape.loss_scale()) {
    ops::cross_entropy_fused(tape.ctx(), gradient, labels.targets, valid, tape.loss_scale(),
                             losses);
  } else if (fused) {
    ops::cross_entropy_fused(tape.ctx(), gradient, labels.targets, valid,
                             tape.loss_gradient() * labels.share(), losses);
  } else {
    Tensor lse = tape.new_activation(DType::kFloat32, {rows});
    ops::cross_entropy(tape.ctx(), flat, labels.targets, valid, losses, lse);
  }
  SummedLoss out{sum_of(tape.ctx(), losses), nullptr};
  if (tape.recording()) out.slot = std::make_shared<GradientSlot>();
  if (!fused) return out;
  record_gradient(tape, logits, gradient, out.slot);
  return out;
}

float MeanLoss::value() {
  if (counted_ == 0) return static_cast<float>(added_);
  return static_cast<float>(*sum_.host().data<double>() / static_cast<double>(counted_) + added_);
}

namespace {

struct OneLoss {
  double value;
  double gradient;  // by the output
};

OneLoss loss_of(LossKind kind, double x, double target) {
  if (kind == LossKind::kSquaredError) return {(x - target) * (x - target), 2 * (x - target)};
  // log(1 + exp(-|x|)) overflows for no logit.
  const double tail = std::exp(-std::abs(x));
  const double probability = x >= 0 ? 1 / (1 + tail) : tail / (1 + tail);
  return {std::max(x, 0.0) - x * target + std::log1p(tail), probability - target};
}

SummedLoss summed_elementwise(Tape& tape, const Value& logits, const Labels& labels,
                              LossKind kind) {
  const OperatorScope op(tape, "loss");
  const OpContext& ctx = tape.ctx();
  const int64_t n = logits.data.elements();
  DS_CHECK(labels.targets.dtype() == DType::kFloat32 && labels.targets.elements() == n,
           Code::kInternal, "a loss of ", n, " outputs asks for as many numbers");
  if (op) op.work(Arithmetic::elementwise(n), Arithmetic::elementwise(n));
  Tensor wide = logits.data;
  if (wide.dtype() != DType::kFloat32) {
    wide = ctx.workspace(DType::kFloat32, logits.data.shape());
    ops::cast(ctx, logits.data, wide);
  }
  const auto host = host_memory_of(ctx.device);
  const Tensor outputs = copied_to_host(wide, host);
  const Tensor gradient = Tensor::empty(host, DType::kFloat32, {n}, MemoryTag::kActivations);
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    const OneLoss one = loss_of(kind, outputs.data<float>()[i], labels.targets.data<float>()[i]);
    total += one.value;
    gradient.data<float>()[i] = static_cast<float>(one.gradient);
  }
  SummedLoss out{Tensor::empty(host, DType::kFloat64, {1}, MemoryTag::kActivations), nullptr};
  *out.sum.data<double>() = total;
  if (!tape.recording()) return out;
  out.slot = std::make_shared<GradientSlot>();
  tape.record([gradient, like = logits.data, in = logits.slot, share = labels.share(),
               slot = out.slot](Tape& t) {
    if (!*slot || !in) return;
    const float scale = *slot->gradient().data<float>() * share;
    float* const values = gradient.data<float>();
    for (int64_t i = 0; i < gradient.elements(); ++i) values[i] *= scale;
    Tensor placed = to_device(gradient.view(like.shape()), t.ctx().device);
    if (like.dtype() != DType::kFloat32) {
      Tensor narrow = t.ctx().workspace(like.dtype(), like.shape());
      ops::cast(t.ctx(), placed, narrow);
      placed = narrow;
    }
    in->add(t.ctx(), placed, true);
  });
  return out;
}

}  // namespace

SummedLoss summed_loss(Tape& tape, const Value& logits, const Labels& labels, int64_t valid,
                       LossKind kind) {
  return kind == LossKind::kCrossEntropy ? summed_cross_entropy(tape, logits, labels, valid)
                                         : summed_elementwise(tape, logits, labels, kind);
}

Value mean_loss(Tape& tape, const Value& logits, const Tensor& labels, int64_t valid, LossKind kind,
                int64_t& counted) {
  const Labels placed = place_labels(labels, tape.ctx().device);
  counted = placed.counted;
  SummedLoss loss = summed_loss(tape, logits, placed, valid, kind);
  const Tensor mean = Tensor::empty(host_memory_of(tape.ctx().device), DType::kFloat32, {},
                                    MemoryTag::kActivations);
  *mean.data<float>() = MeanLoss(loss.sum, counted).value();
  return {mean, std::move(loss.slot)};
}

}  // namespace ds::nn
