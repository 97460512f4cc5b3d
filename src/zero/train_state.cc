#include "zero/train_state.h"

#include "base/log.h"
#include "base/system_errors.h"
#include "base/system_memory.h"
#include "base/text.h"
#include "ops/elementwise.h"
#include "ops/stored_array.h"
#include "tensor/transfer.h"
#include "zero/comm_shard_group.h"
#include "zero/spread_masters.h"

namespace ds::zero {
namespace {

StateArrays arrays_of(const nn::ParameterSet& parameters, std::shared_ptr<Device> device,
                      const nn::WholeWeights& whole) {
  StateArrays out(parameters, std::move(device));
  if (whole.array) out.flat.masters = whole.array;
  out.host = whole.host;
  return out;
}

// fp32 in memory, from whatever form they have.
void widen_masters(const OpContext& ctx, StateArrays& arrays, const Masters& masters) {
  optim::FlatTensors& flat = arrays.flat;
  const bool none = !flat.masters && !flat.low_halves;
  if (none || masters.loader() || arrays.masters_in_place()) return;
  Tensor wide = Tensor::empty(arrays.device, DType::kFloat32, {arrays.layout.flat().elements()},
                              MemoryTag::kParameters);
  if (flat.masters) {  // also where splitting them has failed half way
    ops::read_array(ctx, flat.masters, 0, wide);
  } else {
    ops::join_from_arrays(ctx, {flat.model, 0, flat.low_halves, 0}, wide);
  }
  flat.masters = std::move(wide);
  flat.low_halves = {};
}

// Of the present layout, from the loader or the masters in memory.
optim::FlatTensor stored_masters(const OpContext& ctx, const StateArrays& arrays,
                                 const Masters& masters) {
  const FlatLayout& layout = arrays.layout.flat();
  optim::FlatTensor out = arrays.make_stored(
      {optim::ArrayRole::kMasters, "masters", DType::kFloat32, layout.elements()}, false);
  const nn::WeightLoader* const loader = masters.loader().get();
  if (loader == nullptr) {
    ops::write_array(ctx, arrays.flat.masters.memory(), out, 0);
    return out;
  }
  for (const nn::ParamId id : layout.order()) {
    const FlatRange range = layout.range(id);
    out.for_parts(range.begin, range.end, Access::kWrite, [&](Tensor& part, int64_t at) {
      fill_weights(*loader, ctx, id, arrays.parameters[id], at, part);
    });
  }
  return out;
}

optim::FlatTensor make_low_halves(const StateArrays& arrays) {
  const int64_t elements = arrays.layout.flat().elements();
  return arrays.stores(optim::ArrayRole::kLowHalves)
             ? arrays.make_stored(
                   {optim::ArrayRole::kLowHalves, "low_halves", DType::kUInt16, elements}, false)
             : Tensor::zeros(arrays.device, DType::kUInt16, {elements}, MemoryTag::kParameters);
}

// From the loader, piece by piece in the form that they will have.
void make_masters(const OpContext& ctx, StateArrays& arrays, Masters& masters, DType type,
                  MasterForm form) {
  const Shape all{arrays.layout.flat().elements()};
  const auto make = [&](DType dtype) {
    return Tensor::zeros(arrays.device, dtype, all, MemoryTag::kParameters);
  };
  optim::FlatTensors& flat = arrays.flat;
  const NewMasters made = form == MasterForm::kWeights
                              ? NewMasters(make(type))
                              : NewMasters(make(type), make_low_halves(arrays));
  made.fill(ctx, arrays.layout.flat(), arrays.parameters, *masters.loader());
  flat.masters = made.masters();
  flat.model = made.model();
  flat.low_halves = made.low_halves();
  masters.drop_loader();
}

// From masters in fp32, or from the loader where they stay so.
void change_form(const OpContext& ctx, StateArrays& arrays, Masters& masters, DType type,
                 MasterForm form) {
  const Shape all{arrays.layout.flat().elements()};
  const auto make = [&](DType dtype) {
    return Tensor::empty(arrays.device, dtype, all, MemoryTag::kParameters);
  };
  optim::FlatTensors& flat = arrays.flat;
  if (form != MasterForm::kWeights && arrays.stores(optim::ArrayRole::kMasters)) {
    flat.masters = stored_masters(ctx, arrays, masters);
    masters.drop_loader();
  }
  const bool stored = flat.masters && !flat.masters.in_memory();
  if (type != DType::kFloat32) masters.make(ctx);
  Tensor model;
  if (type != DType::kFloat32 || stored) model = make(type);
  if (form == MasterForm::kWeights) {
    ops::cast(ctx, flat.masters.memory(), model);
    flat.masters = std::exchange(model, {});
  }
  flat.model = model;
  if (form == MasterForm::kSplit) {
    flat.low_halves = make_low_halves(arrays);
    flat.masters.for_parts(0, all.elements(), Access::kRead, [&](const Tensor& part, int64_t at) {
      ops::split_to_arrays(ctx, part, {flat.model, at, flat.low_halves, at});
    });
    flat.masters = {};
  }
}

// Masters that do not lie in memory as fp32 are brought there, of which there may be too little:
// the system would rather end the process than refuse it.
void check_room_for_masters(const StateArrays& arrays, const Masters& masters) {
  const optim::FlatTensors& flat = arrays.flat;
  const bool in_memory = flat.masters.in_memory() || flat.low_halves.in_memory();
  if (in_memory || masters.loader() || (!flat.masters && !flat.low_halves)) return;
  const bool lost = arrays.shared() && arrays.weights().compact && arrays.layout.flat().cut();
  if (lost) return;
  const int64_t needed = arrays.layout.flat().elements() * int64_t{sizeof(float)};
  const int64_t there = free_memory(read_system_memory());
  DS_CHECK(there < 0 || needed <= there, Code::kOutOfMemory,
           "the weights stay where they lie, which is not all in memory: in fp32 ",
           format_bytes(needed), " of memory would be needed when training ends, and ",
           format_bytes(there),
           " are free. They can still be exported, saved and read until the model ends");
}

}  // namespace

TrainState::TrainState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device,
                       std::shared_ptr<const nn::WeightLoader> loader)
    : arrays_(parameters, std::move(device)),
      weights_(arrays_),
      masters_(arrays_, weights_, std::move(loader)),
      gradients_(arrays_) {}

