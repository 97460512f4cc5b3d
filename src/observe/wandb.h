// The bytes of a Weights & Biases offline run, as `wandb sync` reads them: a log in LevelDB's
// format (blocks of 32 KiB, records with a CRC32) of protobuf messages from wandb's public
// definitions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "observe/monitor.h"

namespace ds {

struct WandbRun {
  std::string id;
  std::string entity;  // the team; "" = the default one of whoever syncs
  std::string project;
  std::string group;
  std::string host;
  double start_time = 0;  // seconds since 1970
  Json config;            // an object, or null
};

// Each function returns the bytes to append to the file; they come in this order.
class WandbLog {
 public:
  std::string begin(const WandbRun& run);
  // A row of the history, and the summary that shows the last values. Steps must grow: one that
  // does not becomes the one after the last.
  std::string row(int64_t step, double time, const std::vector<Metric>& metrics);
  std::string end(double time);

 private:
  std::string record(int field, std::string_view message);
  std::string frame(std::string_view payload);

  int64_t offset_ = 0;  // in the file
  int64_t records_ = 0;
  int64_t last_step_ = -1;
  double start_time_ = 0;
};

}  // namespace ds
