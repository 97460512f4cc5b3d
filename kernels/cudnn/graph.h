// A graph of operations for cuDNN, and the plan that it makes of one: which of its engines computes
// the whole graph, with how much scratch.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cudnn/library.h"

namespace ds::kernels::cudnn {

// A descriptor of cuDNN's, destroyed with this.
class Described {
 public:
  Described(const Library& library, Kind kind, const char* what);
  ~Described();
  Described(Described&& other) noexcept;
  Described& operator=(Described&&) = delete;
  Described(const Described&) = delete;

  Descriptor get() const { return descriptor_; }
  void set(Attribute attribute, Type type, int64_t count, const void* values);
  template <class T>
  void set(Attribute attribute, Type type, const T& value) {
    set(attribute, type, 1, &value);
  }
  void set(Attribute attribute, const Described& other) {
    set(attribute, Type::kDescriptor, other.get());
  }
  // Up to `room` values; how many there are.
  int64_t read(Attribute attribute, Type type, int64_t room, void* values) const;
  void finish();
  // What cuDNN says where it does not support what is described, else nothing.
  std::string try_finish();
  // What it says of any failure.
  std::string finish_or_why();

 private:
  [[noreturn]] void fail_with(Status status) const;
  void check(Status status) const {
    if (status != kSuccess) fail_with(status);
  }
  const Library& library_;
  const char* what_;
  Descriptor descriptor_ = nullptr;
};

using Sizes = std::array<int64_t, 4>;

// A tensor of a graph. Its id names its memory when the graph is executed.
struct GraphTensor {
  int64_t id = 0;
};

struct Argument {
  GraphTensor tensor;
  void* pointer = nullptr;  // of the GPU, or of the host for values
};

class Plan {
 public:
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Queues the graph on the handle's stream.
  void execute(Handle handle, std::span<const Argument> arguments, void* workspace) const;

 private:
  friend class Graph;
  Plan(const Library& library, Described plan);
  const Library& library_;
  Described plan_;
  int64_t workspace_bytes_ = 0;
};

// Which GPU to plan for: a handle's or, where there is none (tests), one that is described.
struct Place {
  Handle handle = nullptr;
  const Described* device = nullptr;
};

// Which engines may be taken.
struct Wishes {
  bool strict = false;         // none that cuDNN says may give other bits in another run
  int64_t most_workspace = 0;  // bytes
};

// A plan, or why there is none.
struct Planning {
  std::optional<Plan> plan;
  std::string refusal;
  // Bytes that the least demanding engine needs, where there are engines and all need too many.
  std::optional<int64_t> too_much;
};

class Graph {
 public:
  explicit Graph(const Library& library) : library_(library) {}

  GraphTensor tensor(DataType type, const Sizes& sizes, const Sizes& strides);  // in memory
  GraphTensor value();  // one float, in the host's memory
  GraphTensor between(DataType type, const Sizes& sizes, const Sizes& strides);  // in no memory
  GraphTensor between(DataType type, const Sizes& sizes);                        // packed

  // [.., m, k] times [.., k, n]; fewer heads of b serve several of a each.
  void multiply(GraphTensor a, GraphTensor b, GraphTensor c);
  void apply(Pointwise mode, GraphTensor x, GraphTensor y);
  void apply(Pointwise mode, GraphTensor x, GraphTensor b, GraphTensor y);
  // y = selector ? x : b
  void select(GraphTensor x, GraphTensor b, GraphTensor selector, GraphTensor y);
  void index(int64_t axis, GraphTensor like, GraphTensor y);
  // Over the sizes that are smaller in y.
  void reduce(Reduce op, GraphTensor x, GraphTensor y);
  void reshape(GraphTensor x, GraphTensor y);

  // Ends the graph: nothing is added afterwards. What cuDNN says where it does not support it.
  std::string end(const Place& place);
  // The engines that cuDNN proposes for the ended graph in a mode of its heuristic, best first.
  std::vector<Described> engines(const Place& place, int mode, bool strict) const;
  // Bytes of workspace that an engine says it needs; nothing where it does not tell.
  std::optional<int64_t> workspace_of(const Described& engine) const;
  // Ends the graph and plans it by the first engine that can be had.
  Planning plan(Handle handle, const Wishes& wishes);

 private:
  GraphTensor add(DataType type, const Sizes& sizes, const Sizes& strides, bool is_virtual,
                  bool by_value);
  Described& operation(Kind kind, const char* what);
  Descriptor at(GraphTensor tensor) const {
    return tensors_[static_cast<size_t>(tensor.id - 1)].get();
  }
  void apply(Pointwise mode, GraphTensor x, const GraphTensor* b, const GraphTensor* selector,
             GraphTensor y, int64_t axis);
  bool deterministic(const Described& engine_config) const;

  const Library& library_;
  std::vector<Described> tensors_, descriptions_, operations_;
  std::optional<Described> graph_;
};

}  // namespace ds::kernels::cudnn