TrainState::TrainState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device,
                       const nn::WholeWeights& whole)
    : arrays_(arrays_of(parameters, std::move(device), whole)),
      weights_(arrays_),
      masters_(arrays_, weights_, whole.loader),
      gradients_(arrays_) {
  weights_.borrowed() = whole.borrowed;
  if (whole.lost) weights_.lose();
}

// What travels between this and a GPU uses memory of both.
TrainState::~TrainState() {
  if (arrays_.host_store) arrays_.host_store->drop();
}

void TrainState::set_compute_type(const OpContext& ctx, DType type, MasterForm form,
                                  const std::vector<bool>& fp32) {
  DS_CHECK(type == DType::kFloat32 || type == DType::kBFloat16 || type == DType::kFloat16,
           Code::kUnsupported, "models compute in float32, bfloat16 or float16, not ",
           dtype_name(type));
  DS_CHECK(form == MasterForm::kFp32 || type == DType::kBFloat16 ||
               (form == MasterForm::kWeights && type == DType::kFloat16),
           Code::kInternal, "no such masters of ", dtype_name(type), " weights");
  DS_CHECK(!weights_.in_use(), Code::kInternal, "compute type changed while parameters are in use");
  DS_CHECK(!shared() && !arrays_.host_store, Code::kInternal,
           "compute type changed while it is shared");
  arrays_.reload_masters();
  widen_masters(ctx, arrays_, masters_);
  LayoutPolicy policy;  // one rank's, where buckets do not move parameters
  policy.fp32 = fp32;
  arrays_.layout = Layout(arrays_.parameters, policy);
  if (masters_.loader() && form != MasterForm::kFp32) {
    make_masters(ctx, arrays_, masters_, type, form);
  } else {
    change_form(ctx, arrays_, masters_, type, form);
  }
  arrays_.flush_masters();
  weights_.set_compute_type(type);
  weights_.follow_masters(ctx);
}

void TrainState::place_arrays(std::shared_ptr<optim::ArrayFactory> factory) {
  arrays_.factory = std::move(factory);
}

// Masters alone, in memory.
void TrainState::reset_to_fp32(const OpContext& ctx) {
  const bool stored = arrays_.flat.masters && !arrays_.flat.masters.in_memory();
  if (weights_.compute_type() == DType::kFloat32 && !stored) return;
  std::shared_ptr<optim::ArrayFactory> factory = std::exchange(arrays_.factory, nullptr);
  set_compute_type(ctx, DType::kFloat32);
  arrays_.factory = std::move(factory);
}

// ---- spread over ranks ----

