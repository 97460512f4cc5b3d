// The loss of a student that learns from labels and from a teacher's distribution (Hinton et al.,
// arXiv:1503.02531; of mixtures of students, arXiv:2201.05596). Arithmetic is fp32, sums over the
// vocabulary are gathered in double.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

// What the two losses of a row weigh.
struct DistillationWeights {
  float labels = 1;       // of the cross entropy with the label
  float teacher = 1;      // of the divergence from the teacher
  float temperature = 1;  // that both distributions of the divergence are softened by; above 0
};

// Of each row of logits [rows, columns], of which `valid` columns count:
//   cross_entropy = lse(logits) - logits[label]
//   divergence    = temperature^2 sum p (log p - log q), p and q the softmax of the teacher's and
//                   of the student's logits, both divided by the temperature
// and logits become scale x the gradient of labels x cross_entropy + teacher x divergence, 0 in the
// columns that do not count. Rows with a negative label are ignored: all of theirs is 0. Where p is
// 0, so is its summand. Student and Teacher are float, bfloat16 or float16.
template <class Student, class Teacher>
struct Distillation {
  int64_t rows = 0, columns = 0, teacher_columns = 0, valid = 0;
  Student* logits = nullptr;
  const Teacher* teacher = nullptr;  // [rows, teacher_columns]
  const int32_t* labels = nullptr;
  DistillationWeights weights;
  float scale = 1;
  float* cross_entropy = nullptr;  // [rows]
  float* divergence = nullptr;     // [rows]
};
template <class Student, class Teacher>
void distillation(const Distillation<Student, Teacher>& call, ThreadPool& pool);
// A label that is not below `valid` makes all of its row NaN.
template <class Student, class Teacher>
void distillation(const Distillation<Student, Teacher>& call, const GpuStream& on);

// ---- reference, scalar, double precision (distillation_ref.cc): one row ----
struct DistillationRow {
  double cross_entropy = 0;
  double divergence = 0;
};
struct DistillationRefWeights {
  double labels = 1, teacher = 1, temperature = 1;
};
DistillationRow distillation_ref(const double* logits, const double* teacher, int32_t label,
                                 int64_t valid, double temperature);
// `dlogits` has `columns` elements.
struct DistillationRefRow {
  const double* logits = nullptr;
  const double* teacher = nullptr;
  int32_t label = 0;
  int64_t columns = 0, valid = 0;
};
void distillation_backward_ref(const DistillationRefRow& row, const DistillationRefWeights& weights,
                               double scale, double* dlogits);

}  // namespace ds::kernels
