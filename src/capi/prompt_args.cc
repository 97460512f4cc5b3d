#include "capi/prompt_args.h"

#include "capi/args.h"
#include "capi/tensor_object.h"
#include "capi/token_args.h"
#include "infer/generate.h"

namespace ds::capi {
namespace {

static_assert(sizeof(ds_prompts) == 32);

std::vector<int32_t> list_of(const ds_tensor* tensor, const char* member) {
  const Entered<TensorObject> entered(look_up(tensor, member), Entry::kShared, member);
  return id_list(host_tensor(*entered, member), member);
}

}  // namespace

PromptsArgument::PromptsArgument(const ds_prompts* given) {
  const ds_prompts in = struct_param(given, "prompts");
  DS_CHECK(in.at_once >= 0, Code::kInvalidArgument, "prompts.at_once is ", in.at_once, "; 0 (for ",
           infer::kBatchWithSameBits, ") or more is needed");
  at_once_ = in.at_once == 0 ? infer::kBatchWithSameBits : in.at_once;
  ids_ = list_of(in.ids, "prompts.ids");
  std::span<const int32_t> rest = ids_;
  const std::vector<int32_t> counts = list_of(in.counts, "prompts.counts");
  for (size_t i = 0; i < counts.size(); ++i) {
    // An empty prompt is refused where other ranks' texts go on.
    DS_CHECK(counts[i] >= 0 && counts[i] <= std::ssize(rest), Code::kInvalidArgument,
             "prompts.counts[", i, "] is ", counts[i], ", where ", rest.size(), " of the ",
             ids_.size(), " tokens of prompts.ids are left");
    prompts_.push_back(rest.first(static_cast<size_t>(counts[i])));
    rest = rest.subspan(static_cast<size_t>(counts[i]));
  }
  DS_CHECK(rest.empty(), Code::kInvalidArgument, "prompts.counts leaves ", rest.size(), " of the ",
           ids_.size(), " tokens of prompts.ids without a prompt");
}

}  // namespace ds::capi
