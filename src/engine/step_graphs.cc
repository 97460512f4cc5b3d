#include "engine/step_graphs.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace ds {
namespace {

// Each input begins at a multiple of this.
constexpr int64_t kAlignment = 256;

int64_t room_for(const Tensor& input) {
  return (input.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

// Inputs in the order in which they lie in memory, behind the scalars.
std::array<const Tensor*, 6> inputs_of(const models::Batch& batch, const Tensor& labels) {
  return {&batch.ids,      &batch.position_ids, &batch.key_mask,
          &batch.segments, &batch.token_types,  &labels};
}

}  // namespace

StepGraphs::StepGraphs(std::shared_ptr<CudaDevice> device)
    : device_(std::move(device)),
      loss_(Tensor::empty(device_, DType::kFloat64, {1}, MemoryTag::kOther)) {}

StepGraphs::Kind StepGraphs::kind_of(const Inputs& inputs, const zero::TrainState& state) {
  Kind kind;
  for (const Tensor* const input : inputs_of(inputs.batch, inputs.labels)) {
    // No input has so many elements as the one that is missing.
    kind.shapes.push_back(*input ? input->shape() : Shape{0});
  }
  kind.marks = state.gradients().marks().snapshot();
  const optim::FlatTensors& flat = state.arrays().flat;
  for (const optim::FlatTensor* const tensor :
       {&flat.masters, &flat.low_halves, &flat.model, &flat.gradients, &state.arrays().weights()}) {
    kind.memory.push_back(tensor->memory().raw());
  }
  return kind;
}

StepGraphs::Entry* StepGraphs::find(const Kind& kind) {
  for (const auto& entry : entries_) {
    if (entry->kind == kind) return entry.get();
  }
  return nullptr;
}

bool StepGraphs::run(const Inputs& inputs, zero::TrainState& state, const Pass& pass) {
  if (failed_ || state.gradients().recording() == nullptr) return false;
  Kind kind = kind_of(inputs, state);
  Entry* const entry = find(kind);
  // The first micro batch of a kind makes what later ones find: tables, choices of algorithms.
  if (entry == nullptr) {
    if (entries_.size() >= kMostKinds) {
      entries_.clear();
      memory_.reset();
    }
    entries_.push_back(std::make_unique<Entry>());
    entries_.back()->kind = std::move(kind);
    return false;
  }
  if (!entry->graph) {
    place(*entry, inputs);
    if (!record(*entry, state, pass)) return false;
  }
  upload(*entry, inputs);
  state.weights().send_stale();
  state.gradients().recording()->begin_launch();
  launch(*entry);
  state.gradients().recording()->finish_launch(entry->left);
  return true;
}

void StepGraphs::place(Entry& entry, const Inputs& inputs) const {
  int64_t bytes = kAlignment;
  for (const Tensor* const input : inputs_of(inputs.batch, inputs.labels)) {
    bytes += *input ? room_for(*input) : 0;
  }
  entry.memory = Tensor::empty(device_, DType::kUInt8, {bytes}, MemoryTag::kOther);
  const std::shared_ptr<Storage>& storage = entry.memory.storage();
  Placed& placed = entry.placed;
  placed.stream_position = static_cast<const uint32_t*>(entry.memory.raw());
  placed.loss_scale = Tensor(storage, sizeof inputs.stream_position, DType::kFloat32, Shape{1});
  placed.constants = &entry.constants;
  int64_t at = kAlignment;
  const auto next = [&](const Tensor& input, const Shape& shape) {
    if (!input) return Tensor();
    return Tensor(storage, std::exchange(at, at + room_for(input)), input.dtype(), shape);
  };
  const auto as_it_is = [&](const Tensor& input) {
    return next(input, input ? input.shape() : Shape());
  };
  const models::Batch& batch = inputs.batch;
  placed.batch.ids = as_it_is(batch.ids);
  placed.batch.position_ids = as_it_is(batch.position_ids);
  placed.batch.key_mask = as_it_is(batch.key_mask);
  placed.batch.segments = as_it_is(batch.segments);
  placed.batch.token_types = as_it_is(batch.token_types);
  placed.labels.targets = next(inputs.labels, {inputs.labels.elements()});
  placed.batch.positions = batch.ids.size(1);  // segments may reach that far in a later batch
}

bool StepGraphs::record(Entry& entry, zero::TrainState& state, const Pass& pass) {
  if (!memory_) memory_ = device_->make_graph_memory();
  zero::GradientRecording& gradients = *state.gradients().recording();
  try {
    gradients.begin();
    entry.graph = device_->record(memory_, [&] {
      const Tensor sum = pass(entry.placed);
      device_->copy(loss_.raw(), sum.raw(), loss_.bytes(), device_->default_stream());
    });
    entry.left = gradients.end();
    log_info("engine", "graph_harvesting: recorded a micro batch of ",
             entry.placed.batch.ids.shape().text(), " tokens: ", entry.graph->nodes(), " nodes, ",
             format_bytes(memory_->bytes()), " of memory");
    return true;
  } catch (const Error& error) {
    log_warning("engine", "graph_harvesting: a micro batch could not be recorded, and none will: ",
                error.message());
  }
  gradients.drop();
  failed_ = true;
  entries_.clear();
  memory_.reset();
  return false;
}

void StepGraphs::upload(const Entry& entry, const Inputs& inputs) const {
  std::vector<std::byte> bytes(static_cast<size_t>(entry.memory.bytes()));
  const size_t position = sizeof inputs.stream_position;
  std::memcpy(bytes.data(), inputs.stream_position.data(), position);
  std::memcpy(bytes.data() + position, &inputs.loss_scale, sizeof inputs.loss_scale);
  int64_t at = kAlignment;
  for (const Tensor* const input : inputs_of(inputs.batch, inputs.labels)) {
    if (!*input) continue;
    std::memcpy(bytes.data() + at, input->raw(), static_cast<size_t>(input->bytes()));
    at += room_for(*input);
  }
  copy_from_host(bytes.data(), entry.memory);
}

// What the work keeps for itself is in use meanwhile: peaks of the account show it.
void StepGraphs::launch(const Entry& entry) {
  const int64_t bytes = memory_->bytes();
  device_->account().add(MemoryTag::kActivations, bytes);
  device_->account().remove(MemoryTag::kActivations, bytes);
  entry.graph->launch();
}

}  // namespace ds
