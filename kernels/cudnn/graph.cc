#include "kernels/cudnn/graph.h"

#include <algorithm>

#include "base/error.h"

namespace ds::kernels::cudnn {
namespace {

// What tensors are aligned to: cuDNN reads them in packs of 16 bytes.
constexpr int64_t kAlignment = 16;
constexpr int64_t kMostEngines = 16, kMostNotes = 32;

Sizes packed(const Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

}  // namespace

// ---- descriptors ----

Described::Described(const Library& library, Kind kind, const char* what)
    : library_(library), what_(what) {
  check(library_.describe(kind, &descriptor_));
}

Described::Described(Described&& other) noexcept
    : library_(other.library_),
      what_(other.what_),
      descriptor_(std::exchange(other.descriptor_, nullptr)) {}

Described::~Described() {
  if (descriptor_ != nullptr) library_.destroy(descriptor_);
}

void Described::fail_with(Status status) const {
  fail(Code::kDevice, "CUDA: ", library_.name, ": ", what_, " failed: ", library_.text(status));
}

void Described::set(Attribute attribute, Type type, int64_t count, const void* values) {
  check(library_.set(descriptor_, attribute, type, count, values));
}

int64_t Described::read(Attribute attribute, Type type, int64_t room, void* values) const {
  int64_t count = 0;
  check(library_.get(descriptor_, attribute, type, room, &count, values));
  return count;
}

void Described::finish() { check(library_.finalize(descriptor_)); }

std::string Described::try_finish() {
  const Status status = library_.finalize(descriptor_);
  if (kind_of(status) == kNotSupported) return library_.text(status);
  check(status);
  return {};
}

std::string Described::finish_or_why() {
  const Status status = library_.finalize(descriptor_);
  return status == kSuccess ? std::string() : library_.text(status);
}

// ---- tensors and operations ----

GraphTensor Graph::add(DataType type, const Sizes& sizes, const Sizes& strides, bool is_virtual,
                       bool by_value) {
  const int64_t id = static_cast<int64_t>(tensors_.size()) + 1;
  Described& made = tensors_.emplace_back(library_, Kind::kTensor, "describing a tensor");
  made.set(Attribute::kTensorType, Type::kDataType, type);
  made.set(Attribute::kTensorSizes, Type::kInt64, 4, sizes.data());
  made.set(Attribute::kTensorStrides, Type::kInt64, 4, strides.data());
  made.set(Attribute::kTensorId, Type::kInt64, id);
  made.set(Attribute::kTensorAlignment, Type::kInt64, kAlignment);
  made.set(Attribute::kTensorIsVirtual, Type::kBoolean, is_virtual);
  made.set(Attribute::kTensorIsByValue, Type::kBoolean, by_value);
  made.finish();
  return {id};
}

GraphTensor Graph::tensor(DataType type, const Sizes& sizes, const Sizes& strides) {
  return add(type, sizes, strides, false, false);
}

GraphTensor Graph::value() {
  return add(DataType::kFloat, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}

GraphTensor Graph::between(DataType type, const Sizes& sizes, const Sizes& strides) {
  return add(type, sizes, strides, true, false);
}

GraphTensor Graph::between(DataType type, const Sizes& sizes) {
  return between(type, sizes, packed(sizes));
}

Described& Graph::operation(Kind kind, const char* what) {
  return operations_.emplace_back(library_, kind, what);
}

void Graph::multiply(GraphTensor a, GraphTensor b, GraphTensor c) {
  constexpr const char* kWhat = "describing a product";
  Described& how = descriptions_.emplace_back(library_, Kind::kProduct, kWhat);
  how.set(Attribute::kProductPrecision, Type::kDataType, DataType::kFloat);
  how.finish();
  Described& made = operation(Kind::kProductOperation, kWhat);
  made.set(Attribute::kProductA, Type::kDescriptor, at(a));
  made.set(Attribute::kProductB, Type::kDescriptor, at(b));
  made.set(Attribute::kProductC, Type::kDescriptor, at(c));
  made.set(Attribute::kProductDescription, how);
  made.finish();
}

void Graph::apply(Pointwise mode, GraphTensor x, const GraphTensor* b, const GraphTensor* selector,
                  GraphTensor y, int64_t axis) {
  constexpr const char* kWhat = "describing an element-wise operation";
  Described& how = descriptions_.emplace_back(library_, Kind::kPointwise, kWhat);
  how.set(Attribute::kPointwiseMode, Type::kPointwiseMode, mode);
  const DataType precision =
      mode == Pointwise::kGreaterOrEqual ? DataType::kBoolean : DataType::kFloat;
  how.set(Attribute::kPointwisePrecision, Type::kDataType, precision);
  if (mode == Pointwise::kIndex) how.set(Attribute::kPointwiseAxis, Type::kInt64, axis);
  how.finish();
  Described& made = operation(Kind::kPointwiseOperation, kWhat);
  made.set(Attribute::kPointwiseDescription, how);
  made.set(Attribute::kPointwiseX, Type::kDescriptor, at(x));
  if (b != nullptr) made.set(Attribute::kPointwiseB, Type::kDescriptor, at(*b));
  if (selector != nullptr) {
    made.set(Attribute::kPointwiseSelector, Type::kDescriptor, at(*selector));
  }
  made.set(Attribute::kPointwiseY, Type::kDescriptor, at(y));
  made.finish();
}

void Graph::apply(Pointwise mode, GraphTensor x, GraphTensor y) {
  apply(mode, x, nullptr, nullptr, y, 0);
}

void Graph::apply(Pointwise mode, GraphTensor x, GraphTensor b, GraphTensor y) {
  apply(mode, x, &b, nullptr, y, 0);
}

void Graph::select(GraphTensor x, GraphTensor b, GraphTensor selector, GraphTensor y) {
  apply(Pointwise::kSelect, x, &b, &selector, y, 0);
}

void Graph::index(int64_t axis, GraphTensor like, GraphTensor y) {
  apply(Pointwise::kIndex, like, nullptr, nullptr, y, axis);
}

void Graph::reduce(Reduce op, GraphTensor x, GraphTensor y) {
  constexpr const char* kWhat = "describing a reduction";
  Described& how = descriptions_.emplace_back(library_, Kind::kReduction, kWhat);
  how.set(Attribute::kReductionOperator, Type::kReductionOperator, op);
  how.set(Attribute::kReductionPrecision, Type::kDataType, DataType::kFloat);
  how.finish();
  Described& made = operation(Kind::kReductionOperation, kWhat);
  made.set(Attribute::kReductionX, Type::kDescriptor, at(x));
  made.set(Attribute::kReductionY, Type::kDescriptor, at(y));
  made.set(Attribute::kReductionDescription, how);
  made.finish();
}

void Graph::reshape(GraphTensor x, GraphTensor y) {
  Described& made = operation(Kind::kReshapeOperation, "describing a change of shape");
  made.set(Attribute::kReshapeX, Type::kDescriptor, at(x));
  made.set(Attribute::kReshapeY, Type::kDescriptor, at(y));
  made.finish();
}

// ---- plans ----

bool Graph::deterministic(const Described& engine_config) const {
  Described engine(library_, Kind::kEngine, "asking about an engine");
  Descriptor to = engine.get();
  engine_config.read(Attribute::kEngineConfigEngine, Type::kDescriptor, 1, &to);
  std::array<int, kMostNotes> notes{};
  const int64_t count = engine.read(Attribute::kEngineNotes, Type::kNote, kMostNotes, notes.data());
  return std::find(notes.begin(), notes.begin() + std::min(count, kMostNotes),
                   kNoteNondeterministic) == notes.begin() + std::min(count, kMostNotes);
}

std::string Graph::end(const Place& place) {
  graph_.emplace(library_, Kind::kGraph, "describing a graph");
  std::vector<Descriptor> operations;
  for (const Described& one : operations_) operations.push_back(one.get());
  graph_->set(Attribute::kGraphOperations, Type::kDescriptor,
              static_cast<int64_t>(operations.size()), operations.data());
  if (place.handle != nullptr) graph_->set(Attribute::kGraphHandle, Type::kHandle, place.handle);
  return graph_->try_finish();
}

std::vector<Described> Graph::engines(const Place& place, int mode, bool strict) const {
  Described heuristic(library_, Kind::kHeuristic, "asking for engines");
  heuristic.set(Attribute::kHeuristicGraph, *graph_);
  heuristic.set(Attribute::kHeuristicMode, Type::kHeuristicMode, mode);
  if (place.device != nullptr) heuristic.set(Attribute::kHeuristicDevice, *place.device);
  if (!heuristic.try_finish().empty()) return {};
  std::vector<Described> configs;
  std::array<Descriptor, kMostEngines> room{};
  for (int64_t i = 0; i < kMostEngines; ++i) {
    room[static_cast<size_t>(i)] =
        configs.emplace_back(library_, Kind::kEngineConfig, "asking for engines").get();
  }
  const int64_t count =
      heuristic.read(Attribute::kHeuristicResults, Type::kDescriptor, kMostEngines, room.data());
  std::vector<Described> out;
  for (int64_t i = 0; i < std::min(count, kMostEngines); ++i) {
    Described& config = configs[static_cast<size_t>(i)];
    if (!strict || deterministic(config)) out.push_back(std::move(config));
  }
  return out;
}

std::optional<int64_t> Graph::workspace_of(const Described& engine) const {
  int64_t count = 0, bytes = 0;
  const Status status = library_.get(engine.get(), Attribute::kEngineConfigWorkspace, Type::kInt64,
                                     1, &count, &bytes);
  if (status != kSuccess || count != 1) return std::nullopt;
  return bytes;
}

Planning Graph::plan(Handle handle, const Wishes& wishes) {
  Planning out;
  const Place place{.handle = handle};
  out.refusal = end(place);
  if (!out.refusal.empty()) return out;
  out.refusal = wishes.strict ? "no engine promises the same bits in every run"
                              : "no engine supports the graph";
  const auto fits = [&](int64_t bytes) {
    if (bytes <= wishes.most_workspace) return true;
    out.too_much = out.too_much ? std::min(*out.too_much, bytes) : bytes;
    return false;
  };
  for (const int mode : {kHeuristicModeA, kHeuristicModeFallback}) {
    for (const Described& engine : engines(place, mode, wishes.strict)) {
      // A plan may be compiled for seconds: not for an engine that needs too much.
      const std::optional<int64_t> told = workspace_of(engine);
      if (told && !fits(*told)) continue;
      Described made(library_, Kind::kPlan, "planning a graph");
      made.set(Attribute::kPlanHandle, Type::kHandle, handle);
      made.set(Attribute::kPlanEngineConfig, engine);
      const std::string failure = made.finish_or_why();
      if (!failure.empty()) {
        out.refusal = failure;
        continue;
      }
      Plan plan(library_, std::move(made));
      if (!fits(plan.workspace_bytes())) continue;
      out.plan.emplace(std::move(plan));
      return out;
    }
  }
  return out;
}

Plan::Plan(const Library& library, Described plan) : library_(library), plan_(std::move(plan)) {
  plan_.read(Attribute::kPlanWorkspace, Type::kInt64, 1, &workspace_bytes_);
}

void Plan::execute(Handle handle, std::span<const Argument> arguments, void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const Argument& argument : arguments) {
    ids.push_back(argument.tensor.id);
    pointers.push_back(argument.pointer);
  }
  Described pack(library_, Kind::kArguments, "giving a graph its tensors");
  const auto count = static_cast<int64_t>(ids.size());
  pack.set(Attribute::kArgumentIds, Type::kInt64, count, ids.data());
  pack.set(Attribute::kArgumentPointers, Type::kPointer, count, pointers.data());
  pack.set(Attribute::kArgumentWorkspace, Type::kPointer, workspace);
  pack.finish();
  const Status status = library_.execute(handle, plan_.get(), pack.get());
  if (status != kSuccess) {
    fail(Code::kDevice, "CUDA: ", library_.name,
         ": running a graph failed: ", library_.text(status));
  }
}

}  // namespace ds::kernels::cudnn
