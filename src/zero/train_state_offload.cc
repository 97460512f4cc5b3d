// TrainState on the host, in memory or where a factory makes it, beside a GPU that computes.
#include "ops/stored_array.h"
#include "tensor/transfer.h"
#include "zero/new_masters.h"
#include "zero/spread_masters.h"
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

// An array of zeros beside a GPU: where a factory makes such arrays, or in the host's memory.
optim::FlatTensor make_beside(const StateArrays& arrays, const OffloadOptions& options,
                              const optim::ArrayRequest& request, bool compact, bool pinned) {
  if (arrays.stores(request.role) && request.elements > 0) {
    return arrays.make_stored(request, compact);
  }
  const std::shared_ptr<Device> memory = pinned ? host_memory_of(arrays.device) : options.host;
  return {Tensor::zeros(memory, request.dtype, {request.elements}, MemoryTag::kParameters),
          compact};
}

// For masters and, with `split`, what they will be split into: the upper halves are weights that
// rest on the host, or lie where the lower ones do.
optim::FlatTensors make_on_host(const StateArrays& arrays, const OffloadOptions& options,
                                const Layout& layout, DType type, bool split) {
  using optim::ArrayRole;
  const bool compact = layout.spread(StateRole::kMasters);
  const int64_t elements = layout.held(StateRole::kMasters);
  const int64_t trainable =
      compact ? layout.flat().owned_trainable_elements() : layout.flat().trainable_elements();
  const auto make = [&](ArrayRole role, const char* name, DType dtype) {
    return make_beside(arrays, options, {role, name, dtype, elements, trainable}, compact,
                       options.pinned);
  };
  optim::FlatTensors flat;
  for_offload([&] {
    flat.masters = make(ArrayRole::kMasters, "masters", DType::kFloat32);
    if (!split) return;
    flat.model = options.weights ? make(ArrayRole::kWeights, "weights", type)
                                 : make(ArrayRole::kMasters, "upper_halves", type);
    flat.low_halves = make(ArrayRole::kLowHalves, "low_halves", DType::kUInt16);
  });
  return flat;
}

// Of stage 3, for weights that rest on the host: what holds them anyway, or an array beside masters
// that they are rounded from. Masters in files are not weights that rest in memory.
optim::FlatTensor weights_on_host(const StateArrays& arrays, const OffloadOptions& options,
                                  const optim::FlatTensors& flat, DType type) {
  constexpr optim::ArrayRole kWeights = optim::ArrayRole::kWeights;
  if (flat.low_halves) return flat.model;
  const bool in_place = flat.masters.in_memory() || arrays.stores(kWeights);
  if (type == DType::kFloat32 && in_place) return flat.masters;
  optim::FlatTensor out;
  for_offload([&] {
    out = make_beside(arrays, options, {kWeights, "weights", type, flat.masters.elements()},
                      flat.masters.compact, options.weights_pinned);
  });
  return out;
}

// Beside arrays of make_on_host whose masters were written, which are split if there is room for
// it.
std::shared_ptr<HostStore> make_host_store(const OpContext& ctx, const OffloadOptions& options,
                                           optim::FlatTensors& flat, optim::FlatTensor weights) {
  const bool split = static_cast<bool>(flat.low_halves);
  std::shared_ptr<HostStore> store;
  for_offload(
      [&] { store = std::make_shared<HostStore>(ctx, options, std::move(weights), split); });
  if (split) {
    const OpContext host{options.host, ctx.pool};
    flat.masters.for_parts(
        0, flat.masters.elements(), Access::kRead, [&](const Tensor& part, int64_t at) {
          ops::split_to_arrays(host, part, {flat.model, at, flat.low_halves, at});
        });
    flat.masters = {};
  }
  return store;
}

}  // namespace

