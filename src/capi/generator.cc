// Generators of ds.h: models that run without being trained.
#include <algorithm>

#include "capi/args.h"
#include "capi/batch_args.h"
#include "capi/fence.h"
#include "capi/generator_object.h"
#include "capi/json_args.h"
#include "capi/tensor_object.h"
#include "capi/token_args.h"
#include "infer/generate.h"
#include "models/inputs.h"
#include "tensor/transfer.h"

namespace ds::capi {
namespace {

static_assert(sizeof(ds_generate_options) == 64);
static_assert(sizeof(ds_generator_info) == 56);

constexpr int64_t kMaxThreads = 4096;
constexpr const char* kModelWeights = "model";

int64_t group_size_of(const JsonArguments& given, int64_t fallback) {
  const int64_t size = given.integer("group_size", fallback, 0, int64_t{1} << 20);
  if (size % 8 != 0) given.refuse("group_size", "must be 0 (a row's) or a multiple of 8");
  return size;
}

// What an override leaves out is as for all other matrices.
std::vector<models::WeightOverride> overrides_of(const JsonArguments& given,
                                                 const models::InferenceOptions& all) {
  std::vector<models::WeightOverride> out;
  if (!given.has("overrides")) return out;
  const Json& list = given.list("overrides", "objects");
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonArguments one(list[i], "generator options", str_cat("/overrides/", i),
                            {"match", "weights", "group_size", "symmetric"});
    models::WeightOverride form;
    form.match = one.required_text("match");
    form.weights =
        one.has("weights") ? models::weight_form_named(one.required_text("weights")) : all.weights;
    form.group_size = group_size_of(one, all.group_size);
    form.symmetric = one.flag("symmetric", all.symmetric);
    out.push_back(std::move(form));
  }
  return out;
}

// Weights that rest in a file, in the words of zero_optimization.offload_param; none: in memory.
std::optional<models::WeightFileOptions> weight_file_of(const JsonArguments& given) {
  if (!given.has("offload_param")) return std::nullopt;
  const JsonArguments one(
      given.at("offload_param"), "generator options", "/offload_param",
      {"device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"});
  const std::string device = one.text("device", "none");
  if (device == "none" || device == "cpu") return std::nullopt;
  if (device != "nvme") one.refuse("device", "must be \"none\", \"cpu\" or \"nvme\"");
  constexpr int64_t kMost = int64_t{1} << 40;
  models::WeightFileOptions file;
  file.folder = one.required_text("nvme_path");
  file.elements_in_memory = one.integer("max_in_cpu", 1'000'000'000, 0, kMost);
  file.elements_ahead = one.integer("buffer_count", 5, 1, 4096) *
                        one.integer("buffer_size", 100'000'000, 0, kMost / 4096);
  one.flag("pin_memory", true);  // memory of requests is page-locked while they run
  return file;
}

infer::KvOptions kv_of(const JsonArguments& given) {
  constexpr int64_t kMost = int64_t{1} << 40;
  infer::KvOptions options;
  const std::string cache = given.text("kv_cache", "auto");
  if (cache != "auto" && cache != "int8") {
    given.refuse("kv_cache", str_cat("must be auto (as the model computes) or int8, not ", cache));
  }
  options.codes = cache == "int8";
  infer::KvBlockOptions& kv = options.blocks;
  kv.block_tokens = given.integer("kv_block_tokens", 0, 0, int64_t{1} << 20);
  kv.pool_tokens = given.integer("kv_pool_tokens", 0, 0, kMost);
  if (kv.pool_tokens > 0 && kv.block_tokens == 0) {
    given.refuse("kv_pool_tokens", "needs kv_block_tokens, the tokens of a block");
  }
  if (kv.pool_tokens > 0 && kv.pool_tokens < kv.block_tokens) {
    given.refuse("kv_pool_tokens",
                 str_cat("must be 0 (any number) or at least kv_block_tokens, ", kv.block_tokens));
  }
  return options;
}

bool has_codes(const models::InferenceOptions& options) {
  const auto codes = [](models::WeightForm form) {
    return form == models::WeightForm::kInt8 || form == models::WeightForm::kInt4;
  };
  return codes(options.weights) ||
         std::any_of(options.overrides.begin(), options.overrides.end(),
                     [&](const models::WeightOverride& o) { return codes(o.weights); });
}

// None: the model's own weights.
std::optional<models::InferenceOptions> prepared_form(const JsonArguments& given) {
  const std::string weights = given.text("weights", kModelWeights);
  if (weights == kModelWeights) {
    for (const char* const key :
         {"group_size", "symmetric", "threads", "int8_activations", "overrides", "offload_param"}) {
      if (given.has(key)) given.refuse(key, "needs \"weights\": fp32, bf16, int8 or int4");
    }
    return std::nullopt;
  }
  models::InferenceOptions options;
  options.weights = models::weight_form_named(weights);
  options.group_size = group_size_of(given, options.group_size);
  options.symmetric = given.flag("symmetric", options.symmetric);
  options.threads = static_cast<int>(given.integer("threads", 0, 0, kMaxThreads));
  options.overrides = overrides_of(given, options);
  options.int8_activations = given.flag("int8_activations", options.int8_activations);
  if (options.int8_activations && !has_codes(options)) {
    given.refuse("int8_activations",
                 "needs weights in \"int8\" or \"int4\", to multiply them with");
  }
  options.file = weight_file_of(given);
  return options;
}

ds_weight_form form_of(models::WeightForm form) {
  switch (form) {
    case models::WeightForm::kFloat32:
      return DS_WEIGHTS_FLOAT32;
    case models::WeightForm::kBFloat16:
      return DS_WEIGHTS_BFLOAT16;
    case models::WeightForm::kInt8:
      return DS_WEIGHTS_INT8;
    case models::WeightForm::kInt4:
      return DS_WEIGHTS_INT4;
  }
  fail(Code::kInternal, "a form of weights without a number");
}

infer::GenerateOptions generate_options(const ds_generate_options* given) {
  infer::GenerateOptions options;
  if (given == nullptr) return options;
  const ds_generate_options in = struct_param(given, "options");
  DS_CHECK(in.max_tokens >= 0, Code::kInvalidArgument, "options: max_tokens is ", in.max_tokens,
           "; 0 (for ", options.max_tokens, ") or more is needed");
  DS_CHECK(in.reserved == 0, Code::kInvalidArgument, "options: reserved is ", in.reserved,
           "; it must be 0");
  if (in.max_tokens > 0) options.max_tokens = in.max_tokens;
  options.sampling = {in.temperature, in.top_k, in.top_p};
  options.seed = static_cast<uint64_t>(in.seed);
  if (in.has_stop_token != 0) options.stop_token = in.stop_token;
  options.graphs = in.no_graphs == 0;
  return options;
}

// What hears each token: an interrupt of another thread ends the call, then the caller may.
std::function<bool(int32_t)> token_callback(GeneratorObject& generator, ds_token_fn on_token,
                                            void* user_data) {
  return [&generator, on_token, user_data](int32_t token) {
    DS_CHECK(!generator.interrupted(), Code::kAborted, "the generation was interrupted");
    if (on_token == nullptr) return true;
    try {
      return on_token(user_data, token) == 0;
    } catch (...) {  // a C++ caller's mistake
      fail(Code::kCallback, "on_token threw an exception; return nonzero to stop");
    }
  };
}

// The batch as models read it, checked against the model.
models::Batch model_batch(models::Model& model, const BatchArgument& given) {
  const OpContext ctx = model.host_context();
  const models::ArchitectureInfo& info = model.architecture().info();
  models::Batch batch;
  batch.ids = models::token_ids(ctx, given.ids(), "batch.ids", info.vocab_size);
  batch.key_mask = models::key_mask(ctx, given.attention_mask(), batch.ids);
  if (given.segments()) {
    batch.segments = models::segment_ids(ctx, given.segments(), batch.ids);
    batch.position_ids = models::segment_positions(ctx, batch.segments);
  } else {
    batch.position_ids = models::position_ids(ctx, batch.ids.size(0), batch.ids.size(1), 0);
  }
  if (given.token_types()) {
    batch.token_types =
        models::matching_ids(ctx, given.token_types(), batch.ids, "batch.token_types",
                             std::max<int64_t>(info.token_types, 1));
  }
  return batch;
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_generator_create(ds_model* model, const char* options_json,
                              ds_generator** out_generator) {
  return guard(__func__, [&] {
    ds_generator*& out = out_param(out_generator, "out_generator");
    std::shared_ptr<ModelObject> object = look_up(model, "model");
    const JsonArguments given(
        options_json, "generator options",
        {"weights", "group_size", "symmetric", "threads", "int8_activations", "overrides",
         "offload_param", "kv_block_tokens", "kv_pool_tokens", "kv_cache"});
    const std::optional<models::InferenceOptions> form = prepared_form(given);
    const infer::KvOptions kv = kv_of(given);
    static_cast<void>(object->model->architecture());  // own parameters have no forward pass
    if (form) {
      const UsedModel used(std::move(object), "model");
      infer::check_kv(kv, used->architecture().info(), *used->device());
      out =
          publish<ds_generator>(std::make_shared<GeneratorObject>(used->prepared_copy(*form), kv));
    } else {
      out = publish<ds_generator>(std::make_shared<GeneratorObject>(std::move(object), kv));
    }
  });
}

ds_status ds_generator_describe(const ds_generator* generator, ds_generator_info* out_info) {
  return guard(__func__, [&] {
    const auto object = look_up(generator, "generator");
    ds_generator_info info{};
    info.weights = DS_WEIGHTS_MODEL;
    info.symmetric = 1;
    if (object->is_prepared()) {
      const models::InferenceReport report = object->model().inference_report();
      info.bytes = report.bytes;
      info.bytes_per_token = report.bytes_per_token;
      info.bytes_saved = report.bytes_saved;
      info.group_size = report.group_size;
      info.weights = form_of(report.weights);
      info.threads = report.threads;
      info.symmetric = report.symmetric ? 1 : 0;
    }
    give_struct(info, out_info, "out_info");
  });
}

ds_status ds_generator_get_parameter(ds_generator* generator, int64_t parameter,
                                     ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const RunningModel model(generator);
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    out = publish_tensor(model->get(parameter_at(*model, parameter).name));
  });
}

ds_status ds_generator_generate(ds_generator* generator, const ds_tensor* prompt,
                                const ds_generate_options* options, ds_token_fn on_token,
                                void* user_data, ds_tensor** out_ids) {
  return guard(__func__, [&] {
    const RunningModel model(generator);
    const auto input = enter(prompt, "prompt", Entry::kShared);
    ds_tensor*& out = out_param(out_ids, "out_ids");
    infer::GenerateOptions chosen = generate_options(options);
    chosen.kv = model.generator().kv();
    chosen.ranks = model->pass_ranks();
    const std::vector<int32_t> ids = id_list(host_tensor(*input, "prompt"), "prompt");
    model.generator().forget_interrupt();
    out = publish_tensor(
        id_tensor(infer::generate(model->context(), model->reader(), model->architecture(), ids,
                                  chosen, token_callback(model.generator(), on_token, user_data))));
  });
}

ds_status ds_generator_interrupt(ds_generator* generator) {
  return guard(__func__, [&] { look_up(generator, "generator")->interrupt(); });
}

ds_status ds_generator_logits(ds_generator* generator, const ds_batch* batch,
                              ds_tensor** out_logits) {
  return guard(__func__, [&] {
    const RunningModel model(generator);
    const BatchArgument given(batch, /*with_labels=*/false);
    ds_tensor*& out = out_param(out_logits, "out_logits");
    out = publish_tensor(
        to_host(infer::batch_logits(model->context(), model->reader(), model->architecture(),
                                    model_batch(*model, given), model->pass_ranks().experts),
                model->host()));
  });
}

ds_status ds_generator_hidden_states(ds_generator* generator, const ds_batch* batch,
                                     ds_tensor** out_states) {
  return guard(__func__, [&] {
    const RunningModel model(generator);
    const BatchArgument given(batch, /*with_labels=*/false);
    ds_tensor*& out = out_param(out_states, "out_states");
    out = publish_tensor(
        to_host(infer::batch_hidden(model->context(), model->reader(), model->architecture(),
                                    model_batch(*model, given), model->pass_ranks().experts),
                model->host()));
  });
}

void ds_generator_destroy(ds_generator* generator) { end_handle(generator); }
