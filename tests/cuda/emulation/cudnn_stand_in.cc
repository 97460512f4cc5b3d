#include "cuda/emulation/cudnn_stand_in.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "kernels/cudnn/api.h"

using namespace ds::kernels::cudnn;  // NOLINT: the interface that is stood in for
using ds::testing::CudnnStandIn;

namespace {

constexpr Status kBadParameter = 2000, kUnsupported = 3000, kDriverFailed = 5001;

CudnnStandIn& world() {
  static CudnnStandIn it;
  return it;
}

void violation(const std::string& text) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  world().violations.push_back(text);
}

bool take_failure(const char* call, Status* status) {
  auto& waiting = world().failures[call];
  if (waiting.empty()) return false;
  *status = waiting.front();
  waiting.pop_front();
  return true;
}

// ---- descriptors ----

struct Content {
  Kind kind{};
  bool finished = false;
  std::map<Attribute, std::vector<char>> bytes;
  std::map<Attribute, std::vector<std::shared_ptr<Content>>> parts;

  template <class T>
  T value(Attribute attribute, T otherwise = {}) const {
    const auto found = bytes.find(attribute);
    if (found == bytes.end() || found->second.size() < sizeof(T)) return otherwise;
    T out;
    std::memcpy(&out, found->second.data(), sizeof out);
    return out;
  }
  template <class T>
  std::vector<T> values(Attribute attribute) const {
    const auto found = bytes.find(attribute);
    std::vector<T> out(found == bytes.end() ? 0 : found->second.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), found->second.data(), out.size() * sizeof(T));
    return out;
  }
  bool has(Attribute attribute) const {
    return bytes.contains(attribute) || parts.contains(attribute);
  }
  const Content& part(Attribute attribute) const { return *parts.at(attribute).front(); }
};
// What a program holds. The content lives on in what was made of it, as cuDNN's does.
struct Holder {
  std::shared_ptr<Content> content = std::make_shared<Content>();
};
Content& content_of(Descriptor descriptor) { return *static_cast<Holder*>(descriptor)->content; }

size_t size_of(Type type) {
  switch (type) {
    case Type::kBoolean:
    case Type::kChar:
      return 1;
    case Type::kHandle:
    case Type::kInt64:
    case Type::kPointer:
    case Type::kDescriptor:
      return 8;
    default:
      return 4;
  }
}

// What must be there before a descriptor can be finished.
std::vector<Attribute> needs(Kind kind) {
  using enum Attribute;
  switch (kind) {
    case Kind::kTensor:
      return {kTensorType, kTensorSizes, kTensorStrides, kTensorId, kTensorAlignment};
    case Kind::kPointwise:
      return {kPointwiseMode, kPointwisePrecision};
    case Kind::kPointwiseOperation:
      return {kPointwiseDescription, kPointwiseX, kPointwiseY};
    case Kind::kProduct:
      return {kProductPrecision};
    case Kind::kProductOperation:
      return {kProductA, kProductB, kProductC, kProductDescription};
    case Kind::kReduction:
      return {kReductionOperator, kReductionPrecision};
    case Kind::kReductionOperation:
      return {kReductionX, kReductionY, kReductionDescription};
    case Kind::kReshapeOperation:
      return {kReshapeX, kReshapeY};
    case Kind::kGraph:
      return {kGraphOperations, kGraphHandle};
    case Kind::kHeuristic:
      return {kHeuristicGraph, kHeuristicMode};
    case Kind::kPlan:
      return {kPlanHandle, kPlanEngineConfig};
    case Kind::kArguments:
      return {kArgumentIds, kArgumentPointers, kArgumentWorkspace};
    default:
      return {};
  }
}

// ---- tensors ----

struct Layout {
  DataType type{};
  std::array<int64_t, 4> sizes{}, strides{};
  int64_t id = 0;
  bool is_virtual = false;
};

Layout layout_of(const Content& tensor) {
  Layout out;
  out.type = tensor.value<DataType>(Attribute::kTensorType);
  const auto sizes = tensor.values<int64_t>(Attribute::kTensorSizes);
  const auto strides = tensor.values<int64_t>(Attribute::kTensorStrides);
  std::copy_n(sizes.begin(), 4, out.sizes.begin());
  std::copy_n(strides.begin(), 4, out.strides.begin());
  out.id = tensor.value<int64_t>(Attribute::kTensorId);
  out.is_virtual = tensor.value<bool>(Attribute::kTensorIsVirtual);
  return out;
}

