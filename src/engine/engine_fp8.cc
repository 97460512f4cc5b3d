// What an engine does for linear layers in fp8: makes their scales, updates them after each step,
// and keeps them in checkpoints.
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "engine/engine.h"
#include "models/saved_model.h"
#include "nn/fp8.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

constexpr const char* kFp8State = "fp8_scaling";

}  // namespace

std::unique_ptr<nn::Fp8Linears> Engine::make_fp8() {
  constexpr const char* kKey = "configuration: /fp8/enabled: ";
  DS_CHECK(model_->has_architecture(), Code::kUnsupported, kKey,
           "the model is the caller's own parameters, whose layers the library does not run");
  DS_CHECK(!model_->parameters().adapted(), Code::kUnsupported, kKey,
           "the model carries low-rank adapters, whose layers stay in bf16; use false");
  const Fp8Config& fp8 = config_.precision.fp8;
  auto out = std::make_unique<nn::Fp8Linears>(
      context(), model_->parameters(),
      nn::Fp8Options{fp8.hybrid ? ops::Fp8Format::kE5M2 : ops::Fp8Format::kE4M3, fp8.margin,
                     fp8.history, fp8.most_recent, fp8.fast_accumulation});
  DS_CHECK(!out->weights().empty(), Code::kConfig, kKey,
           "the model has no linear layer in its blocks whose sizes are multiples of 16");
  return out;
}

// Of all ranks the largest numbers count, so that their scales stay alike.
void Engine::agree_on_fp8() {
  const nn::Fp8Linears* const fp8 = model_->state().fp8();
  if (fp8 == nullptr || comm_->size() == 1) return;
  const Tensor& amax = fp8->amax();
  comm_->all_reduce(amax, ReduceOp::kMax, {.label = "fp8 amax", .blocking = on_host(amax)})->wait();
}

void Engine::finish_fp8_step() {
  agree_on_fp8();
  if (nn::Fp8Linears* const fp8 = model_->state().fp8()) fp8->finish_step(context());
}

// Of linear layers in fp8: scales and what they follow from, alike on all ranks.
void Engine::save_fp8(PartWriter& part) const {
  const nn::Fp8Linears* const fp8 = model_->state().fp8();
  if (fp8 == nullptr) return;
  for (const nn::ParamId id : fp8->weights()) {
    const Tensor saved = fp8->saved(id, model_->host());
    TensorMeta meta =
        models::parameter_meta(model_->parameters()[id], TensorKind::kOptimizer, kFp8State);
    meta.shape = {saved.size(0), saved.size(1)};
    meta.aliases.clear();
    const std::span bytes(static_cast<const std::byte*>(saved.raw()),
                          static_cast<size_t>(saved.bytes()));
    part.add_tensor(meta, bytes, Lifetime::kCall);
  }
}

// A layer that was not in fp8 begins anew.
void Engine::restore_fp8_targets(const CheckpointReader& reader, Restored& out) const {
  const nn::Fp8Linears* const fp8 = model_->state().fp8();
  if (fp8 == nullptr) return;
  for (const nn::ParamId id : fp8->weights()) {
    const TensorRecord* const record =
        reader.find(model_->parameters()[id].name, TensorKind::kOptimizer, kFp8State);
    if (record == nullptr) {
      out.fp8.emplace_back(id, Tensor());
      continue;
    }
    const std::vector<int64_t>& shape = record->meta.shape;
    DS_CHECK(record->meta.dtype == DType::kFloat32 && shape.size() == 2 &&
                 shape[0] == nn::Fp8Linears::kRoles && shape[1] >= 3 && shape[1] < (1 << 17),
             Code::kCorrupt, "the checkpoint holds the ", record->meta.text(), " as ",
             dtype_name(record->meta.dtype), " ", Shape(shape).text());
    const Tensor memory =
        Tensor::empty(model_->host(), DType::kFloat32, Shape(shape), MemoryTag::kOther);
    aim(out.targets.emplace_back(TensorTarget{record, {}, {}}), memory);
    out.fp8.emplace_back(id, memory);
  }
}

}  // namespace ds
