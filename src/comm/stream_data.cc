// Records, movements and reductions over byte streams.
#include <algorithm>
#include <cstring>

#include "comm/stream_transport.h"

namespace ds::comm {
namespace {

// Of what one peer sends in a step of a reduction; all peers send at once.
constexpr int64_t kChunkBytes = int64_t{512} << 10;

}  // namespace

int64_t StreamTransport::pass(std::vector<Part>& parts, bool send, const Watch& watch) {
  int64_t moved = 0;
  for (Part& part : parts) {
    while (part.done < part.bytes) {
      std::byte* const at = part.data + part.done;
      const int64_t left = part.bytes - part.done;
      const int64_t n =
          send ? send_some(kData, part.peer, at, left) : receive_some(kData, part.peer, at, left);
      if (n < 0) fail_lost(part.peer, watch);
      if (n == 0) break;
      part.done += n;
      moved += n;
    }
  }
  return moved;
}

void StreamTransport::transfer(std::vector<Part>& sends, std::vector<Part>& receives,
                               const Watch& watch) {
  const auto open = [](const std::vector<Part>& parts) {
    std::vector<int> peers;
    for (const Part& part : parts) {
      if (part.done < part.bytes) peers.push_back(part.peer);
    }
    return peers;
  };
  while (true) {
    const int64_t moved = pass(sends, true, watch) + pass(receives, false, watch);
    const std::vector<int> writable = open(sends), readable = open(receives);
    if (writable.empty() && readable.empty()) return;
    if (moved == 0) await(readable, writable, kData, watch);
  }
}

void StreamTransport::exchange(const Record& mine, std::span<const std::byte> payload,
                               const Watch& watch) {
  // What peers sent before they failed may be complete: their failure counts nevertheless.
  hear_control();
  check_raised();
  const uint32_t turn = ++exchanges_ & 1;
  Heard& self = heard_[static_cast<size_t>(rank())];
  self.records[turn] = mine;
  self.records[turn].payload = static_cast<int32_t>(payload.size());
  self.payloads[turn].assign(payload.begin(), payload.end());
  // One message for record and payload.
  scratch_.resize(sizeof(Record) + payload.size());
  std::memcpy(scratch_.data(), &self.records[turn], sizeof(Record));
  if (!payload.empty()) {
    std::memcpy(scratch_.data() + sizeof(Record), payload.data(), payload.size());
  }
  sends_.clear();
  receives_.clear();
  for (int k = 1; k < size(); ++k) {
    const int to = (rank() + k) % size(), from = (rank() + size() - k) % size();
    sends_.push_back(sent(to, scratch_.data(), std::ssize(scratch_)));
    receives_.push_back(
        {from, reinterpret_cast<std::byte*>(&heard_[static_cast<size_t>(from)].records[turn]),
         static_cast<int64_t>(sizeof(Record))});
  }
  transfer(sends_, receives_, watch);
  sends_.clear();
  for (Part& part : receives_) {
    Heard& heard = heard_[static_cast<size_t>(part.peer)];
    const int32_t bytes = heard.records[turn].payload;
    DS_CHECK(bytes >= 0 && bytes <= kMaxPayload, Code::kComm, "rank ", part.peer,
             " sent a record that is none");
    heard.payloads[turn].resize(static_cast<size_t>(bytes));
    part = {part.peer, heard.payloads[turn].data(), bytes};
  }
  transfer(sends_, receives_, watch);
}

const Record& StreamTransport::record(int rank) const {
  return heard_[static_cast<size_t>(rank)].records[exchanges_ & 1];
}

const std::byte* StreamTransport::payload(int rank) const {
  return heard_[static_cast<size_t>(rank)].payloads[exchanges_ & 1].data();
}

void StreamTransport::move(const Movement& movement, const Watch& watch) {
  sends_.clear();
  receives_.clear();
  for (int k = 1; k < size(); ++k) {
    const int to = (rank() + k) % size(), from = (rank() + size() - k) % size();
    const Movement::Block& out = movement.send[static_cast<size_t>(to)];
    const Movement::Block& in = movement.receive[static_cast<size_t>(from)];
    if (out.bytes > 0) sends_.push_back(sent(to, movement.input + out.offset, out.bytes));
    if (in.bytes > 0) receives_.push_back({from, movement.output + in.offset, in.bytes});
  }
  const auto self = static_cast<size_t>(rank());
  if (const Movement::Block& own = movement.send[self]; own.bytes > 0) {
    copy_bytes(movement.output + movement.receive[self].offset, movement.input + own.offset,
               own.bytes, own.bytes >= kStreamBytes);
  }
  transfer(sends_, receives_, watch);
}

void StreamTransport::reduce_part(const Reduction& reduction, const std::vector<Range>& parts,
                                  std::byte* result, const Watch& watch) {
  const int64_t element = dtype_size(reduction.dtype);
  const auto self = static_cast<size_t>(rank());
  int64_t longest = 0;
  for (const Range& part : parts) longest = std::max(longest, part.size());
  const int64_t step = kChunkBytes / element;
  std::vector<std::byte> chunks(static_cast<size_t>(std::min(step, parts[self].size()) * element *
                                                    (result != nullptr ? size() : 0)));
  std::vector<const std::byte*> inputs;
  for (int64_t at = 0; at < longest; at += step) {
    const auto count = [&](const Range& part) {
      return std::clamp<int64_t>(part.size() - at, 0, step);
    };
    sends_.clear();
    receives_.clear();
    inputs.clear();
    const int64_t mine = result != nullptr ? count(parts[self]) : 0;
    for (int peer = 0; peer < size(); ++peer) {
      const auto i = static_cast<size_t>(peer);
      const Range& part = parts[i];
      if (peer == rank()) {
        if (reduction.input != nullptr) {
          inputs.push_back(reduction.input + (part.begin + at) * element);
        }
        continue;
      }
      if (reduction.input != nullptr && count(part) > 0) {
        sends_.push_back(
            sent(peer, reduction.input + (part.begin + at) * element, count(part) * element));
      }
      if (reduction.contributes[i] && mine > 0) {
        std::byte* const chunk =
            chunks.data() + std::min(step, parts[self].size()) * element * peer;
        receives_.push_back({peer, chunk, mine * element});
        inputs.push_back(chunk);
      }
    }
    transfer(sends_, receives_, watch);
    if (mine > 0) combine_inputs(reduction, inputs, {result + at * element}, mine, false);
  }
}

void StreamTransport::reduce(const Reduction& reduction, const Watch& watch) {
  const int64_t element = dtype_size(reduction.dtype);
  const auto self = static_cast<size_t>(rank());
  std::vector<Range> parts;
  if (reduction.result == Reduction::Result::kPieces) {
    for (int peer = 0; peer < size(); ++peer) {
      const int64_t begin = reduction.count * peer;
      // A rank that has joined wants no piece.
      parts.push_back(reduction.contributes[static_cast<size_t>(peer)]
                          ? Range{begin, begin + reduction.count}
                          : Range{begin, begin});
    }
    return reduce_part(reduction, parts, reduction.output, watch);
  }
  for (int peer = 0; peer < size(); ++peer) {
    parts.push_back(part_of(reduction.count, peer, size(), element));
  }
  const bool everywhere = reduction.result == Reduction::Result::kEverywhere;
  const auto wants = [&](int peer) {
    return everywhere ? reduction.contributes[static_cast<size_t>(peer)] != 0
                      : peer == reduction.root;
  };
  // Ranks that keep their tensor, or have none, put their part elsewhere.
  const int64_t part_bytes = parts[self].size() * element;
  std::vector<std::byte> elsewhere(wants(rank()) ? 0 : static_cast<size_t>(part_bytes));
  std::byte* const result =
      wants(rank()) ? reduction.output + parts[self].begin * element : elsewhere.data();
  reduce_part(reduction, parts, result, watch);
  sends_.clear();
  receives_.clear();
  for (int k = 1; k < size(); ++k) {
    const int to = (rank() + k) % size(), from = (rank() + size() - k) % size();
    const Range& theirs = parts[static_cast<size_t>(from)];
    if (wants(to) && part_bytes > 0) sends_.push_back(sent(to, result, part_bytes));
    if (wants(rank()) && theirs.size() > 0) {
      receives_.push_back(
          {from, reduction.output + theirs.begin * element, theirs.size() * element});
    }
  }
  transfer(sends_, receives_, watch);
}

}  // namespace ds::comm
