#include "optim/state_space.h"

#include <algorithm>
#include <numeric>

namespace ds::optim {
namespace {

// Gaps shorter than the flat layout's alignment hold padding: zeros that an update leaves zero.
constexpr int64_t kPadding = 32;

int64_t whole_blocks(int64_t n) {
  return (n + kernels::kStateBlock - 1) / kernels::kStateBlock * kernels::kStateBlock;
}

ops::StateTensor make_array(const NamedState& state, OptimizerStateType type, int64_t n,
                            const std::shared_ptr<Device>& device) {
  const auto zeros = [&](DType dtype, int64_t count) {
    return Tensor::zeros(device, dtype, {count}, MemoryTag::kOptimizer);
  };
  ops::StateTensor out;
  switch (type) {
    case OptimizerStateType::kBf16:
      out.data = zeros(DType::kBFloat16, n);
      break;
    case OptimizerStateType::kInt8:
      out = {zeros(state.is_signed ? DType::kInt8 : DType::kUInt8, n),
             zeros(DType::kFloat32, whole_blocks(n) / kernels::kStateBlock)};
      break;
    default:
      out.data = zeros(DType::kFloat32, n);
  }
  if (state.initial == 0) return out;
  constexpr int64_t kAtOnce = 256 * kernels::kStateBlock;
  const std::vector<float> values(static_cast<size_t>(std::min(n, kAtOnce)),
                                  static_cast<float>(state.initial));
  for (int64_t i = 0; i < n; i += kAtOnce) {
    ops::write_state(out, i, std::min(n, i + kAtOnce), values.data());
  }
  return out;
}

// Elements [begin, end) of a state array; begin is at a block.
ops::StateTensor slice(const ops::StateTensor& array, int64_t begin, int64_t end) {
  ops::StateTensor out{array.data.slice(0, begin, end), {}};
  if (array.scales) {
    out.scales = array.scales.slice(0, begin / kernels::kStateBlock,
                                    whole_blocks(end) / kernels::kStateBlock);
  }
  return out;
}

}  // namespace

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
    arrays_.push_back(make_array(state, options.type, elements, device));
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
    cut(run, segments);
    runs_.push_back(std::move(run));
  }
}

void StateSpace::cut(StateRun& run, std::span<const kernels::UpdatePiece> segments) {
  const int64_t n = run.end - run.begin;
  size_t segment = 0;
  for (int64_t at = 0; at < n; at += kernels::kUpdateChunk) {
    run.first.push_back(static_cast<int64_t>(run.pieces.size()));
    const int64_t stop = std::min(n, at + kernels::kUpdateChunk);
    while (segment < segments.size() && segments[segment].end <= at) ++segment;
    for (size_t i = segment; i < segments.size() && segments[i].begin < stop; ++i) {
      run.pieces.push_back(
          {std::max(at, segments[i].begin), std::min(stop, segments[i].end), segments[i].hyper});
    }
  }
  run.first.push_back(static_cast<int64_t>(run.pieces.size()));
}

ops::UpdateTensors StateSpace::slices(const StateRun& run, FlatTensors& tensors) const {
  const auto part = [&](const FlatTensor& tensor) {
    const int64_t begin = tensor.compact ? run.begin : run.flat;
    return tensor ? tensor.data.slice(0, begin, begin + run.end - run.begin) : Tensor();
  };
  ops::UpdateTensors out;
  if (tensors.low_halves) {
    out.weight = part(tensors.model);
    out.low = part(tensors.low_halves);
  } else {
    out.master = part(tensors.masters);
    out.model = part(tensors.model);
  }
  out.grad = part(tensors.gradients);
  for (size_t i = 0; i < arrays_.size(); ++i) {
    out.states[i] = slice(arrays_[i], run.offset, run.offset + run.end - run.begin);
  }
  return out;
}

void StateSpace::read(size_t place, size_t state, int64_t begin, int64_t end, float* out) const {
  if (begin == end) return;
  const int64_t from = offsets_[place] + begin, to = offsets_[place] + end;
  ops::read_state(arrays_[state], from, to, out);
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
  const Tensor& data = arrays_[state].data;
  if (data.dtype() != DType::kFloat32) return {};
  if (data.storage()->device_kind() != DeviceKind::kCpu) return {};
  return data.slice(0, offsets_[place], offsets_[place] + count);
}

void StateSpace::write(size_t place, size_t state, int64_t begin, int64_t end,
                       const float* values) {
  if (begin == end) return;
  const int64_t from = offsets_[place] + begin, to = offsets_[place] + end;
  ops::StateTensor& array = arrays_[state];
  if (!array.scales) return ops::write_state(array, from, to, values);
  for (int64_t i = from; i < to;) {
    const int64_t block = i / kernels::kStateBlock, first = block * kernels::kStateBlock;
    const int64_t last = std::min(first + kernels::kStateBlock, elements());
    const int64_t stop = std::min(to, last);
    if (i == first && stop == last) {
      waiting_[state].erase(block);
      ops::write_state(array, i, stop, values + (i - from));
    } else {
      std::vector<float>& waits = waiting_[state][block];
      if (waits.empty()) {
        waits.resize(static_cast<size_t>(last - first));
        ops::read_state(array, first, last, waits.data());
      }
      std::copy(values + (i - from), values + (stop - from), waits.begin() + (i - first));
    }
    i = stop;
  }
}

void StateSpace::flush_writes() {
  for (size_t state = 0; state < waiting_.size(); ++state) {
    for (const auto& [block, values] : waiting_[state]) {
      const int64_t first = block * kernels::kStateBlock;
      ops::write_state(arrays_[state], first, first + static_cast<int64_t>(values.size()),
                       values.data());
    }
    waiting_[state].clear();
  }
}

}  // namespace ds::optim
