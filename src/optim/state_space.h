// Optimizer state of the owned elements: the runs of elements that have it, how updates cut
// them into pieces, and the arrays themselves in the type that the configuration asks for.
#pragma once

#include <functional>
#include <map>
#include <optional>
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

// What an update writes.
enum class Writes { kStates, kWeights, kBoth };

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

// Where a run lies in an array.
struct RunRange {
  int64_t begin = 0;
  int64_t end = 0;
};
RunRange range_of(const FlatTensor& array, const StateRun& run);
// Cuts segments of n elements, sorted and without overlap, into pieces within chunks of an update.
void cut_pieces(int64_t n, std::span<const kernels::UpdatePiece> segments,
                std::vector<kernels::UpdatePiece>& pieces, std::vector<int64_t>& first);

// The arrays of a run while an update works on them.
class MappedRun {
 public:
  ops::UpdateTensors part;
  // Where masters are copied after the update, which writes no copies in fp32; else no tensor.
  Tensor copy;
  // The GPU in whose memory all of it lies, of arrays that as a whole do not; null for others.
  std::shared_ptr<Device> device;

  // Gives back what is not memory. All of it, also when some of that fails: the first error is
  // thrown.
  void close();

 private:
  friend class StateSpace;
  Tensor take(ArrayLease lease);
  std::vector<ArrayLease> leases_;  // of what is not memory
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
    std::shared_ptr<ArrayFactory> arrays;  // null: all lie in memory
  };

  // What is owned of the members.
  StateSpace(const Options& options, std::span<const TensorPlace> places,
             const std::shared_ptr<Device>& device);

  std::span<const StateRun> runs() const { return runs_; }
  const std::vector<NamedState>& states() const { return states_; }
  // Whether a tensor takes part, owned or not.
  bool includes(size_t place) const { return included_[place]; }

  // The arrays of a run for an update, as they are where all of them lie in the memory of a GPU
  // beside others on the host; and that it will be mapped soon.
  MappedRun map(const StateRun& run, const FlatTensors& tensors, Writes writes) const;
  // Before the first update with arrays: cuts the run that begins in the memory of a GPU and ends
  // on the host, and makes the tables of those that lie on the GPU. Where there are such, runs() is
  // another from then on.
  void cut_where_places_change(const FlatTensors& tensors);
  // Of these the masters with the model's copy, and the states, alone.
  MappedRun map_weights(const StateRun& run, const FlatTensors& tensors, Access access) const;
  MappedRun map_states(const StateRun& run, Access access) const;
  void prefetch(const StateRun& run, const FlatTensors& tensors) const;

  // The owned elements [begin, end) of a tensor, counted from where its owned part begins.
  void read(size_t place, size_t state, int64_t begin, int64_t end, float* out) const;
  void write(size_t place, size_t state, int64_t begin, int64_t end, const float* values);
  // The first `count` owned elements of a tensor in place; empty unless they are kept as fp32 in
  // the host's memory.
  Tensor view(size_t place, size_t state, int64_t count) const;
  // Before every update: encodes what writes left waiting.
  void encode_writes();
  // Waits until what was written rests, where that is not memory.
  void flush() const;

 private:
  // 8-bit blocks that were written in part wait as fp32: neighbours in a block share its scale, so
  // encoding it once per tensor would lose bits that encoding it once at the end keeps.
  using Waiting = std::map<int64_t, std::vector<float>>;  // by block

  // fp32 or bf16; or int8 (signed) or uint8 (unsigned) with fp32 scales per kernels::kStateBlock.
  struct StateArray {
    StoredArray data, scales;

    // Elements [begin, end) as fp32; of those with scales, whole blocks are written.
    void read(int64_t begin, int64_t end, float* out) const;
    void write(int64_t begin, int64_t end, const float* values);

   private:
    template <class Body>
    void for_blocks(int64_t begin, int64_t end, Access access, const Body& body) const;
  };

  static StateArray make_array(const NamedState& state, const Options& options, int64_t elements,
                               const std::shared_ptr<Device>& device);
  int64_t elements() const { return arrays_.empty() ? 0 : arrays_.front().data.elements(); }
  // A tensor's elements in a series that makes one run or, cut, several.
  struct Part {
    size_t tensor;
    int64_t begin, end;  // relative to the first of the series
    int64_t key;         // -1: it has its own pieces
  };
  void add_runs(const StateRun& all, std::span<const Part> parts, int64_t most);
  static void take_weights(const StateRun& run, const FlatTensors& tensors, Access access,
                           MappedRun& out);
  void take_states(const StateRun& run, Access access, MappedRun& out) const;
  // Elements of a run, the first ones, that lie in the memory of a GPU with all but the gradients.
  int64_t on_device(const StateRun& run, const FlatTensors& tensors) const;
  // Of a run that does; nothing of another.
  std::optional<MappedRun> map_on_device(const StateRun& run, const FlatTensors& tensors) const;

  std::vector<NamedState> states_;
  std::vector<StateRun> runs_;
  std::vector<bool> included_;
  std::vector<int64_t> offsets_;  // of each place's owned part in the state arrays, -1 = none
  std::vector<StateArray> arrays_;
  std::vector<Waiting> waiting_;  // per array
  bool places_cut_ = false;       // runs are
};

}  // namespace ds::optim
