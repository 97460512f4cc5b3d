// Rows of distillation: the loss of a student with labels and a teacher.
#include "kernels/case_util.h"
#include "kernels/loss/distillation.h"
#include "ops/cross_entropy.h"
#include "ops/distillation.h"

namespace ds::testing::distillation_rows {
namespace {

struct Setting {
  DType student, teacher;
  int64_t rows, columns, teacher_columns, valid;
  double labels, teacher_weight, temperature;
  double deviation;  // of the logits

  std::string name() const {
    return str_cat("distillation/", type_name(student), "/from ", type_name(teacher), "/", rows,
                   "x", columns, "/valid", valid, "/", labels, "+", teacher_weight, "/temperature",
                   temperature, "/scale", deviation);
  }
  ops::DistillationWeights weights() const {
    return {static_cast<float>(labels), static_cast<float>(teacher_weight),
            static_cast<float>(temperature)};
  }
  kernels::DistillationRefWeights exact() const {
    const ops::DistillationWeights w = weights();
    return {static_cast<double>(w.labels), static_cast<double>(w.teacher),
            static_cast<double>(w.temperature)};
  }
};

// Padding columns hold what must never be read as a logit.
Tensor random_logits(Random& random, DType dtype, const Shape& shape, int64_t valid,
                     double deviation) {
  Tensor out = random_tensor(random, dtype, shape, deviation);
  std::vector<double> values = doubles(out);
  for (int64_t row = 0; row < shape[0]; ++row) {
    for (int64_t j = valid; j < shape[1]; ++j) {
      values[static_cast<size_t>(row * shape[1] + j)] = std::numeric_limits<double>::infinity();
    }
  }
  set_doubles(out, values);
  return out;
}

struct Data {
  Tensor logits, teacher, labels;
  std::vector<double> x, z;
  int32_t label(int64_t row) const { return labels.data<int32_t>()[row]; }
};

Data make_data(uint64_t seed, const Setting& s) {
  Random random(seed);
  Data d;
  d.logits = random_logits(random, s.student, {s.rows, s.columns}, s.valid, s.deviation);
  d.teacher = random_logits(random, s.teacher, {s.rows, s.teacher_columns}, s.valid, s.deviation);
  d.labels = random_ints(random, {s.rows}, 0, static_cast<int32_t>(s.valid - 1));
  for (int64_t row = 2; row < s.rows; row += 5) d.labels.data<int32_t>()[row] = ops::kIgnoreLabel;
  d.x = doubles(d.logits);
  d.z = doubles(d.teacher);
  return d;
}

double largest_of(const kernels::DistillationRefRow& row) {
  double largest = 0;
  for (int64_t j = 0; j < row.valid; ++j) {
    for (const double x : {row.logits[j], row.teacher[j]}) {
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    }
  }
  return largest;
}

// An exponential is off by its argument's rounding and 3 units of roundoff; sums are of at most
// 1024 terms in fp32 and double beyond.
double exponential_error(double largest, double temperature) {
  return 0x1p-24 * (96 + 8 * largest * std::max(1.0, 1 / temperature));
}

std::vector<double> softened(const double* x, int64_t n, double temperature) {
  const double most = *std::max_element(x, x + n);
  std::vector<double> p(static_cast<size_t>(n));
  double sum = 0;
  for (size_t j = 0; j < p.size(); ++j) sum += p[j] = std::exp((x[j] - most) / temperature);
  for (double& one : p) one /= sum;
  return p;
}

// How far each element of a row's gradient may be off: the student's and the teacher's
// probabilities are subtracted, and each has an error of its own.
void allow_gradient(const kernels::DistillationRefRow& row,
                    const kernels::DistillationRefWeights& weights, double scale, double roundoff,
                    const double* dlogits, double* allowed) {
  if (row.label < 0) return;
  const double t = weights.temperature, error = exponential_error(largest_of(row), t);
  std::vector<double> of_labels(static_cast<size_t>(row.columns));
  kernels::distillation_backward_ref(row, {weights.labels, 0, t}, scale, of_labels.data());
  const std::vector<double> own = softened(row.logits, row.valid, t);
  const std::vector<double> taught = softened(row.teacher, row.valid, t);
  for (size_t j = 0; j < own.size(); ++j) {
    const double both = scale * weights.teacher * t * (own[j] + taught[j]);
    const bool labelled = static_cast<int32_t>(j) == row.label;
    const double sharp = labelled ? scale * weights.labels : std::abs(of_labels[j]);
    allowed[j] = (both + sharp) * error + roundoff * std::abs(dlogits[j]);
  }
}

CaseResult check_distillation(const OpContext& ctx, uint64_t seed, const Setting& s) {
  const Data d = make_data(seed, s);
  const float scale = 0.37f;
  const size_t rows = static_cast<size_t>(s.rows), columns = static_cast<size_t>(s.columns);
  const kernels::DistillationRefWeights weights = s.exact();
  std::vector<double> hard(rows), soft(rows), dlogits(rows * columns), allowed(rows * columns);
  std::vector<double> hard_allowed(rows), soft_allowed(rows);
  const double unit = 0x1p-24, t = weights.temperature;
  for (size_t i = 0; i < rows; ++i) {
    const double* const x = d.x.data() + i * columns;
    const double* const z = d.z.data() + i * static_cast<size_t>(s.teacher_columns);
    const auto label = d.label(static_cast<int64_t>(i));
    const auto row = kernels::distillation_ref(x, z, label, s.valid, t);
    hard[i] = row.cross_entropy;
    soft[i] = row.divergence;
    const kernels::DistillationRefRow ref{x, z, label, s.columns, s.valid};
    const double largest = largest_of(ref), exponential = exponential_error(largest, t);
    hard_allowed[i] = exponential + unit * std::abs(hard[i]);
    // A mean of differences of arguments of up to 4 x largest / t, each off by as much and weighed
    // by an exponential that is.
    soft_allowed[i] = t * t * exponential * (2 + 4 * largest / t) + unit * std::abs(soft[i]);
    double* const row_dlogits = dlogits.data() + i * columns;
    kernels::distillation_backward_ref(ref, weights, scale, row_dlogits);
    allow_gradient(ref, weights, scale, storage_roundoff(s.student), row_dlogits,
                   allowed.data() + i * columns);
  }
  CaseResult result;
  Tensor logits = copy_of(d.logits);
  Tensor first = guarded_tensor(DType::kFloat32, {s.rows});
  Tensor second = guarded_tensor(DType::kFloat32, {s.rows});
  ops::distillation(ctx, logits, {d.teacher, d.labels, s.valid, s.weights(), scale},
                    {first, second});
  compare(result, "cross_entropy", first, hard, {1, 1e-38}, hard_allowed);
  compare(result, "divergence", second, soft, {1, 1e-38}, soft_allowed);
  compare(result, "dlogits", logits, dlogits, {1, 1e-37}, allowed);

  Tensor parts = copy_of(d.logits);
  Tensor part_first = guarded_tensor(first.dtype(), {s.rows}), part_second = copy_of(part_first);
  for (int64_t begin = 0; begin < s.rows; begin += 3) {
    const int64_t end = std::min(begin + 3, s.rows);
    const auto cut = [&](const Tensor& whole) { return whole.slice(0, begin, end); };
    Tensor x = cut(parts), a = cut(part_first), b = cut(part_second);
    ops::distillation(ctx, x, {cut(d.teacher), cut(d.labels), s.valid, s.weights(), scale}, {a, b});
  }
  compare(result, "dlogits by slices", parts, doubles(logits), {});
  compare(result, "cross_entropy by slices", part_first, doubles(first), {});
  compare(result, "divergence by slices", part_second, doubles(second), {});
  return result;
}

CaseResult distillation_gradient(const OpContext& ctx, uint64_t seed, const Setting& s) {
  const Data d = make_data(seed, s);
  const float scale = 0.5f;
  const kernels::DistillationRefWeights weights = s.exact();
  const auto objective = [&](const std::vector<double>& x) {
    double total = 0;
    for (int64_t i = 0; i < s.rows; ++i) {
      const auto row =
          kernels::distillation_ref(x.data() + i * s.columns, d.z.data() + i * s.teacher_columns,
                                    d.label(i), s.valid, weights.temperature);
      total += weights.labels * row.cross_entropy + weights.teacher * row.divergence;
    }
    return total * scale;
  };
  Tensor logits = copy_of(d.logits);
  Tensor first = guarded_tensor(DType::kFloat32, {s.rows}), second = copy_of(first);
  ops::distillation(ctx, logits, {d.teacher, d.labels, s.valid, s.weights(), scale},
                    {first, second});
  // The reference ignores padding columns, so their differences are 0 whatever they hold.
  std::vector<double> x = d.x;
  for (double& value : x) value = std::isinf(value) ? 1 : value;
  CaseResult result;
  compare_gradient(result, "dlogits", logits, x, objective,
                   {3e-6 + storage_roundoff(s.student), 1e-7});
  return result;
}

// What the teacher rules out counts as nothing, whatever the student says of it; a NaN on either
// side, and an infinite logit, make the results of their row alone not finite.
CaseResult check_special_distillation(const OpContext& ctx, uint64_t seed, DType dtype) {
  constexpr int64_t kRows = 5, kColumns = 2100;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Data d = make_data(seed, {dtype, dtype, kRows, kColumns, kColumns, kColumns, 1, 0.5, 2, 2});
  Random random(seed + 1);
  const auto student = [&d](size_t i) { return d.x.data() + i * kColumns; };
  const auto teacher = [&d](size_t i) { return d.z.data() + i * kColumns; };
  std::fill(teacher(0), teacher(0) + 1500, -kInf);
  std::fill(teacher(1) + 1, teacher(1) + 2099, -kInf);
  std::fill(student(1) + 5, student(1) + 9, -kInf);
  student(2)[random() % kColumns] = std::nan("");
  teacher(3)[random() % kColumns] = std::nan("");
  student(4)[random() % kColumns] = kInf;
  for (int64_t i = 0; i < kRows; ++i) d.labels.data<int32_t>()[i] = 2099;
  set_doubles(d.logits, d.x);
  set_doubles(d.teacher, d.z);
  const double nan = std::nan("");
  std::vector<double> hard(kRows, nan), soft(kRows, nan), dlogits(kRows * kColumns, nan);
  std::vector<double> allowed(kRows * kColumns);
  for (size_t i = 0; i < 2; ++i) {
    const auto ref = kernels::distillation_ref(student(i), teacher(i), 2099, kColumns, 2);
    hard[i] = ref.cross_entropy;
    soft[i] = ref.divergence;
    const kernels::DistillationRefRow row{student(i), teacher(i), 2099, kColumns, kColumns};
    double* const row_dlogits = dlogits.data() + i * kColumns;
    kernels::distillation_backward_ref(row, {1, 0.5, 2}, 1, row_dlogits);
    allow_gradient(row, {1, 0.5, 2}, 1, storage_roundoff(dtype), row_dlogits,
                   allowed.data() + i * kColumns);
  }
  hard[3] = kernels::distillation_ref(student(3), student(3), 2099, kColumns, 2).cross_entropy;
  Tensor first = guarded_tensor(DType::kFloat32, {kRows}), second = copy_of(first);
  Tensor logits = copy_of(d.logits);
  ops::distillation(ctx, logits, {d.teacher, d.labels, kColumns, {1, 0.5f, 2}, 1}, {first, second});
  CaseResult result;
  compare(result, "cross_entropy", first, hard, {1e-5, 0});
  compare(result, "divergence", second, soft, {1e-5, 1e-6});
  compare(result, "dlogits", logits, dlogits, {1, 1e-37}, allowed);
  return result;
}

OpCase timed_distillation(DType dtype, double temperature) {
  const Setting s{dtype, dtype, 1024, 50304, 50304, 50257, 1, 1, temperature, 1};
  OpCase row;
  row.name = s.name();
  row.bytes = static_cast<double>(s.rows * s.columns * dtype_size(dtype)) * 3;
  row.prepare = [s](const OpContext& ctx) -> std::function<void()> {
    const Tensor logits = bench_tensor(ctx, s.student, {s.rows, s.columns});
    const Tensor teacher = bench_tensor(ctx, s.teacher, {s.rows, s.columns});
    const Tensor labels = bench_tensor(ctx, DType::kInt32, {s.rows});
    const Tensor first = bench_tensor(ctx, DType::kFloat32, {s.rows});
    const Tensor second = bench_tensor(ctx, DType::kFloat32, {s.rows});
    return [=]() {
      Tensor x = logits, a = first, b = second;
      ops::distillation(ctx, x, {teacher, labels, s.valid, s.weights(), 1e-3f}, {a, b});
    };
  };
  return row;
}

void add_distillation(std::vector<OpCase>& rows, DType dtype) {
  const auto add = [&rows](const Setting& s) {
    OpCase row;
    row.name = s.name();
    row.check = [s](const OpContext& ctx, uint64_t seed) {
      return check_distillation(ctx, seed, s);
    };
    if (s.rows > 0 && s.rows * s.columns < 100) {
      row.gradient = [s](const OpContext& ctx, uint64_t seed) {
        return distillation_gradient(ctx, seed, s);
      };
    }
    rows.push_back(std::move(row));
  };
  for (const DType teacher : kFloatTypes) {
    add({dtype, teacher, 7, 9, 12, 6, 1, 1, 1, 2});
    add({dtype, teacher, 5, 17, 17, 17, 0.5, 2, 3, 2});
    add({dtype, teacher, 4, 1030, 1025, 1024, 0.3, 0.7, 2, 3});
  }
  add({dtype, dtype, 1, 1, 1, 1, 1, 1, 1, 1});
  add({dtype, dtype, 0, 4, 4, 4, 1, 1, 1, 1});
  add({dtype, dtype, 6, 1000, 1000, 999, 0, 1, 0.5, 0.01});
  add({dtype, dtype, 3, 2049, 2049, 2049, 1, 0, 4, 10});
  add({dtype, dtype, 2, 5100, 5100, 5003, 1, 1, 1, 4});
  OpCase special;
  special.name = str_cat("distillation/special/", type_name(dtype));
  special.check = [dtype](const OpContext& ctx, uint64_t seed) {
    return check_special_distillation(ctx, seed, dtype);
  };
  rows.push_back(std::move(special));
  for (const double temperature : {1.0, 2.0}) {
    rows.push_back(timed_distillation(dtype, temperature));
  }
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) add_distillation(rows, dtype);
  return rows;
}

}  // namespace ds::testing::distillation_rows
