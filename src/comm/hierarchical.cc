#include "comm/hierarchical.h"

#include <algorithm>
#include <cstring>

namespace ds::comm {

GatherTexts gather_of_node(const GatherTexts& gather, std::vector<int> members) {
  return [&gather, members = std::move(members)](const std::string& text) {
    std::vector<std::string> texts = gather(text);
    std::vector<std::string> ours;
    for (const int member : members) ours.push_back(std::move(texts[static_cast<size_t>(member)]));
    return ours;
  };
}

HierarchicalTransport::HierarchicalTransport(std::unique_ptr<Transport> local,
                                             std::unique_ptr<Transport> all,
                                             std::vector<int> node_of)
    : Transport(all->rank(), all->size()),
      local_(std::move(local)),
      all_(std::move(all)),
      node_of_(std::move(node_of)),
      members_(static_cast<size_t>(std::ranges::max(node_of_)) + 1) {
  for (int rank = 0; rank < size(); ++rank) {
    std::vector<int>& node = members_[static_cast<size_t>(node_of_[static_cast<size_t>(rank)])];
    local_index_.push_back(static_cast<int>(std::ssize(node)));
    node.push_back(rank);
  }
  for (const std::vector<int>& node : members_) {
    columns_ = columns_ && node.size() == members_[0].size();
  }
}

void HierarchicalTransport::exchange(const Record& mine, std::span<const std::byte> payload,
                                     const Watch& watch) {
  last_ = mine;
  for (int peer = 0; peer < size(); ++peer) {
    if (!near(peer)) sent_.add_block(static_cast<int64_t>(payload.size()), false);
  }
  all_->exchange(mine, payload, watch);
}

int64_t HierarchicalTransport::write_some(int peer, const std::byte* data, int64_t bytes) {
  const int64_t n = all_->write_some(peer, data, bytes);
  if (!near(peer)) sent_.across_nodes += n;
  return n;
}

void HierarchicalTransport::raise(Code code, std::string_view text) noexcept {
  all_->raise(code, text);
  local_->raise(code, text);
}

void HierarchicalTransport::check_raised() const {
  all_->check_raised();
  local_->check_raised();
}

Tensor HierarchicalTransport::shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                                            const Shape& shape, MemoryTag tag,
                                            const GatherTexts& gather) {
  const auto node = static_cast<size_t>(node_of_[static_cast<size_t>(rank())]);
  return local_->shared_tensor(device, dtype, shape, tag, gather_of_node(gather, members_[node]));
}

std::unique_ptr<Transport> HierarchicalTransport::split(const std::vector<int>& members,
                                                        const GatherTexts& gather,
                                                        const Watch& watch) {
  const auto node = static_cast<size_t>(node_of_[static_cast<size_t>(rank())]);
  std::vector<int> nodes, node_ranks, near_members;
  for (const int member : members) {
    nodes.push_back(node_of_[static_cast<size_t>(member)]);
    if (!near(member)) continue;
    node_ranks.push_back(local_index_[static_cast<size_t>(member)]);
    near_members.push_back(static_cast<int>(std::ssize(nodes)) - 1);
  }
  auto local = local_->split(node_ranks, gather_of_node(gather, members_[node]), watch);
  auto all = all_->split(members, gather, watch);
  if (!all) return nullptr;
  if (auto* const shm = dynamic_cast<ShmTransport*>(local.get())) shm->call_ranks(near_members);
  std::vector<int> seen;
  for (int& n : nodes) {
    const auto found = std::ranges::find(seen, n);
    const auto index = static_cast<int>(found - seen.begin());
    if (found == seen.end()) seen.push_back(n);
    n = index;
  }
  return std::make_unique<HierarchicalTransport>(std::move(local), std::move(all),
                                                 std::move(nodes));
}

// ---- movements ----

