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
