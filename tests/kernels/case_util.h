// What rows of the operator table share: random tensors, comparison with double references, finite
// differences, and a digest of compared bits that the thread-count test reads.
//
// Tensors made here start one element past an aligned address (unless CaseMemory says otherwise)
// and end in guard bytes, so that a row also finds kernels that assume alignment or write past the
// end.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/text.h"
#include "kernels/op_case.h"
#include "nearly_normal.h"

namespace ds::testing {

// Rounding unit of a type: half the distance from 1 to the next value.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return 0x1p-8;
    case DType::kFloat16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}
// What rounding a result of fp32 arithmetic to its type adds.
inline double storage_roundoff(DType dtype) {
  return dtype == DType::kFloat32 ? 0 : unit_roundoff(dtype);
}

inline const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    default:
      return "fp32";
  }
}

// The types of model computation.
inline constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// ---- digest of everything compared since start_digest() on this thread ----

struct CaseDigest {
  uint64_t bits = 0;
  int tensors = 0;
};
inline CaseDigest& digest() {
  static thread_local CaseDigest value;
  return value;
}
inline void start_digest() { digest() = {0xCBF29CE484222325u, 0}; }

// ---- tensors ----

// Where the tensors of rows lie: the host's memory, or memory that a GPU and the host both reach.
struct CaseMemory {
  DeviceKind kind = DeviceKind::kCpu;
  std::function<void*(size_t)> take = [](size_t bytes) { return std::malloc(bytes); };
  std::function<void(void*)> give = [](void* memory) { std::free(memory); };
  std::function<void()> synchronize = [] {
  };                  // waits for queued work, before the host reads or writes
  int64_t shift = 1;  // elements between an aligned address and a tensor
};
inline CaseMemory& case_memory() {
  static CaseMemory memory;
  return memory;
}

#if defined(__SANITIZE_ADDRESS__)
inline constexpr int64_t kGuardBytes = 0;  // the sanitizer sees the end itself
#else
inline constexpr int64_t kGuardBytes = 64;
#endif
inline constexpr unsigned char kGuardValue = 0xA5;

inline int64_t guard_front(DType dtype) { return 64 + case_memory().shift * dtype_size(dtype); }

// Contiguous, guarded, misaligned by the shift. Content is NaN-patterned bytes, so that unwritten
// output shows.
inline Tensor guarded_tensor(DType dtype, const Shape& shape) {
  const int64_t payload = shape.elements() * dtype_size(dtype);
  const int64_t total = guard_front(dtype) + payload + kGuardBytes;
  void* memory = case_memory().take(static_cast<size_t>(total));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, kGuardValue, static_cast<size_t>(total));
  std::memset(static_cast<std::byte*>(memory) + guard_front(dtype), 0xFF,
              static_cast<size_t>(payload));
  // It goes back where it came from, though rows may lie elsewhere by then.
  auto storage = std::make_shared<Storage>(case_memory().kind, 0, memory, total, false,
                                           [memory, give = case_memory().give] { give(memory); });
  return {std::move(storage), guard_front(dtype), dtype, shape};
}

// What rounding a product with a bias to its type adds. On a GPU cuBLASLt rounds some products to
// the type before it adds the bias, and then once more.
inline double biased_roundoff(DType dtype) {
  return (case_memory().kind == DeviceKind::kCuda ? 2 : 1) * storage_roundoff(dtype);
}

inline bool guards_intact(const Tensor& tensor) {
  const Storage& storage = *tensor.storage();
  const auto* base = static_cast<const unsigned char*>(storage.data());
  const int64_t front = static_cast<const unsigned char*>(tensor.raw()) - base;
  if (front != guard_front(tensor.dtype()) || storage.device() != nullptr ||
      storage.bytes() != front + tensor.bytes() + kGuardBytes) {
    return true;  // not one of ours, or a view of a part
  }
  for (int64_t i = 0; i < front; ++i) {
    if (base[i] != kGuardValue) return false;
  }
  for (int64_t i = front + tensor.bytes(); i < storage.bytes(); ++i) {
    if (base[i] != kGuardValue) return false;
  }
  return true;
}

inline double element_as_double(DType dtype, const void* pointer) {
  switch (dtype) {
    case DType::kFloat32:
      return *static_cast<const float*>(pointer);
    case DType::kFloat64:
      return *static_cast<const double*>(pointer);
    case DType::kBFloat16:
      return to_float(*static_cast<const bfloat16*>(pointer));
    case DType::kFloat16:
      return to_float(*static_cast<const float16*>(pointer));
    case DType::kInt32:
      return *static_cast<const int32_t*>(pointer);
    case DType::kUInt8:
      return *static_cast<const uint8_t*>(pointer);
    default:
      fail(Code::kInternal, "no test access to ", dtype_name(dtype));
  }
}

