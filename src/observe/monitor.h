// Monitors: where training metrics go. TensorBoard event files, CSV files as DeepSpeed's
// csv_monitor writes them, JSON lines, and offline runs of Weights & Biases.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace ds {

struct Metric {
  std::string tag;  // "Train/Samples/lr"
  double value = 0;
};

// How far training had come when metrics were taken.
struct TrainingPoint {
  int64_t samples = 0;  // seen; the x axis, as DeepSpeed's monitors have it
  int64_t step = 0;     // of the optimizer
};

// One destination. A constructor that cannot write throws an Error naming the path.
class Monitor {
 public:
  virtual ~Monitor() = default;
  virtual const char* name() const noexcept = 0;
  // Hands the events to the system before it returns: a crash of the process loses nothing.
  virtual void write(const TrainingPoint& at, const std::vector<Metric>& metrics) = 0;
  // Makes what was written survive a power cut.
  virtual void sync() = 0;
};

// As in the sections `tensorboard` and `csv_monitor` of the configuration: files go to
// output_path/job_name.
struct MonitorOptions {
  bool enabled = false;
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
};

struct JsonLinesOptions {
  bool enabled = false;
  std::string path;  // the file, appended to
};

struct WandbOptions {
  bool enabled = false;
  std::string output_path;  // that receives wandb/offline-run-TIME-ID; "" = the current folder
  std::string project = "deepspeed";
  std::string team;
  std::string group;
  Json config;  // shown beside the run
};

std::unique_ptr<Monitor> make_tensorboard_monitor(const MonitorOptions& options);
std::unique_ptr<Monitor> make_csv_monitor(const MonitorOptions& options);
std::unique_ptr<Monitor> make_json_lines_monitor(const JsonLinesOptions& options);
std::unique_ptr<Monitor> make_wandb_monitor(const WandbOptions& options);

struct MonitorSetOptions {
  MonitorOptions tensorboard;
  MonitorOptions csv;
  JsonLinesOptions json_lines;
  WandbOptions wandb;
};

// All enabled monitors. Creation fails if one of them cannot write; later failures (a full disk)
// must not end a training run: the monitor is warned about once and dropped. One thread at a time.
class MonitorSet {
 public:
  MonitorSet() = default;
  explicit MonitorSet(const MonitorSetOptions& options);

  void add(std::unique_ptr<Monitor> monitor);
  bool empty() const noexcept { return monitors_.empty(); }
  void write(const TrainingPoint& at, const std::vector<Metric>& metrics);
  void sync();
  // "csv: cannot write ...", for each monitor that was dropped.
  const std::vector<std::string>& failures() const noexcept { return failures_; }

 private:
  template <class Fn>
  void each(const Fn& fn);

  std::vector<std::unique_ptr<Monitor>> monitors_;
  std::vector<std::string> failures_;
};

// Throws kInvalidArgument for a tag that no destination could take: empty, longer than 200 bytes,
// control characters, invalid UTF-8.
void check_metric_tag(std::string_view tag);

// output_path/job_name, created; throws naming `monitor`.
std::filesystem::path monitor_folder(const MonitorOptions& options, std::string_view monitor);

}  // namespace ds
