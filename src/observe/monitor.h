// Metric monitors: where the numbers of a training run go. Each write is one set of values at one
// count of samples.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ds {

struct Metric {
  std::string tag;  // "Train/Samples/lr"
  double value = 0;
};

// Output goes to output_path/job_name.
struct MonitorOptions {
  bool enabled = false;
  std::string output_path;
  std::string job_name;
};

class Monitor {
 public:
  virtual ~Monitor() = default;
  // Written through to the system before it returns, so that a killed run loses nothing.
  virtual void write(int64_t samples, std::span<const Metric> metrics) = 0;
};

// Opens its files at once: a path that cannot be written throws kIo here, not at the first step.
std::unique_ptr<Monitor> make_tensorboard_monitor(const MonitorOptions& options);
std::unique_ptr<Monitor> make_csv_monitor(const MonitorOptions& options);    // a file per tag
std::unique_ptr<Monitor> make_jsonl_monitor(const MonitorOptions& options);  // an object per write

// The enabled ones.
class MonitorSet {
 public:
  MonitorSet(const MonitorOptions& tensorboard, const MonitorOptions& csv,
             const MonitorOptions& jsonl);
  bool enabled() const { return !monitors_.empty(); }
  void write(int64_t samples, std::span<const Metric> metrics);

 private:
  std::vector<std::unique_ptr<Monitor>> monitors_;
};

}  // namespace ds
