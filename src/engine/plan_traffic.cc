#include "engine/plan_traffic.h"

#include "comm/transport.h"

namespace ds {

// Blocks for a node cross the network once and are spread inside it.
void PlannedTraffic::add_pieces(int64_t whole, int64_t times, const Places& places) {
  const double full = static_cast<double>(whole) * static_cast<double>(times);
  const double local = places.local, nodes = places.nodes;
  calls += times;
  bytes += whole * times;
  near += full * (local - 1) / local;
  far += full * (nodes - 1) / nodes / local;
}

void PlannedTraffic::add_exchanges(int64_t whole, int64_t times, const Places& places) {
  const double full = static_cast<double>(whole) * static_cast<double>(times);
  calls += times;
  bytes += whole * times;
  near += full * (places.local - 1) / places.ranks();
  far += full * (places.ranks() - places.local) / places.ranks();
}

// A sum for everybody is one in pieces that are then gathered; pieces end at cache lines.
void PlannedTraffic::add_sums(int64_t elements, DType type, int64_t times, const Places& places) {
  const int64_t size = dtype_size(type);
  if (places.nodes > 1) {
    add_pieces(elements * size, times, places);
    PlannedTraffic again;
    again.add_pieces(elements * size, times, places);
    near += again.near;
    far += again.far;
    return;
  }
  const int ranks = places.ranks();
  const int64_t own = comm::part_of(elements, 0, ranks, size).size();
  calls += times;
  bytes += elements * size * times;
  near += static_cast<double>((elements - own + (ranks - 1) * own) * size * times);
}

Json PlannedTraffic::described(const char* collective, const char* what) const {
  return {{"collective", collective},
          {"of", what},
          {"calls", calls},
          {"bytes", bytes},
          {"within_node", static_cast<int64_t>(near)},
          {"across_nodes", static_cast<int64_t>(far)}};
}

}  // namespace ds
