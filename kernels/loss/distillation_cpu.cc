// Vector code of distillation. A row is read three times while it is in the cache: for its largest
// elements, for the sums of its exponentials, and to be replaced by its gradient.
#include "kernels/loss/distillation.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/float_type.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/loss/distillation_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/map-inl.h"

#ifndef DS_KERNELS_LOSS_DISTILLED_ROW
#define DS_KERNELS_LOSS_DISTILLED_ROW
namespace ds::kernels {
namespace {

// A row of the student's and of the teacher's logits, by their types' numbers.
struct RowPair {
  FloatType student_type, teacher_type;
  void* student;
  const void* teacher;
  int64_t n;
};

// Sums over a row, relative to its largest elements. The sharp one is of the student's logits as
// they are; the others of logits divided by the temperature.
struct DistilledSums {
  float most = 0, teacher_most = 0;
  double sharp = 0, student = 0, teacher = 0;
  double cross = 0;  // of the teacher's exponentials times the difference of the exponents
};

// What the exponentials of a row are multiplied by in its gradient.
struct DistilledFactors {
  float most, teacher_most, temperature;
  float sharp, student, teacher;
};

// Elements whose exponentials are added up in fp32.
constexpr int64_t kDistilledBlock = 1024;

}  // namespace
}  // namespace ds::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::Exp2;
using simd::VF;

// A NaN may be skipped here; it then shows in the sums.
template <class T>
float largest_of(const T* x, int64_t n) {
  const DF d;
  const VF lowest = hn::Neg(hn::Inf(d));
  VF most = lowest;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF v = simd::load_n(d, x + i, count);
    const auto there = hn::Ne(simd::keep_n(d, hn::Set(d, 1.0f), count), hn::Zero(d));
    most = hn::Max(most, hn::IfThenElse(there, v, lowest));
  });
  return simd::max_of_lanes(d, most);
}

HWY_INLINE VF exponential(DF d, VF x) { return simd::exp2<Exp2::kClose>(d, x); }
HWY_INLINE double total(DF d, VF v) { return static_cast<double>(simd::sum_of_lanes(d, v)); }

// kSoft: the temperature is not 1, so that the student has exponentials of two kinds.
template <bool kSoft, class S, class T>
DistilledSums sums_of(const S* student, const T* teacher, int64_t n, float temperature) {
  const DF d;
  DistilledSums out;
  out.most = largest_of(student, n);
  out.teacher_most = largest_of(teacher, n);
  const VF most = hn::Set(d, out.most), teacher_most = hn::Set(d, out.teacher_most);
  const VF log2e = hn::Set(d, simd::kLog2e), softer = hn::Set(d, simd::kLog2e / temperature);
  for (int64_t begin = 0; begin < n; begin += kDistilledBlock) {
    VF sharp = hn::Zero(d), soft = sharp, taught = sharp, cross = sharp;
    simd::for_vectors(HWY_MIN(kDistilledBlock, n - begin), [&](int64_t i, auto count) DS_SIMD_BODY {
      const VF a = hn::Sub(simd::load_n(d, student + begin + i, count), most);
      const VF b = hn::Sub(simd::load_n(d, teacher + begin + i, count), teacher_most);
      const VF x = hn::Mul(a, softer), y = hn::Mul(b, softer);
      const VF p = exponential(d, y);
      // Of what the teacher rules out nothing counts, whatever the student's logit is.
      const VF apart = hn::IfThenElse(hn::Eq(p, hn::Zero(d)), p, hn::Mul(p, hn::Sub(y, x)));
      soft = hn::Add(soft, simd::keep_n(d, exponential(d, x), count));
      taught = hn::Add(taught, simd::keep_n(d, p, count));
      cross = hn::Add(cross, simd::keep_n(d, apart, count));
      if constexpr (kSoft) {
        sharp = hn::Add(sharp, simd::keep_n(d, exponential(d, hn::Mul(a, log2e)), count));
      }
    });
    out.student += total(d, soft);
    out.teacher += total(d, taught);
    out.cross += total(d, cross) / static_cast<double>(simd::kLog2e);
    out.sharp += kSoft ? total(d, sharp) : total(d, soft);
  }
  return out;
}

template <bool kSoft, class S, class T>
void write_gradient(S* student, const T* teacher, int64_t n, const DistilledFactors& factors) {
  const DF d;
  const VF most = hn::Set(d, factors.most), teacher_most = hn::Set(d, factors.teacher_most);
  const VF log2e = hn::Set(d, simd::kLog2e);
  const VF softer = hn::Set(d, simd::kLog2e / factors.temperature);
  const VF of_sharp = hn::Set(d, factors.sharp), of_student = hn::Set(d, factors.student);
  const VF of_both = hn::Set(d, factors.sharp + factors.student);
  const VF of_teacher = hn::Set(d, factors.teacher);
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF a = hn::Sub(simd::load_n(d, student + i, count), most);
    const VF b = hn::Sub(simd::load_n(d, teacher + i, count), teacher_most);
    const VF p = hn::Mul(exponential(d, hn::Mul(b, softer)), of_teacher);
    const VF q = exponential(d, hn::Mul(a, softer));
    VF mine;
    if constexpr (kSoft) {
      mine = hn::Add(hn::Mul(q, of_student), hn::Mul(exponential(d, hn::Mul(a, log2e)), of_sharp));
    } else {
      mine = hn::Mul(q, of_both);
    }
    simd::store_n(hn::Sub(mine, p), d, student + i, count);
  });
}

