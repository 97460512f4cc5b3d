// Communicators of ds.h.
#include "capi/args.h"
#include "capi/comm_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

static_assert(sizeof(ds_store) == 32);

ds_status ds_comm_create(int32_t rank, int32_t world_size, const char* config_json,
                         const ds_store* store, ds_comm** out_comm) {
  return guard(__func__, [&] {
    ds_comm*& out = out_param(out_comm, "out_comm");
    DS_CHECK(world_size >= 1, Code::kInvalidArgument, "world_size is ", world_size,
             "; a group has at least 1 process");
    DS_CHECK(rank >= 0 && rank < world_size, Code::kInvalidArgument, "rank is ", rank,
             "; a group of ", world_size, " has the ranks 0 to ", world_size - 1);
    if (store != nullptr) {
      const ds_store given = struct_param(store, "store");
      DS_CHECK((given.put == nullptr) == (given.get == nullptr), Code::kInvalidArgument,
               "store has only one of `put` and `get`; both or neither are needed");
    }
    const CommOptions options =
        parse_comm_options(config_json == nullptr ? std::string_view() : config_json);
    DS_CHECK(world_size == 1, Code::kUnsupported, "world_size is ", world_size,
             "; this version trains with one process: pass rank 0 and world_size 1");
    out = publish<ds_comm>(std::make_shared<CommObject>(make_single_communicator(options)));
  });
}

ds_status ds_comm_rank(const ds_comm* comm, int32_t* out_rank) {
  return guard(__func__, [&] {
    const auto object = look_up(comm, "comm");
    out_param(out_rank, "out_rank") = object->comm->rank();
  });
}

ds_status ds_comm_size(const ds_comm* comm, int32_t* out_size) {
  return guard(__func__, [&] {
    const auto object = look_up(comm, "comm");
    out_param(out_size, "out_size") = object->comm->size();
  });
}

ds_status ds_comm_all_reduce(ds_comm* comm, ds_tensor* tensor) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const auto value = enter(tensor, "tensor");
    const Tensor& t = value->tensor;
    DS_CHECK(dtype_is_floating(t.dtype()), Code::kInvalidArgument, "tensor is ",
             dtype_name(t.dtype()), "; a floating type is needed");
    object->comm->all_reduce(t, ReduceOp::kSum)->wait();
  });
}

ds_status ds_comm_barrier(ds_comm* comm) {
  return guard(__func__, [&] { enter(comm, "comm")->comm->barrier(); });
}

ds_status ds_comm_finalize(ds_comm* comm) {
  return guard(__func__, [&] { enter(comm, "comm")->comm->finalize(); });
}

ds_status ds_comm_abort(ds_comm* comm) {
  return guard(__func__, [&] { look_up(comm, "comm")->comm->abort("ds_comm_abort was called"); });
}

void ds_comm_destroy(ds_comm* comm) { end_handle(comm); }
