// Checks and launches of softmax cross entropy.
#include "ops/cross_entropy.h"

#include "kernels/loss/cross_entropy.h"
#include "ops/label_checks.h"

namespace ds::ops {
namespace {

// Everything that both directions take; labels too, before anything is written.
void check_inputs(const Op& op, const Tensor& logits, const Tensor& labels, int64_t valid,
                  const char* row_name, const Tensor& row_values) {
  check_dense_float(logits, op, "logits");
  DS_CHECK(logits.dims() == 2, Code::kInvalidArgument, op, ": logits must be [rows, vocabulary], ",
           "not of shape ", logits.shape().text());
  const int64_t rows = logits.size(0), columns = logits.size(1);
  check_dense(row_values, op, row_name, DType::kFloat32, {rows});
  DS_CHECK(valid >= 1 && valid <= columns, Code::kInvalidArgument, op, ": valid is ", valid,
           ", but must be in [1, ", columns, "], the columns of logits");
  check_labels(op, labels, rows, valid);
}

}  // namespace

void cross_entropy(const OpContext& ctx, const Tensor& logits, const Tensor& labels, int64_t valid,
                   Tensor& loss, Tensor& lse) {
  const Op op{ctx, "cross_entropy"};
  check_inputs(op, logits, labels, valid, "lse", lse);
  check_dense(loss, op, "loss", DType::kFloat32, {logits.size(0)});
  with_float_type(logits, [&](auto type) {
    using T = decltype(type);
    const kernels::CrossEntropy<T> call{.rows = logits.size(0),
                                        .columns = logits.size(1),
                                        .valid = valid,
                                        .logits = logits.data<T>(),
                                        .labels = labels.data<int32_t>(),
                                        .loss = loss.data<float>(),
                                        .lse = lse.data<float>()};
    run(ctx, [&](auto& on) { kernels::cross_entropy(call, on); });
  });
}

void cross_entropy_backward(const OpContext& ctx, const Tensor& logits, const Tensor& labels,
                            int64_t valid, const Tensor& lse, float scale, Tensor& dlogits) {
  const Op op{ctx, "cross_entropy_backward"};
  check_inputs(op, logits, labels, valid, "lse", lse);
  check_dense(dlogits, op, "dlogits", logits.dtype(), logits.shape());
  with_float_type(logits, [&](auto type) {
    using T = decltype(type);
    const kernels::CrossEntropyBackward<T> call{.rows = logits.size(0),
                                                .columns = logits.size(1),
                                                .valid = valid,
                                                .logits = logits.data<T>(),
                                                .labels = labels.data<int32_t>(),
                                                .lse = lse.data<float>(),
                                                .scale = scale,
                                                .dlogits = dlogits.data<T>()};
    run(ctx, [&](auto& on) { kernels::cross_entropy_backward(call, on); });
  });
}

namespace {

void run_fused(const Op& op, Tensor& logits, const Tensor& labels, int64_t valid,
               const kernels::GradientScale& scale, Tensor& loss) {
  check_inputs(op, logits, labels, valid, "loss", loss);
  with_float_type(logits, [&](auto type) {
    using T = decltype(type);
    const kernels::CrossEntropyFused<T> call{.rows = logits.size(0),
                                             .columns = logits.size(1),
                                             .valid = valid,
                                             .logits = logits.data<T>(),
                                             .labels = labels.data<int32_t>(),
                                             .scale = scale,
                                             .loss = loss.data<float>()};
    run(op.ctx, [&](auto& on) { kernels::cross_entropy_fused(call, on); });
  });
}

}  // namespace

void cross_entropy_fused(const OpContext& ctx, Tensor& logits, const Tensor& labels, int64_t valid,
                         float scale, Tensor& loss) {
  run_fused(Op{ctx, "cross_entropy_fused"}, logits, labels, valid, scale, loss);
}

void cross_entropy_fused(const OpContext& ctx, Tensor& logits, const Tensor& labels, int64_t valid,
                         const Tensor& scale, Tensor& loss) {
  const Op op{ctx, "cross_entropy_fused"};
  check_dense(scale, op, "scale", DType::kFloat32, {1});
  DS_CHECK(ctx.device->kind() == DeviceKind::kCuda, Code::kInternal, op,
           ": the CPU takes its scale as a number");
  const float* const memory = scale.data<float>();
  run_fused(op, logits, labels, valid, memory, loss);
}

}  // namespace ds::ops