// What is exported: body(student, teacher) with pointers to elements of the types that are named.
template <class Body>
auto with_types(const RowPair& row, const Body& body) {
  return with_float_type(row.student_type, [&](auto s) {
    return with_float_type(row.teacher_type, [&](auto t) {
      return body(static_cast<decltype(s)*>(row.student),
                  static_cast<const decltype(t)*>(row.teacher));
    });
  });
}

DistilledSums distilled_sums(const RowPair& row, float temperature) {
  return with_types(row, [&](auto* student, const auto* teacher) {
    return temperature == 1 ? sums_of<false>(student, teacher, row.n, temperature)
                            : sums_of<true>(student, teacher, row.n, temperature);
  });
}
void distilled_gradient(const RowPair& row, const DistilledFactors& factors) {
  with_types(row, [&](auto* student, const auto* teacher) {
    if (factors.temperature == 1) {
      write_gradient<false>(student, teacher, row.n, factors);
    } else {
      write_gradient<true>(student, teacher, row.n, factors);
    }
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(distilled_sums);
HWY_EXPORT(distilled_gradient);

float at_least_0(double value) { return value < 0 ? 0 : static_cast<float>(value); }

template <class Student, class Teacher>
void distil_row(const Distillation<Student, Teacher>& call, int64_t index) {
  Student* const x = call.logits + index * call.columns;
  const int32_t label = call.labels[index];
  if (label < 0) {
    call.cross_entropy[index] = call.divergence[index] = 0;
    std::fill(x, x + call.columns, Student{});
    return;
  }
  const DistillationWeights& weights = call.weights;
  const auto t = static_cast<double>(weights.temperature);
  const auto own = static_cast<double>(to_float(x[label]));
  const auto taught =
      static_cast<double>(to_float(call.teacher[index * call.teacher_columns + label]));
  const RowPair row{kFloatType<Student>, kFloatType<Teacher>, x,
                    call.teacher + index * call.teacher_columns, call.valid};
  const DistilledSums sums = HWY_DYNAMIC_DISPATCH(distilled_sums)(row, weights.temperature);
  const double most = static_cast<double>(sums.most), scale = static_cast<double>(call.scale);
  const double log_p = own - most - std::log(sums.sharp);
  call.cross_entropy[index] = at_least_0(-log_p);
  call.divergence[index] = at_least_0(
      t * t * (sums.cross / sums.teacher + std::log(sums.student) - std::log(sums.teacher)));
  const double of_labels = scale * static_cast<double>(weights.labels);
  const double of_teacher = scale * static_cast<double>(weights.teacher) * t;
  HWY_DYNAMIC_DISPATCH(distilled_gradient)
  (row, {.most = sums.most,
         .teacher_most = sums.teacher_most,
         .temperature = weights.temperature,
         .sharp = static_cast<float>(of_labels / sums.sharp),
         .student = static_cast<float>(of_teacher / sums.student),
         .teacher = static_cast<float>(of_teacher / sums.teacher)});
  // p - 1 exactly, also where p is near 1.
  const double teacher_most = static_cast<double>(sums.teacher_most);
  const double apart = std::exp((own - most) / t) / sums.student -
                       std::exp((taught - teacher_most) / t) / sums.teacher;
  x[label] =
      from_float<Student>(static_cast<float>(of_labels * std::expm1(log_p) + of_teacher * apart));
  std::fill(x + call.valid, x + call.columns, Student{});
}

}  // namespace

template <class Student, class Teacher>
void distillation(const Distillation<Student, Teacher>& call, ThreadPool& pool) {
  constexpr int64_t kGrain = 8192;  // elements
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(call.columns, 1));
  pool.for_range(call.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) distil_row(call, row);
  });
}

#define DS_ONE_PAIR(S, T) template void distillation(const Distillation<S, T>&, ThreadPool&);
#define DS_ONE_STUDENT(S) DS_ONE_PAIR(S, float) DS_ONE_PAIR(S, bfloat16) DS_ONE_PAIR(S, float16)
DS_ONE_STUDENT(float)
DS_ONE_STUDENT(bfloat16)
DS_ONE_STUDENT(float16)
#undef DS_ONE_STUDENT
#undef DS_ONE_PAIR

}  // namespace ds::kernels
#endif  // HWY_ONCE
