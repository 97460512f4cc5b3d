// Parameters of an engine in ds.h: fetched for the caller's computation, gathered to be changed,
// the part of this process; and the end of a process's batches.
#include <vector>

#include "capi/args.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

namespace {

// The caller's list of parameters; NULL counts from 0.
std::vector<int64_t> index_list(EngineObject& engine, const int64_t* indices, int64_t count) {
  const int64_t limit = engine.engine().model()->parameters().size();
  DS_CHECK(count >= 0 && (indices != nullptr || count <= limit), Code::kInvalidArgument,
           "count is ", count, "; the model has ", limit, " parameters");
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out.push_back(indices == nullptr ? i : indices[i]);
  return out;
}

// Makes tensors by `make` and gives out their handles, which `held` remembers until they end.
template <class Make>
void give_held(const std::vector<int64_t>& list, ds_tensor** out_tensors, HeldTensors& held,
               const Make& make) {
  DS_CHECK(out_tensors != nullptr || list.empty(), Code::kInvalidArgument, "out_tensors is NULL");
  std::vector<ReservedTensor> handles(list.size());
  held.reserve(list.size());
  std::vector<Tensor> tensors = make(list);
  for (size_t i = 0; i < list.size(); ++i) {
    out_tensors[i] = handles[i].give(std::move(tensors[i]));
    held.add(list[i], out_tensors[i]);
  }
}

}  // namespace

ds_status ds_engine_fetch_parameters(ds_engine* engine, const int64_t* indices, int64_t count,
                                     ds_tensor** out_tensors) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    give_held(index_list(*object, indices, count), out_tensors, object->fetched,
              [&](const auto& list) { return object->engine().fetch_parameters(list); });
  });
}

ds_status ds_engine_release_parameters(ds_engine* engine, const int64_t* indices, int64_t count) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    const std::vector<int64_t> list = index_list(*object, indices, count);
    object->engine().release_parameters(list);
    for (const int64_t index : list) object->fetched.end(index);
  });
}

ds_status ds_engine_gather_parameters(ds_engine* engine, const int64_t* indices, int64_t count,
                                      ds_tensor** out_tensors) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    give_held(index_list(*object, indices, count), out_tensors, object->gathered,
              [&](const auto& list) { return object->engine().gather_parameters(list); });
  });
}

ds_status ds_engine_scatter_parameters(ds_engine* engine, const int64_t* indices, int64_t count,
                                       int32_t modifier_rank) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    const std::vector<int64_t> list = index_list(*object, indices, count);
    object->engine().scatter_parameters(list, modifier_rank);
    for (const int64_t index : list) object->gathered.end(index);
  });
}

ds_status ds_engine_local_range(ds_engine* engine, const char* name, int64_t* out_first,
                                int64_t* out_count) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    int64_t& first = out_param(out_first, "out_first");
    int64_t& count = out_param(out_count, "out_count");
    const zero::FlatRange range =
        object->engine().local_range(std::string(utf8_param(name, "name")));
    first = range.begin;
    count = range.elements();
  });
}

ds_status ds_engine_get_local(ds_engine* engine, const char* name, const char* what,
                              ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    const std::string parameter(utf8_param(name, "name")), values(utf8_param(what, "what"));
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    out = publish_tensor(object->engine().local_values(parameter, values));
  });
}

ds_status ds_engine_set_local(ds_engine* engine, const char* name, const char* what,
                              const ds_tensor* value) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    const std::string parameter(utf8_param(name, "name")), values(utf8_param(what, "what"));
    const auto input = enter(value, "value", Entry::kShared);
    object->engine().set_local_values(parameter, values, host_copy(*input));
  });
}

ds_status ds_engine_join(ds_engine* engine) {
  return guard(__func__, [&] { enter(engine, "engine")->engine().join(); });
}
