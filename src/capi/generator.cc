// Generators of ds.h: models that run without being trained.
#include "capi/args.h"
#include "capi/batch_args.h"
#include "capi/comm_object.h"
#include "capi/fence.h"
#include "capi/generator_object.h"
#include "capi/generator_options.h"
#include "capi/json_args.h"
#include "capi/prompt_args.h"
#include "capi/tensor_object.h"
#include "capi/token_args.h"
#include "engine/agreement.h"
#include "infer/generate.h"
#include "models/inputs.h"
#include "models/shared_experts.h"
#include "tensor/transfer.h"

namespace ds::capi {
namespace {

static_assert(sizeof(ds_generate_options) == 64);
static_assert(sizeof(ds_generator_info) == 80);

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

// The same of several texts.
std::function<infer::Reply(int64_t, int32_t)> text_callback(GeneratorObject& generator,
                                                            ds_text_token_fn on_token,
                                                            void* user_data) {
  return [&generator, on_token, user_data](int64_t text, int32_t token) {
    DS_CHECK(!generator.interrupted(), Code::kAborted, "the generation was interrupted");
    if (on_token == nullptr) return infer::Reply::kGoOn;
    try {
      switch (on_token(user_data, text, token)) {
        case DS_TEXT_GOES_ON:
          return infer::Reply::kGoOn;
        case DS_TEXT_ENDS:
          return infer::Reply::kEndText;
        default:
          return infer::Reply::kEndAll;
      }
    } catch (...) {  // a C++ caller's mistake
      fail(Code::kCallback, "on_token threw an exception; return DS_TEXTS_END to stop");
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

constexpr const char* kSharing = "a generator of several ranks: ";

struct ExpertMesh {
  Mesh mesh;
  bool two_steps;  // rows go so where it is of use
};

// The mesh of ranks of which so many share experts; without the option all do.
ExpertMesh expert_mesh(const JsonArguments& given, const std::shared_ptr<Communicator>& comm) {
  int64_t ranks = comm->size();
  bool two_steps = true, asked = false;
  if (given.has("expert_parallel")) {
    const JsonArguments one(given.at("expert_parallel"), "generator options", "/expert_parallel",
                            {"enabled", "autoep_size", "hierarchical_all_to_all"});
    const bool enabled = one.flag("enabled", true);
    ranks = one.integer("autoep_size", enabled ? ranks : 1, 1, int64_t{1} << 20);
    if (!enabled) ranks = 1;
    two_steps = one.flag("hierarchical_all_to_all", true);
    asked = two_steps && ranks > 1 && one.has("hierarchical_all_to_all");
  }
  DS_CHECK(comm->size() % ranks == 0, Code::kConfig, kSharing, ranks,
           " ranks that share experts (expert_parallel.autoep_size) do not divide the ",
           comm->size(), " ranks of the group");
  MeshSizes sizes;
  sizes.expert = static_cast<int>(ranks);
  Mesh mesh(comm, sizes);
  if (asked) {
    check_two_steps(mesh.shape(), MeshGroup::kExpert, comm->topology().node_of,
                    "generator options: /expert_parallel/hierarchical_all_to_all");
  }
  return {std::move(mesh), two_steps};
}

// What is the same on every rank: the model, where its weights come from, and their form.
std::string shared_text(models::Model& model, const models::InferenceOptions& form) {
  const auto one = [](models::WeightForm weights, int64_t group, bool symmetric) {
    return str_cat(models::weight_form_name(weights), ",", group, ",", symmetric ? 1 : 0);
  };
  std::string out = str_cat(model.architecture().config().dump(), "\n",
                            one(form.weights, form.group_size, form.symmetric), ",",
                            static_cast<int>(form.int8_activations));
  for (const models::WeightOverride& o : form.overrides) {
    out += str_cat("\n", o.match, ",", one(o.weights, o.group_size, o.symmetric));
  }
  const auto& loader = model.held_weights("ranks cannot share the model's experts").loader();
  return str_cat(out, "\n", loader ? loader->fingerprint() : 0);
}

// Collective: this rank's part of the model.
std::shared_ptr<models::Model> shared_copy(models::Model& model, const ExpertMesh& ranks,
                                           const models::InferenceOptions& form,
                                           const infer::KvOptions& kv) {
  const Mesh& mesh = ranks.mesh;
  const OpContext ctx = model.host_context();
  constexpr const char* kWhat = "making a generator of ranks that share experts";
  std::string own;
  agree(ctx, *mesh.world(), kWhat, [&] {
    models::check_shared_experts(model.parameters(), mesh.size(MeshGroup::kExpert), kSharing,
                                 "run it in one process");
    infer::check_kv(kv, model.architecture().info(), *model.device());
    own = shared_text(model, form);
  });
  const std::string first = broadcast_text(ctx, *mesh.world(), own);
  std::shared_ptr<models::Model> copy;
  agree(ctx, *mesh.world(), kWhat, [&] {
    DS_CHECK(own == first, Code::kInvalidArgument,
             "this rank has another model than rank 0, or another form of its weights; ranks "
             "that share experts open the same files with the same options");
    copy = model.prepared_copy(form, &mesh);
  });
  if (mesh.size(MeshGroup::kExpert) > 1) {
    ExchangeRanks experts = make_exchange_ranks(mesh, MeshGroup::kExpert, ranks.two_steps);
    const RankGroup all = experts.all;
    copy->set_pass_ranks({std::move(experts), all});
  }
  return copy;
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

ds_status ds_generator_create_shared(ds_model* model, const char* options_json, ds_comm* comm,
                                     ds_generator** out_generator) {
  return guard(__func__, [&] {
    ds_generator*& out = out_param(out_generator, "out_generator");
    const UsedModel used(model, "model");
    const std::shared_ptr<Communicator> group = look_up(comm, "comm")->comm;
    const JsonArguments given(
        options_json, "generator options",
        {"weights", "group_size", "symmetric", "threads", "int8_activations", "overrides",
         "offload_param", "kv_block_tokens", "kv_pool_tokens", "kv_cache", "expert_parallel"});
    const std::optional<models::InferenceOptions> form = prepared_form(given, "fp32");
    if (!form) {
      given.refuse("weights", "must be fp32, bf16, int8 or int4: each rank has a copy of its part");
    }
    const infer::KvOptions kv = kv_of(given);
    static_cast<void>(used->architecture());  // own parameters have no forward pass
    const ExpertMesh mesh = expert_mesh(given, group);
    out = publish<ds_generator>(
        std::make_shared<GeneratorObject>(shared_copy(*used, mesh, *form, kv), kv));
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
      info.bytes_read = report.reads.bytes;
      info.expert_uses = report.reads.expert_uses;
      info.expert_hits = report.reads.expert_hits;
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

ds_status ds_generator_generate_batch(ds_generator* generator, const ds_prompts* prompts,
                                      const ds_generate_options* options, ds_text_token_fn on_token,
                                      void* user_data, ds_tensor** out_ids,
                                      ds_tensor** out_counts) {
  return guard(__func__, [&] {
    const RunningModel model(generator);
    const PromptsArgument given(prompts);
    ds_tensor*& ids = out_param(out_ids, "out_ids");
    ds_tensor*& counts = out_param(out_counts, "out_counts");
    infer::GenerateOptions chosen = generate_options(options);
    chosen.kv = model.generator().kv();
    chosen.ranks = model->pass_ranks();
    model.generator().forget_interrupt();
    const std::vector<std::vector<int32_t>> texts = infer::generate_batch(
        model->context(), model->reader(), model->architecture(), given.prompts(), chosen,
        {given.at_once()}, text_callback(model.generator(), on_token, user_data));
    std::vector<int32_t> all;
    std::vector<int64_t> lengths;
    for (const std::vector<int32_t>& text : texts) {
      all.insert(all.end(), text.begin(), text.end());
      lengths.push_back(std::ssize(text));
    }
    Tensor tokens = id_tensor(all), each = count_tensor(lengths);
    ReservedTensor first, second;
    ids = first.give(std::move(tokens));
    counts = second.give(std::move(each));
  });
}

ds_status ds_generator_take_part(ds_generator* generator) {
  return guard(__func__, [&] {
    const RunningModel model(generator);
    infer::take_part(model->context(), model->reader(), model->architecture(), model->pass_ranks());
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
