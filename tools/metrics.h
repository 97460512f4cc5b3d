// The record of a training run: one JSON object per line and step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ds.hpp"
#include "format.h"

namespace tool {

// A file that cannot be written ends no training: it is reported once, what could not be written is
// kept (1 MiB of it) and written when that works again. Locked, so that two runs do not write one
// file.
class MetricsFile {
 public:
  // `from`: the step that the run goes on from. The record is kept up to it; what an interrupted
  // run wrote beyond it is written again. Nothing: the file begins anew. An empty path records
  // nothing.
  MetricsFile(const std::string& path, std::optional<int64_t> from);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Whether lines go to a file that stays, not to a pipe or a device.
  bool is_file() const { return is_file_; }

  // Of `comm`, what this process has sent since the last line, where it has somebody to send to;
  // of `engine`, the memory that it has needed, where that has changed since the last line.
  void write(const libds::StepReport& report, std::optional<double> valid_loss,
             const libds::Comm& comm, const libds::Engine& engine, const libds::Model& model);

 private:
  void keep_up_to(int64_t step);
  void flush();

  std::string path_;
  int fd_ = -1;
  bool is_file_ = false;
  std::string unwritten_;
  size_t of_line_ = 0;       // bytes of the first unwritten line that are in the file
  int64_t dropped_ = 0;      // lines
  bool failing_ = false;     // and told
  int64_t within_node_ = 0;  // bytes sent so far
  int64_t across_nodes_ = 0;
  Json memory_;  // of the last line that said it
};

// Name of the parameter with the first gradient that is not finite; "" when that is not known.
std::string bad_parameter(const libds::StepReport& report, const libds::Model& model);

}  // namespace tool
