#include "optim/state_space.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "tensor/transfer.h"

namespace ds::optim {
namespace {

// Gaps shorter than the flat layout's alignment hold padding: zeros that an update leaves zero.
constexpr int64_t kPadding = 32;

using Range = RunRange;

int64_t whole_blocks(int64_t n) {
  return (n + kernels::kStateBlock - 1) / kernels::kStateBlock * kernels::kStateBlock;
}

// The scales of the blocks that hold elements [begin, end); begin is at a block.
Range scales_of(int64_t begin, int64_t end) {
  return {begin / kernels::kStateBlock, whole_blocks(end) / kernels::kStateBlock};
}

// Elements [begin, end) of a run, which begin at a block of states.
StateRun part_of(const StateRun& run, int64_t begin, int64_t end) {
  StateRun out{run.begin + begin,
               run.begin + end,
               run.flat + begin,
               run.offset + begin,
               run.tensors,
               {},
               {},
               {}};
  std::vector<kernels::UpdatePiece> segments;
  for (const kernels::UpdatePiece& piece : run.pieces) {
    const int64_t from = std::max(piece.begin, begin), to = std::min(piece.end, end);
    if (from < to) segments.push_back({from - begin, to - begin, piece.hyper});
  }
  cut_pieces(end - begin, segments, out.pieces, out.first);
  return out;
}

// Elements of an array in the memory of a GPU: as they lie there, or a copy where some do not.
Tensor to_one_device(const StoredArray& array, const Range& range,
                     const std::shared_ptr<Device>& device) {
  const int64_t here = std::clamp(array.device_elements(), range.begin, range.end);
  if (here == range.end) return array.view(range.begin, range.end);
  const Tensor out =
      Tensor::empty(device, array.dtype(), {range.end - range.begin}, MemoryTag::kWorkspace);
  if (here > range.begin) {
    copy_tensor(array.view(range.begin, here), out.slice(0, 0, here - range.begin));
  }
  array.for_parts(here, range.end, Access::kRead, [&](const Tensor& part, int64_t at) {
    const int64_t to = here - range.begin + at;
    copy_tensor(part, out.slice(0, to, to + part.elements()));
  });
  return out;
}

}  // namespace

RunRange range_of(const FlatTensor& array, const StateRun& run) {
  const int64_t begin = array.compact ? run.begin : run.flat;
  return {begin, begin + run.end - run.begin};
}

// ---- a state array, wherever it lies ----

StateSpace::StateArray StateSpace::make_array(const NamedState& state, const Options& options,
                                              int64_t n, const std::shared_ptr<Device>& device) {
  const auto zeros = [&](ArrayRole role, const char* what, DType dtype,
                         int64_t count) -> StoredArray {
    if (count > 0 && options.arrays && options.arrays->makes(role)) {
      return options.arrays->make({role, state.name + what, dtype, count});
    }
    return Tensor::zeros(device, dtype, {count}, MemoryTag::kOptimizer);
  };
  StateArray out;
  switch (options.type) {
    case OptimizerStateType::kBf16:
      out.data = zeros(ArrayRole::kStates, "", DType::kBFloat16, n);
      break;
    case OptimizerStateType::kInt8:
      out.data = zeros(ArrayRole::kStates, "", state.is_signed ? DType::kInt8 : DType::kUInt8, n);
      out.scales = zeros(ArrayRole::kScales, ".scales", DType::kFloat32,
                         whole_blocks(n) / kernels::kStateBlock);
      break;
    default:
      out.data = zeros(ArrayRole::kStates, "", DType::kFloat32, n);
  }
  if (state.initial == 0) return out;
  constexpr int64_t kAtOnce = 256 * kernels::kStateBlock;
  const std::vector<float> values(static_cast<size_t>(std::min(n, kAtOnce)),
                                  static_cast<float>(state.initial));
  for (int64_t i = 0; i < n; i += kAtOnce) out.write(i, std::min(n, i + kAtOnce), values.data());
  return out;
}

// Calls body(state, at) for mapped parts that hold elements [begin, end) and begin at element `at`;
// where there are scales the first and the last one reach to the ends of their blocks.
template <class Body>
void StateSpace::StateArray::for_blocks(int64_t begin, int64_t end, Access access,
                                        const Body& body) const {
  const int64_t from = scales ? begin / kernels::kStateBlock * kernels::kStateBlock : begin;
  const int64_t to = scales ? std::min(whole_blocks(end), data.elements()) : end;
  data.for_parts(from, to, access, [&](const Tensor& part, int64_t at) {
    ArrayLease blocks;
    if (scales) {
      const Range range = scales_of(from + at, from + at + part.elements());
      blocks = scales.map(range.begin, range.end, access);
    }
    ops::StateTensor state{part, blocks.data()};
    body(state, from + at);
    blocks.close();
  });
}

void StateSpace::StateArray::read(int64_t begin, int64_t end, float* out) const {
  for_blocks(begin, end, Access::kRead, [&](const ops::StateTensor& state, int64_t at) {
    const int64_t first = std::max(begin, at), last = std::min(end, at + state.data.elements());
    ops::read_state(state, first - at, last - at, out + (first - begin));
  });
}

void StateSpace::StateArray::write(int64_t begin, int64_t end, const float* values) {
  for_blocks(begin, end, Access::kWrite, [&](ops::StateTensor& state, int64_t at) {
    ops::write_state(state, 0, state.data.elements(), values + (at - begin));
  });
}

// ---- the arrays of a run ----

Tensor MappedRun::take(ArrayLease lease) {
  Tensor data = lease.data();
  if (!lease.is_view()) leases_.push_back(std::move(lease));
  return data;
}

void MappedRun::close() {
  std::exception_ptr first;
  for (ArrayLease& lease : leases_) {
    try {
      lease.close();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  leases_.clear();
  if (first) std::rethrow_exception(first);
}

StateSpace::StateSpace(const Options& options, std::span<const TensorPlace> places,
                       const std::shared_ptr<Device>& device)
    : states_(options.states), included_(places.size()), offsets_(places.size(), -1) {
  std::vector<size_t> order(places.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return places[a].begin < places[b].begin; });

  StateRun open;
  std::vector<Part> parts;  // of the open run
  int64_t elements = 0;
  const auto close_run = [&] {
    if (parts.empty()) return;
    add_runs(open, parts, options.run_per_tensor ? 0 : options.most_elements);
    elements = whole_blocks(open.offset + open.end - open.begin);
    parts.clear();
  };
  for (const size_t index : order) {
    const TensorPlace& place = places[index];
    const int64_t from = place.begin, to = place.end;
    included_[index] = !options.member || options.member(place);
    if (from >= to || !included_[index]) continue;
    const bool next_to =
        !parts.empty() && from - open.end < kPadding && place.flat - open.flat == from - open.begin;
    if (!next_to || options.run_per_tensor) {
      close_run();
      open = {from, to, place.flat, elements, {}, {}, {}, {}};
    }
    open.end = to;
    offsets_[index] = open.offset + from - open.begin;
    parts.push_back({index, from - open.begin, to - open.begin,
                     options.key ? options.key(index) : int64_t{-1}});
  }
  close_run();
  for (const NamedState& state : states_) {
    arrays_.push_back(make_array(state, options, elements, device));
  }
  waiting_.resize(arrays_.size());
  if (device->kind() == DeviceKind::kCpu) return;
  for (StateRun& run : runs_) run.tables = ops::make_update_tables(device, run.pieces, run.first);
}

// States lie without gaps, whatever the cuts: those are at chunks, which are whole blocks.
void StateSpace::add_runs(const StateRun& all, std::span<const Part> parts, int64_t most) {
  const int64_t n = all.end - all.begin;
  const int64_t size =
      most == 0 ? n : std::max<int64_t>(1, most / kernels::kUpdateChunk) * kernels::kUpdateChunk;
  size_t first = 0;  // of the parts that reach into the run
  for (int64_t at = 0; at < n; at += size) {
    const int64_t stop = std::min(n, at + size);
    while (parts[first].end <= at) ++first;
    StateRun run{all.begin + at, all.begin + stop, all.flat + at, all.offset + at, {}, {}, {}, {}};
    std::vector<kernels::UpdatePiece> segments;  // relative to the run's beginning
    for (size_t i = first; i < parts.size() && parts[i].begin < stop; ++i) {
      const Part& part = parts[i];
      const int64_t begin = std::max(part.begin, at) - at, end = std::min(part.end, stop) - at;
      const int64_t key = part.key >= 0 ? part.key : std::ssize(run.tensors);
      run.tensors.push_back(part.tensor);
      if (!segments.empty() && segments.back().hyper == key) {
        segments.back().end = end;
      } else {
        segments.push_back({begin, end, key});
      }
    }
    cut_pieces(run.end - run.begin, segments, run.pieces, run.first);
    runs_.push_back(std::move(run));
  }
}

void cut_pieces(int64_t n, std::span<const kernels::UpdatePiece> segments,
                std::vector<kernels::UpdatePiece>& pieces, std::vector<int64_t>& first) {
  size_t segment = 0;
  for (int64_t at = 0; at < n; at += kernels::kUpdateChunk) {
    first.push_back(static_cast<int64_t>(pieces.size()));
    const int64_t stop = std::min(n, at + kernels::kUpdateChunk);
    while (segment < segments.size() && segments[segment].end <= at) ++segment;
    for (size_t i = segment; i < segments.size() && segments[i].begin < stop; ++i) {
      pieces.push_back(
          {std::max(at, segments[i].begin), std::min(stop, segments[i].end), segments[i].hyper});
    }
  }
  first.push_back(static_cast<int64_t>(pieces.size()));
}

void StateSpace::take_weights(const StateRun& run, const FlatTensors& tensors, Access access,
                              MappedRun& out) {
  const auto map = [&](const FlatTensor& array) {
    const Range range = range_of(array, run);
    return array ? out.take(array.map(range.begin, range.end, access)) : Tensor();
  };
  if (tensors.low_halves) {
    out.part.weight = map(tensors.model);
    out.part.low = map(tensors.low_halves);
    return;
  }
  out.part.master = map(tensors.masters);
  const Tensor model = map(tensors.model);
  if (!model || model.dtype() != DType::kFloat32) {
    out.part.model = model;
  } else if (access != Access::kRead) {
    out.copy = model;
  }
}

void StateSpace::take_states(const StateRun& run, Access access, MappedRun& out) const {
  const int64_t end = run.offset + run.end - run.begin;
  const Range blocks = scales_of(run.offset, end);
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const auto& [data, scales] = arrays_[i];
    out.part.states[i].data = out.take(data.map(run.offset, end, access));
    if (scales) out.part.states[i].scales = out.take(scales.map(blocks.begin, blocks.end, access));
  }
}

int64_t StateSpace::on_device(const StateRun& run, const FlatTensors& tensors) const {
  const int64_t n = run.end - run.begin;
  int64_t count = n;
  const auto limit = [&](const StoredArray& array, int64_t begin, int64_t each) {
    count = std::clamp<int64_t>(array.device_elements() * each - begin, 0, count);
  };
  if (tensors.low_halves) {
    limit(tensors.model, range_of(tensors.model, run).begin, 1);
    limit(tensors.low_halves, range_of(tensors.low_halves, run).begin, 1);
  } else {
    if (tensors.model) return 0;
    limit(tensors.masters, range_of(tensors.masters, run).begin, 1);
  }
  for (const StateArray& array : arrays_) {
    limit(array.data, run.offset, 1);
    if (array.scales) limit(array.scales, run.offset, kernels::kStateBlock);
  }
  return count == n ? n : count / kernels::kStateBlock * kernels::kStateBlock;
}

void StateSpace::cut_where_places_change(const FlatTensors& tensors) {
  if (std::exchange(places_cut_, true)) return;
  const auto any = [&](const StateRun& run) { return on_device(run, tensors) > 0; };
  if (std::ranges::none_of(runs_, any)) return;
  std::vector<StateRun> runs;
  for (StateRun& run : runs_) {
    const int64_t here = on_device(run, tensors), n = run.end - run.begin;
    if (here > 0 && here < n) {
      runs.push_back(part_of(run, 0, here));
      runs.push_back(part_of(run, here, n));
    } else {
      runs.push_back(std::move(run));
    }
  }
  runs_ = std::move(runs);
  const FlatTensor& masters = tensors.low_halves ? tensors.low_halves : tensors.masters;
  for (StateRun& run : runs_) {
    if (!any(run)) continue;
    const Range range = range_of(masters, run);
    const std::shared_ptr<Device> gpu = masters.view(range.begin, range.end).storage()->device();
    run.tables = ops::make_update_tables(gpu, run.pieces, run.first);
  }
}

std::optional<MappedRun> StateSpace::map_on_device(const StateRun& run,
                                                   const FlatTensors& tensors) const {
  const int64_t n = run.end - run.begin;
  if (on_device(run, tensors) < n) return std::nullopt;
  MappedRun out;
  const auto view = [&](const FlatTensor& array) {
    const Range range = range_of(array, run);
    return array.view(range.begin, range.end);
  };
  if (tensors.low_halves) {
    out.part.weight = view(tensors.model);
    out.part.low = view(tensors.low_halves);
  } else {
    out.part.master = view(tensors.masters);
  }
  const Range blocks = scales_of(run.offset, run.offset + n);
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const auto& [data, scales] = arrays_[i];
    out.part.states[i].data = data.view(run.offset, run.offset + n);
    if (scales) out.part.states[i].scales = scales.view(blocks.begin, blocks.end);
  }
  out.device = (tensors.low_halves ? out.part.low : out.part.master).storage()->device();
  out.part.grad = to_one_device(tensors.gradients, range_of(tensors.gradients, run), out.device);
  return out;
}

