// Optimizer state of the owned elements: the runs of elements that have it, how updates cut
// them into pieces, and the arrays themselves in the type that the configuration asks for.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ops/optimizer_update.h"
#include "optim/optimizer.h"

namespace ds::optim {

struct NamedState {
  std::string name;
  bool is_signed = true;  // 8-bit states differ
  double initial = 0;     // of all elements
};

// Consecutive elements that are updated in one call, in the owned space and in the flat one. A
// tensor may have elements in several runs that follow each other.
struct StateRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t flat = 0;    // of `begin` in the flat space
  int64_t offset = 0;  // of `begin` in the state arrays, a multiple of kernels::kStateBlock
  std::vector<size_t> tensors;               // in their order
  std::vector<kernels::UpdatePiece> pieces;  // relative to begin
  std::vector<int64_t> first;                // piece of each chunk, and one beyond
  ops::UpdateTables tables;                  // the same on a GPU

  // The run's update with constants by hyper.
  ops::UpdateWork work(std::span<const kernels::UpdateConstants> constants,
                       std::span<ExactSum> norms = {}) const {
    return {constants, pieces, first, norms, tables.first ? &tables : nullptr, {}};
  }
};

class StateSpace {
 public:
  struct Options {
    std::vector<NamedState> states;
    OptimizerStateType type = OptimizerStateType::kFp32;
    // Tensors that take part, all when empty.
    std::function<bool(const TensorPlace&)> member;
    bool run_per_tensor = false;
    // Other runs are cut to so many, at chunks of an update; 0: they are not.
    int64_t most_elements = 0;
    // Pieces with equal keys are alike, and neighbours are joined. Without a function every tensor
    // has its own pieces, with its number in StateRun::tensors.
    std::function<int64_t(size_t place)> key;
  };

  // What is owned of the members.
  StateSpace(const Options& options, std::span<const TensorPlace> places,
             const std::shared_ptr<Device>& device);

  std::span<const StateRun> runs() const { return runs_; }
  const std::vector<NamedState>& states() const { return states_; }
  // Whether a tensor takes part, owned or not.
  bool includes(size_t place) const { return included_[place]; }

  // The arrays of a run, as views.
  ops::UpdateTensors slices(const StateRun& run, FlatTensors& tensors) const;

  // The owned elements [begin, end) of a tensor, counted from where its owned part begins.
  void read(size_t place, size_t state, int64_t begin, int64_t end, float* out) const;
  void write(size_t place, size_t state, int64_t begin, int64_t end, const float* values);
  // The first `count` owned elements of a tensor in place; empty unless they are kept as fp32 in
  // the host's memory.
  Tensor view(size_t place, size_t state, int64_t count) const;
  // Before every update: encodes what writes left waiting.
  void flush_writes();

 private:
  // 8-bit blocks that were written in part wait as fp32: neighbours in a block share its scale, so
  // encoding it once per tensor would lose bits that encoding it once at the end keeps.
  using Waiting = std::map<int64_t, std::vector<float>>;  // by block

  int64_t elements() const { return arrays_.empty() ? 0 : arrays_.front().data.elements(); }
  // A tensor's elements in a series that makes one run or, cut, several.
  struct Part {
    size_t tensor;
    int64_t begin, end;  // relative to the first of the series
    int64_t key;         // -1: it has its own pieces
  };
  void add_runs(const StateRun& all, std::span<const Part> parts, int64_t most);
  static void cut(StateRun& run, std::span<const kernels::UpdatePiece> segments);

  std::vector<NamedState> states_;
  std::vector<StateRun> runs_;
  std::vector<bool> included_;
  std::vector<int64_t> offsets_;  // of each place's owned part in the state arrays, -1 = none
  std::vector<ops::StateTensor> arrays_;
  std::vector<Waiting> waiting_;  // per array
};

}  // namespace ds::optim
