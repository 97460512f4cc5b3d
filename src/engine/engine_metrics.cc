// What training tells the outside world after each step: monitors, and lines in the log.
#include <array>
#include <filesystem>

#include "base/log.h"
#include "engine/engine.h"
#include "engine/monitors.h"

namespace ds {
namespace {

constexpr std::array kPhases = {"forward", "backward", "backward_inner", "step"};

}  // namespace

std::unique_ptr<MonitorSet> make_monitors(const Config& config, const Communicator& comm) {
  if (comm.rank() != 0) return std::make_unique<MonitorSet>();
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

void Engine::write_metrics(const StepReport& report) {
  metrics_->finish_step(report, timers_);
  const auto add = [](std::vector<Metric>& to, const char* tag, double value) {
    to.push_back({tag, value});
  };
  if (!monitors_->empty()) {
    std::vector<Metric> metrics;
    if (report.has_loss) add(metrics, "Train/Samples/train_loss", report.loss);
    add(metrics, "Train/Samples/lr", report.lr);
    add(metrics, "Train/Samples/loss_scale", report.loss_scale);
    add(metrics, "Train/Samples/grad_norm", report.grad_norm);
    for (const char* phase : kPhases) {
      if (!timers_.has(phase)) continue;
      metrics.push_back(
          {str_cat("Train/Samples/elapsed_time_ms_", phase), timers_.elapsed(phase) * 1e3});
    }
    metrics_->add_to(metrics);
    monitors_->write({report.progress.samples, report.progress.steps}, metrics);
  }
  const bool print = config_.steps_per_print && *config_.steps_per_print > 0 &&
                     report.progress.steps % *config_.steps_per_print == 0;
  if (print) {
    log_info("engine", "step ", report.progress.steps, ", skipped ", report.progress.skipped,
             report.has_loss ? str_cat(", loss ", report.loss) : std::string(), ", lr ", report.lr,
             ", gradient norm ", report.grad_norm);
    if (const std::string line = metrics_->throughput_line(); !line.empty()) {
      log_info("engine", line);
    }
    if (config_.wall_clock_breakdown) log_info("engine", timers_.line());
    if (config_.memory_breakdown) log_info("engine", metrics_->memory_lines());
  }
  timers_.reset();
}

}  // namespace ds
