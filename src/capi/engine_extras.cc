// What checkpoints of an engine carry for the caller in ds.h: tokenizer, a document, blobs of
// bytes.
#include <cstring>

#include "base/json.h"
#include "capi/args.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"
#include "capi/tokenizer_object.h"
#include "engine/caller_state.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_engine_set_tokenizer(ds_engine* engine, const ds_tokenizer* tokenizer) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    TokenizerPtr attached;
    if (tokenizer != nullptr) attached = look_up(tokenizer, "tokenizer")->tokenizer;
    object->engine().caller_state().tokenizer = std::move(attached);
  });
}

ds_status ds_engine_set_client_state(ds_engine* engine, const char* json) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    object->engine().caller_state().client_state =
        json == nullptr ? Json() : parse_json(json, "client state", Code::kInvalidArgument);
  });
}

ds_status ds_engine_client_state(ds_engine* engine, char** out_json) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(dump_json(object->engine().caller_state().client_state));
  });
}

ds_status ds_engine_set_blob(ds_engine* engine, const char* name, const void* data, int64_t size) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    const std::string key(utf8_param(name, "name"));
    DS_CHECK(size >= 0, Code::kInvalidArgument, "size is ", size);
    DS_CHECK(data != nullptr || size == 0, Code::kInvalidArgument, "data is NULL");
    object->engine().caller_state().blobs.set(
        key, {static_cast<const char*>(data), static_cast<size_t>(data == nullptr ? 0 : size)});
  });
}

ds_status ds_engine_blob(ds_engine* engine, const char* name, ds_tensor** out_bytes) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    ds_tensor*& out = out_param(out_bytes, "out_bytes");
    const std::string& bytes =
        object->engine().caller_state().blobs.get(std::string(utf8_param(name, "name")));
    Tensor copy = Tensor::empty(make_cpu_device({.cache = false}), DType::kUInt8,
                                {static_cast<int64_t>(bytes.size())}, MemoryTag::kOther);
    std::memcpy(copy.raw(), bytes.data(), bytes.size());
    out = publish_tensor(std::move(copy));
  });
}

ds_status ds_engine_blobs(ds_engine* engine, char** out_json) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    char*& out = out_param(out_json, "out_json");
    Json sizes = Json::object();
    for (const auto& [name, bytes] : object->engine().caller_state().blobs.all())
      sizes[name] = bytes.size();
    out = make_c_string(dump_json(sizes));
  });
}
