#include "models/model.h"

#include "device/cuda_device.h"
#include "tensor/transfer.h"

namespace ds::models {

Model::Model(std::unique_ptr<Architecture> architecture)
    : architecture_(std::move(architecture)),
      parameters_(std::make_unique<nn::ParameterSet>(architecture_->parameters())),
      host_(make_cpu_device()),
      device_(host_),
      state_(std::make_unique<zero::TrainState>(*parameters_, device_,
                                                joined_weights(nullptr, 0, nullptr))) {}

Model::Model(nn::ParameterSet parameters)
    : parameters_(std::make_unique<nn::ParameterSet>(std::move(parameters))),
      host_(make_cpu_device()),
      device_(host_),
      state_(std::make_unique<zero::TrainState>(*parameters_, device_,
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
  check_free("the model cannot move");
  const bool gpu = device->kind() != DeviceKind::kCpu;
  if (device->kind() == device_->kind() && device->index() == device_->index()) return;
  DS_CHECK(has_architecture() || state_->weights().borrowed().empty(), Code::kUnsupported,
           "parameters of this model are lent: it stays where their memory is");
  if (!gpu) device = host_;
  auto moved = std::make_unique<zero::TrainState>(*parameters_, device, state_->masters().loader());
  // Masters alone exist while no engine trains. Between two GPUs they go over the host.
  if (!state_->masters().loader()) {
    const Tensor masters = gpu ? to_host(state_->masters().all(), host_) : state_->masters().all();
    copy_tensor(masters, moved->masters().all());
  }
  state_ = std::move(moved);
  caller_stream_.reset();
  device_ = std::move(device);
}

zero::TrainState& Model::state() {
  zero::TrainState& state = state_as_it_is();
  state.weights().check_not_lost();
  if (state.masters().loader()) state.masters().make(context());
  return state;
}

void Model::set_weight_loader(std::shared_ptr<const zero::WeightLoader> source) {
  check_free("weights cannot begin anew");
  state_ = std::make_unique<zero::TrainState>(*parameters_, device_, std::move(source));
}

zero::TrainState& Model::state_as_it_is() {
  DS_CHECK(state_, Code::kState,
           "this is a copy prepared for inference, without fp32 weights; train, change or save the "
           "model "
           "that it was made of");
  return *state_;
}

nn::ParameterReader& Model::weights() {
  if (inference_) return *inference_;
  return state().weights();
}

bool Model::writes_files() const {
  return state_ == nullptr || !state_->shared() || state_->arrays().comm->rank() == 0;
}

Tensor Model::read(const OpContext& ctx, nn::ParamId id) {
  return inference_ ? inference_->read(ctx, id) : state().masters().read(ctx, id);
}

Tensor Model::get(const std::string& name) {
  const nn::ParamId id = parameters().find(name);
  // One tensor is no reason to make all weights.
  const Tensor master =
      inference_ ? read(context(), id) : state_as_it_is().masters().read(context(), id);
  return copied_to_host(master, host_);
}

void Model::set(const std::string& name, const Tensor& value) {
  const nn::ParamId id = parameters().find(name);
  check_tensor(value, name.c_str(), DType::kFloat32, parameters()[id].shape);
  DS_CHECK(value.contiguous(), Code::kInvalidArgument, name, " must be packed row-major");
  DS_CHECK(
      !step_open_, Code::kState,
      "weights cannot be set between forward and backward, nor while they are fetched or gathered");
  state().masters().write(context(), id, to_device(value, device_));
}

void Model::attach_engine() {
  DS_CHECK(!has_engine_, Code::kState,
           "the model is trained by another engine; destroy that engine first");
  state_as_it_is().weights().check_not_lost();  // and throws when the model cannot train any more
  has_engine_ = true;
}

void Model::detach_engine() {
  has_engine_ = false;
  step_open_ = false;
}

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
