#include "capi/batch_args.h"

#include "capi/args.h"

namespace ds::capi {

static_assert(sizeof(ds_batch) == 48);

BatchArgument::BatchArgument(const ds_batch* given, bool with_labels) {
  const ds_batch batch = struct_param(given, "batch");
  DS_CHECK(with_labels || batch.labels == nullptr, Code::kInvalidArgument,
           "batch.labels must be NULL: only training compares with labels");
  struct Member {
    const ds_tensor* tensor;
    const char* name;
    bool needed;
  };
  const std::array<Member, kMembers> members = {{
      {batch.ids, "batch.ids", true},
      {batch.labels, "batch.labels", with_labels},
      {batch.attention_mask, "batch.attention_mask", false},
      {batch.segments, "batch.segments", false},
      {batch.token_types, "batch.token_types", false},
  }};
  for (size_t i = 0; i < kMembers; ++i) {
    const Member& member = members[i];
    if (member.tensor == nullptr && !member.needed) continue;
    entered_[i].emplace(look_up(member.tensor, member.name), Entry::kShared, member.name);
    tensors_[i] = host_tensor(**entered_[i], member.name);
  }
}

}  // namespace ds::capi