double rounded(DataType type, double value) {
  switch (type) {
    case DataType::kHalf:
      return ds::to_float(ds::to_float16(static_cast<float>(value)));
    case DataType::kBFloat16:
      return ds::to_float(ds::to_bfloat16(static_cast<float>(value)));
    case DataType::kFloat:
      return static_cast<float>(value);
    default:
      return value;
  }
}

double read(DataType type, const void* data, int64_t at) {
  switch (type) {
    case DataType::kHalf:
      return ds::to_float(static_cast<const ds::float16*>(data)[at]);
    case DataType::kBFloat16:
      return ds::to_float(static_cast<const ds::bfloat16*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

void write(DataType type, void* data, int64_t at, double value) {
  const auto number = static_cast<float>(value);
  if (type == DataType::kHalf) static_cast<ds::float16*>(data)[at] = ds::to_float16(number);
  if (type == DataType::kBFloat16) static_cast<ds::bfloat16*>(data)[at] = ds::to_bfloat16(number);
  if (type == DataType::kFloat) static_cast<float*>(data)[at] = number;
}

// ---- running a graph ----

using Index = std::array<int64_t, 4>;

template <class Body>
void for_each(const std::array<int64_t, 4>& sizes, const Body& body) {
  Index i{};
  for (i[0] = 0; i[0] < sizes[0]; ++i[0])
    for (i[1] = 0; i[1] < sizes[1]; ++i[1])
      for (i[2] = 0; i[2] < sizes[2]; ++i[2])
        for (i[3] = 0; i[3] < sizes[3]; ++i[3]) body(i);
}

// A tensor's numbers, packed; what is virtual is nowhere else.
struct Numbers {
  std::array<int64_t, 4> sizes{};
  std::vector<double> values;
  // One that is smaller is used again and again.
  double at(const Index& i) const {
    int64_t at = 0;
    for (size_t d = 0; d < 4; ++d) at = at * sizes[d] + (sizes[d] == 1 ? 0 : i[d] % sizes[d]);
    return values[static_cast<size_t>(at)];
  }
};

class Run {
 public:
  Run(const std::vector<int64_t>& ids, const std::vector<void*>& pointers, bool repeats)
      : repeats_(repeats) {
    for (size_t i = 0; i < ids.size(); ++i) memory_[ids[i]] = pointers[i];
  }

  void operation(const Content& op) {
    using enum Attribute;
    switch (op.kind) {
      case Kind::kProductOperation:
        return product(op.part(kProductA), op.part(kProductB), op.part(kProductC));
      case Kind::kReductionOperation:
        return reduce(op.part(kReductionDescription).value<Reduce>(kReductionOperator),
                      op.part(kReductionX), op.part(kReductionY));
      case Kind::kReshapeOperation:
        return reshape(op.part(kReshapeX), op.part(kReshapeY));
      default:
        return pointwise(op);
    }
  }

 private:
  const Numbers& in(const Content& tensor) {
    const Layout layout = layout_of(tensor);
    const auto known = numbers_.find(layout.id);
    if (known != numbers_.end()) return known->second;
    Numbers& out = numbers_[layout.id];
    out.sizes = layout.sizes;
    for_each(layout.sizes, [&](const Index& i) {
      const int64_t at = std::inner_product(i.begin(), i.end(), layout.strides.begin(), int64_t{0});
      out.values.push_back(read(layout.type, memory_.at(layout.id), at));
    });
    return out;
  }
  template <class Value>
  void out(const Content& tensor, const Value& value) {
    const Layout layout = layout_of(tensor);
    const bool noisy = !repeats_ && !layout.is_virtual && layout.type != DataType::kFloat;
    Numbers made{layout.sizes, {}};
    for_each(layout.sizes, [&](const Index& i) {
      const double number = rounded(layout.type, value(i) * (noisy ? 1 + noise() : 1));
      made.values.push_back(number);
      if (layout.is_virtual) return;
      const int64_t at = std::inner_product(i.begin(), i.end(), layout.strides.begin(), int64_t{0});
      write(layout.type, memory_.at(layout.id), at, number);
    });
    numbers_[layout.id] = std::move(made);
  }

  // As far as sums in another order would be off.
  static double noise() {
    static std::mt19937_64 random(std::random_device{}());
    return std::uniform_real_distribution<double>(-0x1p-13, 0x1p-13)(random);
  }

  // The heads of a and c may be more than those of b, in groups. What is kept in fp32 is added to,
  // as engines do whose blocks each add their share.
  void product(const Content& first, const Content& second, const Content& to) {
    const Numbers a = in(first), b = in(second);
    const Layout result = layout_of(to);
    const int64_t group = result.sizes[1] / b.sizes[1];
    Numbers before;
    const bool adds = !result.is_virtual && result.type == DataType::kFloat;
    if (adds) before = in(to);
    out(to, [&](const Index& i) {
      double sum = adds ? before.at(i) : 0;
      for (int64_t k = 0; k < a.sizes[3]; ++k) {
        sum += a.at({i[0], i[1], i[2], k}) * b.at({i[0], i[1] / group, k, i[3]});
      }
      return sum;
    });
  }
  void reduce(Reduce op, const Content& from, const Content& to) {
    const Numbers x = in(from);
    const Layout layout = layout_of(to);
    std::array<int64_t, 4> parts{};
    for (size_t d = 0; d < 4; ++d) parts[d] = x.sizes[d] / layout.sizes[d];
    out(to, [&](const Index& i) {
      double result = op == Reduce::kMax ? -std::numeric_limits<double>::infinity() : 0;
      for_each(parts, [&](const Index& j) {
        Index at{};
        for (size_t d = 0; d < 4; ++d) at[d] = i[d] * parts[d] + j[d];
        result = op == Reduce::kMax ? std::max(result, x.at(at)) : result + x.at(at);
      });
      return result;
    });
  }
  // Only the exchange of the last two dimensions occurs.
  void reshape(const Content& from, const Content& to) {
    const Numbers x = in(from);
    out(to, [&](const Index& i) { return x.at({i[0], i[1], i[3], i[2]}); });
  }
  void pointwise(const Content& op) {
    using enum Attribute;
    const Content& how = op.part(kPointwiseDescription);
    const auto mode = how.value<Pointwise>(kPointwiseMode);
    const auto axis = static_cast<size_t>(how.value<int64_t>(kPointwiseAxis));
    if (mode == Pointwise::kIndex) {  // its input gives the shape only
      return out(op.part(kPointwiseY),
                 [&](const Index& i) { return static_cast<double>(i[axis]); });
    }
    const Numbers x = in(op.part(kPointwiseX));
    const Numbers b = op.has(kPointwiseB) ? in(op.part(kPointwiseB)) : x;
    const Numbers selector = op.has(kPointwiseSelector) ? in(op.part(kPointwiseSelector)) : x;
    out(op.part(kPointwiseY), [&](const Index& i) {
      switch (mode) {
        case Pointwise::kAdd:
          return x.at(i) + b.at(i);
        case Pointwise::kMultiply:
          return x.at(i) * b.at(i);
        case Pointwise::kDivide:
          return x.at(i) / b.at(i);
        case Pointwise::kSubtract:
          return x.at(i) - b.at(i);
        case Pointwise::kExp:
          return std::exp(x.at(i));
        case Pointwise::kLog:
          return std::log(x.at(i));
        case Pointwise::kIdentity:
          return x.at(i);
        case Pointwise::kGreaterOrEqual:
          return x.at(i) >= b.at(i) ? 1.0 : 0.0;
        case Pointwise::kSelect:
          return selector.at(i) != 0 ? x.at(i) : b.at(i);
        default:
          return std::numeric_limits<double>::quiet_NaN();
      }
    });
  }

  bool repeats_;
  std::map<int64_t, void*> memory_;
  std::map<int64_t, Numbers> numbers_;
};

struct Context {
  int gpu = 0;
  cudaStream_t stream = nullptr;
  std::atomic<std::thread::id> user;  // who chose the stream
};

using Engine = CudnnStandIn::Engine;
Engine engine_of(const Content& config) {
  return config.value<Engine>(Attribute::kEngineConfigEngine);
}
// Bytes for the graph of an engine's configuration; the first product has the scores' sizes.
int64_t workspace_of(const Content& config) {
  const Engine engine = engine_of(config);
  for (const auto& op :
       config.parts.at(Attribute::kHeuristicGraph).front()->parts.at(Attribute::kGraphOperations)) {
    if (op->kind != Kind::kProductOperation) continue;
    const Layout scores = layout_of(op->part(Attribute::kProductC));
    const bool large = scores.sizes[0] > engine.most_batch || scores.sizes[1] > engine.most_heads;
    return large ? (int64_t{1} << 30) + 256 : engine.workspace;
  }
  return engine.workspace;
}

// Pointers must be there for what lies in memory, and aligned as was said.
void check_arguments(const Content& graph, const std::map<int64_t, void*>& memory) {
  for (const auto& op : graph.parts.at(Attribute::kGraphOperations)) {
    for (const auto& [attribute, parts] : op->parts) {
      const Content& tensor = *parts.front();
      if (tensor.kind != Kind::kTensor || tensor.value<bool>(Attribute::kTensorIsVirtual)) continue;
      const auto id = tensor.value<int64_t>(Attribute::kTensorId);
      const auto found = memory.find(id);
      if (found == memory.end() || found->second == nullptr) {
        violation("tensor " + std::to_string(id) + " has no memory");
      } else if (!tensor.value<bool>(Attribute::kTensorIsByValue) &&
                 reinterpret_cast<uintptr_t>(found->second) %
                         tensor.value<uint64_t>(Attribute::kTensorAlignment, 1) !=
                     0) {
        violation("tensor " + std::to_string(id) + " is not aligned as was said");
      }
    }
  }
}

Status run_plan(Context& context, const Content& plan, const Content& arguments) {
  const Content& config = plan.part(Attribute::kPlanEngineConfig);
  const auto graph = config.parts.at(Attribute::kHeuristicGraph).front();
  const Engine engine = engine_of(config);
  const auto workspace_bytes = static_cast<size_t>(workspace_of(config));
  const auto ids = arguments.values<int64_t>(Attribute::kArgumentIds);
  auto pointers = arguments.values<void*>(Attribute::kArgumentPointers);
  void* const workspace = arguments.value<void*>(Attribute::kArgumentWorkspace);
  if (ids.size() != pointers.size()) return kBadParameter;
  if (workspace_bytes > 0 && workspace == nullptr) return kBadParameter;
  std::map<int64_t, void*> memory;
  for (size_t i = 0; i < ids.size(); ++i) memory[ids[i]] = pointers[i];
  check_arguments(*graph, memory);
  // Values are taken when the call is made.
  auto values = std::make_shared<std::map<int64_t, float>>();
  const auto& operations = graph->parts.at(Attribute::kGraphOperations);
  for (const auto& op : operations) {
    for (const auto& [attribute, parts] : op->parts) {
      const Content& tensor = *parts.front();
      if (tensor.kind != Kind::kTensor || !tensor.value<bool>(Attribute::kTensorIsByValue))
        continue;
      const auto id = tensor.value<int64_t>(Attribute::kTensorId);
      if (memory[id] != nullptr) (*values)[id] = *static_cast<const float*>(memory[id]);
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (values->contains(ids[i])) pointers[i] = &values->at(ids[i]);
  }
  world().runs.push_back(operations.size());
  world().engines_run.push_back(engine.number);
  const cudaError_t queued = world().queue(context.stream, [=] {
    if (workspace_bytes > 0) std::memset(workspace, 0xA5, workspace_bytes);
    Run run(ids, pointers, engine.deterministic);
    for (const auto& op : graph->parts.at(Attribute::kGraphOperations)) run.operation(*op);
    values->clear();
  });
  return queued == cudaSuccess ? kSuccess : kDriverFailed;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CudnnStandIn* ds_cudnn_stand_in() { return &world(); }

size_t cudnnGetVersion() { return world().version; }
const char* cudnnGetErrorString(Status status) {
  return kind_of(status) == kNotSupported ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_FAILED";
}
void cudnnGetLastErrorString(char* text, size_t room) {
  const char said[] = "as the test wanted";
  std::memcpy(text, said, std::min(room, sizeof said));
}

Status cudnnCreate(Handle* handle) {
  Status asked{};
  if (take_failure("cudnnCreate", &asked)) return asked;
  auto* const made = new Context;
  made->gpu = world().current_gpu();
  *handle = made;
  ++world().handles;
  return kSuccess;
}

Status cudnnSetStream(Handle handle, void* stream) {
  auto& context = *static_cast<Context*>(handle);
  if (context.gpu != world().current_gpu()) violation("a handle of another GPU");
  context.stream = static_cast<cudaStream_t>(stream);
  context.user = std::this_thread::get_id();
  std::this_thread::yield();
  return kSuccess;
}

Status cudnnBackendCreateDescriptor(Kind kind, Descriptor* descriptor) {
  auto* const made = new Holder;
  made->content->kind = kind;
  *descriptor = made;
  ++world().descriptors;
  return kSuccess;
}

Status cudnnBackendDestroyDescriptor(Descriptor descriptor) {
  delete static_cast<Holder*>(descriptor);
  --world().descriptors;
  return kSuccess;
}

Status cudnnBackendSetAttribute(Descriptor descriptor, Attribute attribute, Type type,
                                int64_t count, const void* values) {
  Content& content = content_of(descriptor);
  if (content.finished || count < 1 || values == nullptr) return kBadParameter;
  if (type != Type::kDescriptor) {
    const auto* const from = static_cast<const char*>(values);
    content.bytes[attribute].assign(from, from + static_cast<size_t>(count) * size_of(type));
    return kSuccess;
  }
  auto& parts = content.parts[attribute];
  parts.clear();
  for (int64_t i = 0; i < count; ++i) {
    const auto* const holder = static_cast<Holder* const*>(values)[i];
    if (!holder->content->finished) return kBadParameter;
    parts.push_back(holder->content);
  }
  return kSuccess;
}

Status cudnnBackendFinalize(Descriptor descriptor) {
  Content& content = content_of(descriptor);
  Status asked{};
  if (content.kind == Kind::kGraph && take_failure("graph", &asked)) return asked;
  if (content.kind == Kind::kPlan && take_failure("plan", &asked)) return asked;
  if (content.finished) return kBadParameter;
  for (const Attribute attribute : needs(content.kind)) {
    if (!content.has(attribute)) return kBadParameter;
  }
  if (content.kind == Kind::kPlan) {
    const Content& config = content.part(Attribute::kPlanEngineConfig);
    if (!engine_of(config).supported) return kUnsupported;
  }
  content.finished = true;
  return kSuccess;
}

Status cudnnBackendGetAttribute(Descriptor descriptor, Attribute attribute, Type, int64_t room,
                                int64_t* count, void* values) {
  const Content& content = content_of(descriptor);
  if (!content.finished) return kBadParameter;
  switch (attribute) {
    case Attribute::kHeuristicResults: {
      ++world().heuristics;
      const bool last = content.value<int>(Attribute::kHeuristicMode) == kHeuristicModeFallback;
      const std::vector<Engine>& offered = last ? world().fallback : world().engines;
      *count = std::min<int64_t>(room, static_cast<int64_t>(offered.size()));
      for (int64_t i = 0; i < *count; ++i) {
        Content& config = content_of(static_cast<Descriptor*>(values)[i]);
        Engine engine = offered[static_cast<size_t>(i)];
        engine.number = static_cast<int>(i) + (last ? 100 : 0);
        std::vector<char>& bytes = config.bytes[Attribute::kEngineConfigEngine];
        bytes.resize(sizeof engine);
        std::memcpy(bytes.data(), &engine, sizeof engine);
        config.parts[Attribute::kHeuristicGraph] = content.parts.at(Attribute::kHeuristicGraph);
        config.finished = true;
      }
      return kSuccess;
    }
    case Attribute::kEngineConfigEngine: {
      Content& engine = content_of(*static_cast<Descriptor*>(values));
      engine.bytes = content.bytes;
      engine.finished = true;
      *count = 1;
      return kSuccess;
    }
    case Attribute::kEngineNotes: {
      const Engine engine = engine_of(content);
      *count = engine.deterministic ? 1 : 2;
      static_cast<int*>(values)[0] = 0;  // tensor cores
      if (!engine.deterministic) static_cast<int*>(values)[1] = kNoteNondeterministic;
      return kSuccess;
    }
    case Attribute::kEngineConfigWorkspace:
      if (!world().tells_workspace) return kBadParameter;
      *static_cast<int64_t*>(values) = workspace_of(content);
      *count = 1;
      return kSuccess;
    case Attribute::kPlanWorkspace:
      *static_cast<int64_t*>(values) = workspace_of(content.part(Attribute::kPlanEngineConfig));
      *count = 1;
      return kSuccess;
    default:
      return kBadParameter;
  }
}

Status cudnnBackendExecute(Handle handle, Descriptor plan, Descriptor arguments) {
  Status asked{};
  if (take_failure("cudnnBackendExecute", &asked)) return asked;
  if (!content_of(plan).finished || !content_of(arguments).finished) return kBadParameter;
  auto& context = *static_cast<Context*>(handle);
  if (context.user.load() != std::this_thread::get_id()) violation("two threads use a handle");
  return run_plan(context, content_of(plan), content_of(arguments));
}

}  // extern "C"
#pragma GCC visibility pop
