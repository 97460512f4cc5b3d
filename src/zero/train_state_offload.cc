// TrainState in the host's memory, beside a GPU that computes.
#include "ops/stored_array.h"
#include "tensor/transfer.h"
#include "zero/train_state.h"

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

void TrainState::offload(const OpContext& ctx, const OffloadOptions& options, DType type,
                         bool split) {
  DS_CHECK(!weights_.in_use() && !shared() && !arrays_.host_store && weights_.borrowed().empty(),
           Code::kInternal, "parameters are in use, shared or offloaded already");
  DS_CHECK(!arrays_.factory, Code::kInternal,
           "state of a model on a GPU lies in the host's memory, not where a factory makes it");
  weights_.check_not_lost();
  if (weights_.compute_type() != DType::kFloat32) set_compute_type(ctx, DType::kFloat32);
  const OpContext host{options.host, ctx.pool};
  Sharing sharing;
  sharing.bucket_elements = options.bucket_elements;
  FlatLayout layout(arrays_.parameters, sharing);
  DS_CHECK(layout.elements() == arrays_.layout.elements(), Code::kInternal,
           "buckets moved parameters");
  const Shape all{layout.elements()};
  const std::shared_ptr<Device> memory =
      options.pinned ? host_memory_of(arrays_.device) : options.host;
  const nn::WeightLoader* const loader = masters_.loader().get();
  optim::FlatTensors flat;
  for_offload([&] {
    const auto make = [&](DType dtype) {
      return Tensor::zeros(memory, dtype, all, MemoryTag::kParameters);
    };
    flat.masters = make(DType::kFloat32);
    for (const nn::ParamId id : layout.order()) {
      const FlatRange range = layout.range(id);
      Tensor out = flat.masters.memory().slice(0, range.begin, range.end);
      if (loader != nullptr && range.elements() > 0) {
        loader->fill(host, id, arrays_.parameters[id], 0, out);
      }
    }
    if (loader == nullptr) copy_tensor(arrays_.flat.masters.memory(), flat.masters.memory());
    if (!split) return;
    flat.model = make(type);
    flat.low_halves = make(DType::kUInt16);
  });
  // From here on the masters on the host are what there is, whatever fails.
  arrays_.flat = {};
  arrays_.flat.masters = flat.masters;
  masters_.drop_loader();
  arrays_.host = options.host;
  Tensor weights = Tensor::empty(arrays_.device, type, all, MemoryTag::kParameters);
  std::shared_ptr<HostStore> store;
  for_offload(
      [&] { store = std::make_shared<HostStore>(ctx, options, std::move(weights), split); });
  if (split) {
    ops::split_to_arrays(host, flat.masters.memory(), {flat.model, 0, flat.low_halves, 0});
    flat.masters = {};
  }
  store->send(flat, {0, layout.elements()});
  arrays_.flat = std::move(flat);
  arrays_.host_store = std::move(store);
  arrays_.layout = std::move(layout);
  weights_.set_compute_type(type);
  gradients_.send_to_host(ctx);
}

// The masters stay on the host until somebody computes with them: the GPU may have no room.
void TrainState::end_offload(const OpContext& ctx) {
  const std::shared_ptr<HostStore> store = arrays_.host_store;
  if (!store) return;
  DS_CHECK(!weights_.in_use(), Code::kInternal, "offload ended while parameters are in use");
  optim::FlatTensors& flat = arrays_.flat;
  if (flat.low_halves) {
    Tensor joined = Tensor::empty(store->memory(), DType::kFloat32, {arrays_.layout.elements()},
                                  MemoryTag::kParameters);
    ops::join_from_arrays(arrays_.state_context(ctx), {flat.model, 0, flat.low_halves, 0}, joined);
    flat.masters = std::move(joined);
    flat.model = flat.low_halves = {};
  }
  store->drop();
  gradients_.stop_reducing();
  arrays_.host_store.reset();
  flat.gradients = {};
  arrays_.layout = FlatLayout(arrays_.parameters);
  weights_.set_compute_type(DType::kFloat32);
}

}  // namespace ds::zero
