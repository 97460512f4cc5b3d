#include "capi/call_rows.h"
#include "tensor/dlpack_abi.h"

namespace capi_test {
namespace {

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

}  // namespace

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

}  // namespace capi_test
