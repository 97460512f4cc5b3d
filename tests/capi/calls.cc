#include "capi/calls.h"

#include <cstring>
#include <fstream>

#include "tensor/dlpack_abi.h"

namespace capi_test {
namespace {

Param in(HandleKind kind, const char* name) { return {ParamKind::kHandle, name, kind}; }
Param maybe(HandleKind kind, const char* name) { return {ParamKind::kOptionalHandle, name, kind}; }
Param text(const char* name, std::string value) {
  return {ParamKind::kText, name, HandleKind::kTensor, OutKind::kPlain, std::move(value)};
}
Param pointer(const char* name) { return {ParamKind::kPointer, name}; }
Param out(const char* name) { return {ParamKind::kOut, name}; }
Param out_text(const char* name) {
  return {ParamKind::kOut, name, HandleKind::kTensor, OutKind::kText};
}
Param out(HandleKind kind, const char* name) {
  return {ParamKind::kOut, name, kind, OutKind::kHandle};
}

// Arguments under their types.
template <class T>
T* p(const Arguments& a, size_t i) {
  return static_cast<T*>(a[i]);
}
const char* s(const Arguments& a, size_t i) { return static_cast<const char*>(a[i]); }

constexpr auto kTensor = HandleKind::kTensor;
constexpr auto kComm = HandleKind::kComm;
constexpr auto kTokenizer = HandleKind::kTokenizer;
constexpr auto kDataset = HandleKind::kDataset;
constexpr auto kModel = HandleKind::kModel;
constexpr auto kEngine = HandleKind::kEngine;
constexpr auto kOptimizer = HandleKind::kOptimizer;
constexpr auto kWork = HandleKind::kWork;
constexpr auto kGenerator = HandleKind::kGenerator;
constexpr auto kScope = HandleKind::kScope;
constexpr auto kIo = HandleKind::kIo;

int64_t shape_2_3[] = {2, 3};
float six_floats[6] = {1, 2, 3, 4, 5, 6};
constexpr char kParameter[] = "ln_f.weight";  // a parameter of the test model

// Foreign tensors over six_floats; they end with no deleter.
DLManagedTensorVersioned* versioned_tensor() {
  static DLManagedTensorVersioned managed;
  managed = {};
  managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed.dl_tensor = {six_floats, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape_2_3, nullptr, 0};
  return &managed;
}
DLManagedTensor* legacy_tensor() {
  static DLManagedTensor managed;
  managed = {versioned_tensor()->dl_tensor, nullptr, nullptr};
  return &managed;
}

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

void save_checkpoint(World& world) {
  EXPECT_DS_OK(ds_engine_save(world.engine, world.folder.file("saved").c_str(), "one"));
}

ds_collective* all_reduce_of(ds_tensor* tensor) {
  static ds_collective call;
  call = {};
  call.struct_size = sizeof(call);
  call.kind = DS_COLLECTIVE_ALL_REDUCE;
  call.output = tensor;
  return &call;
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

// A tensor that fits as parameter 0, or as its gradient.
void take_parameter(World& world) {
  ds_tensor_destroy(world.tensor);
  EXPECT_DS_OK(ds_model_get_parameter(world.model, 0, &world.tensor));
}

// Lists of one tensor.
ds_tensor** list_of(ds_tensor* tensor) {
  static ds_tensor* list;
  list = tensor;
  return &list;
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

ds_batch batch_of_arguments(const Arguments& a, size_t ids, size_t labels, size_t mask) {
  ds_batch batch = DS_BATCH_INIT;
  batch.ids = p<ds_tensor>(a, ids);
  if (labels != 0) batch.labels = p<ds_tensor>(a, labels);
  batch.attention_mask = p<ds_tensor>(a, mask);
  return batch;
}

std::vector<Call> library_calls() {
  return {
      {"ds_log_set", {}, [](const Arguments&) { return ds_log_set(nullptr, nullptr, nullptr); }},
      {"ds_log_set_level", {}, [](const Arguments&) { return ds_log_set_level(DS_LOG_WARNING); }},
      {"ds_handle_error_message",
       {pointer("handle"), out_text("out_message")},
       [](const Arguments& a) { return ds_handle_error_message(a[0], p<char*>(a, 1)); },
       [](World& world, Arguments& a) { a[0] = world.tensor; }},
      {"ds_memory_report",
       {out_text("out_json")},
       [](const Arguments& a) { return ds_memory_report(p<char*>(a, 0)); }},
      {"ds_allocator_set",
       {},
       [](const Arguments&) { return ds_allocator_set(DS_DEVICE_CPU, nullptr, nullptr); }},
      {"ds_config_schema",
       {out_text("out_json")},
       [](const Arguments& a) { return ds_config_schema(p<char*>(a, 0)); }},
      {"ds_report",
       {out_text("out_json")},
       [](const Arguments& a) { return ds_report(p<char*>(a, 0)); }},
      {"ds_plan",
       {text("model_json", model_config()), text("config_json", "{\"train_batch_size\": 2}"),
        text("options_json", "{\"world\": 2}"), out_text("out_json")},
       [](const Arguments& a) { return ds_plan(s(a, 0), s(a, 1), s(a, 2), p<char*>(a, 3)); }},
      {"ds_config_check",
       {text("config_json", R"({"train_batch_size": "many"})"), out_text("out_json")},
       [](const Arguments& a) {
         return ds_config_check(s(a, 0), R"({"world": 2, "lenient": true})", p<char*>(a, 1));
       }},
  };
}

std::vector<Call> tensor_calls() {
  return {
      {"ds_tensor_create",
       {pointer("shape"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_tensor_create(DS_FLOAT32, p<int64_t>(a, 0), 2, p<ds_tensor*>(a, 1));
       },
       [](World&, Arguments& a) { a[0] = shape_2_3; }},
      {"ds_tensor_from_buffer",
       {pointer("data"), pointer("shape"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_tensor_from_buffer(a[0], DS_FLOAT32, p<int64_t>(a, 1), nullptr, 2, nullptr,
                                      nullptr, p<ds_tensor*>(a, 2));
       },
       [](World&, Arguments& a) {
         a[0] = six_floats;
         a[1] = shape_2_3;
       }},
      {"ds_tensor_from_dlpack",
       {pointer("managed"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_tensor_from_dlpack(p<DLManagedTensorVersioned>(a, 0), nullptr,
                                      p<ds_tensor*>(a, 1));
       },
       [](World&, Arguments& a) { a[0] = versioned_tensor(); }},
      {"ds_tensor_from_dlpack_legacy",
       {pointer("managed"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_tensor_from_dlpack_legacy(p<DLManagedTensor>(a, 0), nullptr,
                                             p<ds_tensor*>(a, 1));
       },
       [](World&, Arguments& a) { a[0] = legacy_tensor(); }},
      {"ds_tensor_to_dlpack",
       {in(kTensor, "tensor"), {ParamKind::kOut, "out_managed", kTensor, OutKind::kDlpack}},
       [](const Arguments& a) {
         return ds_tensor_to_dlpack(p<ds_tensor>(a, 0), nullptr,
                                    p<DLManagedTensorVersioned*>(a, 1));
       }},
      {"ds_tensor_to_dlpack_legacy",
       {in(kTensor, "tensor"), {ParamKind::kOut, "out_managed", kTensor, OutKind::kDlpackLegacy}},
       [](const Arguments& a) {
         return ds_tensor_to_dlpack_legacy(p<ds_tensor>(a, 0), nullptr, p<DLManagedTensor*>(a, 1));
       }},
      {"ds_tensor_describe",
       {in(kTensor, "tensor")},
       [](const Arguments& a) {
         ds_tensor_info info{};
         info.struct_size = sizeof info;
         return ds_tensor_describe(p<ds_tensor>(a, 0), &info);
       }},
      {"ds_tensor_flatten",
       {pointer("tensors"), out(kTensor, "out_flat")},
       [](const Arguments& a) {
         return ds_tensor_flatten(p<ds_tensor*>(a, 0), 1, p<ds_tensor*>(a, 1));
       },
       [](World& world, Arguments& a) { a[0] = list_of(world.tensor); }},
      {"ds_tensor_unflatten",
       {in(kTensor, "flat"), pointer("shapes_like"), out(kTensor, "out_tensors")},
       [](const Arguments& a) {
         return ds_tensor_unflatten(p<ds_tensor>(a, 0), p<ds_tensor*>(a, 1), 1,
                                    p<ds_tensor*>(a, 2));
       },
       [](World& world, Arguments& a) {
         a[0] = world.list;
         a[1] = list_of(world.list);
       }},
      {"ds_tensor_quantize",
       {in(kTensor, "tensor"), out(kTensor, "out_codes"), out(kTensor, "out_scales")},
       [](const Arguments& a) {
         return ds_tensor_quantize(p<ds_tensor>(a, 0), 8, 4, p<ds_tensor*>(a, 1),
                                   p<ds_tensor*>(a, 2));
       }},
      {"ds_tensor_dequantize",
       {in(kTensor, "codes"), in(kTensor, "scales"), in(kTensor, "output")},
       [](const Arguments& a) {
         return ds_tensor_dequantize(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1), 8, 4,
                                     p<ds_tensor>(a, 2));
       },
       [](World& world, Arguments& a) {
         ds_tensor *codes = nullptr, *scales = nullptr;
         EXPECT_DS_OK(ds_tensor_quantize(world.tensor, 8, 4, &codes, &scales));
         ds_tensor_destroy(world.ids);
         ds_tensor_destroy(world.list);
         a[0] = world.ids = codes;
         a[1] = world.list = scales;
         a[2] = world.tensor;
       }},
      {"ds_tensor_quantize_groups",
       {in(kTensor, "tensor"), out(kTensor, "out_codes"), out(kTensor, "out_scales")},
       [](const Arguments& a) {
         return ds_tensor_quantize_groups(p<ds_tensor>(a, 0), 8, 4, 1, 3, p<ds_tensor*>(a, 1),
                                          p<ds_tensor*>(a, 2));
       }},
      {"ds_tensor_dequantize_groups",
       {in(kTensor, "codes"), in(kTensor, "scales"), in(kTensor, "output")},
       [](const Arguments& a) {
         return ds_tensor_dequantize_groups(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1), 8, 4,
                                            p<ds_tensor>(a, 2));
       },
       [](World& world, Arguments& a) {
         ds_tensor *codes = nullptr, *scales = nullptr;
         EXPECT_DS_OK(ds_tensor_quantize_groups(world.tensor, 8, 4, 0, -1, &codes, &scales));
         ds_tensor_destroy(world.ids);
         ds_tensor_destroy(world.list);
         a[0] = world.ids = codes;
         a[1] = world.list = scales;
         a[2] = world.tensor;
       }},
      {"ds_tensor_fake_quantize",
       {in(kTensor, "tensor"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_tensor_fake_quantize(p<ds_tensor>(a, 0), 4, 2, 0, -1, p<ds_tensor*>(a, 1));
       }},
      {"ds_tensor_softmax",
       {in(kTensor, "scores"), maybe(kTensor, "mask"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_tensor_softmax(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1), 0.5, 1,
                                  p<ds_tensor*>(a, 2));
       },
       [](World&, Arguments& a) { a[1] = nullptr; }},
      {"ds_tensor_softmax_backward",
       {in(kTensor, "softmax"), in(kTensor, "gradient"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_tensor_softmax_backward(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1), 0.5,
                                           p<ds_tensor*>(a, 2));
       }},
      {"ds_tensor_split_heads",
       {in(kTensor, "packed"), maybe(kTensor, "bias"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_tensor_split_heads(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1), 1, 1,
                                      p<ds_tensor*>(a, 2));
       },
       [](World& world, Arguments& a) {
         const int64_t shape[] = {1, 2, 3};
         ds_tensor_destroy(world.list);
         EXPECT_DS_OK(ds_tensor_create(DS_FLOAT32, shape, 3, &world.list));
         a[0] = world.list;
         a[1] = nullptr;
       }},
      {"ds_tensor_merge_heads",
       {in(kTensor, "split"), out(kTensor, "out_tensor")},
       [](const Arguments& a) {
         return ds_tensor_merge_heads(p<ds_tensor>(a, 0), p<ds_tensor*>(a, 1));
       },
       [](World& world, Arguments& a) {
         const int64_t shape[] = {1, 1, 2, 3, 1};
         ds_tensor_destroy(world.list);
         EXPECT_DS_OK(ds_tensor_create(DS_FLOAT32, shape, 5, &world.list));
         a[0] = world.list;
       }},
      {"ds_experts_gate",
       {in(kTensor, "logits"), maybe(kTensor, "bias"), out(kTensor, "out_chosen"),
        out(kTensor, "out_weights"), out(kTensor, "out_counts"), out(kTensor, "out_losses")},
       [](const Arguments& a) {
         return ds_experts_gate(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1), R"({"top_k": 2})",
                                p<ds_tensor*>(a, 2), p<ds_tensor*>(a, 3), p<ds_tensor*>(a, 4),
                                p<ds_tensor*>(a, 5));
       },
       [](World&, Arguments& a) { a[1] = nullptr; }},
      {"ds_experts_gate_backward",
       {in(kTensor, "logits"), in(kTensor, "chosen"), in(kTensor, "counts"),
        maybe(kTensor, "weights_gradient"), maybe(kTensor, "losses_gradient"),
        out(kTensor, "out_logits_gradient")},
       [](const Arguments& a) {
         return ds_experts_gate_backward(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1), p<ds_tensor>(a, 2),
                                         nullptr, p<ds_tensor>(a, 3), p<ds_tensor>(a, 4),
                                         p<ds_tensor*>(a, 5));
       },
       [](World& world, Arguments& a) {
         ds_tensor *chosen = nullptr, *weights = nullptr, *counts = nullptr, *losses = nullptr;
         EXPECT_DS_OK(
             ds_experts_gate(world.tensor, nullptr, nullptr, &chosen, &weights, &counts, &losses));
         ds_tensor_destroy(weights);
         ds_tensor_destroy(losses);
         ds_tensor_destroy(world.ids);
         ds_tensor_destroy(world.list);
         a[0] = world.tensor;
         a[1] = world.ids = chosen;
         a[2] = world.list = counts;
         a[3] = a[4] = nullptr;
       }},
      {"ds_experts_sort",
       {in(kTensor, "chosen"), out(kTensor, "out_offsets"), out(kTensor, "out_order"),
        out(kTensor, "out_places")},
       [](const Arguments& a) {
         return ds_experts_sort(p<ds_tensor>(a, 0), 256, p<ds_tensor*>(a, 1), p<ds_tensor*>(a, 2),
                                p<ds_tensor*>(a, 3));
       },
       [](World& world, Arguments& a) { a[0] = world.ids; }},
      {"ds_experts_dispatch",
       {in(kTensor, "tokens"), in(kTensor, "order"), maybe(kTensor, "weights"),
        out(kTensor, "out_rows")},
       [](const Arguments& a) {
         return ds_experts_dispatch(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1), 1, p<ds_tensor>(a, 2),
                                    p<ds_tensor*>(a, 3));
       },
       [](World& world, Arguments& a) {
         ds_tensor_destroy(world.list);
         a[0] = world.tensor;
         a[1] = world.list = make_list({1, 0, 1});
         a[2] = nullptr;
       }},
      {"ds_experts_combine",
       {in(kTensor, "rows"), in(kTensor, "places"), maybe(kTensor, "weights"),
        out(kTensor, "out_tokens")},
       [](const Arguments& a) {
         return ds_experts_combine(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1), p<ds_tensor>(a, 2),
                                   p<ds_tensor*>(a, 3));
       },
       [](World& world, Arguments& a) {
         const int64_t shape[] = {3, 2};
         ds_tensor_destroy(world.list);
         EXPECT_DS_OK(ds_tensor_create(DS_INT32, shape, 2, &world.list));
         a[0] = world.tensor;
         a[1] = world.list;
         a[2] = nullptr;
       }},
      {"ds_experts_weights_backward",
       {in(kTensor, "rows"), in(kTensor, "places"), in(kTensor, "gradient"),
        out(kTensor, "out_weights_gradient")},
       [](const Arguments& a) {
         return ds_experts_weights_backward(p<ds_tensor>(a, 0), p<ds_tensor>(a, 1),
                                            p<ds_tensor>(a, 2), p<ds_tensor*>(a, 3));
       },
       [](World& world, Arguments& a) {
         const int64_t shape[] = {2, 1};
         ds_tensor_destroy(world.list);
         EXPECT_DS_OK(ds_tensor_create(DS_INT32, shape, 2, &world.list));
         a[0] = a[2] = world.tensor;
         a[1] = world.list;
       }},
      {"ds_tensor_read",
       {in(kTensor, "tensor"), pointer("buffer")},
       [](const Arguments& a) {
         return ds_tensor_read(p<ds_tensor>(a, 0), a[1], sizeof(six_floats));
       },
       [](World&, Arguments& a) { a[1] = six_floats; }},
      {"ds_tensor_write",
       {in(kTensor, "tensor"), pointer("buffer")},
       [](const Arguments& a) {
         return ds_tensor_write(p<ds_tensor>(a, 0), a[1], sizeof(six_floats));
       },
       [](World&, Arguments& a) { a[1] = six_floats; }},
      {"ds_tensor_item",
       {in(kTensor, "tensor"), out("out_value")},
       [](const Arguments& a) { return ds_tensor_item(p<ds_tensor>(a, 0), p<double>(a, 1)); },
       [](World& world, Arguments& a) {
         ds_tensor_destroy(world.tensor);
         EXPECT_DS_OK(ds_tensor_create(DS_FLOAT32, nullptr, 0, &world.tensor));
         a[0] = world.tensor;
       }},
  };
}

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

std::vector<Call> tokenizer_calls() {
  return {
      {"ds_tokenizer_create_bytes",
       {out(kTokenizer, "out_tokenizer")},
       [](const Arguments& a) { return ds_tokenizer_create_bytes(p<ds_tokenizer*>(a, 0)); }},
      {"ds_tokenizer_open",
       {text("path", "{dir}/saved"), out(kTokenizer, "out_tokenizer")},
       [](const Arguments& a) { return ds_tokenizer_open(s(a, 0), p<ds_tokenizer*>(a, 1)); },
       [](World& world, Arguments&) { save_checkpoint(world); }},
      {"ds_tokenizer_from_json",
       {text("json", ""), out(kTokenizer, "out_tokenizer")},
       [](const Arguments& a) {
         return ds_tokenizer_from_json(s(a, 0), -1, p<ds_tokenizer*>(a, 1));
       },
       [](World& world, Arguments& a) {
         static std::string json;
         char* given = nullptr;
         EXPECT_DS_OK(ds_tokenizer_to_json(world.tokenizer, &given));
         json = given;
         ds_string_free(given);
         a[0] = json.data();
       }},
      {"ds_tokenizer_train",
       {text("text", "the cat and the hat and the bat"), out(kTokenizer, "out_tokenizer")},
       [](const Arguments& a) {
         return ds_tokenizer_train(s(a, 0), -1, R"({"vocab_size": 262})", p<ds_tokenizer*>(a, 1));
       }},
      {"ds_tokenizer_encode",
       {in(kTokenizer, "tokenizer"), text("text", "hello"), out(kTensor, "out_ids")},
       [](const Arguments& a) {
         return ds_tokenizer_encode(p<ds_tokenizer>(a, 0), s(a, 1), -1, 0, p<ds_tensor*>(a, 2));
       }},
      {"ds_tokenizer_decode",
       {in(kTokenizer, "tokenizer"), in(kTensor, "ids"), out_text("out_text")},
       [](const Arguments& a) {
         return ds_tokenizer_decode(p<ds_tokenizer>(a, 0), p<ds_tensor>(a, 1), 0, p<char*>(a, 2));
       },
       [](World& world, Arguments& a) { a[1] = world.list; }},
      {"ds_tokenizer_describe",
       {in(kTokenizer, "tokenizer")},
       [](const Arguments& a) {
         ds_tokenizer_info info{};
         info.struct_size = sizeof info;
         return ds_tokenizer_describe(p<ds_tokenizer>(a, 0), &info);
       }},
      {"ds_tokenizer_token_to_id",
       {in(kTokenizer, "tokenizer"), text("token", "A"), out("out_id")},
       [](const Arguments& a) {
         return ds_tokenizer_token_to_id(p<ds_tokenizer>(a, 0), s(a, 1), p<int32_t>(a, 2));
       }},
      {"ds_tokenizer_id_to_token",
       {in(kTokenizer, "tokenizer"), out_text("out_token")},
       [](const Arguments& a) {
         return ds_tokenizer_id_to_token(p<ds_tokenizer>(a, 0), 65, p<char*>(a, 1));
       }},
      {"ds_tokenizer_to_json",
       {in(kTokenizer, "tokenizer"), out_text("out_json")},
       [](const Arguments& a) {
         return ds_tokenizer_to_json(p<ds_tokenizer>(a, 0), p<char*>(a, 1));
       }},
  };
}

std::vector<Call> dataset_calls() {
  return {
      {"ds_dataset_open",
       {text("spec_json", R"({"path": "{dir}/text.txt", "sequence_length": 8})"),
        maybe(kTokenizer, "tokenizer"), out(kDataset, "out_dataset")},
       [](const Arguments& a) {
         return ds_dataset_open(s(a, 0), p<ds_tokenizer>(a, 1), p<ds_dataset*>(a, 2));
       }},
      {"ds_dataset_build",
       {text("input", "{dir}/text.txt"), in(kTokenizer, "tokenizer"),
        text("output_prefix", "{dir}/built")},
       [](const Arguments& a) {
         return ds_dataset_build(s(a, 0), p<ds_tokenizer>(a, 1), 0, s(a, 2));
       }},
      {"ds_dataset_merge",
       {text("inputs_json", R"(["{dir}/tokens"])"), text("output_prefix", "{dir}/merged")},
       [](const Arguments& a) { return ds_dataset_merge(s(a, 0), s(a, 1)); }},
      {"ds_dataset_describe",
       {in(kDataset, "dataset")},
       [](const Arguments& a) {
         ds_dataset_info info{};
         info.struct_size = sizeof info;
         return ds_dataset_describe(p<ds_dataset>(a, 0), &info);
       }},
      {"ds_dataset_sample",
       {in(kDataset, "dataset"), out(kTensor, "out_tokens")},
       [](const Arguments& a) {
         return ds_dataset_sample(p<ds_dataset>(a, 0), 3, p<ds_tensor*>(a, 1));
       }},
      {"ds_dataset_field",
       {in(kDataset, "dataset"), text("field", "labels"), out(kTensor, "out_values")},
       [](const Arguments& a) {
         return ds_dataset_field(p<ds_dataset>(a, 0), 3, s(a, 1), p<ds_tensor*>(a, 2));
       }},
  };
}

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

// Adapters and freezing need a model without an engine.
void end_engine(World& world, Arguments&) {
  ds_engine_destroy(world.engine);
  world.engine = nullptr;
}

constexpr char kLora[] = R"({"r": 2, "target_modules": ["c_attn"]})";

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

// A scope that may change parameter 0.
void open_scope(World& world, Arguments& a) {
  const int64_t first = 0;
  ds_scope_destroy(world.scope);
  EXPECT_DS_OK(ds_engine_open_scope(world.engine, &first, 1, DS_SCOPE_MODIFY, &world.scope));
  a[0] = world.scope;
}

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

std::vector<Call> generator_calls() {
  return {
      {"ds_generator_create",
       {in(kModel, "model"), out(kGenerator, "out_generator")},
       [](const Arguments& a) {
         return ds_generator_create(p<ds_model>(a, 0), R"({"weights": "int4"})",
                                    p<ds_generator*>(a, 1));
       }},
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

std::string expanded(std::string value, const World& world) {
  const std::string mark = "{dir}";
  for (size_t at = value.find(mark); at != std::string::npos; at = value.find(mark)) {
    value.replace(at, mark.size(), world.folder.path().string());
  }
  return value;
}

}  // namespace

const std::vector<Call>& all_calls() {
  static const std::vector<Call> calls = [] {
    std::vector<Call> all;
    for (const auto& part :
         {library_calls(), tensor_calls(), comm_calls(), tokenizer_calls(), dataset_calls(),
          model_calls(), parameter_calls(), gradient_calls(), generator_calls(), engine_calls(),
          optimizer_and_checkpoint_calls(), io_calls()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return calls;
}

PreparedCall::PreparedCall(const Call& call, World& world)
    : arguments(call.params.size()),
      call_(call),
      world_(world),
      texts_(call.params.size()),
      outputs_(call.params.size()) {
  for (size_t i = 0; i < call.params.size(); ++i) {
    const Param& param = call.params[i];
    outputs_[i].bytes.fill(kCanary);
    switch (param.kind) {
      case ParamKind::kHandle:
      case ParamKind::kOptionalHandle:
        arguments[i] = world.handle(param.handle);
        break;
      case ParamKind::kText:
        texts_[i] = expanded(param.text, world);
        arguments[i] = texts_[i].data();
        break;
      case ParamKind::kPointer:
        break;
      case ParamKind::kOut:
        arguments[i] = outputs_[i].bytes.data();
        break;
    }
  }
  if (call.prepare) call.prepare(world, arguments);
}

PreparedCall::~PreparedCall() = default;

bool PreparedCall::outputs_untouched() const {
  for (const Output& output : outputs_) {
    for (const unsigned char byte : output.bytes) {
      if (byte != kCanary) return false;
    }
  }
  return true;
}

void PreparedCall::release_outputs() {
  for (size_t i = 0; i < call_.params.size(); ++i) {
    const Param& param = call_.params[i];
    if (param.kind != ParamKind::kOut || param.out == OutKind::kPlain) continue;
    void* given = nullptr;
    std::memcpy(&given, outputs_[i].bytes.data(), sizeof(given));
    outputs_[i].bytes.fill(kCanary);
    switch (param.out) {
      case OutKind::kPlain:
        break;
      case OutKind::kText:
        ds_string_free(static_cast<char*>(given));
        break;
      case OutKind::kHandle:
        destroy_handle(param.handle, given);
        break;
      case OutKind::kDlpack: {
        auto* const managed = static_cast<DLManagedTensorVersioned*>(given);
        managed->deleter(managed);
        break;
      }
      case OutKind::kDlpackLegacy: {
        auto* const managed = static_cast<DLManagedTensor*>(given);
        managed->deleter(managed);
        break;
      }
    }
  }
}

}  // namespace capi_test
