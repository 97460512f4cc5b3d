// What the ranks tell each other at the beginning of every collective: what each of them calls, and
// where peers find its buffers. Plain bytes: it lies in shared memory and goes over sockets between
// machines of one kind.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/collective.h"
#include "tensor/tensor.h"

namespace ds::comm {

// A buffer that peers can address: a region of shared memory and an offset in the owner's slice.
struct Place {
  uint64_t region = 0;  // 0: private memory
  uint64_t offset = 0;
};

struct Record {
  static constexpr size_t kLabel = 96;
  enum Flag : uint8_t { kJoined = 1, kByParticipants = 2, kInline = 4, kSameLabel = 8 };

  uint64_t sequence = 0;  // exchanges of this group so far
  Collective kind = Collective::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  uint8_t dtype = 0;
  uint8_t flags = 0;
  int32_t root = -1;
  int64_t count = 0;    // elements of the whole (in place) or of a piece
  int64_t largest = 0;  // bytes of the largest block that this rank sends, for calls with counts
  uint64_t counts_hash = 0;  // of counts that all ranks give alike
  int32_t dims = 0;
  int32_t payload = 0;  // bytes that travel with the record
  int64_t sizes[kMaxDims] = {};
  Place input;
  Place output;
  char label[kLabel] = {};

  bool has(Flag flag) const { return (flags & flag) != 0; }
};
static_assert(std::is_trivially_copyable_v<Record>);

// Bytes that may travel with a record. Smaller operations take no other way.
inline constexpr int64_t kMaxPayload = 4096;

// Throws kComm, naming the rank, for a record that no rank of a group of `size` sends: what
// follows indexes, multiplies and switches by its fields.
void check_record(const Record& record, int rank, int size);

// all_reduce(sum) of 10 float32 [2, 5] "layer.weight"
std::string describe(const Record& record);

// The same call? Labels and shapes count only when `checked`, or labels when a call says so.
bool same_call(const Record& a, const Record& b, bool checked);

// Throws kComm when the calls of ranks that have not joined differ, naming ranks and tensors.
// Every rank sees the same records, so every rank throws the same.
void check_same_calls(const std::vector<const Record*>& records, bool checked);

// What a peer wrote, made safe for messages and logs: lines stay lines, everything else that a
// terminal would obey is shown as \xNN.
std::string peer_text(std::string_view text, size_t most = 2048);

// "rank 3", "ranks 0, 1, 5"
std::string rank_list(const std::vector<int>& ranks);

}  // namespace ds::comm
