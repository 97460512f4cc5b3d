// Who sends what to whom in each movement, from what the ranks told each other.
#pragma once

#include "comm/operation.h"
#include "comm/transport.h"

namespace ds::comm {

struct PlanInput {
  const Record* reference = nullptr;     // of a rank that has not joined
  const Operation* operation = nullptr;  // null on a rank that has joined
  int rank = 0;
  int size = 1;
  const std::vector<char>* present = nullptr;  // by rank: has not joined
  // Elements that each rank sends to each, by sender, for all_to_all_v; null rows where unknown.
  std::vector<const int64_t*> sent_counts;
};
// Throws kComm for counts of senders and receivers that do not match.
Movement plan_movement(const PlanInput& in);

bool is_reduction(Collective kind);
// Bytes that a call has to tell with its record to need no other exchange.
int64_t inline_bytes(const Record& record, int size);
// Bytes that `sender`, which has not joined, sends with its record of the call that was agreed on;
// -1 where only the sender knows. `operation` is null on a rank that has joined.
int64_t payload_bytes(const Record& reference, const Operation* operation, int sender, int size);

}  // namespace ds::comm
