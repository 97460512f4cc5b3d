// Memory of ds.h: what the process holds, and where it comes from.
#include "base/json.h"
#include "capi/args.h"
#include "capi/fence.h"
#include "capi/system_memory.h"
#include "device/caller_memory.h"
#include "device/device.h"

namespace ds::capi {
namespace {

static_assert(sizeof(ds_allocator) == 32);

Json account_json(const MemoryAccount& account) {
  Json tags = Json::object();
  for (int i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    tags[std::string(memory_tag_name(tag))] = {{"now", account.now(tag)},
                                               {"peak", account.peak(tag)}};
  }
  return {{"tags", std::move(tags)},
          {"total", {{"now", account.total_now()}, {"peak", account.total_peak()}}}};
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_memory_report(char** out_json) {
  return guard(__func__, [&] {
    char*& out = out_param(out_json, "out_json");
    const Json report = {{"host", account_json(process_account(/*gpu=*/false))},
                         {"gpus", account_json(process_account(/*gpu=*/true))},
                         {"process", process_memory()},
                         {"system", system_memory()}};
    out = make_c_string(dump_json(report, 2));
  });
}

ds_status ds_allocator_set(ds_device_kind device_kind, const ds_allocator* allocator,
                           ds_release_fn release) {
  return guard(__func__, [&] {
    DS_CHECK(device_kind == DS_DEVICE_CPU || device_kind == DS_DEVICE_CUDA, Code::kInvalidArgument,
             "device_kind is ", device_kind, "; DS_DEVICE_CPU (1) or DS_DEVICE_CUDA (2) is needed");
    std::shared_ptr<const CallerMemory> memory;
    if (allocator != nullptr) {
      const ds_allocator given = struct_param(allocator, "allocator");
      DS_CHECK(given.allocate != nullptr && given.deallocate != nullptr, Code::kInvalidArgument,
               "allocator needs both `allocate` and `deallocate`");
      memory = std::make_shared<const CallerMemory>(
          [given](int64_t bytes, int64_t alignment, int device_index) {
            return given.allocate(given.user_data, bytes, alignment, device_index);
          },
          [given](void* block, int64_t bytes, int device_index) {
            given.deallocate(given.user_data, block, bytes, device_index);
          },
          [given, release] {
            if (release != nullptr) release(given.user_data);
          });
    }
    set_caller_memory(static_cast<DeviceKind>(device_kind), std::move(memory));
  });
}
