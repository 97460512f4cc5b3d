// What the command line of `ds launch` can say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tool {

struct LaunchOptions {
  int64_t ranks = 0;
  std::vector<std::string> command;
  std::string rank_logs;          // folder; "" = standard output and error, line by line
  std::optional<double> timeout;  // seconds that the whole run may take
  std::optional<double> grace;    // seconds between SIGTERM and SIGKILL
  std::optional<int64_t> master_port;
  bool bind = false;  // a share of the CPUs for each rank
};

}  // namespace tool
