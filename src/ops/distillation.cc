// Checks and launches of distillation.
#include "ops/distillation.h"

#include <algorithm>

#include "ops/label_checks.h"

namespace ds::ops {

void distillation(const OpContext& ctx, Tensor& logits, const DistillationInputs& in,
                  const DistillationLosses& out) {
  const Op op{ctx, "distillation"};
  check_dense_float(logits, op, "logits");
  check_dense_float(in.teacher, op, "teacher");
  DS_CHECK(logits.dims() == 2 && in.teacher.dims() == 2 && in.teacher.size(0) == logits.size(0),
           Code::kInvalidArgument, op, ": logits must be [rows, vocabulary], the teacher's too, ",
           "not of shape ", logits.shape().text(), " and ", in.teacher.shape().text());
  const int64_t rows = logits.size(0);
  check_dense(out.cross_entropy, op, "cross_entropy", DType::kFloat32, {rows});
  check_dense(out.divergence, op, "divergence", DType::kFloat32, {rows});
  const int64_t most = std::min(logits.size(1), in.teacher.size(1));
  DS_CHECK(in.valid >= 1 && in.valid <= most, Code::kInvalidArgument, op, ": valid is ", in.valid,
           ", but must be in [1, ", most, "], the columns of logits");
  DS_CHECK(in.weights.temperature > 0, Code::kInvalidArgument, op, ": the temperature is ",
           in.weights.temperature, ", but must be above 0");
  check_labels(op, in.labels, rows, in.valid);
  with_float_type(logits, [&](auto student) {
    with_float_type(in.teacher, [&](auto teacher) {
      using Student = decltype(student);
      using Teacher = decltype(teacher);
      const kernels::Distillation<Student, Teacher> call{
          .rows = rows,
          .columns = logits.size(1),
          .teacher_columns = in.teacher.size(1),
          .valid = in.valid,
          .logits = logits.data<Student>(),
          .teacher = in.teacher.data<Teacher>(),
          .labels = in.labels.data<int32_t>(),
          .weights = in.weights,
          .scale = in.scale,
          .cross_entropy = out.cross_entropy.data<float>(),
          .divergence = out.divergence.data<float>()};
      run(ctx, [&](auto& on) { kernels::distillation(call, on); });
    });
  });
}

}  // namespace ds::ops
