// From element types at run time to the kernels that combine and copy.
#include <cstring>

#include "comm/transport.h"
#include "kernels/collective/combine.h"

namespace ds::comm {
namespace {

template <class T>
void combine_typed(const Reduction& reduction, const std::vector<const std::byte*>& inputs,
                   const std::vector<std::byte*>& outputs, int64_t count, bool stream) {
  constexpr size_t kFew = 64;
  const T* few_inputs[kFew];
  T* few_outputs[kFew];
  std::vector<const T*> many_inputs;
  std::vector<T*> many_outputs;
  const T** in = few_inputs;
  T** out = few_outputs;
  if (inputs.size() > kFew || outputs.size() > kFew) {
    many_inputs.resize(inputs.size());
    many_outputs.resize(outputs.size());
    in = many_inputs.data();
    out = many_outputs.data();
  }
  kernels::Combination<T> task;
  for (const std::byte* input : inputs) {
    if (input != nullptr) in[task.input_count++] = reinterpret_cast<const T*>(input);
  }
  for (std::byte* output : outputs) {
    if (output != nullptr) out[task.output_count++] = reinterpret_cast<T*>(output);
  }
  task.inputs = in;
  task.outputs = out;
  task.op = reduction.op == ReduceOp::kMin   ? kernels::CombineOp::kMin
            : reduction.op == ReduceOp::kMax ? kernels::CombineOp::kMax
                                             : kernels::CombineOp::kSum;
  if (reduction.op == ReduceOp::kAverage) {
    task.divisor = static_cast<kernels::Accumulator<T>>(reduction.divisor);
  }
  task.stream = stream;
  kernels::combine(task, count);
}

}  // namespace

void combine_inputs(const Reduction& reduction, const std::vector<const std::byte*>& inputs,
                    const std::vector<std::byte*>& outputs, int64_t count, bool stream) {
  const auto as = [&]<class T>(T) { combine_typed<T>(reduction, inputs, outputs, count, stream); };
  switch (reduction.dtype) {
    case DType::kFloat32:
      return as(float{});
    case DType::kFloat64:
      return as(double{});
    case DType::kFloat16:
      return as(float16{});
    case DType::kBFloat16:
      return as(bfloat16{});
    case DType::kInt8:
      return as(int8_t{});
    case DType::kInt16:
      return as(int16_t{});
    case DType::kInt32:
      return as(int32_t{});
    case DType::kInt64:
      return as(int64_t{});
    case DType::kUInt8:
      return as(uint8_t{});
    case DType::kUInt16:
      return as(uint16_t{});
    case DType::kUInt32:
      return as(uint32_t{});
    case DType::kUInt64:
      return as(uint64_t{});
    case DType::kBool:
      break;
  }
  fail(Code::kInternal, "no reduction of ", dtype_name(reduction.dtype));
}

Range part_of(int64_t count, int part, int parts, int64_t element_size) {
  constexpr int64_t kLine = 64;
  const int64_t grain = kLine / element_size;
  const int64_t lines = (count + grain - 1) / grain;
  const auto cut = [&](int64_t k) {
    const int64_t at = (lines / parts * k + lines % parts * k / parts) * grain;
    return at < count ? at : count;
  };
  return {cut(part), part + 1 == parts ? count : cut(part + 1)};
}

void copy_bytes(void* to, const void* from, int64_t bytes, bool stream) {
  if (bytes <= 0 || to == from) return;
  if (stream) {
    kernels::stream_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

}  // namespace ds::comm
