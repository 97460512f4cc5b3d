#include "nn/distilled_loss.h"

#include <algorithm>

#include "nn/loss_parts.h"
#include "nn/profile.h"
#include "ops/elementwise.h"

namespace ds::nn {
namespace {

// The sum of both losses. Nobody waits for a GPU: rows are weighed before they are added up.
Tensor weighed(const OpContext& ctx, const ops::DistillationWeights& weights,
               const DistilledLoss& sums, const Tensor& cross_entropy, const Tensor& divergence) {
  if (!on_host(cross_entropy)) {
    Tensor rows = ctx.workspace(DType::kFloat32, cross_entropy.shape());
    ops::scale(ctx, cross_entropy, weights.labels, rows);
    ops::accumulate(ctx, divergence, weights.teacher, rows);
    return sum_of(ctx, rows);
  }
  Tensor sum = ctx.workspace(DType::kFloat64, {1});
  *sum.data<double>() = static_cast<double>(weights.labels) * *sums.cross_entropy.data<double>() +
                        static_cast<double>(weights.teacher) * *sums.divergence.data<double>();
  return sum;
}

}  // namespace

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
  DistilledLoss out{{}, sum_of(ctx, cross_entropy), sum_of(ctx, divergence), nullptr};
  out.sum = weighed(ctx, from.weights, out, cross_entropy, divergence);
  if (!tape.recording()) return out;
  out.slot = std::make_shared<GradientSlot>();
  if (logits.slot) record_gradient(tape, logits, flat, out.slot);
  return out;
}

}  // namespace ds::nn