inline void set_element(DType dtype, void* pointer, double value) {
  switch (dtype) {
    case DType::kFloat32:
      *static_cast<float*>(pointer) = static_cast<float>(value);
      return;
    case DType::kFloat64:
      *static_cast<double*>(pointer) = value;
      return;
    case DType::kBFloat16:
      *static_cast<bfloat16*>(pointer) = to_bfloat16(static_cast<float>(value));
      return;
    case DType::kFloat16:
      *static_cast<float16*>(pointer) = to_float16(static_cast<float>(value));
      return;
    case DType::kInt32:
      *static_cast<int32_t*>(pointer) = static_cast<int32_t>(value);
      return;
    case DType::kUInt8:
      *static_cast<uint8_t*>(pointer) = static_cast<uint8_t>(value);
      return;
    default:
      fail(Code::kInternal, "no test access to ", dtype_name(dtype));
  }
}

// Calls visit(flat index, address) over a tensor of any strides, last dimension fastest.
template <class Visit>
void for_each_element(const Tensor& tensor, const Visit& visit) {
  case_memory().synchronize();
  const int64_t size = dtype_size(tensor.dtype());
  std::vector<int64_t> index(static_cast<size_t>(tensor.dims()));
  auto* at = static_cast<std::byte*>(tensor.raw());
  for (int64_t flat = 0; flat < tensor.elements(); ++flat) {
    visit(flat, at);
    // The next one: as a counter of several digits goes on.
    for (int dim = tensor.dims() - 1; dim >= 0; --dim) {
      int64_t& digit = index[static_cast<size_t>(dim)];
      at += tensor.stride(dim) * size;
      if (++digit < tensor.size(dim)) break;
      at -= digit * tensor.stride(dim) * size;
      digit = 0;
    }
  }
}

inline std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> out(static_cast<size_t>(tensor ? tensor.elements() : 0));
  if (!tensor) return out;
  for_each_element(tensor, [&](int64_t i, const void* at) {
    out[static_cast<size_t>(i)] = element_as_double(tensor.dtype(), at);
  });
  return out;
}

inline void set_doubles(const Tensor& tensor, std::span<const double> values) {
  for_each_element(tensor, [&](int64_t i, void* at) {
    set_element(tensor.dtype(), at, values[static_cast<size_t>(i)]);
  });
}

inline Tensor tensor_of(DType dtype, const Shape& shape, std::span<const double> values) {
  Tensor tensor = guarded_tensor(dtype, shape);
  set_doubles(tensor, values);
  return tensor;
}

using Random = std::mt19937_64;

// Close to normal numbers of the given deviation, rounded to the tensor's type.
inline void fill_random(Random& random, const Tensor& tensor, double deviation = 1,
                        double mean = 0) {
  for_each_element(tensor, [&](int64_t, void* at) {
    set_element(tensor.dtype(), at, mean + deviation * nearly_normal(random));
  });
}

inline Tensor random_tensor(Random& random, DType dtype, const Shape& shape, double deviation = 1,
                            double mean = 0) {
  Tensor tensor = guarded_tensor(dtype, shape);
  fill_random(random, tensor, deviation, mean);
  return tensor;
}

inline Tensor filled_tensor(DType dtype, const Shape& shape, double value) {
  Tensor tensor = guarded_tensor(dtype, shape);
  for_each_element(tensor, [&](int64_t, void* at) { set_element(dtype, at, value); });
  return tensor;
}

// A copy with the same content, for in-place calls.
inline Tensor copy_of(const Tensor& tensor) {
  return tensor_of(tensor.dtype(), tensor.shape(), doubles(tensor));
}

// Int32 values uniform in [low, high].
inline Tensor random_ints(Random& random, const Shape& shape, int32_t low, int32_t high) {
  Tensor tensor = guarded_tensor(DType::kInt32, shape);
  std::uniform_int_distribution<int32_t> uniform(low, high);
  for_each_element(tensor,
                   [&](int64_t, void* at) { set_element(DType::kInt32, at, uniform(random)); });
  return tensor;
}

// Plain device tensor for the benchmark: aligned, filled quickly with small varied numbers.
inline Tensor bench_tensor(const OpContext& ctx, DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::empty(ctx.device, dtype, shape, MemoryTag::kOther);
  uint32_t state = 12345;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    if (dtype == DType::kFloat32) {
      tensor.data<float>()[i] = value;
    } else if (dtype == DType::kBFloat16) {
      tensor.data<bfloat16>()[i] = to_bfloat16(value);
    } else if (dtype == DType::kFloat16) {
      tensor.data<float16>()[i] = to_float16(value);
    } else {
      set_element(dtype, static_cast<std::byte*>(tensor.raw()) + i * dtype_size(dtype), 0);
    }
  }
  return tensor;
}

