#include "zero/train_state.h"

#include "base/log.h"
#include "ops/elementwise.h"
#include "ops/split_master.h"
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
  const Shape all{arrays_.layout.elements()};
  const auto make = [&](DType dtype) {
    return Tensor::empty(arrays_.device, dtype, all, MemoryTag::kParameters);
  };
  optim::FlatTensors& flat = arrays_.flat;
  if (flat.low_halves) {
    Tensor joined = make(DType::kFloat32);
    ops::join_masters(ctx, flat.model.data, flat.low_halves.data, joined);
    flat.masters = std::move(joined);
    flat.low_halves = {};
  } else if (flat.masters && !arrays_.masters_in_place()) {
    Tensor widened = make(DType::kFloat32);
    ops::cast(ctx, flat.masters.data, widened);
    flat.masters = std::move(widened);
  }
  Sharing sharing;  // one rank's, where buckets do not move parameters
  sharing.fp32 = fp32;
  arrays_.layout = FlatLayout(arrays_.parameters, sharing);
  flat.model = type == DType::kFloat32 ? Tensor() : make(type);
  if (form == MasterForm::kWeights) {
    ops::cast(ctx, flat.masters.data, flat.model.data);
    flat.masters = std::move(flat.model);
    flat.model = {};
  }
  if (form == MasterForm::kSplit) {
    flat.low_halves = make(DType::kUInt16);
    ops::split_masters(ctx, flat.masters.data, flat.model.data, flat.low_halves.data);
    flat.masters = {};
  }
  weights_.set_compute_type(type);
  weights_.follow_masters(ctx);
}

// ---- spread over ranks ----

void TrainState::share(const OpContext& ctx, const ShareOptions& options, DType type,
                       MasterForm form) {
  DS_CHECK(!weights_.in_use() && !shared(), Code::kInternal,
           "parameters are in use, or shared already");
  weights_.check_not_lost();
  DS_CHECK(!arrays_.host_store, Code::kInternal, "parameters are offloaded");
  arrays_.reload_masters();
  if (weights_.compute_type() != DType::kFloat32) set_compute_type(ctx, DType::kFloat32);
  const bool by_node = options.quantized_gradients || options.weights.hierarchical;
  ShareGroups& groups = arrays_.groups;
  groups = make_share_groups(arrays_.device, options.comm, options.groups, by_node);
  DS_CHECK(groups.nodes || !options.weights.hierarchical, Code::kConfig,
           "configuration: /zero_optimization/mics_hierarchical_params_gather: a group of ",
           groups.shard->size(),
           " ranks does not lie on several nodes with as many of them on each; use false, or "
           "another mics_shard_size");
  if (options.quantized_gradients && !groups.nodes && options.comm->rank() == 0) {
    log_warning("zero",
                "zero_quantized_gradients: the ranks do not lie on several nodes with as many of "
                "them on each; gradients travel in the communication type");
  }
  const Sharing sharing =
      choose_sharing(arrays_.parameters, options, groups.shard->rank(), groups.shard->size());
  lay_out_shared(ctx, FlatLayout(arrays_.parameters, sharing), options, type, form);
  arrays_.comm = options.comm;
  arrays_.stage = options.stage;
  weights_.set_compute_type(type);
  if (options.stage == 3) weights_.gather_from(ctx, options);
  gradients_.reduce_over_ranks(ctx, options);
  weights_.follow_masters(ctx);
}

