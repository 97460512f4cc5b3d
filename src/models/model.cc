#include "models/model.h"

#include <algorithm>

#include "base/text.h"
#include "device/cuda_device.h"
#include "models/weight_loaders.h"
#include "tensor/transfer.h"

namespace ds::models {

Model::Model(std::unique_ptr<Architecture> architecture)
    : architecture_(std::move(architecture)),
      parameters_(std::make_unique<nn::ParameterSet>(architecture_->parameters())),
      host_(make_cpu_device()),
      device_(host_),
      held_(std::make_unique<nn::HeldWeights>(*parameters_, device_,
                                              joined_weights(nullptr, 0, nullptr))) {}

Model::Model(nn::ParameterSet parameters)
    : parameters_(std::make_unique<nn::ParameterSet>(std::move(parameters))),
      host_(make_cpu_device()),
      device_(host_),
      held_(std::make_unique<nn::HeldWeights>(*parameters_, device_,
                                              joined_weights(nullptr, 0, nullptr))) {}

Model::Model(const Json& config) : Model(build_architecture(config)) {}

std::shared_ptr<Model> Model::from_parameters(nn::ParameterSet parameters) {
  return std::shared_ptr<Model>(new Model(std::move(parameters)));
}

const Architecture& Model::architecture() const {
  DS_CHECK(architecture_, Code::kUnsupported,
           "this model is the caller's own parameters: it has no forward pass");
  return *architecture_;
}

std::shared_ptr<Model> Model::create(const Json& config, uint64_t seed) {
  auto model = std::make_shared<Model>(config);
  model->set_weight_loader(fresh_weights(seed));
  return model;
}

OpContext Model::context() {
  if (!pool_) pool_ = std::make_unique<ThreadPool>();
  return {device_, pool_.get()};
}

OpContext Model::host_context() { return {host_, context().pool}; }

void Model::set_device(std::shared_ptr<Device> device) {
  nn::HeldWeights& from = held_weights("the model cannot move");
  const bool gpu = device->kind() != DeviceKind::kCpu;
  if (device->kind() == device_->kind() && device->index() == device_->index()) return;
  DS_CHECK(has_architecture() || from.borrowed().empty(), Code::kUnsupported,
           "parameters of this model are lent: it stays where their memory is");
  if (!gpu) device = host_;
  auto moved = std::make_unique<nn::HeldWeights>(*parameters_, device, from.loader());
  // Between two GPUs they go over the host.
  if (!from.loader()) copy_tensor(gpu ? to_host(from.all(), host_) : from.all(), moved->all());
  held_ = std::move(moved);
  caller_stream_.reset();
  device_ = std::move(device);
}

// ---- weights, and who holds them ----

nn::ModelWeights& Model::weights() {
  DS_CHECK(!inference_, Code::kState,
           "this is a copy prepared for inference, without fp32 weights; train, change or save the "
           "model that it was made of");
  if (held_) return *held_;
  return *trained_;
}

nn::ParameterReader& Model::reader() {
  if (inference_) return *inference_;
  weights().check_not_lost();
  weights().make(context());
  return weights().reader();
}

nn::HeldWeights& Model::held_weights(const char* what) {
  DS_CHECK(!has_engine_, Code::kState, what,
           " while an engine trains the model; destroy that engine first");
  DS_CHECK(!prepared(), Code::kState, what, ": the model is prepared for inference already");
  weights().check_not_lost();
  if (trained_) detach_engine(context());  // an engine that lacked the memory for it has left it
  return *held_;
}

void Model::detach_engine(const OpContext& ctx) {
  pass_ranks_ = {};
  has_engine_ = false;
  step_open_ = false;
  auto held = std::make_unique<nn::HeldWeights>(*parameters_, device_, trained_->take(ctx));
  held_ = std::move(held);
  trained_.reset();
}

void Model::set_weight_loader(std::shared_ptr<const nn::WeightLoader> source) {
  held_weights("weights cannot begin anew");
  held_ = std::make_unique<nn::HeldWeights>(*parameters_, device_, std::move(source));
}

bool Model::writes_files() const { return !trained_ || trained_->writes_files(); }

Tensor Model::read(const OpContext& ctx, nn::ParamId id) {
  if (inference_) return inference_->read(ctx, id);
  weights().check_not_lost();
  return weights().read(ctx, id);
}

void Model::read_in_parts(const OpContext& ctx, nn::ParamId id,
                          const nn::ModelWeights::PartTaker& take) {
  if (!inference_) {
    weights().check_not_lost();
    return weights().read_in_parts(ctx, id, 1, take);
  }
  const Tensor value = inference_->read(ctx, id);
  if (value.elements() > 0) take(value.view({value.elements()}), 0);
}

Tensor Model::get(const std::string& name) {
  const nn::ParamId id = parameters().find(name);
  return copied_to_host(read(context(), id), host_);
}

void Model::set(const std::string& name, const Tensor& value) {
  const nn::ParamId id = parameters().find(name);
  check_tensor(value, name.c_str(), DType::kFloat32, parameters()[id].shape);
  DS_CHECK(value.contiguous(), Code::kInvalidArgument, name, " must be packed row-major");
  DS_CHECK(
      !step_open_, Code::kState,
      "weights cannot be set between forward and backward, nor while they are fetched or gathered");
  try {
    weights().write(context(), id, to_device(value, device_));
  } catch (const Error& error) {
    if (weights().half_written()) {
      set_incomplete(str_cat("setting ", printable(name), " failed half way: ", error.message()));
    }
    throw;
  }
}

void Model::change_parameters(nn::ParameterSet parameters, std::optional<AppliedLora> lora,
                              std::shared_ptr<const nn::WeightLoader> rest) {
  nn::HeldWeights& from = held_weights("parameters cannot change");
  for (nn::ParamId id = 0; id < parameters_->size(); ++id) {
    DS_CHECK(!from.borrowed().has(id), Code::kState, (*parameters_)[id].name,
             " lies in lent memory: say when you register parameters which of them train");
  }
  auto set = std::make_unique<nn::ParameterSet>(std::move(parameters));
  const nn::ParamId kept = std::min(set->size(), parameters_->size());
  std::unique_ptr<nn::HeldWeights> held;
  if (from.loader()) {
    held = std::make_unique<nn::HeldWeights>(*set, device_,
                                             joined_weights(from.loader(), kept, std::move(rest)));
  } else {
    held = std::make_unique<nn::HeldWeights>(*set, device_);
    const OpContext ctx = context();
    for (nn::ParamId id = kept; rest && id < set->size(); ++id) {
      const nn::Parameter& p = (*set)[id];
      Tensor out = held->view(id).view({p.shape.elements()});
      if (out.elements() > 0) nn::fill_weights(*rest, ctx, id, p, 0, out);
    }
    for (nn::ParamId id = 0; id < kept; ++id) {
      const Tensor old = from.view(id), value = held->view(id);
      DS_CHECK(old.shape() == value.shape(), Code::kInternal, "a parameter changed its shape");
      copy_tensor(old, value);
    }
  }
  parameters_.swap(set);
  held_.swap(held);
  lora_ = std::move(lora);
}

// ---- use ----

// A flag and not a mutex: the thread that comes back from a callback must be refused too.
Model::Use::Use(Model& model, Purpose purpose) : model_(model) {
  DS_CHECK(!model_.in_use_.exchange(true, std::memory_order_acquire), Code::kState,
           "the model is in use by another thread or by the call that invoked this callback");
  try {
    DS_CHECK(purpose == Purpose::kLoad || model_.incomplete_.empty(), Code::kState,
             "the model's weights are incomplete: ", model_.incomplete_,
             ". Load a checkpoint into its engine, or make the model again");
    if (model_.caller_stream_) {
      model_.device_->default_stream().wait(*model_.caller_stream_->record());
    }
  } catch (...) {
    model_.in_use_.store(false, std::memory_order_release);
    throw;
  }
}

Model::Use::~Use() {
  model_.hand_over();
  model_.in_use_.store(false, std::memory_order_release);
}

void Model::set_caller_stream(void* native) {
  if (native == nullptr) {
    caller_stream_.reset();
    return;
  }
  auto* const gpu = dynamic_cast<CudaDevice*>(device_.get());
  DS_CHECK(gpu != nullptr, Code::kUnsupported,
           "the model is in host memory, which has no streams; ",
           "ds_model_set_device moves it to a GPU");
  caller_stream_ = gpu->borrow_stream(native);
}

// What the program queues on its stream from now on comes after what the use has queued.
void Model::hand_over() noexcept {
  if (!caller_stream_) return synchronize_stream();
  try {
    caller_stream_->wait(*device_->default_stream().record());
  } catch (const Error&) {  // whoever uses the GPU next gets it too
  }
}

void Model::synchronize_stream() noexcept {
  if (has_architecture()) return;
  try {
    device_->default_stream().synchronize();
  } catch (const Error&) {  // whoever uses the GPU next gets it too
  }
}

}  // namespace ds::models
