// What a collective moves, for the plan: the bytes that rank 0 sends within its node and across
// nodes, by where the ranks of its group are.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "tensor/dtype.h"

namespace ds {

// Where the ranks of a group are: so many on each of so many nodes.
struct Places {
  int local = 1, nodes = 1;
  int ranks() const { return local * nodes; }
};

// One kind of collective per optimizer step, added up over its calls.
struct PlannedTraffic {
  int64_t calls = 0;
  int64_t bytes = 0;         // of whole tensors
  double near = 0, far = 0;  // what rank 0 sends within its node, and across nodes

  // Adds `times` calls over `bytes` in equal pieces.
  void add_pieces(int64_t bytes, int64_t times, const Places& places);
  // The same with pieces that each go to one rank alone.
  void add_exchanges(int64_t bytes, int64_t times, const Places& places);
  // Adds `times` sums of so many elements, for everybody.
  void add_sums(int64_t elements, DType type, int64_t times, const Places& places);
  Json described(const char* collective, const char* what) const;
};

}  // namespace ds
