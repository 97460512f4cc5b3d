#include "engine/fp8_steps.h"

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "engine/restore_targets.h"
#include "models/saved_model.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

constexpr const char* kFp8State = "fp8_scaling";

}  // namespace

std::unique_ptr<nn::Fp8Linears> make_fp8(RunContext& run) {
  constexpr const char* kKey = "configuration: /fp8/enabled: ";
  const Fp8Config& fp8 = run.config.precision.fp8;
  nn::Fp8Options options{fp8.hybrid ? ops::Fp8Format::kE5M2 : ops::Fp8Format::kE4M3, fp8.margin,
                         fp8.amax_history_len, fp8.most_recent, fp8.fast_accumulation};
  // Whole codes of all weights would take what stage 3 saves.
  options.keep_weights = !run.state->arrays().weights().compact;
  auto out = std::make_unique<nn::Fp8Linears>(run.context(), run.model->parameters(), options);
  DS_CHECK(!out->weights().empty(), Code::kConfig, kKey,
           "the model has no linear layer in its blocks whose sizes are multiples of 16");
  return out;
}

void agree_on_fp8(RunContext& run) {
  const nn::Fp8Linears* const fp8 = run.state->weights().fp8();
  if (fp8 == nullptr || run.gradient_ranks() == 1) return;
  const Tensor& amax = fp8->amax();
  run.gradient_group()
      ->all_reduce(amax, ReduceOp::kMax, {.label = "fp8 amax", .blocking = on_host(amax)})
      ->wait();
}

void finish_fp8_step(RunContext& run) {
  agree_on_fp8(run);
  if (nn::Fp8Linears* const fp8 = run.state->weights().fp8()) fp8->finish_step(run.context());
}

void drop_fp8_step(RunContext& run) {
  if (nn::Fp8Linears* const fp8 = run.state->weights().fp8()) fp8->drop_step(run.context());
}

void save_fp8(RunContext& run, PartWriter& part) {
  const nn::Fp8Linears* const fp8 = run.state->weights().fp8();
  if (fp8 == nullptr) return;
  for (const nn::ParamId id : fp8->weights()) {
    const Tensor saved = fp8->saved(id, run.model->host());
    TensorMeta meta =
        models::parameter_meta(run.model->parameters()[id], TensorKind::kOptimizer, kFp8State);
    meta.shape = {saved.size(0), saved.size(1)};
    meta.aliases.clear();
    const std::span bytes(static_cast<const std::byte*>(saved.raw()),
                          static_cast<size_t>(saved.bytes()));
    part.add_tensor(meta, bytes, Lifetime::kCall);
  }
}

// A layer that was not in fp8 begins anew.
std::vector<SavedFp8> fp8_targets(RunContext& run, const CheckpointReader& reader,
                                  std::vector<TensorTarget>& targets) {
  std::vector<SavedFp8> out;
  const nn::Fp8Linears* const fp8 = run.state->weights().fp8();
  if (fp8 == nullptr) return out;
  for (const nn::ParamId id : fp8->weights()) {
    const TensorRecord* const record =
        reader.find(run.model->parameters()[id].name, TensorKind::kOptimizer, kFp8State);
    if (record == nullptr) {
      out.push_back({id, Tensor()});
      continue;
    }
    const std::vector<int64_t>& shape = record->meta.shape;
    DS_CHECK(record->meta.dtype == DType::kFloat32 && shape.size() == 2 &&
                 shape[0] == nn::Fp8Linears::kRoles && shape[1] >= 3 && shape[1] < (1 << 17),
             Code::kCorrupt, "the checkpoint holds the ", record->meta.text(), " as ",
             dtype_name(record->meta.dtype), " ", Shape(shape).text());
    const Tensor memory =
        Tensor::empty(run.model->host(), DType::kFloat32, Shape(shape), MemoryTag::kOther);
    aim(targets.emplace_back(TensorTarget{record, {}, {}}), memory);
    out.push_back({id, memory});
  }
  return out;
}

void restore_fp8(RunContext& run, const std::vector<SavedFp8>& saved) {
  for (const auto& [id, state] : saved) run.state->weights().fp8()->restore(id, state);
}

}  // namespace ds
