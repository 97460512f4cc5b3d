#include "capi/calls.h"

#include <cstring>

#include "capi/call_rows.h"
#include "tensor/dlpack_abi.h"

namespace capi_test {
namespace {

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
