// One collective from the exchange of records to its result.
#include <algorithm>
#include <cstring>

#include "comm/group.h"

namespace ds::comm {

void Group::run(Operation& operation) {
  const Watch watch = watch_of(operation);
  Record& record = operation.record;
  record.sequence = ++sequence_;
  participants_ = 0;
  last_traffic_ = {};
  across_before_ = transport_->sent_across();
  transport_->announce(record, true);
  if (operation.body) {
    operation.body();
    participants_ = size();
    count(record, {});
  } else if (record.kind == Collective::kJoin) {
    while (true) {
      operation.deadline = Deadline::in(operation.allowed);  // of each answer
      const Watch answer = watch_of(operation);
      rendezvous(record, {}, answer);
      if (participants_ == 0) break;
      answer_for_joined(answer);
      record.sequence = ++sequence_;
      transport_->announce(record, true);
    }
    count(record, {});
  } else {
    if (operation.input) {
      record.input = transport_->locate(operation.input.raw(), operation.input.bytes());
    }
    if (operation.output) {
      record.output = operation.output.raw() == operation.input.raw() &&
                              operation.output.bytes() == operation.input.bytes()
                          ? record.input
                          : transport_->locate(operation.output.raw(), operation.output.bytes());
    }
    rendezvous(record, payload_of(operation), watch);
    carry_out(record, &operation, watch);
  }
  transport_->announce(record, false);
}

void Group::rendezvous(Record& record, std::span<const std::byte> payload, const Watch& watch) {
  transport_->check_raised();
  transport_->exchange(record, payload, watch);
  participants_ = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<size_t>(peer);
    records_[i] = &transport_->record(peer);
    check_record(*records_[i], peer, size());
    present_[i] = records_[i]->has(Record::kJoined) ? 0 : 1;
    participants_ += present_[i];
  }
  check_same_calls(records_, options_.checked);
}

// What peers sent is as long as the call says before anything is read from it.
void Group::check_payloads(const Record& reference, const Operation* operation) const {
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<size_t>(peer);
    const int64_t agreed = present_[i] ? payload_bytes(reference, operation, peer, size()) : 0;
    const int64_t sent = records_[i]->payload;
    DS_CHECK(agreed < 0 || sent == agreed, Code::kComm, describe(reference), ": rank ", peer,
             " sent ", sent, " bytes with its record, not ", agreed);
  }
}

void Group::answer_for_joined(const Watch& watch) {
  const auto first = std::ranges::find(present_, char{1}) - present_.begin();
  const Record reference = *records_[static_cast<size_t>(first)];
  carry_out(reference, nullptr, watch);
}

void Group::need_everybody(std::string_view why) const {
  if (participants_ == size()) return;
  std::vector<int> joined;
  for (int peer = 0; peer < size(); ++peer) {
    if (!present_[static_cast<size_t>(peer)]) joined.push_back(peer);
  }
  fail(Code::kComm, why, " needs every rank, and ", rank_list(joined), " called join");
}

void Group::carry_out(const Record& reference, Operation* operation, const Watch& watch) {
  check_payloads(reference, operation);
  switch (reference.kind) {
    case Collective::kBarrier:
      count(reference, {});
      return;
    case Collective::kFinalize:
    case Collective::kSplit:
    case Collective::kSharedTensor:
      need_everybody(collective_name(reference.kind));
      count(reference, {});
      return;
    default:
      break;
  }
  DS_CHECK(reference.root < 0 || present_[static_cast<size_t>(reference.root)], Code::kComm,
           describe(reference), ": its root called join");
  if (is_reduction(reference.kind)) {
    reduce(reference, operation, watch);
  } else {
    move(reference, operation, watch);
  }
}

void Group::reduce(const Record& reference, Operation* operation, const Watch& watch) {
  Reduction reduction;
  reduction.dtype = static_cast<DType>(reference.dtype);
  reduction.op = reference.op;
  reduction.divisor = reference.has(Record::kByParticipants) ? participants_ : size();
  reduction.count = reference.count;
  reduction.root = reference.root;
  reduction.contributes = present_;
  reduction.result = reference.kind == Collective::kReduceScatter ? Reduction::Result::kPieces
                     : reference.kind == Collective::kReduce      ? Reduction::Result::kRoot
                                                                  : Reduction::Result::kEverywhere;
  if (operation != nullptr) {
    reduction.input = static_cast<const std::byte*>(operation->input.raw());
    reduction.output = static_cast<std::byte*>(operation->output.raw());
  }
  if (!reference.has(Record::kInline)) {
    transport_->reduce(reduction, watch);
  } else if (operation != nullptr && reduction.count > 0 &&
             (reduction.root < 0 || reduction.root == rank())) {
    const bool pieces = reduction.result == Reduction::Result::kPieces;
    const int64_t offset =
        pieces ? reduction.count * dtype_size(reduction.dtype) * rank() : int64_t{0};
    std::vector<const std::byte*> inputs;
    for (int peer = 0; peer < size(); ++peer) {
      if (!present_[static_cast<size_t>(peer)]) continue;
      inputs.push_back(transport_->payload(peer) + offset);
    }
    combine_inputs(reduction, inputs, {reduction.output}, reduction.count, false);
  }
  if (operation != nullptr) count_reduction(reduction, reference);
}

