#include "engine/state_setup.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "engine/agreement.h"
#include "engine/combinations.h"
#include "engine/fp8_steps.h"
#include "engine/share_options.h"

namespace ds {
namespace {

// What a model of the caller's own parameters is computed with.
struct CallerTypes {
  DType compute = DType::kFloat32;
  std::vector<bool> fp32;  // by parameter: float32 where `compute` is not
};

// Each in the type that it was registered with; lent memory has its own. A copy in the lower type
// is only worth having when somebody looks at it.
CallerTypes caller_types(const nn::ParameterSet& parameters, const zero::TrainState& state,
                         DType configured, bool rounded) {
  CallerTypes out;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const DType type = parameters[id].dtype;
    out.fp32.push_back(type == DType::kFloat32);
    // Rounded masters are of the lent memory's type, too, where that is the configuration's.
    const bool lent = state.weights().borrowed().has(id) && !(rounded && type == configured);
    if (type == DType::kFloat32 || lent) continue;
    DS_CHECK(type == configured, Code::kConfig, "parameter ", printable(parameters[id].name),
             " is ", dtype_name(type), " and not lent, and the configuration computes in ",
             dtype_name(configured), "; enable that precision, or lend the memory");
    out.compute = configured;
  }
  if (out.compute == DType::kFloat32) out.fp32.clear();
  return out;
}

zero::MasterForm masters_of(const RunContext& run, DType compute, bool two_types) {
  if (compute == DType::kFloat32) return zero::MasterForm::kFp32;
  if (!run.config.precision.rounded_masters) {
    return run.config.precision.split_master ? zero::MasterForm::kSplit : zero::MasterForm::kFp32;
  }
  const std::string key = compute == DType::kBFloat16 ? "bf16.bf16_master_weights_and_grads"
                                                      : "fp16.fp16_master_weights_and_grads";
  DS_CHECK(!two_types, Code::kUnsupported, key, ": some of the caller's own parameters are ",
           dtype_name(DType::kFloat32), " and some ", dtype_name(compute),
           ", which have fp32 masters beside them; register all as ", dtype_name(compute),
           ", or use false");
  return zero::MasterForm::kWeights;
}

// On the CPU everything lies in the host's memory already.
bool offloads_optimizer(const RunContext& run) {
  return run.config.zero.offload_optimizer && run.model->device()->kind() != DeviceKind::kCpu;
}

// Whether a key has an effect; a warning where it has none.
bool has_effect(const RunContext& run, const char* key) {
  const std::string why = without_effect(key, situation_of(run));
  if (!why.empty() && run.first_rank()) log_warning("engine", key, " has no effect: ", why);
  return why.empty();
}

// With sparse_gradients.
void choose_sparse(const RunContext& run, zero::ShareOptions& options) {
  if (!run.config.zero.sparse_gradients || run.config.zero.stage > 1) return;
  if (!has_effect(run, "sparse_gradients")) return;
  const nn::ParamId table = run.model->architecture().info().lookup;
  options.sparse.assign(static_cast<size_t>(run.model->parameters().size()), false);
  options.sparse[static_cast<size_t>(table)] = true;
}

zero::ShareOptions share_options_of(RunContext& run) {
  zero::ShareOptions options = share_options(run.config);
  options.together = [&run](const std::function<void()>& body) {
    agree(run.context(), run.world(), "making the weights", body);
  };
  choose_sparse(run, options);
  if (run.model->has_architecture()) return options;
  options.deferred_gradients = options.stage < 3;
  options.by_micro_batch = run.config.batch.accumulation > 1;
  options.eager_gradients = options.stage == 3;
  for (nn::ParamId id = 0; options.stage == 3 && id < run.model->parameters().size(); ++id) {
    DS_CHECK(!run.state->weights().borrowed().has(id), Code::kUnsupported, "parameter ",
             printable(run.model->parameters()[id].name),
             " is lent, and at zero_optimization.stage 3 no process has whole weights to write "
             "there: register it without `lend` (its value is copied) and open a scope where "
             "it is used (ds_engine_open_scope), or use stage 2");
  }
  return options;
}

// Of what does not lie in one memory. Gradients of a program's own parameters are memory that the
// program may see.
void choose_array_places(RunContext& run) {
  if (run.arrays) return;
  has_effect(run, "zero_optimization.offload_param.device nvme");
  has_effect(run, "zero_optimization.offload_optimizer.ratio");
  zero::StateFileOptions files = state_file_options(run.config, !run.model->has_architecture(),
                                                    shard_ranks(run.config, run.mesh.size()));
  if (files.optimizer || files.weights) {
    run.arrays = std::make_shared<zero::StateFiles>(std::move(files), run.model->host());
  }
  if (!offloads_optimizer(run) || !keeps_share_on_device(run.config)) return;
  run.arrays = std::make_shared<zero::TwinFlowArrays>(
      twin_flow_options(run.config), run.model->device(), run.model->host(), run.arrays);
}

// Of several ranks each makes what it holds, as one does whose weights rest in files or beside a
// GPU; one makes everything, offloaded where it stays.
void place_weights(RunContext& run) {
  choose_array_places(run);
  const bool offload = offloads_optimizer(run);
  const bool several = run.mesh.size() > 1 || weights_in_files(run.config) ||
                       (offload && weights_beside_gpu(run.config));
  const bool stored = run.arrays && run.arrays->makes(optim::ArrayRole::kMasters);
  zero::TrainState& state = *run.state;
  state.place_arrays(run.arrays);
  CallerTypes types{compute_type_of(run.config), {}};
  if (!run.model->has_architecture()) {
    types = caller_types(run.model->parameters(), state, types.compute,
                         run.config.precision.rounded_masters);
  }
  const DType compute = types.compute;
  const bool some_fp32 = std::find(types.fp32.begin(), types.fp32.end(), true) != types.fp32.end();
  const zero::MasterForm masters = masters_of(run, compute, some_fp32);
  const bool fp32_masters = masters == zero::MasterForm::kFp32;
  if (!several && !offload && !stored && fp32_masters) state.make(run.context());
  if (several) {
    zero::ShareOptions options = share_options_of(run);
    options.fp32 = types.fp32;
    if (offload) options.offload = offload_options(run.config, run.model->host());
    zero::check_group_sizes(options.groups, run.mesh.shape());
    state.share(run.context(), run.mesh, options, compute, masters);
  } else if (offload) {
    state.offload(run.context(), offload_options(run.config, run.model->host()), compute,
                  masters == zero::MasterForm::kSplit);
  } else {
    state.set_compute_type(run.context(), compute, masters, types.fp32);
  }
}

}  // namespace

