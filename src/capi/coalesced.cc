// Collectives of ds.h over many tensors at once: one collective over a copy of all of them.
#include <cstring>

#include "capi/comm_object.h"
#include "capi/fence.h"
#include "capi/tensor_list.h"

namespace ds::capi {
namespace {

Tensor flat(DType dtype, int64_t elements) {
  return Tensor::empty(make_cpu_device({.cache = false}), dtype, {elements},
                       MemoryTag::kCommunication);
}

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.raw()); }

void check_contiguous(const TensorList& list, const char* name) {
  for (size_t i = 0; i < list.size(); ++i) {
    DS_CHECK(list[i].contiguous(), Code::kInvalidArgument, name, "[", i,
             "] must be packed row-major");
  }
}

// Copies part `part` of `parts` equal ones of every tensor to consecutive memory, or back.
void copy_parts(const TensorList& list, int64_t part, int64_t parts, std::byte* packed, bool back) {
  for (size_t i = 0; i < list.size(); ++i) {
    const auto bytes = static_cast<size_t>(list[i].bytes() / parts);
    if (bytes == 0) continue;
    std::byte* const own = bytes_of(list[i]) + static_cast<size_t>(part) * bytes;
    std::memcpy(back ? own : packed, back ? packed : own, bytes);
    packed += bytes;
  }
}

// Each larger tensor holds one part per process of what the smaller one is.
void check_parts(const TensorList& small, const char* small_name, const TensorList& large,
                 const char* large_name, int processes) {
  check_contiguous(small, small_name);
  check_contiguous(large, large_name);
  DS_CHECK(small.dtype() == large.dtype(), Code::kInvalidArgument, small_name, " are ",
           dtype_name(small.dtype()), ", ", large_name, " ", dtype_name(large.dtype()));
  for (size_t i = 0; i < small.size(); ++i) {
    DS_CHECK(large[i].elements() == small[i].elements() * processes, Code::kInvalidArgument,
             large_name, "[", i, "] has ", large[i].elements(), " elements; ", processes,
             " times the ", small[i].elements(), " of ", small_name, "[", i, "] are needed");
  }
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_comm_all_reduce_coalesced(ds_comm* comm, ds_tensor* const* tensors, int64_t count,
                                       ds_reduce_op op) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const TensorList list(tensors, count, "tensors", Entry::kExclusive);
    check_contiguous(list, "tensors");
    const Tensor all = flat(list.dtype(), list.elements());
    copy_parts(list, 0, 1, bytes_of(all), /*back=*/false);
    object->comm->all_reduce(all, reduce_op_param(op))->wait();
    copy_parts(list, 0, 1, bytes_of(all), /*back=*/true);
  });
}

ds_status ds_comm_reduce_scatter_coalesced(ds_comm* comm, ds_tensor* const* outputs,
                                           ds_tensor* const* inputs, int64_t count,
                                           ds_reduce_op op) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const TensorList to(outputs, count, "outputs", Entry::kExclusive);
    const TensorList from(inputs, count, "inputs", Entry::kShared);
    const int processes = object->comm->size();
    check_parts(to, "outputs", from, "inputs", processes);
    const Tensor all = flat(from.dtype(), from.elements()), own = flat(to.dtype(), to.elements());
    for (int64_t rank = 0; rank < processes; ++rank) {
      copy_parts(from, rank, processes, bytes_of(all) + rank * own.bytes(), /*back=*/false);
    }
    object->comm->reduce_scatter(own, all, reduce_op_param(op))->wait();
    copy_parts(to, 0, 1, bytes_of(own), /*back=*/true);
  });
}

ds_status ds_comm_all_gather_coalesced(ds_comm* comm, ds_tensor* const* outputs,
                                       ds_tensor* const* inputs, int64_t count) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const TensorList to(outputs, count, "outputs", Entry::kExclusive);
    const TensorList from(inputs, count, "inputs", Entry::kShared);
    const int processes = object->comm->size();
    check_parts(from, "inputs", to, "outputs", processes);
    const Tensor all = flat(to.dtype(), to.elements()), own = flat(from.dtype(), from.elements());
    copy_parts(from, 0, 1, bytes_of(own), /*back=*/false);
    object->comm->all_gather(all, own)->wait();
    for (int64_t rank = 0; rank < processes; ++rank) {
      copy_parts(to, rank, processes, bytes_of(all) + rank * own.bytes(), /*back=*/true);
    }
  });
}
