#include "engine/restore_targets.h"

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "engine/run_context.h"
#include "engine/saved_names.h"
#include "engine/updater.h"
#include "ops/stored_array.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

std::span<std::byte> writable_bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

// Numbers that lie elsewhere, for operators to read.
Tensor view_of(std::span<const std::byte> bytes, DType type) {
  const auto size = static_cast<int64_t>(bytes.size());
  return {std::make_shared<Storage>(DeviceKind::kCpu, 0, const_cast<std::byte*>(bytes.data()), size,
                                    true, nullptr),
          0,
          type,
          {size / dtype_size(type)}};
}

// What this rank owns of a parameter in arrays of the host's memory; nothing where one of them lies
// elsewhere.
std::vector<std::span<std::byte>> owned_memory(const zero::StateArrays& arrays,
                                               std::initializer_list<const optim::FlatTensor*> of,
                                               nn::ParamId id) {
  std::vector<std::span<std::byte>> out;
  for (const optim::FlatTensor* array : of) {
    if (!*array || !array->in_memory() || !on_host(array->memory())) return {};
    out.push_back(writable_bytes_of(arrays.owned(*array, id)));
  }
  return out;
}

// To what this rank owns of a parameter's gradient.
void aim_at_gradient(TensorTarget& target, RunContext& run, nn::ParamId id) {
  zero::TrainState& state = *run.state;
  const optim::FlatTensor& all = state.arrays().flat.gradients;
  if (all.in_memory()) return aim(target, state.arrays().owned(all, id));
  const int64_t first = state.arrays().owned_range(all, id).begin;
  target.sink = [ctx = run.context(), array = static_cast<const StoredArray&>(all), first](
                    uint64_t at, std::span<const std::byte> bytes) {
    const auto begin = static_cast<int64_t>(at) / dtype_size(array.dtype());
    ops::write_array(ctx, view_of(bytes, array.dtype()), array, first + begin);
  };
}

// Says first what is furthest apart: a checkpoint of another family lacks every tensor by name.
void check_family(const RunContext& run, const CheckpointReader& reader) {
  const std::string where = printable(reader.folder().string(), 300);
  const bool built_in = reader.has_state(models::kModelConfigState);
  if (!built_in && !reader.has_state(models::kOwnParametersState)) return;
  constexpr const char* kOwn = "parameters of a program's own";
  const auto family = [](const Json& config) {
    const bool named =
        config.is_object() && config.contains("model_type") && config.at("model_type").is_string();
    return named ? printable(config.at("model_type").get<std::string>(), 60) : std::string("model");
  };
  const std::string saved =
      built_in ? str_cat("a ", family(reader.state_json(models::kModelConfigState))) : kOwn;
  const std::string own = run.model->has_architecture()
                              ? str_cat("a ", family(run.model->architecture().config()))
                              : kOwn;
  DS_CHECK(saved == own, Code::kInvalidArgument, "the checkpoint ", where, " holds ", saved,
           ", the model is ", own);
}

void warn_of_partial_load(const std::string& where, const std::vector<std::string>& missing,
                          const std::vector<std::string>& foreign) {
  const auto names = [](const std::vector<std::string>& list) {
    return list.empty() ? std::string("nothing") : printable(ds::join(list, ", "), 300);
  };
  log_warning("engine", "the checkpoint ", where, " is loaded in part: missing is ", names(missing),
              ", which stays as it is; passed over is ", names(foreign));
}

}  // namespace

void check_compatible(const RunContext& run, const CheckpointReader& reader,
                      const LoadOptions& options, const std::vector<bool>& overwritten) {
  const std::string where = printable(reader.folder().string(), 300);
  const nn::ParameterSet& parameters = run.model->parameters();
  if (options.module_strict) check_family(run, reader);
  std::vector<std::string> missing, foreign;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    const TensorRecord* const found = reader.find(p.name, TensorKind::kMaster);
    // What is frozen may be left out of a checkpoint: the model has it already.
    if (found == nullptr && (!p.trainable || !options.module_strict)) {
      DS_CHECK(overwritten.empty() || !overwritten[static_cast<size_t>(id)], Code::kCorrupt,
               "the checkpoint ", where, " leaves out ", p.trainable ? "" : "the frozen ", p.name,
               ", which a load that failed has overwritten; load one that holds it, or make the "
               "model again");
      if (p.trainable) missing.push_back(p.name);
      continue;
    }
    const TensorMeta& meta = reader.tensor(p.name, TensorKind::kMaster).meta;
    const Shape saved(meta.shape);
    DS_CHECK(saved == p.shape && meta.dtype == DType::kFloat32, Code::kInvalidArgument,
             "the checkpoint ", where, " holds ", p.name, " as ", dtype_name(meta.dtype),
             " with shape ", saved.text(), ", this model has float32 ", p.shape.text());
    DS_CHECK(!takes_states(options) || !p.trainable || (meta.flags & kTrainable) != 0,
             Code::kInvalidArgument, "the checkpoint ", where, " holds ", p.name,
             " as frozen, without optimizer state; this model trains it");
  }
  for (const TensorRecord& tensor : reader.manifest().tensors) {
    if (tensor.meta.kind != TensorKind::kMaster ||
        parameters.lookup(tensor.meta.name) != nn::kNoParam) {
      continue;
    }
    DS_CHECK(!options.module_strict, Code::kInvalidArgument, "the checkpoint holds ",
             printable(tensor.meta.name), ", which this model does not have");
    foreign.push_back(tensor.meta.name);
  }
  if (missing.empty() && foreign.empty()) return;
  DS_CHECK(static_cast<int64_t>(missing.size()) < parameters.size(), Code::kInvalidArgument,
           "the checkpoint ", where, " holds none of this model's parameters");
  if (run.first_rank()) warn_of_partial_load(where, missing, foreign);
}