// Makes the arrays of weights and masters anew, whole or what this rank owns of them.
void TrainState::lay_out_shared(const OpContext& ctx, const FlatLayout& layout,
                                const ShareOptions& options, DType type, MasterForm form) {
  const bool compact_weights = options.stage == 3;
  const auto make = [&](DType dtype, bool compact, bool moves) {
    const Shape shape{compact ? layout.owned_elements() : layout.elements()};
    return optim::FlatTensor(
        moves && options.stage > 0
            ? arrays_.groups.shard->shared_tensor(arrays_.device, dtype, shape,
                                                  MemoryTag::kParameters, {.label = "weights"})
            : Tensor::zeros(arrays_.device, dtype, shape, MemoryTag::kParameters),
        compact);
  };
  const bool own_model = type != DType::kFloat32 && form != MasterForm::kWeights;
  // Weights move between ranks; masters do only where they are the weights.
  optim::FlatTensor masters = make(form == MasterForm::kWeights ? type : DType::kFloat32,
                                   own_model ? options.stage > 0 : compact_weights, !own_model);
  spread_masters(ctx, arrays_, masters_, options, layout, masters);
  masters_.drop_loader();
  arrays_.layout = layout;
  optim::FlatTensors& flat = arrays_.flat;
  flat.masters = std::move(masters);
  if (!own_model) return;
  flat.model = make(type, compact_weights, true);
  if (form != MasterForm::kSplit) return;
  flat.low_halves = {Tensor::zeros(arrays_.device, DType::kUInt16, flat.masters.data.shape(),
                                   MemoryTag::kParameters),
                     flat.masters.compact};
  for (const Bucket& bucket : arrays_.layout.buckets()) {
    Tensor weights = arrays_.owned(flat.model, bucket);
    Tensor low = arrays_.owned(flat.low_halves, bucket);
    ops::split_masters(ctx, arrays_.owned(flat.masters, bucket), weights, low);
  }
  flat.masters = {};
}

void TrainState::unshare(const OpContext& ctx) {
  if (!shared()) return;
  gradients_.stop_reducing();
  weights_.stop_gathering();
  const bool lost = arrays_.weights().compact;
  const FlatLayout after(arrays_.parameters);
  optim::FlatTensor masters;
  if (!lost) {
    masters.data =
        Tensor::zeros(arrays_.device, DType::kFloat32, {after.elements()}, MemoryTag::kParameters);
  }
  for (nn::ParamId id = 0; !lost && id < arrays_.parameters.size(); ++id) {
    const FlatRange to = after.range(id);
    Tensor target = masters.data.slice(0, to.begin, to.end).view(arrays_.parameters[id].shape);
    ops::cast(ctx, weights_.view(id), target);
  }
  if (lost) weights_.lose();
  arrays_.layout = after;
  arrays_.flat = {};
  arrays_.flat.masters = std::move(masters);
  arrays_.comm.reset();
  arrays_.groups = {};
  arrays_.stage = 0;
  weights_.set_compute_type(DType::kFloat32);
}

std::shared_ptr<optim::ShardGroup> TrainState::shard_group(std::vector<nn::ParamId> tensors) const {
  if (layout().world() == 1) return nullptr;
  return std::make_shared<CommShardGroup>(layout(), std::move(tensors), arrays_.groups.shard,
                                          arrays_.device);
}

// ---- as users of the model see it ----

Tensor TrainState::read(const OpContext& ctx, nn::ParamId id) const {
  return masters_.read(ctx, id);
}

void TrainState::write(const OpContext& ctx, nn::ParamId id, const Tensor& value) {
  weights_.check_not_lost();
  masters_.make(ctx);
  masters_.write(ctx, id, value);
}

Tensor TrainState::view(const OpContext& ctx, nn::ParamId id) {
  masters_.make(ctx);
  return weights_.view(id);
}

bool TrainState::computes_with_master(nn::ParamId id) const {
  return weights_.computes_with_master(id);
}

bool TrainState::writes_files() const { return !shared() || arrays_.comm->rank() == 0; }

nn::WholeWeights TrainState::take(const OpContext& ctx) {
  gradients_.free();
  weights_.set_fp8(nullptr);
  const optim::FlatTensors& flat = arrays_.flat;
  if (shared()) {
    unshare(ctx);
  } else if (arrays_.host_store) {
    end_offload(ctx);
  } else if (layout().world() > 1) {
    weights_.lose();  // spreading them failed half way
  } else if (!masters_.loader() && (flat.model || !arrays_.masters_in_place())) {
    set_compute_type(ctx, DType::kFloat32);
  }
  nn::WholeWeights out(parameters());
  out.borrowed = weights_.borrowed();
  out.lost = !weights_.whole();
  if (!out.lost) {
    out.loader = masters_.loader();
    out.array = flat.masters.data;
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
  gradients_.materialize(ctx);
  gradients_.reduce_deferred();
  gradients_.reduce_replicas();
}

}  // namespace ds::zero
