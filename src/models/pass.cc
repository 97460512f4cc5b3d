// The way of a batch through the layers of a model, the same for every family: which layer number
// random streams get, which blocks are recomputed, and when the attention state has its new tokens.
#include <algorithm>
#include <utility>

#include "models/architecture.h"
#include "tensor/transfer.h"

namespace ds::models {

using nn::Tape;
using nn::Value;

Batch to_device(Batch batch, const std::shared_ptr<Device>& device) {
  if (device->kind() == DeviceKind::kCpu) return batch;
  if (batch.positions == 0 && batch.position_ids && on_host(batch.position_ids)) {
    const int32_t* const ids = batch.position_ids.data<int32_t>();
    batch.positions = int64_t{*std::max_element(ids, ids + batch.position_ids.elements())} + 1;
  }
  for (Tensor* const part :
       {&batch.ids, &batch.position_ids, &batch.key_mask, &batch.segments, &batch.token_types}) {
    *part = ds::to_device(*part, device);
  }
  return batch;
}

namespace {

// The last position of each decoded sequence. Of one sequence that is no copy.
ResidualStream last_position(const Tape& tape, std::span<const int64_t> positions,
                             const ResidualStream& s) {
  const int64_t sequences = s.x.data.size(0), n = s.x.data.size(1);
  if (n == 1) return s;
  DS_CHECK(!tape.recording() && (positions.empty() || std::ssize(positions) == sequences),
           Code::kInternal, "the last positions of ", sequences, " sequences are ",
           positions.size(), ", and are for decoding");
  const auto position = [&](int64_t b) {
    return positions.empty() ? n - 1 : positions[static_cast<size_t>(b)];
  };
  const auto last = [&](const Value& v) -> Value {
    if (!v) return v;
    if (sequences == 1) return {v.data.slice(1, position(0), position(0) + 1), nullptr};
    const OpContext& ctx = tape.ctx();
    const int64_t width = v.data.size(2);
    Tensor rows = ctx.workspace(v.data.dtype(), {sequences, 1, width});
    const int64_t bytes = width * dtype_size(v.data.dtype());
    for (int64_t b = 0; b < sequences; ++b) {
      const Tensor from = v.data.select(0, b).slice(0, position(b), position(b) + 1);
      copy_rows(*ctx.device, {rows.select(0, b).raw(), bytes}, {from.raw(), bytes}, bytes, 1);
    }
    return {rows, nullptr};
  };
  return {last(s.x), last(s.residual)};
}

}  // namespace

PassContext Architecture::begin_pass(const OpContext& ctx, const Batch& batch,
                                     const ForwardOptions& options) const {
  return {batch, options, rotary_table(ctx, batch)};
}

ResidualStream Architecture::embed(Tape& tape, const PassContext& pass) const {
  const nn::LayerScope layer(tape, nn::kEmbeddingLayer);
  return run_embedding(tape, pass);
}

ResidualStream Architecture::block(Tape& tape, const PassContext& pass, int64_t index,
                                   const ResidualStream& in) const {
  DS_CHECK(index >= 0 && index < info().layers, Code::kInternal, "block ", index,
           " of a model with ", info().layers);
  const nn::LayerScope layer(tape, static_cast<uint32_t>(index));
  return run_block(tape, pass, index, in);
}

// Blocks whose activations backward makes again.
ResidualStream Architecture::recomputed(Tape& tape, const PassContext& pass, BlockRange range,
                                        const ResidualStream& s) const {
  const auto body = [this, pass, range](Tape& t, std::span<const Value> in) {
    ResidualStream inner{in[0], in.size() > 1 ? in[1] : Value()};
    for (int64_t i = range.begin; i < range.end; ++i) inner = block(t, pass, i, inner);
    std::vector<Value> out{inner.x};
    if (inner.residual) out.push_back(inner.residual);
    return out;
  };
  std::vector<Value> inputs{s.x};
  if (s.residual) inputs.push_back(s.residual);
  const std::vector<Value> outputs = tape.checkpoint(inputs, body);
  return {outputs[0], outputs.size() > 1 ? outputs[1] : Value()};
}

ResidualStream Architecture::blocks(Tape& tape, const PassContext& pass, BlockRange range,
                                    ResidualStream s) const {
  const Recompute recompute = tape.recording() ? pass.options.recompute : Recompute{};
  const int64_t layers = info().layers;
  const int64_t segments = recompute.every > 0 ? 0 : std::min(recompute.segments, layers);
  // Segments are of the whole model: a range has its part of those that it cuts.
  for (int64_t segment = 0; segment < segments; ++segment) {
    const BlockRange part{std::max(range.begin, segment * layers / segments),
                          std::min(range.end, (segment + 1) * layers / segments)};
    if (part.begin < part.end) s = recomputed(tape, pass, part, s);
  }
  for (int64_t i = range.begin; i < range.end && segments <= 0; ++i) {
    s = recompute.alone(i) ? recomputed(tape, pass, {i, i + 1}, s) : block(tape, pass, i, s);
  }
  if (pass.options.state != nullptr) pass.options.state->advance(pass.batch.ids.size(1));
  return s;
}

void Architecture::check_head() const {
  DS_CHECK(info().head != Head::kNone, Code::kUnsupported,
           "this model is an encoder without a head: it has hidden states but no logits");
}

Value Architecture::last_norm(Tape& tape, const PassContext& pass, ResidualStream s) const {
  const nn::LayerScope layer(tape, nn::kHeadLayer);
  if (pass.options.last_only) s = last_position(tape, pass.options.last_positions, s);
  return run_last_norm(tape, s);
}

Value Architecture::head(Tape& tape, const PassContext& pass, ResidualStream s) const {
  check_head();
  // The stream's memory is free before the logits are made.
  const Value normalised = last_norm(tape, pass, std::move(s));
  const nn::LayerScope layer(tape, nn::kHeadLayer);
  return run_head(tape, pass, normalised);
}

Value Architecture::hidden(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  const PassContext pass = begin_pass(tape.ctx(), batch, options);
  return last_norm(tape, pass, blocks(tape, pass, all_blocks(), embed(tape, pass)));
}

Value Architecture::logits(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  check_head();
  const PassContext pass = begin_pass(tape.ctx(), batch, options);
  return head(tape, pass, blocks(tape, pass, all_blocks(), embed(tape, pass)));
}

}  // namespace ds::models
