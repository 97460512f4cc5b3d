// Preparing a model of ds.h for running alone.
#include "capi/args.h"
#include "capi/fence.h"
#include "capi/json_args.h"
#include "capi/model_object.h"

namespace ds::capi {
namespace {

constexpr int64_t kMaxThreads = 4096;

models::InferenceOptions inference_options(const char* options_json) {
  const JsonArguments given(options_json, "inference options",
                            {"weights", "group_size", "symmetric", "threads"});
  models::InferenceOptions options;
  options.weights = models::weight_form_named(given.text("weights", "bf16"));
  options.group_size = given.integer("group_size", options.group_size, 0, int64_t{1} << 20);
  if (options.group_size % 8 != 0) {
    given.refuse("group_size", "must be 0 (a row's) or a multiple of 8");
  }
  options.symmetric = given.flag("symmetric", options.symmetric);
  options.threads = static_cast<int>(given.integer("threads", 0, 0, kMaxThreads));
  return options;
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_model_prepare_inference(ds_model* model, const char* options_json, char** out_json) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    char*& out = out_param(out_json, "out_json");
    const models::InferenceOptions options = inference_options(options_json);
    out = make_c_string(dump_json(used->prepare_inference(options)));
  });
}