void Group::move(const Record& reference, Operation* operation, const Watch& watch) {
  PlanInput in;
  in.reference = &reference;
  in.operation = operation;
  in.rank = rank();
  in.size = size();
  in.present = &present_;
  if (reference.kind == Collective::kAllToAllV) {
    for (int peer = 0; peer < size(); ++peer) {
      in.sent_counts.push_back(present_[static_cast<size_t>(peer)]
                                   ? reinterpret_cast<const int64_t*>(transport_->payload(peer))
                                   : nullptr);
    }
  }
  Movement movement = plan_movement(in);
  for (const Record* record : records_) {
    movement.largest = std::max(movement.largest, record->largest);
  }
  // What a rank that has joined would have sent is zero.
  if (operation != nullptr) {
    for (int peer = 0; peer < size(); ++peer) {
      const auto i = static_cast<size_t>(peer);
      if (present_[i] || movement.output == nullptr) continue;
      const int64_t element = dtype_size(static_cast<DType>(reference.dtype));
      int64_t bytes = 0;
      if (!operation->output_counts.empty()) {
        bytes = operation->output_counts[i] * element;
      } else if (reference.root < 0 || reference.kind == Collective::kGather) {
        bytes = reference.count * element;
      }
      std::memset(movement.output + movement.receive[i].offset, 0, static_cast<size_t>(bytes));
    }
  }
  if (!reference.has(Record::kInline)) {
    transport_->move(movement, watch);
  } else {
    for (int peer = 0; peer < size(); ++peer) {
      const Movement::Block& block = movement.receive[static_cast<size_t>(peer)];
      if (block.bytes == 0) continue;
      std::memcpy(movement.output + block.offset,
                  transport_->payload(peer) + movement.source_offset[static_cast<size_t>(peer)],
                  static_cast<size_t>(block.bytes));
    }
  }
  if (operation != nullptr) count_movement(movement, reference);
}

std::span<const std::byte> Group::payload_of(const Operation& operation) const {
  if (operation.record.kind == Collective::kAllToAllV) {
    return std::as_bytes(std::span(operation.input_counts));
  }
  if (!operation.record.has(Record::kInline) || !operation.input) return {};
  const bool from_root = operation.record.kind == Collective::kBroadcast ||
                         operation.record.kind == Collective::kScatter;
  if (from_root && operation.record.root != rank()) return {};
  return {static_cast<const std::byte*>(operation.input.raw()),
          static_cast<size_t>(operation.input.bytes())};
}

GatherTexts Group::gather_texts(Operation& operation) {
  return [this, &operation](const std::string& text) {
    DS_CHECK(std::ssize(text) <= kMaxPayload, Code::kInternal, "a text of ", text.size(),
             " bytes is too long for a record");
    rendezvous(operation.record, std::as_bytes(std::span(text)), watch_of(operation));
    need_everybody(collective_name(operation.record.kind));
    std::vector<std::string> texts;
    for (int peer = 0; peer < size(); ++peer) {
      texts.emplace_back(reinterpret_cast<const char*>(transport_->payload(peer)),
                         static_cast<size_t>(records_[static_cast<size_t>(peer)]->payload));
    }
    return texts;
  };
}

// ---- counters ----

bool Group::same_node(int peer) const {
  return topology().node_of[static_cast<size_t>(peer)] == topology().node;
}

void Group::count(const Record& record, Traffic sent) {
  const bool message = record.kind == Collective::kSend || record.kind == Collective::kRecv;
  if (const auto real = transport_->sent_across(); real && !message) {
    sent.across_nodes = real->across_nodes - across_before_->across_nodes;
    sent.messages_across = real->messages_across - across_before_->messages_across;
  }
  sent.calls = 1;
  last_traffic_ = sent;
  traffic_->add(record.kind, sent);
}

void Group::count_reduction(const Reduction& reduction, const Record& record) {
  const int64_t element = dtype_size(reduction.dtype);
  Traffic all;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    int64_t sent = 0;
    switch (reduction.result) {
      case Reduction::Result::kPieces:
        sent = reduction.count;
        break;
      case Reduction::Result::kRoot:
        sent = peer == reduction.root ? reduction.count : 0;
        break;
      case Reduction::Result::kEverywhere:
        sent = part_of(reduction.count, peer, size(), element).size() +
               part_of(reduction.count, rank(), size(), element).size();
        break;
    }
    all.add_block(sent * element, same_node(peer));
  }
  count(record, all);
}

void Group::count_movement(const Movement& movement, const Record& record) {
  Traffic sent;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    sent.add_block(movement.send[static_cast<size_t>(peer)].bytes, same_node(peer));
  }
  count(record, sent);
}

}  // namespace ds::comm