void HierarchicalTransport::move(const Movement& movement, const Watch& watch) {
  const bool gather = movement.same_to_all && has_columns() && members_.size() > 1 &&
                      record(rank()).kind != Collective::kBroadcast &&
                      std::ranges::all_of(movement.sends, [](char sends) { return sends != 0; });
  if (gather) return gather_by_columns(movement, watch);
  move_blocks(movement, false, watch);
}

void HierarchicalTransport::move_local(const Movement& movement, bool stage, const Watch& watch) {
  const auto node = static_cast<size_t>(node_of_[static_cast<size_t>(rank())]);
  const std::vector<int>& ours = members_[node];
  Movement near_movement;
  near_movement.input = movement.input;
  near_movement.output = movement.output;
  near_movement.same_to_all = movement.same_to_all;
  near_movement.largest = movement.largest;
  const auto pick = [&](const auto& from, auto& to) {
    for (const int member : ours) {
      if (!from.empty()) to.push_back(from[static_cast<size_t>(member)]);
    }
  };
  pick(movement.send, near_movement.send);
  pick(movement.receive, near_movement.receive);
  pick(movement.source_offset, near_movement.source_offset);
  pick(movement.target_offset, near_movement.target_offset);
  pick(movement.sends, near_movement.sends);
  pick(movement.receives, near_movement.receives);
  Record record = last_;
  if (stage) record.input = record.output = {};
  // A rank of this node may be waiting for one of another node. Whoever waits for that one directly
  // is to report first, and name it; the others get its error. Ranks of other nodes may ask
  // meanwhile whom this rank waits for.
  Watch longer = watch;
  longer.grace = std::clamp<std::chrono::milliseconds>(
      watch.allowed / 4, std::chrono::milliseconds(500), std::chrono::seconds(5));
  longer.beside = all_.get();
  local_->exchange(record, {}, longer);
  local_->move(near_movement, longer);
}

void HierarchicalTransport::move_blocks(const Movement& movement, bool stage, const Watch& watch) {
  move_local(movement, stage, watch);
  Movement far = movement;
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<size_t>(peer);
    if (near(peer)) {
      far.send[i] = far.receive[i] = {};
    } else {
      sent_.add_block(far.send[i].bytes, false);
    }
  }
  all_->move(far, watch);
}

// Every rank sends its block to one rank of each other node, that of its own place there. Then the
// ranks of a node give each other what they got, node after node.
void HierarchicalTransport::gather_by_columns(const Movement& movement, const Watch& watch) {
  const int column = local_index_[static_cast<size_t>(rank())];
  const auto own_node = static_cast<size_t>(node_of_[static_cast<size_t>(rank())]);
  Movement far = movement;
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<size_t>(peer);
    if (near(peer) || local_index_[i] != column) {
      far.send[i] = far.receive[i] = {};
    } else {
      sent_.add_block(far.send[i].bytes, false);
    }
  }
  all_->move(far, watch);

  // A rank that has joined has no buffers, but its column still serves the others.
  for (size_t node = 0; node < members_.size(); ++node) {
    const std::vector<int>& theirs = members_[node];
    const std::vector<int>& ours = members_[own_node];
    Movement step = movement;
    step.send.assign(static_cast<size_t>(size()), {});
    step.receive.assign(static_cast<size_t>(size()), {});
    step.source_offset.assign(static_cast<size_t>(size()), 0);
    step.target_offset.clear();
    const auto block_from = static_cast<size_t>(theirs[static_cast<size_t>(column)]);
    const bool own = node == own_node;
    // What this column hands on: its own block, or the one that it got from that node.
    const Movement::Block block =
        own ? movement.send[static_cast<size_t>(rank())] : movement.receive[block_from];
    if (!own) step.input = movement.output;
    for (size_t k = 0; k < ours.size(); ++k) {
      const auto peer = static_cast<size_t>(ours[k]);
      const Movement::Block& wanted = movement.receive[static_cast<size_t>(theirs[k])];
      if (movement.receives[peer]) step.send[peer] = block;
      step.receive[peer] = wanted;
      // Blocks that came from far lie in the outputs already.
      if (!own && static_cast<int>(peer) == rank()) step.send[peer] = step.receive[peer] = {};
    }
    if (own) step.source_offset = movement.source_offset;
    move_local(step, !own, watch);
  }
}

