#include <fstream>

#include "capi/call_rows.h"

namespace capi_test {
namespace {

ds_step_report* fresh_report() {
  static ds_step_report report;
  report = {};
  report.struct_size = sizeof(report);
  return &report;
}

void open_backward(World& world) {
  ds_tensor* const loss = world.forward();
  EXPECT_DS_OK(ds_engine_backward(world.engine, loss));
  ds_tensor_destroy(loss);
}

// An engine of the caller's own parameters in the place of the world's.
void own_parameter_engine(World& world, Arguments& a) {
  ds_engine_destroy(world.engine);
  ds_model_destroy(world.model);
  ds_parameter parameter{};
  parameter.struct_size = sizeof(parameter);
  parameter.name = "own";
  parameter.value = world.tensor;
  EXPECT_DS_OK(ds_model_create_from_parameters(&parameter, 1, &world.model));
  EXPECT_DS_OK(
      ds_engine_create(engine_config().c_str(), nullptr, world.model, nullptr, &world.engine));
  a[0] = world.engine;
}

// A scope that may change parameter 0.
void open_scope(World& world, Arguments& a) {
  const int64_t first = 0;
  ds_scope_destroy(world.scope);
  EXPECT_DS_OK(ds_engine_open_scope(world.engine, &first, 1, DS_SCOPE_MODIFY, &world.scope));
  a[0] = world.scope;
}

}  // namespace

std::vector<Call> gradient_calls() {
  return {
      {"ds_engine_add_gradients",
       {in(kEngine, "engine"), pointer("gradients")},
       [](const Arguments& a) {
         const int64_t index = 0;
         return ds_engine_add_gradients(p<ds_engine>(a, 0), &index, p<ds_tensor*>(a, 1), 1);
       },
       [](World& world, Arguments& a) {
         take_parameter(world);
         a[1] = list_of(world.tensor);
       }},
      {"ds_engine_open_scope",
       {in(kEngine, "engine"), out(kScope, "out_scope")},
       [](const Arguments& a) {
         const int64_t first = 0;
         return ds_engine_open_scope(p<ds_engine>(a, 0), &first, 1, DS_SCOPE_COMPUTE,
                                     p<ds_scope*>(a, 1));
       },
       own_parameter_engine},
      {"ds_scope_tensor",
       {in(kScope, "scope"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_scope_tensor(p<ds_scope>(a, 0), 0, p<ds_tensor*>(a, 1));
       },
       open_scope},
      {"ds_scope_commit",
       {in(kScope, "scope")},
       [](const Arguments& a) { return ds_scope_commit(p<ds_scope>(a, 0), 0); },
       open_scope},
      {"ds_scope_close",
       {in(kScope, "scope")},
       [](const Arguments& a) { return ds_scope_close(p<ds_scope>(a, 0)); },
       open_scope},
      {"ds_engine_get_values",
       {in(kEngine, "engine"), text("state", "exp_avg"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_engine_get_values(p<ds_engine>(a, 0), 0, DS_VALUE_STATE, s(a, 1),
                                     DS_EXTENT_WHOLE, p<ds_tensor*>(a, 2));
       }},
      {"ds_engine_set_values",
       {in(kEngine, "engine"), text("state", "exp_avg"), in(kTensor, "value")},
       [](const Arguments& a) {
         return ds_engine_set_values(p<ds_engine>(a, 0), 0, DS_VALUE_STATE, s(a, 1),
                                     DS_EXTENT_WHOLE, p<ds_tensor>(a, 2));
       },
       [](World& world, Arguments& a) {
         take_parameter(world);
         a[2] = world.tensor;
       }},
      {"ds_engine_local_range",
       {in(kEngine, "engine"), out("out_first"), out("out_count")},
       [](const Arguments& a) {
         return ds_engine_local_range(p<ds_engine>(a, 0), 0, p<int64_t>(a, 1), p<int64_t>(a, 2));
       }},
      {"ds_engine_join",
       {in(kEngine, "engine")},
       [](const Arguments& a) { return ds_engine_join(p<ds_engine>(a, 0)); }},
      {"ds_engine_view_gradient",
       {in(kEngine, "engine"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_engine_view_gradient(p<ds_engine>(a, 0), 0, p<ds_tensor*>(a, 1));
       }},
      {"ds_engine_set_loss",
       {in(kEngine, "engine")},
       [](const Arguments& a) { return ds_engine_set_loss(p<ds_engine>(a, 0), 1.5); }},
      {"ds_engine_set_progress",
       {in(kEngine, "engine")},
       [](const Arguments& a) {
         return ds_engine_set_progress(p<ds_engine>(a, 0), nullptr, nullptr, nullptr);
       }},
      {"ds_engine_interrupt",
       {in(kEngine, "engine")},
       [](const Arguments& a) { return ds_engine_interrupt(p<ds_engine>(a, 0)); }},
      {"ds_engine_discard_gradients",
       {in(kEngine, "engine")},
       [](const Arguments& a) { return ds_engine_discard_gradients(p<ds_engine>(a, 0)); }},
      {"ds_engine_set_boundary",
       {in(kEngine, "engine")},
       [](const Arguments& a) { return ds_engine_set_boundary(p<ds_engine>(a, 0), -1); }},
  };
}

std::vector<Call> engine_calls() {
  return {
      {"ds_engine_create",
       {text("config_json", engine_config()), in(kModel, "model"), maybe(kComm, "comm"),
        out(kEngine, "out_engine")},
       [](const Arguments& a) {
         return ds_engine_create(s(a, 0), R"({"set": {"seed": 3}})", p<ds_model>(a, 1),
                                 p<ds_comm>(a, 2), p<ds_engine*>(a, 3));
       },
       [](World& world, Arguments&) {
         ds_engine_destroy(world.engine);
         world.engine = nullptr;
       }},
      {"ds_engine_create_from_file",
       {text("path", "{dir}/engine.json"), in(kModel, "model"), maybe(kComm, "comm"),
        out(kEngine, "out_engine")},
       [](const Arguments& a) {
         return ds_engine_create_from_file(s(a, 0), nullptr, p<ds_model>(a, 1), p<ds_comm>(a, 2),
                                           p<ds_engine*>(a, 3));
       },
       [](World& world, Arguments&) {
         std::ofstream(world.folder.file("engine.json")) << engine_config();
         ds_engine_destroy(world.engine);
         world.engine = nullptr;
       }},
      {"ds_engine_forward",
       {in(kEngine, "engine"), in(kTensor, "batch.ids"), in(kTensor, "batch.labels"),
        maybe(kTensor, "batch.attention_mask"), out(kTensor, "out_loss")},
       [](const Arguments& a) {
         const ds_batch batch = batch_of_arguments(a, 1, 2, 3);
         return ds_engine_forward(p<ds_engine>(a, 0), &batch, p<ds_tensor*>(a, 4));
       },
       [](World& world, Arguments& a) { a[1] = a[2] = a[3] = world.ids; }},
      {"ds_engine_backward",
       {in(kEngine, "engine"), in(kTensor, "loss")},
       [](const Arguments& a) {
         return ds_engine_backward(p<ds_engine>(a, 0), p<ds_tensor>(a, 1));
       },
       [](World& world, Arguments& a) {
         ds_tensor_destroy(world.tensor);
         world.tensor = world.forward();
         a[1] = world.tensor;
       }},
      {"ds_engine_step",
       {in(kEngine, "engine")},
       [](const Arguments& a) { return ds_engine_step(p<ds_engine>(a, 0), fresh_report()); },
       [](World& world, Arguments&) { open_backward(world); }},
      {"ds_engine_set_dataset",
       {in(kEngine, "engine"), maybe(kDataset, "dataset")},
       [](const Arguments& a) {
         return ds_engine_set_dataset(p<ds_engine>(a, 0), p<ds_dataset>(a, 1));
       }},
      {"ds_engine_train_batch",
       {in(kEngine, "engine")},
       [](const Arguments& a) {
         return ds_engine_train_batch(p<ds_engine>(a, 0), fresh_report());
       }},
      {"ds_engine_evaluate",
       {in(kEngine, "engine"), in(kDataset, "dataset"), out("out_loss")},
       [](const Arguments& a) {
         return ds_engine_evaluate(p<ds_engine>(a, 0), p<ds_dataset>(a, 1), 2, p<double>(a, 2));
       }},
      {"ds_engine_save",
       {in(kEngine, "engine"), text("folder", "{dir}/checkpoints")},
       [](const Arguments& a) { return ds_engine_save(p<ds_engine>(a, 0), s(a, 1), nullptr); }},
      {"ds_engine_save_wait",
       {in(kEngine, "engine")},
       [](const Arguments& a) { return ds_engine_save_wait(p<ds_engine>(a, 0)); }},
      {"ds_engine_load",
       {in(kEngine, "engine"), text("folder", "{dir}/saved")},
       [](const Arguments& a) {
         return ds_engine_load(p<ds_engine>(a, 0), s(a, 1), "one",
                               R"({"load_optimizer_states": false})");
       },
       [](World& world, Arguments&) { save_checkpoint(world); }},
      {"ds_engine_set_tokenizer",
       {in(kEngine, "engine"), maybe(kTokenizer, "tokenizer")},
       [](const Arguments& a) {
         return ds_engine_set_tokenizer(p<ds_engine>(a, 0), p<ds_tokenizer>(a, 1));
       }},
      {"ds_engine_set_client_state",
       {in(kEngine, "engine")},
       [](const Arguments& a) {
         return ds_engine_set_client_state(p<ds_engine>(a, 0), R"({"mine": [1, 2, 3]})");
       }},
      {"ds_engine_client_state",
       {in(kEngine, "engine"), out_text("out_json")},
       [](const Arguments& a) {
         return ds_engine_client_state(p<ds_engine>(a, 0), p<char*>(a, 1));
       }},
      {"ds_engine_config",
       {in(kEngine, "engine"), out_text("out_json")},
       [](const Arguments& a) { return ds_engine_config(p<ds_engine>(a, 0), p<char*>(a, 1)); }},
      {"ds_engine_memory_report",
       {in(kEngine, "engine"), out_text("out_json")},
       [](const Arguments& a) {
         return ds_engine_memory_report(p<ds_engine>(a, 0), p<char*>(a, 1));
       }},
      {"ds_engine_profile",
       {in(kEngine, "engine"), out_text("out_json")},
       [](const Arguments& a) { return ds_engine_profile(p<ds_engine>(a, 0), p<char*>(a, 1)); }},
      {"ds_engine_experts",
       {in(kEngine, "engine"), out_text("out_json")},
       [](const Arguments& a) { return ds_engine_experts(p<ds_engine>(a, 0), p<char*>(a, 1)); }},
      {"ds_engine_describe",
       {in(kEngine, "engine")},
       [](const Arguments& a) {
         ds_engine_info info{};
         info.struct_size = sizeof info;
         return ds_engine_describe(p<ds_engine>(a, 0), &info);
       }},
      {"ds_engine_optimizer",
       {in(kEngine, "engine"), out(kOptimizer, "out_optimizer")},
       [](const Arguments& a) {
         return ds_engine_optimizer(p<ds_engine>(a, 0), p<ds_optimizer*>(a, 1));
       }},
      {"ds_engine_set_blob",
       {in(kEngine, "engine"), text("name", "mine"), pointer("data")},
       [](const Arguments& a) {
         return ds_engine_set_blob(p<ds_engine>(a, 0), s(a, 1), a[2], sizeof(six_floats));
       },
       [](World&, Arguments& a) { a[2] = six_floats; }},
      {"ds_engine_blob",
       {in(kEngine, "engine"), text("name", "mine"), out(kTensor, "out_bytes")},
       [](const Arguments& a) {
         return ds_engine_blob(p<ds_engine>(a, 0), s(a, 1), p<ds_tensor*>(a, 2));
       },
       [](World& world, Arguments&) {
         EXPECT_DS_OK(ds_engine_set_blob(world.engine, "mine", six_floats, sizeof(six_floats)));
       }},
      {"ds_engine_blobs",
       {in(kEngine, "engine"), out_text("out_json")},
       [](const Arguments& a) { return ds_engine_blobs(p<ds_engine>(a, 0), p<char*>(a, 1)); }},
  };
}

std::vector<Call> optimizer_and_checkpoint_calls() {
  return {
      {"ds_optimizer_describe",
       {in(kOptimizer, "optimizer")},
       [](const Arguments& a) {
         ds_optimizer_info info{};
         info.struct_size = sizeof info;
         return ds_optimizer_describe(p<ds_optimizer>(a, 0), &info);
       }},
      {"ds_optimizer_set_lr",
       {in(kOptimizer, "optimizer")},
       [](const Arguments& a) { return ds_optimizer_set_lr(p<ds_optimizer>(a, 0), 1e-4); }},
      {"ds_optimizer_rate",
       {in(kOptimizer, "optimizer"), out("out_lr")},
       [](const Arguments& a) {
         return ds_optimizer_rate(p<ds_optimizer>(a, 0), 0, p<double>(a, 1));
       }},
      {"ds_optimizer_state_names",
       {in(kOptimizer, "optimizer"), out_text("out_json")},
       [](const Arguments& a) {
         return ds_optimizer_state_names(p<ds_optimizer>(a, 0), 0, p<char*>(a, 1));
       }},
      {"ds_checkpoint_inspect",
       {text("folder", "{dir}/saved"), out_text("out_json")},
       [](const Arguments& a) { return ds_checkpoint_inspect(s(a, 0), "one", p<char*>(a, 1)); },
       [](World& world, Arguments&) { save_checkpoint(world); }},
      {"ds_checkpoint_delete",
       {text("folder", "{dir}/saved"), text("tag", "one")},
       [](const Arguments& a) { return ds_checkpoint_delete(s(a, 0), s(a, 1)); },
       [](World& world, Arguments&) { save_checkpoint(world); }},
      {"ds_checkpoint_verify",
       {text("folder", "{dir}/saved")},
       [](const Arguments& a) { return ds_checkpoint_verify(s(a, 0), nullptr); },
       [](World& world, Arguments&) { save_checkpoint(world); }},
  };
}

}  // namespace capi_test
