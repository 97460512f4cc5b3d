#include "observe/monitor.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace ds {
namespace {

namespace fs = std::filesystem;

fs::path job_folder(const MonitorOptions& options) {
  const fs::path folder =
      fs::path(options.output_path.empty() ? "." : options.output_path) / options.job_name;
  make_folders(folder);
  return folder;
}

// One file per tag, "/" in it replaced, with a header line; runs that resume append.
class CsvMonitor : public Monitor {
 public:
  explicit CsvMonitor(const MonitorOptions& options) : folder_(job_folder(options)) {}

  void write(int64_t samples, std::span<const Metric> metrics) override {
    for (const Metric& metric : metrics) {
      file(metric.tag).append(str_cat(samples, ",", format_number(metric.value), "\n"));
    }
  }

 private:
  File& file(const std::string& tag) {
    const auto found = files_.find(tag);
    if (found != files_.end()) return found->second;
    std::string name = tag;
    std::replace(name.begin(), name.end(), '/', '_');
    File opened(folder_ / (name + ".csv"), File::Mode::kAppend);
    if (opened.size() == 0) opened.append(str_cat("step,", name, "\n"));
    return files_.emplace(tag, std::move(opened)).first->second;
  }

  fs::path folder_;
  std::map<std::string, File> files_;
};

class JsonlMonitor : public Monitor {
 public:
  explicit JsonlMonitor(const MonitorOptions& options)
      : file_(job_folder(options) / "metrics.jsonl", File::Mode::kAppend) {}

  void write(int64_t samples, std::span<const Metric> metrics) override {
    Json line = {{"samples", samples}};
    for (const Metric& metric : metrics) line[metric.tag] = metric.value;
    file_.append(dump_json(line) + "\n");
  }

 private:
  File file_;
};

}  // namespace

std::unique_ptr<Monitor> make_csv_monitor(const MonitorOptions& options) {
  return std::make_unique<CsvMonitor>(options);
}

std::unique_ptr<Monitor> make_jsonl_monitor(const MonitorOptions& options) {
  return std::make_unique<JsonlMonitor>(options);
}

MonitorSet::MonitorSet(const MonitorOptions& tensorboard, const MonitorOptions& csv,
                       const MonitorOptions& jsonl) {
  if (tensorboard.enabled) monitors_.push_back(make_tensorboard_monitor(tensorboard));
  if (csv.enabled) monitors_.push_back(make_csv_monitor(csv));
  if (jsonl.enabled) monitors_.push_back(make_jsonl_monitor(jsonl));
}

void MonitorSet::write(int64_t samples, std::span<const Metric> metrics) {
  for (const auto& monitor : monitors_) monitor->write(samples, metrics);
}

}  // namespace ds
