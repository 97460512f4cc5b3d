// What collectives compute: the elementwise combination of the arrays of several ranks, in rank
// order, and copies that do not pass through the cache. Single-threaded: the ranks are the threads.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/bfloat16.h"
#include "base/float16.h"

namespace ds::kernels {

enum class CombineOp { kSum, kMin, kMax };

// What running results of elements of type T are kept in.
template <class T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;

// For each element: start, inputs[0], inputs[1], ... from left to right, divided by the divisor and
// rounded once into every output, or undivided into `partial`. Minimum and maximum are NaN where an
// operand is. Integers wrap and have divisor 1. An output may be one of the inputs.
template <class T>
struct Combination {
  CombineOp op = CombineOp::kSum;
  const Accumulator<T>* start = nullptr;  // null: begins with inputs[0], or zero without inputs
  const T* const* inputs = nullptr;
  int input_count = 0;
  T* const* outputs = nullptr;
  int output_count = 0;
  Accumulator<T>* partial = nullptr;
  Accumulator<T> divisor = 1;
  bool stream = false;  // outputs go past the cache where their alignment allows
};

void combine(const Combination<float>& task, int64_t n);
void combine(const Combination<bfloat16>& task, int64_t n);
void combine(const Combination<float16>& task, int64_t n);
void combine(const Combination<double>& task, int64_t n);
void combine(const Combination<int8_t>& task, int64_t n);
void combine(const Combination<int16_t>& task, int64_t n);
void combine(const Combination<int32_t>& task, int64_t n);
void combine(const Combination<int64_t>& task, int64_t n);
void combine(const Combination<uint8_t>& task, int64_t n);
void combine(const Combination<uint16_t>& task, int64_t n);
void combine(const Combination<uint32_t>& task, int64_t n);
void combine(const Combination<uint64_t>& task, int64_t n);

// memcpy whose stores go past the cache: for targets that are larger than it, or that another core
// reads next.
void stream_copy(void* to, const void* from, int64_t bytes);

}  // namespace ds::kernels
