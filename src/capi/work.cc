// Collectives of ds.h that go on beside the program, and memory that processes share.
#include <optional>
#include <span>
#include <vector>

#include "capi/args.h"
#include "capi/comm_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

static_assert(sizeof(ds_collective) == 80);

namespace {

// The tensors of a descriptor, entered while the operation is started.
class Buffers {
 public:
  Buffers(const ds_collective& call, bool output, bool input) {
    if (output) take(call.output, "collective.output", Entry::kExclusive, output_);
    if (input) take(call.input, "collective.input", Entry::kShared, input_);
  }
  const Tensor& output() const { return tensor_of(output_); }
  const Tensor& input() const { return tensor_of(input_); }

 private:
  using Slot = std::optional<Entered<TensorObject>>;
  static void take(const ds_tensor* handle, const char* name, Entry entry, Slot& slot) {
    slot.emplace(look_up(handle, name), entry, name);
    host_tensor(**slot, name);
  }
  static const Tensor& tensor_of(const Slot& slot) {
    static const Tensor none;
    return slot ? (*slot)->tensor : none;
  }
  Slot output_, input_;
};

std::span<const int64_t> counts_of(const int64_t* counts, const Communicator& comm) {
  if (counts == nullptr) return {};
  return {counts, static_cast<size_t>(comm.size())};
}

// What a descriptor holds beside what its kind uses is a mistake, not something to pass over.
void check_unused(const ds_collective& call, bool output, bool input, bool counts) {
  DS_CHECK(output || call.output == nullptr, Code::kInvalidArgument,
           "collective.output is set, and this kind has none");
  DS_CHECK(input || call.input == nullptr, Code::kInvalidArgument,
           "collective.input is set, and this kind has none: `output` is its only tensor");
  DS_CHECK(counts || (call.output_counts == nullptr && call.input_counts == nullptr),
           Code::kInvalidArgument,
           "collective has counts; only all_gather and all_to_all take pieces of other sizes");
}

WorkPtr start_operation(Communicator& comm, const ds_collective& call,
                        const CollectiveOptions& options) {
  const bool root = comm.rank() == call.root;
  switch (call.kind) {
    case DS_COLLECTIVE_ALL_REDUCE: {
      check_unused(call, true, false, false);
      const Buffers at(call, true, false);
      return comm.all_reduce(at.output(), reduce_op_param(call.op), options);
    }
    case DS_COLLECTIVE_REDUCE: {
      check_unused(call, true, false, false);
      const Buffers at(call, true, false);
      return comm.reduce(at.output(), reduce_op_param(call.op), call.root, options);
    }
    case DS_COLLECTIVE_REDUCE_SCATTER: {
      check_unused(call, true, true, false);
      const Buffers at(call, true, true);
      return comm.reduce_scatter(at.output(), at.input(), reduce_op_param(call.op), options);
    }
    case DS_COLLECTIVE_ALL_GATHER: {
      check_unused(call, true, true, true);
      DS_CHECK(call.input_counts == nullptr, Code::kInvalidArgument,
               "collective.input_counts is set; all_gather takes output_counts alone");
      const Buffers at(call, true, true);
      if (call.output_counts == nullptr) return comm.all_gather(at.output(), at.input(), options);
      return comm.all_gather_v(at.output(), at.input(), counts_of(call.output_counts, comm),
                               options);
    }
    case DS_COLLECTIVE_BROADCAST: {
      check_unused(call, true, false, false);
      const Buffers at(call, true, false);
      return comm.broadcast(at.output(), call.root, options);
    }
    case DS_COLLECTIVE_ALL_TO_ALL: {
      check_unused(call, true, true, true);
      DS_CHECK((call.output_counts == nullptr) == (call.input_counts == nullptr),
               Code::kInvalidArgument,
               "collective has only one of output_counts and input_counts; all_to_all takes both "
               "or neither");
      const Buffers at(call, true, true);
      if (call.output_counts == nullptr) return comm.all_to_all(at.output(), at.input(), options);
      return comm.all_to_all_v(at.output(), at.input(), counts_of(call.output_counts, comm),
                               counts_of(call.input_counts, comm), options);
    }
    case DS_COLLECTIVE_GATHER: {
      check_unused(call, root, true, false);
      const Buffers at(call, root, true);
      return comm.gather(at.output(), at.input(), call.root, options);
    }
    case DS_COLLECTIVE_SCATTER: {
      check_unused(call, true, root, false);
      const Buffers at(call, true, root);
      return comm.scatter(at.output(), at.input(), call.root, options);
    }
    case DS_COLLECTIVE_SEND: {
      check_unused(call, false, true, false);
      const Buffers at(call, false, true);
      return comm.send(at.input(), call.root, call.tag, options);
    }
    case DS_COLLECTIVE_RECV: {
      check_unused(call, true, false, false);
      const Buffers at(call, true, false);
      return comm.recv(at.output(), call.root, call.tag, options);
    }
    case DS_COLLECTIVE_BARRIER:
      check_unused(call, false, false, false);
      return comm.start_barrier(options);
    default:
      fail(Code::kInvalidArgument, "collective.kind is ", call.kind,
           "; a ds_collective_kind is needed");
  }
}

}  // namespace

ds_status ds_comm_start(ds_comm* comm, const ds_collective* collective, ds_work** out_work) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const ds_collective call = struct_param(collective, "collective");
    ds_work*& out = out_param(out_work, "out_work");
    DS_CHECK(call.reserved == 0, Code::kInvalidArgument, "collective.reserved is ", call.reserved,
             "; it must be 0");
    CollectiveOptions options;
    if (call.label != nullptr) options.label = utf8_param(call.label, "collective.label");
    DS_CHECK(call.timeout_ms >= 0, Code::kInvalidArgument, "collective.timeout_ms is ",
             call.timeout_ms, "; 0 (the group's) or more is needed");
    if (call.timeout_ms > 0) options.deadline = std::chrono::milliseconds(call.timeout_ms);
    options.average_over_participants = call.average_over_participants != 0;
    // The handle is there before the operation: a started one can be waited for.
    auto work = std::make_shared<WorkObject>(object->comm);
    ds_work* const handle = publish<ds_work>(work);
    try {
      work->work = start_operation(*object->comm, call, options);
    } catch (...) {
      end_handle(handle);
      throw;
    }
    out = handle;
  });
}

ds_status ds_work_test(const ds_work* work, ds_bool* out_done) {
  return guard(__func__, [&] {
    const auto object = look_up(work, "work");
    out_param(out_done, "out_done") = object->work->done() ? 1 : 0;
  });
}

ds_status ds_work_wait(const ds_work* work, int32_t* out_participants) {
  return guard(__func__, [&] {
    const auto object = look_up(work, "work");
    object->work->wait();
    if (out_participants != nullptr) *out_participants = object->work->participants();
  });
}

void ds_work_destroy(ds_work* work) { end_handle(work); }

ds_status ds_comm_shared_tensor(ds_comm* comm, ds_dtype dtype, const int64_t* shape, int32_t ndim,
                                ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const Shape wanted = shape_param(shape, ndim);
    ReservedTensor tensor;
    out = tensor.give(object->comm->shared_tensor(make_cpu_device(), dtype_param(dtype, "dtype"),
                                                  wanted, MemoryTag::kOther));
  });
}