void TrainState::share(const OpContext& ctx, const Mesh& mesh, const ShareOptions& options,
                       DType type, MasterForm form) {
  DS_CHECK(!weights_.in_use() && !shared(), Code::kInternal,
           "parameters are in use, or shared already");
  weights_.check_not_lost();
  DS_CHECK(!arrays_.host_store, Code::kInternal, "parameters are offloaded");
  if (!options.offload) arrays_.reload_masters();
  reset_to_fp32(ctx);
  const Layout layout(arrays_.parameters, mesh.shape(), mesh.rank(), layout_policy(options));
  std::vector<StateGroups> by_domain;
  for (const GradientDomain& domain : layout.domains()) {
    by_domain.push_back(
        make_state_groups(mesh, domain.group, options.groups, wants_nodes(options)));
  }
  arrays_.groups = std::move(by_domain);
  const StateGroups& groups = arrays_.groups.front();
  DS_CHECK(groups.nodes || !options.weights.hierarchical, Code::kConfig,
           "configuration: /zero_optimization/mics_hierarchical_params_gather: a group of ",
           groups.shard.size,
           " ranks does not lie on several nodes with as many of them on each; use false, or "
           "another mics_shard_size");
  if (options.quantized_gradients && !groups.nodes && groups.all.rank == 0) {
    log_warning("zero",
                "zero_quantized_gradients: the ranks do not lie on several nodes with as many of "
                "them on each; gradients travel in the communication type");
  }
  if (options.offload) {
    lay_out_on_host(ctx, layout, options, type, form == MasterForm::kSplit);
  } else {
    lay_out_shared(ctx, layout, options, type, form);
  }
  arrays_.spread = true;
  arrays_.flush_masters();
  weights_.set_compute_type(type);
  if (options.stage == 3) weights_.gather_from(ctx, options);
  gradients_.reduce_over_ranks(ctx, options);
  weights_.follow_masters(ctx);
  arrays_.flush_masters();  // so that weights in files are there, and memory for making them goes
}

// Makes the arrays of weights and masters anew, whole or what this rank owns of them.
void TrainState::lay_out_shared(const OpContext& ctx, const Layout& layout,
                                const ShareOptions& options, DType type, MasterForm form) {
  const bool compact_weights = layout.spread(StateRole::kWeights);
  // Where one rank has no memory for it, all fail. What moves is made by a collective.
  const auto make = [&](DType dtype, StateRole role, bool moves) {
    const Shape shape{layout.held(role)};
    Tensor memory;
    if (moves && options.stage > 0) {
      memory = arrays_.shard_ranks()->shared_tensor(arrays_.device, dtype, shape,
                                                    MemoryTag::kParameters, {.label = "weights"});
    } else {
      options.together(
          [&] { memory = Tensor::zeros(arrays_.device, dtype, shape, MemoryTag::kParameters); });
    }
    return optim::FlatTensor(std::move(memory), layout.spread(role));
  };
  // Masters that are the weights lie where weights do; elsewhere there are weights beside them.
  const bool weights_stored = compact_weights && arrays_.stores(optim::ArrayRole::kWeights);
  const bool rounded = form == MasterForm::kWeights;
  const bool stored = rounded ? weights_stored : arrays_.stores(optim::ArrayRole::kMasters);
  const bool own_model = rounded ? false : type != DType::kFloat32 || (stored && !weights_stored);
  const StateRole masters_are = own_model ? StateRole::kMasters : StateRole::kWeights;
  const auto make_stored = [&](optim::ArrayRole role, const char* name, DType dtype) {
    optim::FlatTensor out;
    options.together([&] {
      out = arrays_.make_stored({role, name, dtype, layout.held(masters_are)},
                                layout.spread(masters_are));
    });
    return out;
  };
  // Weights move between ranks; masters do only where they are the weights.
  const DType master_type = rounded ? type : DType::kFloat32;
  const auto make_model = [&] {
    return weights_stored ? make_stored(optim::ArrayRole::kWeights, "weights", type)
                          : make(type, StateRole::kWeights, true);
  };
  const auto make_new = [&] {
    if (form == MasterForm::kSplit) {
      const bool low_stored = arrays_.stores(optim::ArrayRole::kLowHalves);
      optim::FlatTensor model = make_model();
      return NewMasters(std::move(model), low_stored ? make_stored(optim::ArrayRole::kLowHalves,
                                                                   "low_halves", DType::kUInt16)
                                                     : make(DType::kUInt16, masters_are, false));
    }
    return NewMasters(
        stored ? make_stored(rounded ? optim::ArrayRole::kWeights : optim::ArrayRole::kMasters,
                             "masters", master_type)
               : make(master_type, masters_are, !own_model));
  };
  const NewMasters made = make_new();
  spread_masters(ctx, arrays_, masters_, options, layout.flat(), made);
  masters_.drop_loader();
  arrays_.layout = layout;
  optim::FlatTensors& flat = arrays_.flat;
  flat.masters = made.masters();
  flat.low_halves = made.low_halves();
  flat.model = made.model();
  if (own_model && form != MasterForm::kSplit) flat.model = make_model();
}

