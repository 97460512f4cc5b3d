// The record of a training run: one JSON object per line and step.
#pragma once

#include <fstream>
#include <optional>
#include <string>

#include "ds.hpp"

namespace tool {

class MetricsFile {
 public:
  // Appends when `append`, else begins anew. An empty path records nothing.
  MetricsFile(const std::string& path, bool append);

  // Of `comm`, what this process has sent since the last line, where it has somebody to send to.
  void write(const libds::StepReport& report, std::optional<double> valid_loss,
             const libds::Comm& comm);

 private:
  std::string path_;
  std::ofstream file_;
  int64_t within_node_ = 0;  // bytes sent so far
  int64_t across_nodes_ = 0;
};

}  // namespace tool
