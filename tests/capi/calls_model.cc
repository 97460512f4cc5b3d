#include "capi/call_rows.h"

namespace capi_test {
namespace {

// Adapters and freezing need a model without an engine.
void end_engine(World& world, Arguments&) {
  ds_engine_destroy(world.engine);
  world.engine = nullptr;
}

constexpr char kLora[] = R"({"r": 2, "target_modules": ["c_attn"]})";

}  // namespace

std::vector<Call> model_calls() {
  return {
      {"ds_model_create",
       {text("config_json", model_config()), out(kModel, "out_model")},
       [](const Arguments& a) { return ds_model_create(s(a, 0), 5, p<ds_model*>(a, 1)); }},
      {"ds_model_open",
       {text("folder", "{dir}/saved"), out(kModel, "out_model")},
       [](const Arguments& a) { return ds_model_open(s(a, 0), nullptr, p<ds_model*>(a, 1)); },
       [](World& world, Arguments&) { save_checkpoint(world); }},
      {"ds_model_export",
       {in(kModel, "model"), text("folder", "{dir}/exported")},
       [](const Arguments& a) {
         return ds_model_export(p<ds_model>(a, 0), s(a, 1), DS_BFLOAT16, 4096);
       }},
      {"ds_model_save",
       {in(kModel, "model"), text("folder", "{dir}/weights")},
       [](const Arguments& a) { return ds_model_save(p<ds_model>(a, 0), s(a, 1), nullptr); }},
      {"ds_model_copy",
       {in(kModel, "model"), out(kModel, "out_model")},
       [](const Arguments& a) { return ds_model_copy(p<ds_model>(a, 0), p<ds_model*>(a, 1)); }},
      {"ds_model_config",
       {in(kModel, "model"), out_text("out_json")},
       [](const Arguments& a) { return ds_model_config(p<ds_model>(a, 0), p<char*>(a, 1)); }},
      {"ds_model_describe",
       {in(kModel, "model")},
       [](const Arguments& a) {
         ds_model_info info{};
         info.struct_size = sizeof info;
         return ds_model_describe(p<ds_model>(a, 0), &info);
       }},
      {"ds_model_parameter_index",
       {in(kModel, "model"), text("name", kParameter), out("out_index")},
       [](const Arguments& a) {
         return ds_model_parameter_index(p<ds_model>(a, 0), s(a, 1), p<int64_t>(a, 2));
       }},
      {"ds_model_parameter_describe",
       {in(kModel, "model")},
       [](const Arguments& a) {
         ds_parameter_info info{};
         info.struct_size = sizeof info;
         return ds_model_parameter_describe(p<ds_model>(a, 0), 0, &info);
       }},
      {"ds_model_parameters",
       {in(kModel, "model"), out_text("out_json")},
       [](const Arguments& a) { return ds_model_parameters(p<ds_model>(a, 0), p<char*>(a, 1)); }},
      {"ds_model_parameter_name",
       {in(kModel, "model"), out_text("out_name")},
       [](const Arguments& a) {
         return ds_model_parameter_name(p<ds_model>(a, 0), 0, p<char*>(a, 1));
       }},
      {"ds_model_get_parameter",
       {in(kModel, "model"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_model_get_parameter(p<ds_model>(a, 0), 0, p<ds_tensor*>(a, 1));
       }},
      {"ds_model_set_parameter",
       {in(kModel, "model"), in(kTensor, "value")},
       [](const Arguments& a) {
         return ds_model_set_parameter(p<ds_model>(a, 0), 0, p<ds_tensor>(a, 1));
       },
       [](World& world, Arguments& a) {
         take_parameter(world);
         a[1] = world.tensor;
       }},
  };
}

std::vector<Call> parameter_calls() {
  return {
      {"ds_model_create_from_parameters",
       {pointer("parameters"), out(kModel, "out_model")},
       [](const Arguments& a) {
         return ds_model_create_from_parameters(p<ds_parameter>(a, 0), 1, p<ds_model*>(a, 1));
       },
       [](World& world, Arguments& a) {
         static ds_parameter parameter;
         parameter = {};
         parameter.struct_size = sizeof(parameter);
         parameter.name = "w";
         parameter.value = world.tensor;
         a[0] = &parameter;
       }},
      {"ds_model_view_parameter",
       {in(kModel, "model"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_model_view_parameter(p<ds_model>(a, 0), 0, p<ds_tensor*>(a, 1));
       }},
      {"ds_model_set_device",
       {in(kModel, "model"), text("device", "cpu")},
       [](const Arguments& a) { return ds_model_set_device(p<ds_model>(a, 0), s(a, 1)); },
       end_engine},
      {"ds_model_set_stream",
       {in(kModel, "model")},
       [](const Arguments& a) { return ds_model_set_stream(p<ds_model>(a, 0), nullptr); }},
      {"ds_model_set_trainable",
       {in(kModel, "model"), text("pattern", "ln_*")},
       [](const Arguments& a) { return ds_model_set_trainable(p<ds_model>(a, 0), s(a, 1), 0); },
       end_engine},
      {"ds_model_add_lora",
       {in(kModel, "model"), text("options_json", kLora)},
       [](const Arguments& a) { return ds_model_add_lora(p<ds_model>(a, 0), s(a, 1)); },
       end_engine},
      {"ds_model_merge_lora",
       {in(kModel, "model")},
       [](const Arguments& a) { return ds_model_merge_lora(p<ds_model>(a, 0)); },
       [](World& world, Arguments& a) {
         end_engine(world, a);
         EXPECT_DS_OK(ds_model_add_lora(world.model, kLora));
       }},
      {"ds_model_save_adapter",
       {in(kModel, "model"), text("folder", "{dir}/adapter")},
       [](const Arguments& a) {
         return ds_model_save_adapter(p<ds_model>(a, 0), s(a, 1), DS_FLOAT32);
       },
       [](World& world, Arguments& a) {
         end_engine(world, a);
         EXPECT_DS_OK(ds_model_add_lora(world.model, kLora));
       }},
      {"ds_model_load_adapter",
       {in(kModel, "model"), text("folder", "{dir}/adapter")},
       [](const Arguments& a) { return ds_model_load_adapter(p<ds_model>(a, 0), s(a, 1)); },
       [](World& world, Arguments& a) {
         end_engine(world, a);
         EXPECT_DS_OK(ds_model_add_lora(world.model, kLora));
         const std::string folder = world.folder.file("adapter");
         EXPECT_DS_OK(ds_model_save_adapter(world.model, folder.c_str(), DS_FLOAT32));
         EXPECT_DS_OK(ds_model_merge_lora(world.model));
       }},
  };
}

std::vector<Call> generator_calls() {
  return {
      {"ds_generator_create",
       {in(kModel, "model"), out(kGenerator, "out_generator")},
       [](const Arguments& a) {
         return ds_generator_create(p<ds_model>(a, 0), R"({"weights": "int4"})",
                                    p<ds_generator*>(a, 1));
       }},
      {"ds_generator_create_shared",
       {in(kModel, "model"), in(kComm, "comm"), out(kGenerator, "out_generator")},
       [](const Arguments& a) {
         return ds_generator_create_shared(p<ds_model>(a, 0), R"({"weights": "int8"})",
                                           p<ds_comm>(a, 1), p<ds_generator*>(a, 2));
       },
       end_engine},
      {"ds_generator_describe",
       {in(kGenerator, "generator")},
       [](const Arguments& a) {
         ds_generator_info info{};
         info.struct_size = sizeof info;
         return ds_generator_describe(p<ds_generator>(a, 0), &info);
       }},
      {"ds_generator_get_parameter",
       {in(kGenerator, "generator"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_generator_get_parameter(p<ds_generator>(a, 0), 0, p<ds_tensor*>(a, 1));
       }},
      {"ds_generator_generate",
       {in(kGenerator, "generator"), in(kTensor, "prompt"), out(kTensor, "out_ids")},
       [](const Arguments& a) {
         ds_generate_options options = DS_GENERATE_OPTIONS_INIT;
         options.max_tokens = 3;
         return ds_generator_generate(p<ds_generator>(a, 0), p<ds_tensor>(a, 1), &options, nullptr,
                                      nullptr, p<ds_tensor*>(a, 2));
       },
       [](World& world, Arguments& a) { a[1] = world.list; }},
      {"ds_generator_generate_batch",
       {in(kGenerator, "generator"), in(kTensor, "prompts.ids"), in(kTensor, "prompts.counts"),
        out(kTensor, "out_ids"), out(kTensor, "out_counts")},
       [](const Arguments& a) {
         ds_generate_options options = DS_GENERATE_OPTIONS_INIT;
         options.max_tokens = 3;
         ds_prompts prompts = DS_PROMPTS_INIT;
         prompts.ids = p<ds_tensor>(a, 1);
         prompts.counts = p<ds_tensor>(a, 2);
         return ds_generator_generate_batch(p<ds_generator>(a, 0), &prompts, &options, nullptr,
                                            nullptr, p<ds_tensor*>(a, 3), p<ds_tensor*>(a, 4));
       },
       [](World& world, Arguments& a) {
         a[1] = world.list;
         a[2] = world.counts;
       }},
      {"ds_generator_take_part",
       {in(kGenerator, "generator")},
       [](const Arguments& a) { return ds_generator_take_part(p<ds_generator>(a, 0)); }},
      {"ds_generator_interrupt",
       {in(kGenerator, "generator")},
       [](const Arguments& a) { return ds_generator_interrupt(p<ds_generator>(a, 0)); }},
      {"ds_generator_logits",
       {in(kGenerator, "generator"), in(kTensor, "batch.ids"),
        maybe(kTensor, "batch.attention_mask"), out(kTensor, "out_logits")},
       [](const Arguments& a) {
         const ds_batch batch = batch_of_arguments(a, 1, 0, 2);
         return ds_generator_logits(p<ds_generator>(a, 0), &batch, p<ds_tensor*>(a, 3));
       },
       [](World& world, Arguments& a) { a[1] = a[2] = world.ids; }},
      {"ds_generator_hidden_states",
       {in(kGenerator, "generator"), in(kTensor, "batch.ids"),
        maybe(kTensor, "batch.attention_mask"), out(kTensor, "out_states")},
       [](const Arguments& a) {
         const ds_batch batch = batch_of_arguments(a, 1, 0, 2);
         return ds_generator_hidden_states(p<ds_generator>(a, 0), &batch, p<ds_tensor*>(a, 3));
       },
       [](World& world, Arguments& a) { a[1] = a[2] = world.ids; }},
  };
}

}  // namespace capi_test
