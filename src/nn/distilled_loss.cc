#include "nn/distilled_loss.h"

#include <algorithm>

#include "nn/loss_parts.h"
#include "nn/profile.h"

namespace ds::nn {

DistilledLoss summed_distillation(Tape& tape, const Value& logits, const Labels& labels,
                                  int64_t valid, const Distillation& from) {
  const OperatorScope op(tape, "distillation");
  const OpContext& ctx = tape.ctx();
  const int64_t vocab = logits.data.shape()[-1];
  const int64_t rows = logits.data.elements() / vocab, each = rows / from.parts;
  DS_CHECK(each * from.parts == rows, Code::kInternal, "a teacher's parts are not of ", rows,
           " rows");
  if (op) op.work(Arithmetic::elementwise(2 * rows * valid), Arithmetic::elementwise(rows * valid));
  const Tensor flat = logits.data.view({rows, vocab});
  Tensor cross_entropy = tape.new_activation(DType::kFloat32, {rows});
  Tensor divergence = tape.new_activation(DType::kFloat32, {rows});
  for (int64_t part = 0; part < from.parts; ++part) {
    const auto cut = [&](const Tensor& all) {
      return all.slice(0, part * each, (part + 1) * each);
    };
    const Tensor taught = from.teacher(part);
    Tensor gradient = cut(flat), hard = cut(cross_entropy), soft = cut(divergence);
    ops::distillation(
        ctx, gradient,
        {.teacher = taught.view({each, taught.elements() / std::max<int64_t>(each, 1)}),
         .labels = cut(labels.targets),
         .valid = valid,
         .weights = from.weights,
         .scale = tape.loss_gradient() * labels.share()},
        {hard, soft});
  }
  DistilledLoss out{ctx.workspace(DType::kFloat64, {1}), sum_of(ctx, cross_entropy),
                    sum_of(ctx, divergence), nullptr};
  *out.sum.data<double>() =
      static_cast<double>(from.weights.labels) * *out.cross_entropy.data<double>() +
      static_cast<double>(from.weights.teacher) * *out.divergence.data<double>();
  if (!tape.recording()) return out;
  out.slot = std::make_shared<GradientSlot>();
  if (logits.slot) record_gradient(tape, logits, flat, out.slot);
  return out;
}

}  // namespace ds::nn
