// Reductions and movements over shared memory. Direct ways leave every buffer where it is; staged
// ways copy chunks into slots. A slot is used every second round, and a rank enters the round after
// next only when all have entered the next one, so nobody still reads what is overwritten.
#include <algorithm>

#include "comm/shm/shm_transport.h"

namespace ds::comm {

bool ShmTransport::inputs_shared(const std::vector<char>& of_ranks) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (of_ranks[static_cast<size_t>(peer)] && record(peer).input.region == 0) return false;
  }
  return true;
}

bool ShmTransport::outputs_shared(const std::vector<char>& of_ranks) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (of_ranks[static_cast<size_t>(peer)] && record(peer).output.region == 0) return false;
  }
  return true;
}

void ShmTransport::reduce(const Reduction& reduction, const Watch& watch) {
  const bool pieces = reduction.result == Reduction::Result::kPieces;
  const bool direct = inputs_shared(reduction.contributes);
  if (pieces && direct) return reduce_pieces_direct(reduction, watch);
  if (pieces) return reduce_pieces_staged(reduction, watch);
  if (direct) return reduce_whole_direct(reduction, watch);
  reduce_whole_staged(reduction, watch);
}

// Each rank reduces its part of the whole and writes it to all that want it: only it reads those
// elements, so it may overwrite them.
void ShmTransport::reduce_whole_direct(const Reduction& reduction, const Watch& watch) {
  const int64_t element = dtype_size(reduction.dtype);
  const Range part = part_of(reduction.count, rank(), size(), element);
  if (part.size() > 0) {
    inputs_.clear();
    outputs_.clear();
    for (int peer = 0; peer < size(); ++peer) {
      if (!reduction.contributes[static_cast<size_t>(peer)]) continue;
      std::byte* const data = shared(record(peer).input, peer) + part.begin * element;
      inputs_.push_back(data);
      if (reduction.result == Reduction::Result::kEverywhere || peer == reduction.root) {
        outputs_.push_back(data);
      }
    }
    combine_inputs(reduction, inputs_, outputs_, part.size(),
                   reduction.count * element >= kStreamBytes);
  }
  sync(watch);
}

void ShmTransport::reduce_whole_staged(const Reduction& reduction, const Watch& watch) {
  const int64_t element = dtype_size(reduction.dtype);
  const int64_t chunk = static_cast<int64_t>(kSlotBytes) / element;
  const bool wanted =
      reduction.output != nullptr &&
      (reduction.result == Reduction::Result::kEverywhere || reduction.root == rank());
  for (int64_t at = 0; at < reduction.count; at += chunk) {
    ++rounds_;
    const int64_t n = std::min(chunk, reduction.count - at);
    if (reduction.input != nullptr) {
      copy_bytes(slot(rank()), reduction.input + at * element, n * element, false);
    }
    sync(watch);
    const Range part = part_of(n, rank(), size(), element);
    if (part.size() > 0) {
      inputs_.clear();
      for (int peer = 0; peer < size(); ++peer) {
        if (!reduction.contributes[static_cast<size_t>(peer)]) continue;
        inputs_.push_back(slot(peer) + part.begin * element);
      }
      outputs_.assign(1, slot(rank()) + part.begin * element);
      combine_inputs(reduction, inputs_, outputs_, part.size(), false);
    }
    sync(watch);
    if (!wanted) continue;
    for (int peer = 0; peer < size(); ++peer) {
      const Range theirs = part_of(n, peer, size(), element);
      copy_bytes(reduction.output + (at + theirs.begin) * element,
                 slot(peer) + theirs.begin * element, theirs.size() * element,
                 reduction.count * element >= kStreamBytes);
    }
  }
}

void ShmTransport::reduce_pieces_direct(const Reduction& reduction, const Watch& watch) {
  const int64_t bytes = reduction.count * dtype_size(reduction.dtype);
  if (reduction.output != nullptr && bytes > 0) {
    inputs_.clear();
    for (int peer = 0; peer < size(); ++peer) {
      if (!reduction.contributes[static_cast<size_t>(peer)]) continue;
      inputs_.push_back(shared(record(peer).input, peer) + bytes * rank());
    }
    outputs_.assign(1, reduction.output);
    combine_inputs(reduction, inputs_, outputs_, reduction.count, bytes >= kStreamBytes);
  }
  sync(watch);
}