// ---- comparison ----

// Allowed: absolute + relative * scale, where scale is |expected| unless given per element (for
// sums, the sum of the terms' magnitudes, against which rounding errors count). fp16 results below
// 2^-14 are spaced 2^-24: half of that is allowed too, unless the result must be exact.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

inline double deviation_ratio(double actual, double expected, double allowed) {
  if (actual == expected || (std::isnan(actual) && std::isnan(expected))) return 0;
  const double difference = std::abs(actual - expected);
  if (std::isnan(difference) || std::isinf(difference) || !(allowed > 0)) {
    return std::numeric_limits<double>::infinity();
  }
  return difference / allowed;
}

inline void compare(CaseResult& result, const std::string& what, const Tensor& actual,
                    std::span<const double> expected, const Tolerance& tolerance,
                    std::span<const double> scale = {}) {
  constexpr double kBroken = std::numeric_limits<double>::infinity();
  CaseDigest& bits = digest();
  ++bits.tensors;
  if (actual.elements() != static_cast<int64_t>(expected.size())) {
    result.merge(kBroken, what + ": wrong number of elements");
    return;
  }
  const bool exact = tolerance.relative == 0 && tolerance.absolute == 0;
  const double floor =
      tolerance.absolute + (!exact && actual.dtype() == DType::kFloat16 ? 0x1p-25 : 0);
  if (!guards_intact(actual)) result.merge(kBroken, what + ": bytes outside were written");
  for_each_element(actual, [&](int64_t flat, const void* at) {
    const size_t i = static_cast<size_t>(flat);
    uint64_t element = 0;
    std::memcpy(&element, at, static_cast<size_t>(dtype_size(actual.dtype())));
    bits.bits = (bits.bits ^ element) * 0x100000001B3u;
    const double value = element_as_double(actual.dtype(), at);
    const double magnitude = scale.empty() ? std::abs(expected[i]) : scale[i];
    const double ratio =
        deviation_ratio(value, expected[i], floor + tolerance.relative * magnitude);
    if (!(ratio <= result.worst)) {
      result.merge(ratio, str_cat(what, "[", flat, "] of ", actual.shape().text(), " is ",
                                  format_number(value), ", expected ", format_number(expected[i])));
    }
  });
}

// Scalars returned by reductions.
inline void compare_value(CaseResult& result, const std::string& what, double actual,
                          double expected, const Tolerance& tolerance, double scale = -1) {
  CaseDigest& bits = digest();
  ++bits.tensors;
  bits.bits = (bits.bits ^ std::bit_cast<uint64_t>(actual)) * 0x100000001B3u;
  const double magnitude = scale < 0 ? std::abs(expected) : scale;
  const double ratio =
      deviation_ratio(actual, expected, tolerance.absolute + tolerance.relative * magnitude);
  result.merge(
      ratio, str_cat(what, " is ", format_number(actual), ", expected ", format_number(expected)));
}

// ---- finite differences ----

// d objective / d x by central differences of a function in double precision. Steps of 1e-5 leave
// an error near 1e-10 of the scale of the objective and its third derivative, far below fp32.
inline std::vector<double> finite_differences(
    std::vector<double> x, const std::function<double(const std::vector<double>&)>& objective) {
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    const double step = 1e-5 * std::max(1.0, std::abs(at));
    x[i] = at + step;
    const double above = objective(x);
    x[i] = at - step;
    const double below = objective(x);
    x[i] = at;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

// Compares an operator's gradient with finite differences; the tolerance is relative to the largest
// element of the gradient.
inline void compare_gradient(CaseResult& result, const std::string& what, const Tensor& actual,
                             const std::vector<double>& x,
                             const std::function<double(const std::vector<double>&)>& objective,
                             const Tolerance& tolerance) {
  const std::vector<double> expected = finite_differences(x, objective);
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  const std::vector<double> scale(expected.size(), largest);
  compare(result, what, actual, expected, tolerance, scale);
}

// sum of weights * values: turns a tensor result into the objective whose output gradient is
// `weights`.
inline double weighted_sum(std::span<const double> weights, std::span<const double> values) {
  double total = 0;
  for (size_t i = 0; i < weights.size(); ++i) total += weights[i] * values[i];
  return total;
}

}  // namespace ds::testing
