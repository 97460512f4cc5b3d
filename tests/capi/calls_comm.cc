#include "capi/call_rows.h"

namespace capi_test {
namespace {

ds_collective* all_reduce_of(ds_tensor* tensor) {
  static ds_collective call;
  call = {};
  call.struct_size = sizeof(call);
  call.kind = DS_COLLECTIVE_ALL_REDUCE;
  call.output = tensor;
  return &call;
}

ds_tensor** other_list_of(ds_tensor* tensor) {
  static ds_tensor* list;
  list = tensor;
  return &list;
}

// A second tensor like world.ids, in the place of world.list.
ds_tensor* same_again(World& world) {
  ds_tensor_destroy(world.list);
  world.list = make_ids(kBatch, 8, 12);
  return world.list;
}

}  // namespace

std::vector<Call> comm_calls() {
  return {
      {"ds_comm_create",
       {out(kComm, "out_comm")},
       [](const Arguments& a) {
         return ds_comm_create(0, 1, R"({"timeout_seconds": 5})", nullptr, p<ds_comm*>(a, 0));
       }},
      {"ds_comm_describe",
       {in(kComm, "comm")},
       [](const Arguments& a) {
         ds_comm_info info{};
         info.struct_size = sizeof info;
         return ds_comm_describe(p<ds_comm>(a, 0), &info);
       }},
      {"ds_comm_all_reduce",
       {in(kComm, "comm"), in(kTensor, "tensor")},
       [](const Arguments& a) {
         return ds_comm_all_reduce(p<ds_comm>(a, 0), p<ds_tensor>(a, 1), DS_REDUCE_MAX);
       }},
      {"ds_comm_all_reduce_coalesced",
       {in(kComm, "comm"), pointer("tensors")},
       [](const Arguments& a) {
         return ds_comm_all_reduce_coalesced(p<ds_comm>(a, 0), p<ds_tensor*>(a, 1), 1,
                                             DS_REDUCE_SUM);
       },
       [](World& world, Arguments& a) { a[1] = list_of(world.tensor); }},
      {"ds_comm_reduce_scatter_coalesced",
       {in(kComm, "comm"), pointer("outputs"), pointer("inputs")},
       [](const Arguments& a) {
         return ds_comm_reduce_scatter_coalesced(p<ds_comm>(a, 0), p<ds_tensor*>(a, 1),
                                                 p<ds_tensor*>(a, 2), 1, DS_REDUCE_SUM);
       },
       [](World& world, Arguments& a) {
         a[1] = list_of(world.ids);
         a[2] = other_list_of(same_again(world));
       }},
      {"ds_comm_all_gather_coalesced",
       {in(kComm, "comm"), pointer("outputs"), pointer("inputs")},
       [](const Arguments& a) {
         return ds_comm_all_gather_coalesced(p<ds_comm>(a, 0), p<ds_tensor*>(a, 1),
                                             p<ds_tensor*>(a, 2), 1);
       },
       [](World& world, Arguments& a) {
         a[1] = list_of(world.ids);
         a[2] = other_list_of(same_again(world));
       }},
      {"ds_comm_reduce_scatter",
       {in(kComm, "comm"), in(kTensor, "output"), in(kTensor, "input")},
       [](const Arguments& a) {
         return ds_comm_reduce_scatter(p<ds_comm>(a, 0), p<ds_tensor>(a, 1), p<ds_tensor>(a, 2),
                                       DS_REDUCE_SUM);
       }},
      {"ds_comm_all_gather",
       {in(kComm, "comm"), in(kTensor, "output"), in(kTensor, "input")},
       [](const Arguments& a) {
         return ds_comm_all_gather(p<ds_comm>(a, 0), p<ds_tensor>(a, 1), p<ds_tensor>(a, 2));
       }},
      {"ds_comm_all_to_all",
       {in(kComm, "comm"), in(kTensor, "output"), in(kTensor, "input")},
       [](const Arguments& a) {
         return ds_comm_all_to_all(p<ds_comm>(a, 0), p<ds_tensor>(a, 1), p<ds_tensor>(a, 2));
       }},
      {"ds_comm_broadcast",
       {in(kComm, "comm"), in(kTensor, "tensor")},
       [](const Arguments& a) {
         return ds_comm_broadcast(p<ds_comm>(a, 0), p<ds_tensor>(a, 1), 0);
       }},
      {"ds_comm_split",
       {in(kComm, "comm"), out(kComm, "out_comm")},
       [](const Arguments& a) { return ds_comm_split(p<ds_comm>(a, 0), 0, 0, p<ds_comm*>(a, 1)); }},
      {"ds_comm_join",
       {in(kComm, "comm")},
       [](const Arguments& a) { return ds_comm_join(p<ds_comm>(a, 0)); }},
      {"ds_comm_start",
       {in(kComm, "comm"), pointer("collective"), out(kWork, "out_work")},
       [](const Arguments& a) {
         return ds_comm_start(p<ds_comm>(a, 0), p<ds_collective>(a, 1), p<ds_work*>(a, 2));
       },
       [](World& world, Arguments& a) { a[1] = all_reduce_of(world.tensor); }},
      {"ds_work_test",
       {in(kWork, "work"), out("out_done")},
       [](const Arguments& a) { return ds_work_test(p<ds_work>(a, 0), p<int32_t>(a, 1)); }},
      {"ds_work_wait",
       {in(kWork, "work")},
       [](const Arguments& a) { return ds_work_wait(p<ds_work>(a, 0), nullptr); }},
      {"ds_comm_shared_tensor",
       {in(kComm, "comm"), pointer("shape"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_comm_shared_tensor(p<ds_comm>(a, 0), DS_INT8, p<int64_t>(a, 1), 2,
                                      p<ds_tensor*>(a, 2));
       },
       [](World&, Arguments& a) { a[1] = shape_2_3; }},
      {"ds_comm_report",
       {in(kComm, "comm"), out_text("out_json")},
       [](const Arguments& a) { return ds_comm_report(p<ds_comm>(a, 0), p<char*>(a, 1)); }},
      {"ds_comm_barrier",
       {in(kComm, "comm")},
       [](const Arguments& a) { return ds_comm_barrier(p<ds_comm>(a, 0)); }},
      {"ds_comm_finalize",
       {in(kComm, "comm")},
       [](const Arguments& a) { return ds_comm_finalize(p<ds_comm>(a, 0)); }},
      {"ds_comm_abort",
       {in(kComm, "comm")},
       [](const Arguments& a) { return ds_comm_abort(p<ds_comm>(a, 0)); }},
  };
}

}  // namespace capi_test
