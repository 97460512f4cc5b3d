#include "comm/record.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "comm/transport.h"

namespace ds::comm {

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  constexpr size_t kMost = 16;
  for (size_t i = 0; i < ranks.size() && i < kMost; ++i) {
    text += str_cat(i > 0 ? ", " : "", ranks[i]);
  }
  if (ranks.size() > kMost) text += str_cat(" and ", ranks.size() - kMost, " more");
  return text;
}

std::string peer_text(std::string_view text, size_t most) {
  std::string safe;
  text = text.substr(0, most);
  while (true) {
    const size_t end = std::min(text.find('\n'), text.size());
    safe += printable(text.substr(0, end), 4 * most);
    if (end == text.size()) return safe;
    safe += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string describe(const Record& record) {
  std::string text(collective_name(record.kind));
  if (record.has(Record::kJoined)) return "join";
  const bool reduces = record.kind == Collective::kAllReduce ||
                       record.kind == Collective::kReduce ||
                       record.kind == Collective::kReduceScatter;
  if (reduces) text += str_cat("(", reduce_op_name(record.op), ")");
  if (is_dtype(record.dtype)) {
    text += str_cat(" of ", record.count, " ", dtype_name(static_cast<DType>(record.dtype)));
    if (record.dims > 0 && record.dims <= kMaxDims) {
      text += " [";
      for (int i = 0; i < record.dims; ++i) text += str_cat(i > 0 ? ", " : "", record.sizes[i]);
      text += "]";
    }
  }
  if (record.root >= 0) text += str_cat(" root ", record.root);
  const std::string_view label(record.label, ::strnlen(record.label, Record::kLabel));
  if (!label.empty()) text += str_cat(" \"", printable(label, Record::kLabel), "\"");
  return text;
}

void check_record(const Record& record, int rank, int size) {
  const auto demand = [&](bool right, std::string_view field, int64_t value) {
    DS_CHECK(right, Code::kComm, "rank ", rank, " sent a record that is none: ", field, " is ",
             value);
  };
  const auto within = [&](int64_t value, int64_t least, int64_t most, std::string_view field) {
    demand(value >= least && value <= most, field, value);
  };
  using enum Collective;
  const auto kind = static_cast<int64_t>(record.kind);
  const bool moves = record.kind < kBarrier;
  const bool rooted = record.kind == kReduce || record.kind == kBroadcast ||
                      record.kind == kGather || record.kind == kScatter;
  const int64_t most = (int64_t{1} << 59) / size;
  within(kind, 0, kCollectives - 1, "its operation");
  demand(record.kind != kSend && record.kind != kRecv, "its operation", kind);
  demand(record.has(Record::kJoined) == (record.kind == kJoin), "its operation", kind);
  within(static_cast<int64_t>(record.op), 0, static_cast<int64_t>(ReduceOp::kMax), "its reduction");
  demand(!moves || is_dtype(record.dtype), "its element type", record.dtype);
  demand((record.flags &
          ~(Record::kJoined | Record::kByParticipants | Record::kInline | Record::kSameLabel)) == 0,
         "a flag", record.flags);
  within(record.root, rooted ? 0 : -1, rooted ? size - 1 : -1, "its root");
  within(record.count, 0, most, "its number of elements");
  within(record.largest, 0, most, "its largest block");
  within(record.dims, 0, kMaxDims, "its number of dimensions");
  within(record.payload, 0, kMaxPayload, "its payload");
}

std::string Watch::what() const {
  return str_cat("operation ", record.sequence, ", ", describe(record));
}

bool same_call(const Record& a, const Record& b, bool checked) {
  if (a.kind != b.kind || a.op != b.op || a.dtype != b.dtype || a.root != b.root ||
      a.count != b.count || a.counts_hash != b.counts_hash ||
      a.has(Record::kByParticipants) != b.has(Record::kByParticipants)) {
    return false;
  }
  const bool same_label = std::strncmp(a.label, b.label, Record::kLabel) == 0;
  if ((a.has(Record::kSameLabel) || b.has(Record::kSameLabel)) && !same_label) return false;
  return !checked ||
         (same_label && a.dims == b.dims && std::equal(a.sizes, a.sizes + kMaxDims, b.sizes));
}

void check_same_calls(const std::vector<const Record*>& records, bool checked) {
  // Calls that occur, with who makes them. One almost always.
  std::vector<std::vector<int>> calls;
  for (int rank = 0; rank < static_cast<int>(records.size()); ++rank) {
    const Record& record = *records[static_cast<size_t>(rank)];
    if (record.has(Record::kJoined)) continue;
    const auto same = std::ranges::find_if(calls, [&](const std::vector<int>& ranks) {
      return same_call(*records[static_cast<size_t>(ranks.front())], record, checked);
    });
    if (same == calls.end()) {
      calls.push_back({rank});
    } else {
      same->push_back(rank);
    }
  }
  if (calls.size() <= 1) return;
  // What most ranks call is taken as meant; of as many, what the lowest rank calls.
  const auto most = std::ranges::max_element(
      calls, [](const auto& a, const auto& b) { return a.size() < b.size(); });
  const auto said = [&](const std::vector<int>& ranks) {
    return describe(*records[static_cast<size_t>(ranks.front())]);
  };
  std::string text;
  for (const std::vector<int>& ranks : calls) {
    if (&ranks == &*most) continue;
    text += str_cat(text.empty() ? "" : "; ", rank_list(ranks), " called ", said(ranks));
  }
  fail(Code::kComm, "desync at operation ", records[0]->sequence, ": ", text, ", while ",
       rank_list(*most), " called ", said(*most),
       "; every rank must call the same in the same order");
}

}  // namespace ds::comm
