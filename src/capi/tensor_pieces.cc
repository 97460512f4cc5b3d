// Tensors of ds.h as pieces of others: flattened, unflattened, quantised by blocks.
#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "capi/fence.h"
#include "capi/tensor_list.h"
#include "ops/block_quantize.h"
#include "tensor/lent_memory.h"

namespace ds::capi {
namespace {

Tensor host_memory(DType dtype, int64_t elements) {
  return Tensor::empty(make_cpu_device({.cache = false}), dtype, {elements}, MemoryTag::kOther);
}

// Where the blocks of so many elements begin, and where the last one ends.
std::vector<int64_t> block_begins(int64_t elements, int64_t block_size) {
  DS_CHECK(block_size >= 2 && block_size <= kernels::kMostBlockElements && block_size % 2 == 0,
           Code::kInvalidArgument, "block_size is ", block_size, "; an even number from 2 to ",
           kernels::kMostBlockElements, " is needed");
  std::vector<int64_t> begins;
  for (int64_t at = 0; at < elements; at += block_size) begins.push_back(at);
  begins.push_back(elements);
  return begins;
}

void check_bits(int32_t bits) {
  DS_CHECK(bits == 8 || bits == 4, Code::kInvalidArgument, "bits is ", bits, "; 8 or 4 is needed");
}

int64_t code_bytes(int32_t bits, int64_t elements) {
  return bits == 8 ? elements : (elements + 1) / 2;
}

void check_packed_float(const Tensor& tensor, const char* name) {
  const DType type = tensor.dtype();
  DS_CHECK(type == DType::kFloat32 || type == DType::kBFloat16 || type == DType::kFloat16,
           Code::kUnsupported, name, " is ", dtype_name(type),
           "; float32, bfloat16 or float16 is needed");
  DS_CHECK(tensor.contiguous(), Code::kInvalidArgument, name, " must be packed row-major");
}

// The message of ZeRO++, which holds the codes and then the scales.
Tensor message_of(int32_t bits, int64_t elements, int64_t blocks) {
  return host_memory(DType::kUInt8, ops::packed_bytes(bits, elements, blocks));
}

std::byte* scales_in(const Tensor& message, int64_t blocks) {
  return static_cast<std::byte*>(message.raw()) + message.bytes() -
         blocks * static_cast<int64_t>(sizeof(float));
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_tensor_flatten(ds_tensor* const* tensors, int64_t count, ds_tensor** out_flat) {
  return guard(__func__, [&] {
    const TensorList list(tensors, count, "tensors", Entry::kShared);
    ds_tensor*& out = out_param(out_flat, "out_flat");
    Tensor flat = host_memory(list.dtype(), list.elements());
    auto* at = static_cast<std::byte*>(flat.raw());
    for (size_t i = 0; i < list.size(); ++i) {
      copy_to_packed(list[i], at);
      at += list[i].bytes();
    }
    out = publish_tensor(std::move(flat));
  });
}

ds_status ds_tensor_unflatten(const ds_tensor* flat, ds_tensor* const* shapes_like, int64_t count,
                              ds_tensor** out_tensors) {
  return guard(__func__, [&] {
    const auto whole = enter(flat, "flat", Entry::kShared);
    DS_CHECK(shapes_like != nullptr, Code::kInvalidArgument, "shapes_like is NULL");
    DS_CHECK(count >= 1, Code::kInvalidArgument, "count is ", count, "; 1 or more is needed");
    DS_CHECK(out_tensors != nullptr, Code::kInvalidArgument, "out_tensors is NULL");
    const Tensor& from = whole->tensor;
    DS_CHECK(from.dims() == 1 && from.contiguous(), Code::kInvalidArgument, "flat has shape ",
             from.shape().text(), "; one packed dimension is needed");
    std::vector<Shape> shapes;
    int64_t elements = 0;
    for (int64_t i = 0; i < count; ++i) {
      const std::string where = str_cat("shapes_like[", i, "]");
      shapes.push_back(look_up(shapes_like[i], where.c_str())->tensor.shape());
      elements += shapes.back().elements();
    }
    DS_CHECK(elements == from.elements(), Code::kInvalidArgument, "shapes_like have ", elements,
             " elements, flat has ", from.elements());
    std::vector<Tensor> views;
    int64_t begin = 0;
    for (const Shape& shape : shapes) {
      views.push_back(from.slice(0, begin, begin + shape.elements()).view(shape));
      begin += shape.elements();
    }
    std::vector<ReservedTensor> handles(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      out_tensors[i] = handles[i].give(std::move(views[i]));
    }
  });
}

ds_status ds_tensor_quantize(const ds_tensor* tensor, int32_t bits, int64_t block_size,
                             ds_tensor** out_codes, ds_tensor** out_scales) {
  return guard(__func__, [&] {
    const auto object = enter(tensor, "tensor", Entry::kShared);
    ds_tensor*& codes_out = out_param(out_codes, "out_codes");
    ds_tensor*& scales_out = out_param(out_scales, "out_scales");
    check_bits(bits);
    const Tensor& x = host_tensor(*object, "tensor");
    check_packed_float(x, "tensor");
    const std::vector<int64_t> begins = block_begins(x.elements(), block_size);
    const int64_t blocks = kernels::block_count(begins);
    Tensor codes = host_memory(DType::kUInt8, code_bytes(bits, x.elements()));
    Tensor scales = host_memory(DType::kFloat32, blocks);
    if (x.elements() > 0) {
      Tensor message = message_of(bits, x.elements(), blocks);
      ThreadPool pool;
      ops::pack_blocks({make_cpu_device({.cache = false}), &pool}, x, bits, begins, message);
      std::memcpy(codes.raw(), message.raw(), static_cast<size_t>(codes.bytes()));
      std::memcpy(scales.raw(), scales_in(message, blocks), static_cast<size_t>(scales.bytes()));
    }
    ReservedTensor first, second;
    codes_out = first.give(std::move(codes));
    scales_out = second.give(std::move(scales));
  });
}

ds_status ds_tensor_dequantize(const ds_tensor* codes, const ds_tensor* scales, int32_t bits,
                               int64_t block_size, ds_tensor* output) {
  return guard(__func__, [&] {
    const auto given = enter(codes, "codes", Entry::kShared);
    const auto factors = enter(scales, "scales", Entry::kShared);
    const auto target = enter(output, "output");
    check_bits(bits);
    Tensor y = host_tensor(*target, "output");
    check_packed_float(y, "output");
    DS_CHECK(!y.storage()->read_only(), Code::kState, "output is read-only");
    const std::vector<int64_t> begins = block_begins(y.elements(), block_size);
    const int64_t blocks = kernels::block_count(begins);
    const Tensor &c = host_tensor(*given, "codes"), &s = host_tensor(*factors, "scales");
    check_tensor(c, "codes", DType::kUInt8, {code_bytes(bits, y.elements())});
    check_tensor(s, "scales", DType::kFloat32, {blocks});
    if (y.elements() == 0) return;
    const Tensor message = message_of(bits, y.elements(), blocks);
    copy_to_packed(c, message.raw());
    copy_to_packed(s, scales_in(message, blocks));
    ThreadPool pool;
    ops::unpack_blocks({make_cpu_device({.cache = false}), &pool}, message, bits, begins, 1, false,
                       y);
  });
}
