// TrainState in the host's memory, beside a GPU that computes.
#include "ops/stored_array.h"
#include "tensor/transfer.h"
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

// Arrays of zeros beside a GPU, for masters and, with `split`, what they will be split into.
optim::FlatTensors make_on_host(const std::shared_ptr<Device>& gpu, const OffloadOptions& options,
                                int64_t elements, bool compact, DType type, bool split) {
  const std::shared_ptr<Device> memory = options.pinned ? host_memory_of(gpu) : options.host;
  const auto make = [&](DType dtype) {
    return optim::FlatTensor(Tensor::zeros(memory, dtype, {elements}, MemoryTag::kParameters),
                             compact);
  };
  optim::FlatTensors flat;
  for_offload([&] {
    flat.masters = make(DType::kFloat32);
    if (!split) return;
    flat.model = make(type);
    flat.low_halves = make(DType::kUInt16);
  });
  return flat;
}

// Of stage 3, for weights that rest on the host: what holds them anyway, or an array beside masters
// that they are rounded from.
optim::FlatTensor weights_on_host(const std::shared_ptr<Device>& gpu, const OffloadOptions& options,
                                  const optim::FlatTensors& flat, DType type) {
  if (flat.low_halves) return flat.model;
  if (type == DType::kFloat32) return flat.masters;
  const std::shared_ptr<Device> memory =
      options.weights_pinned ? host_memory_of(gpu) : options.host;
  optim::FlatTensor out;
  for_offload([&] {
    out = {Tensor::zeros(memory, type, {flat.masters.elements()}, MemoryTag::kParameters),
           flat.masters.compact};
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
    ops::split_to_arrays({options.host, ctx.pool}, flat.masters.memory(),
                         {flat.model, 0, flat.low_halves, 0});
    flat.masters = {};
  }
  return store;
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
  LayoutPolicy policy;
  policy.bucket_elements = options.bucket_elements;
  Layout whole(arrays_.parameters, policy);
  const FlatLayout& layout = whole.flat();
  DS_CHECK(layout.elements() == arrays_.layout.flat().elements(), Code::kInternal,
           "buckets moved parameters");
  optim::FlatTensors flat =
      make_on_host(arrays_.device, options, layout.elements(), false, type, split);
  if (const nn::WeightLoader* const loader = masters_.loader().get()) {
    for (const nn::ParamId id : layout.order()) {
      const FlatRange range = layout.range(id);
      Tensor out = flat.masters.memory().slice(0, range.begin, range.end);
      if (range.elements() > 0) loader->fill(host, id, arrays_.parameters[id], 0, out);
    }
  } else {
    copy_tensor(arrays_.flat.masters.memory(), flat.masters.memory());
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
  weights_.set_compute_type(type);
  gradients_.send_to_host(ctx);
}

// What lay_out_shared does, with what this rank owns on the host. The GPU's weights are made only
// when the masters that may lie there are gone.
void TrainState::lay_out_on_host(const OpContext& ctx, const Layout& layout,
                                 const ShareOptions& options, DType type, bool split) {
  const OffloadOptions& offload = *options.offload;
  DS_CHECK(!arrays_.factory && weights_.borrowed().empty(), Code::kInternal,
           "state of ranks that is offloaded lies in memory, and the library owns that");
  optim::FlatTensors flat;
  options.together([&] {
    flat = make_on_host(arrays_.device, offload, layout.held(StateRole::kMasters),
                        layout.spread(StateRole::kMasters), type, split);
  });
  spread_masters({offload.host, ctx.pool}, arrays_, masters_, options, layout.flat(),
                 NewMasters(flat.masters));
  masters_.drop_loader();
  arrays_.layout = layout;
  arrays_.flat = {};
  arrays_.flat.masters = flat.masters;
  arrays_.host = offload.host;
  optim::FlatTensor weights;
  if (offload.weights) {
    options.together([&] { weights = weights_on_host(arrays_.device, offload, flat, type); });
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
  if (flat.low_halves) {
    Tensor joined = Tensor::empty(store->memory(), DType::kFloat32,
                                  {arrays_.layout.flat().elements()}, MemoryTag::kParameters);
    ops::join_from_arrays(arrays_.state_context(ctx), {flat.model, 0, flat.low_halves, 0}, joined);
    flat.masters = std::move(joined);
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
