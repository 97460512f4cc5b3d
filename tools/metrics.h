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

  void write(const libds::StepReport& report, std::optional<double> valid_loss);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace tool
