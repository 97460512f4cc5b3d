#include "engine/monitors.h"

#include <filesystem>
#include <utility>

namespace ds {

std::unique_ptr<MonitorSet> make_monitors(const Config& config, const Mesh& mesh) {
  if (!mesh.first_rank()) return std::make_unique<MonitorSet>();
  const auto options = [](const MonitorConfig& monitor) {
    return MonitorOptions{monitor.enabled, monitor.output_path, monitor.job_name};
  };
  MonitorSetOptions all;
  all.tensorboard = options(config.tensorboard);
  all.csv = options(config.csv_monitor);
  if (config.jsonl_monitor.enabled) {
    const std::filesystem::path folder = monitor_folder(options(config.jsonl_monitor), "jsonl");
    all.json_lines = {true, (folder / "metrics.jsonl").string()};
  }
  if (config.wandb.enabled) {
    all.wandb = {true,
                 config.wandb.output_path,
                 config.wandb.project,
                 config.wandb.team,
                 config.wandb.group,
                 config.resolved()};
  }
  return std::make_unique<MonitorSet>(all);
}

}  // namespace ds