// ---- reductions ----

// By movements: everybody's elements of a part meet at one rank, in chunks, and are combined in
// rank order there.
void HierarchicalTransport::reduce(const Reduction& reduction, const Watch& watch) {
  const int64_t element = dtype_size(reduction.dtype);
  const bool pieces = reduction.result == Reduction::Result::kPieces;
  const auto self = static_cast<size_t>(rank());
  std::vector<Range> parts;
  int64_t longest = 0;
  for (int peer = 0; peer < size(); ++peer) {
    parts.push_back(pieces ? Range{reduction.count * peer, reduction.count * (peer + 1)}
                           : part_of(reduction.count, peer, size(), element));
    longest = std::max(longest, parts.back().size());
  }
  const auto wants = [&](int peer) {
    const bool present = reduction.contributes[static_cast<size_t>(peer)] != 0;
    return reduction.result == Reduction::Result::kRoot ? peer == reduction.root : present;
  };
  constexpr int64_t kChunkBytes = int64_t{256} << 10;
  const int64_t step = kChunkBytes / element, chunk = std::min(step, longest) * element;
  const bool keeps = !wants(rank());  // its own tensor, or has none
  const int64_t elsewhere = keeps && !pieces ? parts[self].size() * element : 0;
  scratch_.resize(static_cast<size_t>(chunk * size() + elsewhere));
  std::byte* result = pieces  ? reduction.output
                      : keeps ? scratch_.data() + chunk * size()
                              : reduction.output + parts[self].begin * element;

  Movement m;
  m.sends = reduction.contributes;
  m.receives.assign(static_cast<size_t>(size()), 1);
  std::vector<const std::byte*> inputs;
  for (int64_t at = 0; at < longest; at += step) {
    const auto bytes = [&](int peer) {
      if (pieces && !wants(peer)) return int64_t{0};
      return std::clamp<int64_t>(parts[static_cast<size_t>(peer)].size() - at, 0, step) * element;
    };
    m.input = reduction.input;
    m.output = scratch_.data();
    m.send.assign(static_cast<size_t>(size()), {});
    m.receive.assign(static_cast<size_t>(size()), {});
    m.largest = std::min(step, longest - at) * element;
    inputs.clear();
    for (int peer = 0; peer < size(); ++peer) {
      const auto i = static_cast<size_t>(peer);
      if (reduction.input != nullptr) m.send[i] = {(parts[i].begin + at) * element, bytes(peer)};
      if (!reduction.contributes[i]) continue;
      m.receive[i] = {chunk * peer, bytes(rank())};
      inputs.push_back(scratch_.data() + chunk * peer);
    }
    move_blocks(m, true, watch);
    if (bytes(rank()) > 0) {
      combine_inputs(reduction, inputs, {result + at * element}, bytes(rank()) / element, false);
    }
  }
  if (pieces) return;

  Movement back;
  back.sends.assign(static_cast<size_t>(size()), 1);
  back.receives.resize(static_cast<size_t>(size()));
  back.send.resize(static_cast<size_t>(size()));
  back.receive.resize(static_cast<size_t>(size()));
  back.input = result;
  back.output = reduction.output;
  back.same_to_all = true;
  back.largest = longest * element;
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<size_t>(peer);
    back.receives[i] = wants(peer) ? 1 : 0;
    if (wants(peer) && peer != rank()) back.send[i] = {0, parts[self].size() * element};
    if (wants(rank()) && peer != rank()) {
      back.receive[i] = {parts[i].begin * element, parts[i].size() * element};
    }
  }
  move_blocks(back, true, watch);
}

}  // namespace ds::comm
