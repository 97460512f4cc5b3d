#include "observe/monitor.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

namespace ds {

void check_metric_tag(std::string_view tag) {
  const bool control = std::any_of(tag.begin(), tag.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  DS_CHECK(!tag.empty() && tag.size() <= 200 && !control && is_valid_utf8(tag),
           Code::kInvalidArgument, "the metric tag '", printable(tag),
           "' is empty, longer than 200 bytes, or has control characters or invalid UTF-8");
}

std::filesystem::path monitor_folder(const MonitorOptions& options, std::string_view monitor) {
  std::filesystem::path folder = std::filesystem::path(options.output_path) / options.job_name;
  DS_CHECK(!folder.empty(), Code::kConfig, monitor,
           ": output_path and job_name are both empty; name a folder");
  try {
    make_folders(folder);
  } catch (const Error& error) {
    fail(error.code(), monitor, ": ", error.message());
  }
  return folder;
}

MonitorSet::MonitorSet(const MonitorSetOptions& options) {
  if (options.tensorboard.enabled) add(make_tensorboard_monitor(options.tensorboard));
  if (options.csv.enabled) add(make_csv_monitor(options.csv));
  if (options.json_lines.enabled) add(make_json_lines_monitor(options.json_lines));
  if (options.wandb.enabled) add(make_wandb_monitor(options.wandb));
}

void MonitorSet::add(std::unique_ptr<Monitor> monitor) { monitors_.push_back(std::move(monitor)); }

template <class Fn>
void MonitorSet::each(const Fn& fn) {
  std::erase_if(monitors_, [&](const std::unique_ptr<Monitor>& monitor) {
    try {
      fn(*monitor);
      return false;
    } catch (const std::exception& error) {  // folders that cannot be listed come as the library's
      failures_.push_back(str_cat(monitor->name(), ": ", error.what()));
      log_warning("observe", "no more metrics go to the monitor ", failures_.back());
      return true;
    }
  });
}

void MonitorSet::write(const TrainingPoint& at, const std::vector<Metric>& metrics) {
  for (const Metric& metric : metrics) check_metric_tag(metric.tag);
  if (metrics.empty()) return;
  each([&](Monitor& monitor) { monitor.write(at, metrics); });
}

void MonitorSet::sync() {
  each([](Monitor& monitor) { monitor.sync(); });
}

}  // namespace ds
