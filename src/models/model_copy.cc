// A second model of the same weights, which nobody shares: to generate or evaluate from while the
// first one trains on.
#include "models/model.h"
#include "tensor/transfer.h"

namespace ds::models {

std::shared_ptr<Model> Model::copy() {
  DS_CHECK(has_architecture(), Code::kUnsupported,
           "the model is the caller's own parameters: register a second set and fill it with the "
           "tensors of this one (ds_model_get_tensor)");
  DS_CHECK(!prepared(), Code::kState,
           "the model is prepared for inference and has given up its fp32 weights; copy it before, "
           "or open it again");
  auto out = std::make_shared<Model>(architecture_->config());
  out->rebuild(*parameters_);
  out->lora_ = lora_;
  out->trained_before_lora_ = trained_before_lora_;
  out->set_device(device_);
  for (nn::ParamId id = 0; id < parameters().size(); ++id) {
    const Tensor master = state_as_it_is().read_master(context(), id);
    out->state().write_master(out->context(), id, master);
  }
  return out;
}

}  // namespace ds::models