void ShmTransport::reduce_pieces_staged(const Reduction& reduction, const Watch& watch) {
  const int64_t element = dtype_size(reduction.dtype), piece = reduction.count * element;
  const int64_t lane = static_cast<int64_t>(kSlotBytes) / size() / 64 * 64;
  for (int64_t at = 0; at < piece; at += lane) {
    ++rounds_;
    const int64_t n = std::min(lane, piece - at);
    for (int peer = 0; reduction.input != nullptr && peer < size(); ++peer) {
      copy_bytes(slot(rank()) + lane * peer, reduction.input + piece * peer + at, n, false);
    }
    sync(watch);
    if (reduction.output == nullptr) continue;
    inputs_.clear();
    for (int peer = 0; peer < size(); ++peer) {
      if (!reduction.contributes[static_cast<size_t>(peer)]) continue;
      inputs_.push_back(slot(peer) + lane * rank());
    }
    outputs_.assign(1, reduction.output + at);
    combine_inputs(reduction, inputs_, outputs_, n / element, piece >= kStreamBytes);
  }
}

void ShmTransport::move(const Movement& movement, const Watch& watch) {
  const auto self = static_cast<size_t>(rank());
  if (const Movement::Block& own = movement.send[self]; own.bytes > 0) {
    copy_bytes(movement.output + movement.receive[self].offset, movement.input + own.offset,
               own.bytes, own.bytes >= kStreamBytes);
  }
  if (!movement.source_offset.empty() && inputs_shared(movement.sends)) {
    pull(movement);
    sync(watch);
  } else if (!movement.target_offset.empty() && outputs_shared(movement.receives)) {
    push(movement);
    sync(watch);
  } else {
    move_staged(movement, watch);
  }
}

void ShmTransport::pull(const Movement& movement) {
  // Each rank begins with its neighbour, so that they do not all read one memory at once.
  for (int k = 1; k < size(); ++k) {
    const int peer = (rank() + k) % size();
    const Movement::Block& block = movement.receive[static_cast<size_t>(peer)];
    if (block.bytes == 0) continue;
    copy_bytes(movement.output + block.offset,
               shared(record(peer).input, peer) + movement.source_offset[static_cast<size_t>(peer)],
               block.bytes, block.bytes >= kStreamBytes);
  }
}

void ShmTransport::push(const Movement& movement) {
  for (int k = 1; k < size(); ++k) {
    const int peer = (rank() + k) % size();
    const Movement::Block& block = movement.send[static_cast<size_t>(peer)];
    if (block.bytes == 0) continue;
    copy_bytes(
        shared(record(peer).output, peer) + movement.target_offset[static_cast<size_t>(peer)],
        movement.input + block.offset, block.bytes, block.bytes >= kStreamBytes);
  }
}

void ShmTransport::move_staged(const Movement& movement, const Watch& watch) {
  const auto slot_bytes = static_cast<int64_t>(kSlotBytes);
  const int64_t lane = movement.same_to_all ? slot_bytes : slot_bytes / size() / 64 * 64;
  const auto chunk = [&](const Movement::Block& block, int64_t at) {
    return std::clamp<int64_t>(block.bytes - at, 0, lane);
  };
  // Of a block that is the same for all, one copy is enough: that for the first who wants it.
  const auto copies = [&](int peer) {
    if (peer == rank()) return false;
    if (!movement.same_to_all) return true;
    for (int before = 0; before < peer; ++before) {
      if (before != rank() && movement.send[static_cast<size_t>(before)].bytes > 0) return false;
    }
    return true;
  };
  for (int64_t at = 0; at < movement.largest; at += lane) {
    ++rounds_;
    for (int peer = 0; peer < size(); ++peer) {
      const Movement::Block& block = movement.send[static_cast<size_t>(peer)];
      if (block.bytes <= at || !copies(peer)) continue;
      copy_bytes(slot(rank()) + (movement.same_to_all ? 0 : lane * peer),
                 movement.input + block.offset + at, chunk(block, at), false);
    }
    sync(watch);
    for (int k = 1; k < size(); ++k) {
      const int peer = (rank() + k) % size();
      const Movement::Block& block = movement.receive[static_cast<size_t>(peer)];
      if (block.bytes <= at) continue;
      copy_bytes(movement.output + block.offset + at,
                 slot(peer) + (movement.same_to_all ? 0 : lane * rank()), chunk(block, at),
                 block.bytes >= kStreamBytes);
    }
  }
}

}  // namespace ds::comm