bool updates_ahead(const RunContext& run) {
  const auto& offload = run.config.zero.offload_optimizer;
  return offload && offload->super_offload &&
         has_effect(run, "zero_optimization.offload_optimizer.super_offload");
}

DType compute_type_of(const Config& config) { return dtype_of(config.precision.compute); }

void set_up_state(RunContext& run) {
  end_group_on_system_error(run.world(), [&] { place_weights(run); });
  if (run.mesh.shape().size(MeshAxis::kExpert) > 1) {
    run.experts =
        make_exchange_ranks(run.mesh, MeshGroup::kExpert,
                            run.config.expert_parallel.hierarchical_all_to_all.value_or(true));
    run.model->set_pass_ranks({run.experts, run.mesh.placed(MeshGroup::kWorld)});
  }
  zero::TrainState& state = *run.state;
  if (run.config.precision.fp8.enabled) state.weights().set_fp8(make_fp8(run));
  end_group_on_system_error(run.world(), [&] {
    state.gradients().allocate(run.context(), dtype_of(run.config.precision.grad_accum_dtype));
  });
  if (!run.config.zero.ignore_unused_parameters) {
    state.gradients().marks().track();
    // Those of experts that other ranks hold are given there.
    for (nn::ParamId id = 0; id < state.parameters().size(); ++id) {
      if (!state.arrays().holds(id)) state.gradients().marks().set_viewed(id);
    }
  }
  // The caller's gradients are added, and no backward overwrites.
  if (!run.model->has_architecture() && !state.gradients().leave_early()) {
    state.gradients().expose_views(run.context());
  }
}

// Joining split masters needs memory; without it the model keeps them, and is free all the same.
// Parts of the engine refer to the state until they end.
void release_state(RunContext& run) noexcept {
  try {
    run.model->detach_engine(run.context());
  } catch (const std::exception& error) {
    log_warning("engine", error.what());
  }
  run.model->device()->account().set_planned({});
  run.model->synchronize_stream();
}

}  // namespace ds