void aim(TensorTarget& target, const Tensor& memory) {
  if (on_host(memory)) {
    target.out = writable_bytes_of(memory);
    return;
  }
  const Tensor flat = memory.view({memory.elements()});
  target.sink = [flat](uint64_t at, std::span<const std::byte> bytes) {
    const int64_t item = dtype_size(flat.dtype()), begin = static_cast<int64_t>(at) / item;
    copy_from_host(bytes.data(),
                   flat.slice(0, begin, begin + static_cast<int64_t>(bytes.size()) / item));
  };
}

std::vector<TensorTarget> restore_targets(RunContext& run, Updater& updater,
                                          const CheckpointReader& reader,
                                          const TargetChoice& choice) {
  const OpContext ctx = run.context();
  zero::TrainState& state = *run.state;
  optim::Optimizer& optimizer = updater.optimizer();
  const nn::ParameterSet& parameters = run.model->parameters();
  std::vector<TensorTarget> targets;
  const auto add = [&](const TensorRecord& record, DType type, nn::ParamId id) -> auto& {
    const Shape& shape = parameters[id].shape;
    DS_CHECK(record.meta.dtype == type && Shape(record.meta.shape) == shape, Code::kInvalidArgument,
             "the checkpoint holds the ", record.meta.text(), " as ", dtype_name(record.meta.dtype),
             " ", Shape(record.meta.shape).text(), ", needed is ", dtype_name(type), " ",
             shape.text());
    TensorTarget& target = targets.emplace_back(TensorTarget{&record, {}, {}});
    const zero::OwnedPart part = state.layout().flat().part(id);
    if (part.count < shape.elements()) target.range = {part.first, part.first + part.count};
    return target;
  };
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    if (!state.arrays().holds(id)) continue;
    const TensorRecord* const record = reader.find(p.name, TensorKind::kMaster);
    if (record != nullptr) {
      TensorTarget& target = add(*record, DType::kFloat32, id);
      if (state.arrays().masters_in_place()) {
        aim(target, state.masters().read_owned(ctx, id));
      } else {
        target.sink = [&run, &state, ctx, id](uint64_t at, std::span<const std::byte> bytes) {
          state.masters().write_owned(ctx, id, static_cast<int64_t>(at / sizeof(float)),
                                      run.operand(view_of(bytes, DType::kFloat32)));
        };
        const optim::FlatTensors& flat = state.arrays().flat;
        target.sink_memory =
            flat.masters ? owned_memory(state.arrays(), {&flat.masters}, id)
                         : owned_memory(state.arrays(), {&flat.model, &flat.low_halves}, id);
      }
    }
    if (!p.trainable || record == nullptr || !choice.states) continue;
    const size_t place = updater.place(id);
    for (const std::string& name : optimizer.states(place)) {
      const saved::StateKey key = saved::state_key(name);
      if (reader.find(p.name, key.kind, key.state) == nullptr &&
          optimizer.may_lack(name, choice.optimizer)) {
        continue;
      }
      TensorTarget& target = add(reader.tensor(p.name, key.kind, key.state), DType::kFloat32, id);
      if (const Tensor in_place = optimizer.state_view(place, name)) {
        aim(target, in_place);
      } else {
        const int64_t first = optimizer.owned(place).begin;
        target.sink = [&optimizer, place, name, first](uint64_t at,
                                                       std::span<const std::byte> bytes) {
          const int64_t begin = first + static_cast<int64_t>(at / sizeof(float));
          const auto count = static_cast<int64_t>(bytes.size() / sizeof(float));
          optimizer.write_state_range(place, name, begin, begin + count,
                                      reinterpret_cast<const float*>(bytes.data()));
        };
      }
    }
    if (choice.gradients) {
      aim_at_gradient(add(reader.tensor(p.name, TensorKind::kOptimizer, saved::kGradientState),
                          state.gradients().accumulation_type(), id),
                      run, id);
    }
  }
  return targets;
}

}  // namespace ds
