// The part of ParameterState that keeps masters, gradients and optimizer state in the host's memory
// while a GPU computes.
#include "ops/split_master.h"
#include "tensor/transfer.h"
#include "zero/parameter_state.h"

namespace ds::zero {
namespace {

// What is short is reported by the device; what it was for is added.
template <class Body>
void for_offload(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != Code::kOutOfMemory) throw;
    throw Error(error.code(),
                str_cat(error.message(),
                        "; zero_optimization.offload_optimizer keeps masters, gradients and "
                        "optimizer state in the host's memory, pin_memory false in pageable one"));
  }
}

}  // namespace

bool ParameterState::masters_on_host() const {
  return !host_store_ && device_->kind() != DeviceKind::kCpu && flat_.masters &&
         on_host(flat_.masters.data);
}

void ParameterState::reload_masters() {
  if (!masters_on_host()) return;
  const Tensor there =
      Tensor::empty(device_, DType::kFloat32, flat_.masters.data.shape(), MemoryTag::kParameters);
  copy_tensor(flat_.masters.data, there);
  flat_.masters.data = there;
}

OpContext ParameterState::state_context(const OpContext& ctx) const {
  return host_store_ || masters_on_host() ? OpContext{rest_, ctx.pool} : ctx;
}

const std::shared_ptr<Device>& ParameterState::state_memory() const {
  return host_store_ ? host_store_->memory() : device_;
}

void ParameterState::offload(const OpContext& ctx, const OffloadOptions& options, DType type,
                             bool split) {
  DS_CHECK(open_guards_ == 0 && !comm_ && !host_store_ && !lost_ && borrowed_.empty(),
           Code::kInternal, "parameters are in use, shared or offloaded already");
  if (compute_type_ != DType::kFloat32) set_compute_type(ctx, DType::kFloat32);
  const OpContext host{options.host, ctx.pool};
  Sharing sharing;
  sharing.bucket_elements = options.bucket_elements;
  FlatLayout layout(parameters_, sharing);
  DS_CHECK(layout.elements() == layout_.elements(), Code::kInternal, "buckets moved parameters");
  const Shape all{layout.elements()};
  const std::shared_ptr<Device> memory = options.pinned ? host_memory_of(device_) : options.host;
  optim::FlatTensors flat;
  for_offload([&] {
    const auto make = [&](DType dtype) {
      return Tensor::zeros(memory, dtype, all, MemoryTag::kParameters);
    };
    flat.masters = make(DType::kFloat32);
    for (const nn::ParamId id : layout.order()) {
      const FlatRange range = layout.range(id);
      Tensor out = flat.masters.data.slice(0, range.begin, range.end);
      if (loader_ && range.elements() > 0) loader_->fill(host, id, parameters_[id], 0, out);
    }
    if (!loader_) copy_tensor(flat_.masters.data, flat.masters.data);
    if (!split) return;
    flat.model = make(type);
    flat.low_halves = make(DType::kUInt16);
  });
  // From here on the masters on the host are what there is, whatever fails.
  flat_ = {};
  flat_.masters = flat.masters;
  loader_.reset();
  rest_ = options.host;
  Tensor weights = Tensor::empty(device_, type, all, MemoryTag::kParameters);
  std::shared_ptr<HostStore> store;
  for_offload(
      [&] { store = std::make_shared<HostStore>(ctx, options, std::move(weights), split); });
  if (split) {
    ops::split_masters(host, flat.masters.data, flat.model.data, flat.low_halves.data);
    flat.masters = {};
  }
  store->send(flat, {0, layout.elements()});
  flat_ = std::move(flat);
  host_store_ = std::move(store);
  layout_ = std::move(layout);
  compute_type_ = type;
  // One rank reduces with itself: a bucket is taken as soon as it is complete.
  const GradientReducer::Options reduce{.whole = true, .overlap = false};
  reducer_ = std::make_unique<GradientReducer>(
      ctx, parameters_, layout_, make_single_communicator(), reduce,
      [this, ctx](const Bucket& bucket, const Tensor& gradients) {
        return take_reduced(ctx, bucket, gradients);
      });
}

// The masters stay on the host until somebody computes with them: the GPU may have no room.
void ParameterState::end_offload(const OpContext& ctx) {
  if (!host_store_) return;
  DS_CHECK(open_guards_ == 0, Code::kInternal, "offload ended while parameters are in use");
  if (flat_.low_halves) {
    Tensor joined = Tensor::empty(host_store_->memory(), DType::kFloat32, {layout_.elements()},
                                  MemoryTag::kParameters);
    ops::join_masters(state_context(ctx), flat_.model.data, flat_.low_halves.data, joined);
    flat_.masters = std::move(joined);
    flat_.model = flat_.low_halves = {};
  }
  host_store_->drop();
  reducer_.reset();
  empty_buckets_.clear();
  host_store_.reset();
  flat_.gradients = {};
  layout_ = FlatLayout(parameters_);
  compute_type_ = DType::kFloat32;
}

std::shared_ptr<optim::OffloadStore> ParameterState::offload_store() const { return host_store_; }

void ParameterState::open_update() {
  if (host_store_) host_store_->open_update();
}

void ParameterState::hold_masters() {
  if (host_store_) host_store_->hold_masters();
}

}  // namespace ds::zero