MappedRun StateSpace::map(const StateRun& run, const FlatTensors& tensors, Writes writes) const {
  if (std::optional<MappedRun> there = map_on_device(run, tensors)) return std::move(*there);
  MappedRun out;
  take_weights(run, tensors, writes == Writes::kStates ? Access::kRead : Access::kReadWrite, out);
  const Range range = range_of(tensors.gradients, run);
  out.part.grad = out.take(tensors.gradients.map(range.begin, range.end, Access::kRead));
  take_states(run, writes == Writes::kWeights ? Access::kRead : Access::kReadWrite, out);
  return out;
}

MappedRun StateSpace::map_weights(const StateRun& run, const FlatTensors& tensors,
                                  Access access) const {
  MappedRun out;
  take_weights(run, tensors, access, out);
  return out;
}

MappedRun StateSpace::map_states(const StateRun& run, Access access) const {
  MappedRun out;
  take_states(run, access, out);
  return out;
}

void StateSpace::prefetch(const StateRun& run, const FlatTensors& tensors) const {
  for (const FlatTensor* const array :
       {&tensors.masters, &tensors.low_halves, &tensors.model, &tensors.gradients}) {
    const Range range = range_of(*array, run);
    array->prefetch(range.begin, range.end);
  }
  const int64_t end = run.offset + run.end - run.begin;
  const Range blocks = scales_of(run.offset, end);
  for (const StateArray& array : arrays_) {
    array.data.prefetch(run.offset, end);
    array.scales.prefetch(blocks.begin, blocks.end);
  }
}

