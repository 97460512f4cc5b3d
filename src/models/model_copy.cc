// Second models of the same weights: to generate or evaluate from while the first one trains on,
// and prepared for running alone.
#include "models/model.h"
#include "models/shared_experts.h"
#include "tensor/transfer.h"

namespace ds::models {

std::shared_ptr<Model> Model::alike() const {
  auto out = std::make_shared<Model>(architecture().config());
  out->change_parameters(*parameters_, lora_);
  out->origin_ = origin_;
  out->set_device(device_);
  return out;
}

std::shared_ptr<Model> Model::copy() {
  DS_CHECK(has_architecture(), Code::kUnsupported,
           "the model is the caller's own parameters: register a second set and fill it with the "
           "tensors of this one (ds_model_get_parameter)");
  const std::shared_ptr<Model> out = alike();
  for (nn::ParamId id = 0; id < parameters().size(); ++id) {
    out->weights().write(out->context(), id, weights().read(context(), id));
  }
  return out;
}

std::shared_ptr<Model> Model::prepared_copy(const InferenceOptions& options, const Mesh* mesh) {
  std::vector<bool> held;
  if (mesh != nullptr) {
    DS_CHECK(!trained_, Code::kState,
             "an engine trains the model, which ranks cannot share as it is; destroy that engine "
             "first, or make the generator without a group");
    held = parameters_held(parameters(), *mesh);
  }
  const std::shared_ptr<Model> out = alike();
  out->pool_ = std::make_unique<ThreadPool>(options.threads);
  out->inference_ =
      std::make_unique<InferenceWeights>(out->context(), *out->parameters_, weights(),
                                         architecture().info(), options, std::move(held));
  out->held_.reset();
  return out;
}

InferenceReport Model::inference_report() const {
  DS_CHECK(inference_, Code::kInternal, "the model is not prepared for inference");
  InferenceReport report = inference_->report();
  report.threads = pool_->threads();
  return report;
}

}  // namespace ds::models