void TrainState::offload(const OpContext& ctx, const OffloadOptions& options, DType type,
                         bool split) {
  DS_CHECK(!weights_.in_use() && !shared() && !arrays_.host_store && weights_.borrowed().empty(),
           Code::kInternal, "parameters are in use, shared or offloaded already");
  weights_.check_not_lost();
  if (weights_.compute_type() != DType::kFloat32) set_compute_type(ctx, DType::kFloat32);
  const OpContext host{options.host, ctx.pool};
  LayoutPolicy policy;
  policy.bucket_elements = options.bucket_elements;
  Layout whole(arrays_.parameters, policy);
  const FlatLayout& layout = whole.flat();
  DS_CHECK(layout.elements() == arrays_.layout.flat().elements(), Code::kInternal,
           "buckets moved parameters");
  optim::FlatTensors flat = make_on_host(arrays_, options, whole, type, split);
  if (const nn::WeightLoader* const loader = masters_.loader().get()) {
    NewMasters(flat.masters).fill(host, layout, arrays_.parameters, *loader);
  } else {
    const Tensor& there = arrays_.flat.masters.memory();
    flat.masters.for_parts(0, there.elements(), Access::kWrite, [&](Tensor& part, int64_t at) {
      copy_tensor(there.slice(0, at, at + part.elements()), part);
    });
  }
  // From here on the masters on the host are what there is, whatever fails.
  arrays_.flat = {};
  arrays_.flat.masters = flat.masters;
  masters_.drop_loader();
  arrays_.host = options.host;
  Tensor weights = Tensor::empty(arrays_.device, type, {layout.elements()}, MemoryTag::kParameters);
  std::shared_ptr<HostStore> store = make_host_store(ctx, options, flat, std::move(weights));
  store->send(flat, {0, layout.elements()}, 0);
  arrays_.flat = std::move(flat);
  arrays_.host_store = std::move(store);
  arrays_.layout = std::move(whole);
  arrays_.flush_masters();
  weights_.set_compute_type(type);
  gradients_.send_to_host(ctx);
}

// What lay_out_shared does, with what this rank owns on the host. The GPU's weights are made only
// when the masters that may lie there are gone.
void TrainState::lay_out_on_host(const OpContext& ctx, const Layout& layout,
                                 const ShareOptions& options, DType type, bool split) {
  const OffloadOptions& offload = *options.offload;
  DS_CHECK(weights_.borrowed().empty(), Code::kInternal,
           "the library owns weights whose optimizer is offloaded");
  optim::FlatTensors flat;
  options.together([&] { flat = make_on_host(arrays_, offload, layout, type, split); });
  spread_masters({offload.host, ctx.pool}, arrays_, masters_, options, layout.flat(),
                 NewMasters(flat.masters));
  masters_.drop_loader();
  arrays_.layout = layout;
  arrays_.flat = {};
  arrays_.flat.masters = flat.masters;
  arrays_.host = offload.host;
  optim::FlatTensor weights;
  if (offload.weights) {
    options.together([&] { weights = weights_on_host(arrays_, offload, flat, type); });
  } else {
    const Shape shape{layout.held(StateRole::kWeights)};
    weights = {options.stage > 0
                   ? arrays_.shard_ranks()->shared_tensor(
                         arrays_.device, type, shape, MemoryTag::kParameters, {.label = "weights"})
                   : Tensor::zeros(arrays_.device, type, shape, MemoryTag::kParameters),
               layout.spread(StateRole::kWeights)};
  }
  options.together(
      [&] { arrays_.host_store = make_host_store(ctx, offload, flat, std::move(weights)); });
  arrays_.flat = std::move(flat);
}

// The masters stay on the host until somebody computes with them: the GPU may have no room.
void TrainState::end_offload(const OpContext& ctx) {
  const std::shared_ptr<HostStore> store = arrays_.host_store;
  if (!store) return;
  DS_CHECK(!weights_.in_use(), Code::kInternal, "offload ended while parameters are in use");
  optim::FlatTensors& flat = arrays_.flat;
  if (flat.low_halves || !flat.masters.in_memory()) {
    const OpContext host = arrays_.state_context(ctx);
    Tensor wide = Tensor::empty(store->memory(), DType::kFloat32,
                                {arrays_.layout.flat().elements()}, MemoryTag::kParameters);
    if (flat.low_halves) {
      ops::join_from_arrays(host, {flat.model, 0, flat.low_halves, 0}, wide);
    } else {
      ops::read_array(host, flat.masters, 0, wide);
    }
    flat.masters = std::move(wide);
    flat.model = flat.low_halves = {};
  }
  store->drop();
  gradients_.stop_reducing();
  arrays_.host_store.reset();
  flat.gradients = {};
  arrays_.layout = Layout(arrays_.parameters);
  weights_.set_compute_type(DType::kFloat32);
}

}  // namespace ds::zero
