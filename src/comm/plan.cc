#include "comm/plan.h"

#include <algorithm>

namespace ds::comm {
namespace {

using Block = Movement::Block;

// Sizes and offsets in bytes of blocks that lie one after another.
std::vector<Block> blocks_of(const std::vector<int64_t>& counts, int64_t element) {
  std::vector<Block> blocks;
  int64_t at = 0;
  for (const int64_t count : counts) {
    blocks.push_back({at, count * element});
    at += count * element;
  }
  return blocks;
}

}  // namespace

bool is_reduction(Collective kind) {
  return kind == Collective::kAllReduce || kind == Collective::kReduce ||
         kind == Collective::kReduceScatter;
}

int64_t inline_bytes(const Record& record, int size) {
  const int64_t bytes = record.count * dtype_size(static_cast<DType>(record.dtype));
  switch (record.kind) {
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kScatter:
      return bytes <= kMaxPayload ? bytes * size : bytes;
    case Collective::kAllGatherV:
      return record.largest;
    case Collective::kAllToAllV:
      return kMaxPayload + 1;  // its payload is the counts
    default:
      return bytes;
  }
}

int64_t payload_bytes(const Record& reference, const Operation* operation, int sender, int size) {
  if (reference.kind == Collective::kAllToAllV) return size * static_cast<int64_t>(sizeof(int64_t));
  if (reference.kind == Collective::kSplit || reference.kind == Collective::kSharedTensor)
    return -1;
  if (!reference.has(Record::kInline)) return 0;
  const int64_t element = dtype_size(static_cast<DType>(reference.dtype));
  const int64_t bytes = reference.count * element;
  switch (reference.kind) {
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return bytes * size;
    case Collective::kAllGatherV:
      if (operation == nullptr) return -1;
      return operation->output_counts[static_cast<size_t>(sender)] * element;
    case Collective::kBroadcast:
      return sender == reference.root ? bytes : 0;
    case Collective::kScatter:
      return sender == reference.root ? bytes * size : 0;
    default:
      return bytes;
  }
}

namespace {

// All-to-all with counts: every rank says how many elements go to each, which must be what that
// expects.
void plan_counted_pieces(const PlanInput& in, Movement& m) {
  const Operation* const op = in.operation;
  if (op == nullptr) return;
  const auto size = static_cast<size_t>(in.size), self = static_cast<size_t>(in.rank);
  const int64_t element = dtype_size(static_cast<DType>(in.reference->dtype));
  m.send = blocks_of(op->input_counts, element);
  m.receive = blocks_of(op->output_counts, element);
  for (size_t i = 0; i < size; ++i) {
    if (in.sent_counts[i] == nullptr) continue;
    for (size_t j = 0; j < size; ++j) {
      DS_CHECK(in.sent_counts[i][j] >= 0 && in.sent_counts[i][j] <= (int64_t{1} << 50), Code::kComm,
               describe(op->record), ": rank ", i, " sends ", in.sent_counts[i][j],
               " elements to rank ", j);
    }
    DS_CHECK(in.sent_counts[i][self] == op->output_counts[i], Code::kComm, describe(op->record),
             ": rank ", i, " sends ", in.sent_counts[i][self], " elements to rank ", self,
             ", which expects ", op->output_counts[i]);
    for (size_t j = 0; j < self; ++j) m.source_offset[i] += in.sent_counts[i][j] * element;
  }
}

// Nothing goes to or comes from ranks that are not there, nor to one that only forwards.
void drop_absent(const PlanInput& in, Movement& m) {
  for (size_t i = 0; i < static_cast<size_t>(in.size); ++i) {
    if ((*in.present)[i]) continue;
    m.sends[i] = m.receives[i] = 0;
    m.send[i] = {};
    m.receive[i].bytes = 0;  // its offset stays: the group clears the place
  }
  if (in.operation == nullptr) {
    std::ranges::fill(m.send, Block());
    std::ranges::fill(m.receive, Block());
  }
}

// Of nothing, between the memory of the operation.
Movement empty_movement(const PlanInput& in, size_t size) {
  Movement m;
  m.send.resize(size);
  m.receive.resize(size);
  m.sends.assign(size, 1);
  m.receives.assign(size, 1);
  m.source_offset.assign(size, 0);
  m.target_offset.assign(size, 0);
  if (const Operation* const op = in.operation) {
    if (op->input) m.input = static_cast<const std::byte*>(op->input.raw());
    if (op->output) m.output = static_cast<std::byte*>(op->output.raw());
  }
  return m;
}

}  // namespace

Movement plan_movement(const PlanInput& in) {
  const Record& record = *in.reference;
  const auto size = static_cast<size_t>(in.size), self = static_cast<size_t>(in.rank);
  const int64_t element = dtype_size(static_cast<DType>(record.dtype));
  const int64_t piece = record.count * element;  // for kinds with equal pieces
  Movement m = empty_movement(in, size);
  m.largest = record.largest > 0 ? record.largest : piece;
  const Operation* const op = in.operation;
  const auto root = static_cast<size_t>(record.root);
  const auto only = [&](std::vector<char>& flags) {
    std::ranges::fill(flags, char{0});
    flags[root] = 1;
  };
  const auto equal_blocks = [&](std::vector<Block>& blocks) {
    for (size_t i = 0; i < size; ++i) blocks[i] = {static_cast<int64_t>(i) * piece, piece};
  };
  const auto own_offset = static_cast<int64_t>(self) * piece;

  switch (record.kind) {
    case Collective::kAllGather:
      std::ranges::fill(m.send, Block{0, piece});
      equal_blocks(m.receive);
      std::ranges::fill(m.target_offset, own_offset);
      m.same_to_all = true;
      break;
    case Collective::kAllGatherV:
      m.same_to_all = true;
      if (op == nullptr) break;
      m.receive = blocks_of(op->output_counts, element);
      std::ranges::fill(m.send, Block{0, m.receive[self].bytes});
      std::ranges::fill(m.target_offset, m.receive[self].offset);
      break;
    case Collective::kBroadcast:
      m.same_to_all = true;
      only(m.sends);
      m.receives[root] = 0;
      if (self == root) {
        std::ranges::fill(m.send, Block{0, piece});
        m.send[root] = {};
      } else {
        m.receive[root] = {0, piece};
      }
      break;
    case Collective::kAllToAll:
      equal_blocks(m.send);
      equal_blocks(m.receive);
      std::ranges::fill(m.source_offset, own_offset);
      std::ranges::fill(m.target_offset, own_offset);
      break;
    case Collective::kAllToAllV:
      m.target_offset.clear();
      plan_counted_pieces(in, m);
      break;
    case Collective::kGather:
      only(m.receives);
      m.send[root] = {0, piece};
      if (self == root) equal_blocks(m.receive);
      m.target_offset[root] = own_offset;
      break;
    case Collective::kScatter:
      only(m.sends);
      if (self == root) equal_blocks(m.send);
      m.receive[root] = {0, piece};
      m.source_offset[root] = own_offset;
      break;
    default:
      fail(Code::kInternal, "no movement for ", collective_name(record.kind));
  }
  drop_absent(in, m);
  return m;
}

}  // namespace ds::comm
