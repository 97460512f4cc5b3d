#include "capi/call_rows.h"

namespace capi_test {
namespace {

// A read of world.tensor from a file that holds it, or a write of it to that.
ds_io_transfer* transfer_of(World& world, bool write) {
  static std::string path;
  static ds_io_transfer transfer;
  path = world.folder.file("numbers");
  transfer = DS_IO_TRANSFER_INIT;
  transfer.path = path.c_str();
  transfer.tensor = world.tensor;
  transfer.write = 1;
  transfer.whole_file = 1;
  EXPECT_DS_OK(ds_io_run(world.io, &transfer));
  transfer.write = write ? 1 : 0;
  return &transfer;
}

}  // namespace

std::vector<Call> io_calls() {
  return {
      {"ds_io_create",
       {out(kIo, "out_io")},
       [](const Arguments& a) {
         return ds_io_create(R"({"queue_depth": 2, "checksum": true})", p<ds_io*>(a, 0));
       }},
      {"ds_io_describe",
       {in(kIo, "io"), pointer("out_info")},
       [](const Arguments& a) { return ds_io_describe(p<ds_io>(a, 0), p<ds_io_info>(a, 1)); },
       [](World&, Arguments& a) {
         static ds_io_info info;
         info = DS_IO_INFO_INIT;
         a[1] = &info;
       }},
      {"ds_io_run",
       {in(kIo, "io"), pointer("transfer")},
       [](const Arguments& a) { return ds_io_run(p<ds_io>(a, 0), p<ds_io_transfer>(a, 1)); },
       [](World& world, Arguments& a) { a[1] = transfer_of(world, false); }},
      {"ds_io_start",  // what fails later is told by the wait, not by this call
       {in(kIo, "io"), pointer("transfer")},
       [](const Arguments& a) {
         const ds_status status = ds_io_start(p<ds_io>(a, 0), p<ds_io_transfer>(a, 1), nullptr);
         if (status == DS_OK) ds_io_wait(p<ds_io>(a, 0), 0, nullptr);
         return status;
       },
       [](World& world, Arguments& a) { a[1] = transfer_of(world, true); }},
      {"ds_io_test",
       {in(kIo, "io"), out("out_done")},
       [](const Arguments& a) { return ds_io_test(p<ds_io>(a, 0), 1, p<ds_bool>(a, 1)); }},
      {"ds_io_wait",
       {in(kIo, "io")},
       [](const Arguments& a) { return ds_io_wait(p<ds_io>(a, 0), 0, nullptr); }},
      {"ds_io_cancel",
       {in(kIo, "io")},
       [](const Arguments& a) { return ds_io_cancel(p<ds_io>(a, 0), nullptr); }},
      {"ds_pinned_tensor",
       {pointer("shape"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_pinned_tensor(DS_INT8, p<int64_t>(a, 0), 2, p<ds_tensor*>(a, 1));
       },
       [](World&, Arguments& a) { a[0] = shape_2_3; }},
      {"ds_pinned_allocate",
       {pointer("out_memory")},
       [](const Arguments& a) {
         const ds_status status = ds_pinned_allocate(100, p<void*>(a, 0));
         return status != DS_OK ? status : ds_pinned_free(*p<void*>(a, 0), nullptr);
       },
       [](World&, Arguments& a) {
         static void* memory;
         a[0] = &memory;
       }},
      {"ds_pinned_free", {}, [](const Arguments&) { return ds_pinned_free(nullptr, nullptr); }},
      {"ds_pinned_contains",
       {out("out_pinned")},
       [](const Arguments& a) {
         return ds_pinned_contains(six_floats, sizeof six_floats, p<ds_bool>(a, 0));
       }},
      {"ds_tensor_is_pinned",
       {in(kTensor, "tensor"), out("out_pinned")},
       [](const Arguments& a) {
         return ds_tensor_is_pinned(p<ds_tensor>(a, 0), p<ds_bool>(a, 1));
       }},
  };
}

}  // namespace capi_test
