// The comms logger: counts, bytes and times of operations by kind and size, and their summary.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.h"
#include "comm/collective.h"

namespace ds {

// Keys of the `comms_logger` block.
struct CommsLoggerOptions {
  bool verbose = false;                 // a log line (info) for each operation
  bool profile_all = true;              // else only operations of `operations`
  std::vector<std::string> operations;  // names as collective_name says them
};

// Bandwidths of one operation in bytes per second. `bytes` is what the call's input holds (the
// piece for gathers). algbw counts what the operation has to deliver and busbw what a link carries;
// all_reduce counts 2 S, gathers the gathered size, and point to point, broadcast, reduce, gather,
// scatter and barrier S / t for both.
struct Bandwidth {
  double algorithm = 0;
  double bus = 0;
};
Bandwidth collective_bandwidth(Collective kind, int64_t bytes, double seconds, int ranks);

class CommsLogger {
 public:
  explicit CommsLogger(CommsLoggerOptions options = {}) : options_(std::move(options)) {}

  // The last two are what this rank sent (see Traffic). Threads: any.
  void record(Collective kind, int64_t bytes, double seconds, int ranks, int64_t within_node = 0,
              int64_t across_nodes = 0);

  // Columns Comm. Op, Message Size, Count, Total Latency(ms), Avg Latency(ms), tput_avg (Gbps),
  // busbw_avg (Gbps); sizes ascending below each operation. Averages leave out a tenth of the
  // samples at either end. Below, what this rank sent: Bytes sent by, Within node, Across nodes.
  std::string table() const;
  // {"all_reduce": [{"bytes":, "count":, "total_ms":, "average_ms":, "algbw_gbps":,
  // "busbw_gbps":, "within_node_bytes":, "across_nodes_bytes":}]}
  Json summary() const;

 private:
  struct Samples {
    std::vector<float> seconds;
    int ranks = 1;
    int64_t within_node = 0;
    int64_t across_nodes = 0;
  };
  struct Row;
  bool wanted(Collective kind) const;
  std::map<Collective, std::vector<Row>> rows() const;

  const CommsLoggerOptions options_;
  mutable std::mutex mutex_;
  std::map<std::pair<Collective, int64_t>, Samples> samples_;
};

}  // namespace ds