void TrainState::unshare(const OpContext& ctx) {
  if (!shared()) return;
  const OpContext state_ctx = arrays_.state_context(ctx);
  if (arrays_.host_store) arrays_.host_store->drop();
  gradients_.stop_reducing();
  const bool pieces = arrays_.weights().compact;
  const bool lost = (pieces && layout().flat().cut()) || layout().in_parts();
  Layout after(arrays_.parameters);
  optim::FlatTensor masters;
  if (!lost) {
    masters = Tensor::zeros(arrays_.state_memory(), DType::kFloat32, {after.flat().elements()},
                            MemoryTag::kParameters);
  }
  for (nn::ParamId id = 0; !lost && id < arrays_.parameters.size(); ++id) {
    const FlatRange to = after.flat().range(id);
    Tensor target = masters.memory().slice(0, to.begin, to.end).view(arrays_.parameters[id].shape);
    const Tensor value = pieces ? masters_.read(ctx, id) : weights_.view(id);
    ops::cast(state_ctx, to_device(value, state_ctx.device), target);
  }
  weights_.stop_gathering();
  if (lost) weights_.lose();
  arrays_.layout = std::move(after);
  arrays_.flat = {};
  arrays_.flat.masters = std::move(masters);
  arrays_.host_store.reset();
  arrays_.spread = false;
  arrays_.groups.assign(1, {});
  weights_.set_compute_type(DType::kFloat32);
}

optim::ShardGroups TrainState::shard_groups(std::span<const nn::ParamId> tensors) const {
  std::vector<std::shared_ptr<Communicator>> comms;
  for (const StateGroups& groups : arrays_.groups) comms.push_back(groups.shard.comm);
  return make_shard_groups(layout().flat(), tensors, comms, arrays_.device);
}

// ---- as users of the model see it ----

Tensor TrainState::read(const OpContext& ctx, nn::ParamId id) const {
  return masters_.read(ctx, id);
}

void TrainState::read_in_parts(const OpContext& ctx, nn::ParamId id, int64_t unit,
                               const PartTaker& take) const {
  if (!masters_.read_in_parts(ctx, id, nn::part_elements(unit), take)) {
    nn::ModelWeights::read_in_parts(ctx, id, unit, take);
  }
}

void TrainState::write(const OpContext& ctx, nn::ParamId id, const Tensor& value) {
  weights_.check_not_lost();
  masters_.make(ctx);
  set_values([&] { masters_.write(ctx, id, value); });
}

Tensor TrainState::view(const OpContext& ctx, nn::ParamId id) {
  arrays_.before_reading();
  masters_.make(ctx);
  return weights_.view(id);
}

bool TrainState::computes_with_master(nn::ParamId id) const {
  return weights_.computes_with_master(id);
}

bool TrainState::writes_files() const { return !shared() || arrays_.all_ranks().rank == 0; }

void TrainState::set_values(const std::function<void()>& body) {
  half_updated_ = static_cast<bool>(arrays_.factory);
  try {
    body();
    arrays_.flush_masters();
  } catch (const Error& error) {
    half_updated_ = half_updated_ && from_system(error.code());
    throw;
  }
  half_updated_ = false;
}

nn::WholeWeights TrainState::take(const OpContext& ctx) {
  check_room_for_masters(arrays_, masters_);
  arrays_.before_reading_masters();
  arrays_.sync_masters = nullptr;
  arrays_.undo_ahead = nullptr;
  arrays_.factory.reset();  // what is made from here on lies in memory
  gradients_.free();
  weights_.set_fp8(nullptr);
  const optim::FlatTensors& flat = arrays_.flat;
  if (shared()) {
    unshare(ctx);
  } else if (arrays_.host_store) {
    end_offload(ctx);
  } else if (layout().flat().cut() || layout().in_parts()) {
    weights_.lose();  // spreading them failed half way
  } else if (!masters_.loader() && (flat.model || !arrays_.masters_in_place())) {
    set_compute_type(ctx, DType::kFloat32);
  }
  nn::WholeWeights out(parameters());
  out.borrowed = weights_.borrowed();
  out.lost = !weights_.whole();
  if (!out.lost) {
    out.loader = masters_.loader();
    if (flat.masters) out.array = flat.masters.memory();
    if (arrays_.masters_left_on_host()) out.host = arrays_.host;
  }
  arrays_.flat = {};
  return out;
}

// ---- a step ----

void TrainState::finish_backward() {
  gradients_.finish_backward();
  weights_.end_pass();
}

void TrainState::finish_external_micro_batch(const OpContext& ctx) {
  if (gradients_.leave_early()) return finish_backward();
  gradients_.reduce_held(ctx);
}

void TrainState::reduce(const OpContext& ctx) {
  half_updated_ = false;
  gradients_.materialize(ctx);
  gradients_.reduce_deferred();
  gradients_.reduce_replicas();
}

}  // namespace ds::zero