// ---- state by tensor ----

void StateSpace::read(size_t place, size_t state, int64_t begin, int64_t end, float* out) const {
  if (begin == end) return;
  const int64_t from = offsets_[place] + begin, to = offsets_[place] + end;
  arrays_[state].read(from, to, out);
  const Waiting& waiting = waiting_[state];
  for (auto it = waiting.lower_bound(from / kernels::kStateBlock); it != waiting.end(); ++it) {
    const int64_t first = it->first * kernels::kStateBlock;
    if (first >= to) break;
    const int64_t low = std::max(from, first);
    const int64_t high = std::min(to, first + static_cast<int64_t>(it->second.size()));
    std::copy(it->second.begin() + (low - first), it->second.begin() + (high - first),
              out + (low - from));
  }
}

Tensor StateSpace::view(size_t place, size_t state, int64_t count) const {
  const StoredArray& array = arrays_[state].data;
  if (array.dtype() != DType::kFloat32 || !array.in_memory()) return {};
  const Tensor& data = array.memory();
  if (data.storage()->device_kind() != DeviceKind::kCpu) return {};
  return data.slice(0, offsets_[place], offsets_[place] + count);
}

void StateSpace::write(size_t place, size_t state, int64_t begin, int64_t end,
                       const float* values) {
  if (begin == end) return;
  constexpr int64_t kBlock = kernels::kStateBlock;
  const int64_t from = offsets_[place] + begin, to = offsets_[place] + end;
  StateArray& array = arrays_[state];
  if (!array.scales) return array.write(from, to, values);
  Waiting& waiting = waiting_[state];
  for (int64_t i = from; i < to;) {
    const int64_t block = i / kBlock, first = block * kBlock;
    const int64_t last = std::min(first + kBlock, elements());
    int64_t stop = std::min(to, last);
    if (i == first && stop == last) {
      stop = to == elements() ? to : to / kBlock * kBlock;  // all whole blocks
      waiting.erase(waiting.lower_bound(block), waiting.lower_bound(whole_blocks(stop) / kBlock));
      array.write(i, stop, values + (i - from));
    } else {
      std::vector<float>& waits = waiting[block];
      if (waits.empty()) {
        waits.resize(static_cast<size_t>(last - first));
        array.read(first, last, waits.data());
      }
      std::copy(values + (i - from), values + (stop - from), waits.begin() + (i - first));
    }
    i = stop;
  }
}

void StateSpace::encode_writes() {
  for (size_t state = 0; state < waiting_.size(); ++state) {
    for (const auto& [block, values] : waiting_[state]) {
      const int64_t first = block * kernels::kStateBlock;
      arrays_[state].write(first, first + static_cast<int64_t>(values.size()), values.data());
    }
    waiting_[state].clear();
  }
}

void StateSpace::flush() const {
  for (const StateArray& array : arrays_) {
    array.data.flush();
    array.scales.flush();
  }
}

}  // namespace ds::optim
