// Distillation on a GPU: a block per row. One pass over both rows finds their largest elements and
// the sums of exponentials together, every thread relative to the largest it has met; a second one
// replaces the student's logits by their gradient.
#include <algorithm>

#include "kernels/cuda/map.cuh"
#include "kernels/loss/distillation.h"
#include "kernels/loss/row_sums.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kMostThreads = 512;
constexpr int kMostWarps = kMostThreads / kWarp;

// Sums over a row relative to the largest elements met so far. The sharp one is of the student's
// logits as they are, the others of logits divided by the temperature; `cross` is the sum of the
// teacher's exponentials times the difference of both exponents.
struct PairSums {
  float most = -infinity(), teacher_most = -infinity();
  float sharp = 0, student = 0, teacher = 0, cross = 0;
};

// The same sums relative to larger elements.
__device__ __forceinline__ void move_to(PairSums& sums, float most, float teacher_most,
                                        float softness) {
  const float own = finite_shift(most), taught = finite_shift(teacher_most);
  const float own_before = finite_shift(sums.most), taught_before = finite_shift(sums.teacher_most);
  sums.sharp *= exponential(sums.most, own);
  sums.student *= exponential(sums.most * softness, own * softness);
  const float shrink = exponential(sums.teacher_most * softness, taught * softness);
  const float apart = ((own - own_before) - (taught - taught_before)) * softness;
  sums.cross = shrink * (sums.cross + sums.teacher * apart);
  sums.teacher *= shrink;
  sums.most = most;
  sums.teacher_most = teacher_most;
}

// `softness` is 1 / temperature.
__device__ __forceinline__ void add_pair(PairSums& sums, float x, float z, float softness) {
  if (x > sums.most || z > sums.teacher_most) {
    move_to(sums, x > sums.most ? x : sums.most, z > sums.teacher_most ? z : sums.teacher_most,
            softness);
  }
  const float a = x - finite_shift(sums.most), b = z - finite_shift(sums.teacher_most);
  const float p = exponential(b * softness, 0);
  sums.sharp += exponential(a, 0);
  sums.student += exponential(a * softness, 0);
  sums.teacher += p;
  // Of what the teacher rules out nothing counts, whatever the student's logit is.
  sums.cross += p == 0 ? 0 : p * ((b - a) * softness);
}

struct RowSums {
  float most, teacher_most;
  double sharp, student, teacher, cross;
};

__device__ __forceinline__ float block_max(float value, float* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = warp_max(value);
  __syncthreads();  // the last use of `shared`
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  for (int i = 0; i < warps; ++i) value = shared[i] > value ? shared[i] : value;
  return value;
}

// Of all threads, in a fixed order.
__device__ __forceinline__ RowSums whole_pair(PairSums mine, float softness, float* largest,
                                              double* sums) {
  const float most = block_max(mine.most, largest);
  const float teacher_most = block_max(mine.teacher_most, largest);
  move_to(mine, most, teacher_most, softness);
  const auto total = [sums](float part) { return block_sum(static_cast<double>(part), sums); };
  return {most,
          teacher_most,
          total(mine.sharp),
          total(mine.student),
          total(mine.teacher),
          total(mine.cross)};
}

__device__ __forceinline__ float at_least_0(double value) {
  return value < 0 ? 0.0f : static_cast<float>(value);
}

template <class Student, class Teacher>
__global__ void __launch_bounds__(kMostThreads) distil_rows(Distillation<Student, Teacher> call) {
  __shared__ float largest[kMostWarps];
  __shared__ double partial[kMostWarps];
  const int64_t row = blockIdx.x;
  const int32_t label = call.labels[row];
  Student* const x = call.logits + row * call.columns;
  const Teacher* const z = call.teacher + row * call.teacher_columns;
  if (label < 0) {
    if (threadIdx.x == 0) call.cross_entropy[row] = call.divergence[row] = 0;
    for (int64_t i = threadIdx.x; i < call.columns; i += blockDim.x) x[i] = Student{};
    return;
  }
  // A label outside the row cannot be looked up; it must not pass unseen.
  const bool known = label < call.valid;
  const double own = threadIdx.x == 0 && known ? static_cast<double>(widen(x[label])) : 0;
  const double taught = threadIdx.x == 0 && known ? static_cast<double>(widen(z[label])) : 0;
  const float softness = 1 / call.weights.temperature;
  PairSums mine;
  for (int64_t i = threadIdx.x; i < call.valid; i += blockDim.x) {
    add_pair(mine, widen(x[i]), widen(z[i]), softness);
  }
  const RowSums sums = whole_pair(mine, softness, largest, partial);
  const auto t = static_cast<double>(call.weights.temperature);
  const double scale = known ? static_cast<double>(call.scale) : not_a_number();
  const double of_labels = scale * static_cast<double>(call.weights.labels);
  const double of_teacher = scale * static_cast<double>(call.weights.teacher) * t;
  const auto sharp = static_cast<float>(of_labels / sums.sharp);
  const auto student = static_cast<float>(of_teacher / sums.student);
  const auto teacher = static_cast<float>(of_teacher / sums.teacher);
  const float most = finite_shift(sums.most), teacher_most = finite_shift(sums.teacher_most);
  for (int64_t i = threadIdx.x; i < call.valid; i += blockDim.x) {
    const float a = widen(x[i]) - most, b = widen(z[i]) - teacher_most;
    x[i] = narrow<Student>(sharp * exponential(a, 0) + student * exponential(a * softness, 0) -
                           teacher * exponential(b * softness, 0));
  }
  for (int64_t i = call.valid + threadIdx.x; i < call.columns; i += blockDim.x) x[i] = Student{};
  __syncthreads();
  if (threadIdx.x != 0) return;
  const double apart_own = own - static_cast<double>(most);
  const double log_p = apart_own - log(sums.sharp);
  call.cross_entropy[row] = known ? at_least_0(-log_p) : not_a_number();
  call.divergence[row] =
      known
          ? at_least_0(t * t * (sums.cross / sums.teacher + log(sums.student) - log(sums.teacher)))
          : not_a_number();
  if (!known) return;
  // p - 1 exactly, also where p is near 1.
  const double apart = exp(apart_own / t) / sums.student -
                       exp((taught - static_cast<double>(teacher_most)) / t) / sums.teacher;
  x[label] = narrow<Student>(static_cast<float>(of_labels * expm1(log_p) + of_teacher * apart));
}

}  // namespace

template <class Student, class Teacher>
void distillation(const Distillation<Student, Teacher>& call, const GpuStream& on) {
  const int64_t threads = (call.valid + kWarp - 1) / kWarp * kWarp;
  launch(on, "distillation", &distil_rows<Student, Teacher>,
         Grid{call.rows, static_cast<int>(std::clamp<int64_t>(threads, kWarp, kMostThreads))},
         call);
}

#define DS_ONE_PAIR(S, T) template void distillation(const Distillation<S, T>&, const GpuStream&);
#define DS_ONE_STUDENT(S) DS_ONE_PAIR(S, float) DS_ONE_PAIR(S, bfloat16) DS_ONE_PAIR(S, float16)
DS_ONE_STUDENT(float)
DS_ONE_STUDENT(bfloat16)
DS_ONE_STUDENT(float16)
#undef DS_ONE_STUDENT
#undef DS_ONE_PAIR

}  // namespace ds::kernels
