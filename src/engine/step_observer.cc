#include "engine/step_observer.h"

#include <array>
#include <cmath>

#include "base/log.h"
#include "base/text.h"
#include "engine/monitors.h"
#include "engine/run_context.h"

namespace ds {
namespace {

constexpr std::array kPhases = {"forward", "backward", "backward_inner", "step"};

}  // namespace

StepObserver::StepObserver(RunContext& run)
    : config_(run.config),
      monitors_(make_monitors(run.config, run.mesh)),
      metrics_(run.config, *run.model, run.mesh),
      timers_(device_clock(run.model->device())) {}

void StepObserver::finish_step(StepReport& report) {
  const auto elapsed = [this](const char* phase) {
    return timers_.has(phase) ? timers_.elapsed(phase) : 0;
  };
  report.forward_seconds = elapsed("forward");
  report.backward_seconds = elapsed("backward");
  report.update_seconds = elapsed("step");
  metrics_.finish_step(report, timers_);
  if (!monitors_->empty()) write_monitors(report);
  if (config_.steps_per_print && *config_.steps_per_print > 0 &&
      report.progress.steps % *config_.steps_per_print == 0) {
    print(report);
  }
  timers_.reset();
}

void StepObserver::write_monitors(const StepReport& report) {
  std::vector<Metric> metrics;
  const auto add = [&](const char* tag, double value) { metrics.push_back({tag, value}); };
  if (report.has_loss) add("Train/Samples/train_loss", report.loss);
  if (!std::isnan(report.teacher_loss)) {
    add("Train/Distillation/label_loss", report.label_loss);
    add("Train/Distillation/teacher_loss", report.teacher_loss);
  }
  add("Train/Samples/lr", report.lr);
  add("Train/Samples/loss_scale", report.loss_scale);
  add("Train/Samples/grad_norm", report.grad_norm);
  for (const char* phase : kPhases) {
    if (!timers_.has(phase)) continue;
    metrics.push_back(
        {str_cat("Train/Samples/elapsed_time_ms_", phase), timers_.elapsed(phase) * 1e3});
  }
  metrics_.add_to(metrics);
  monitors_->write({report.progress.samples, report.progress.steps}, metrics);
}

void StepObserver::print(const StepReport& report) const {
  log_info("engine", "step ", report.progress.steps, ", skipped ", report.progress.skipped,
           report.has_loss ? str_cat(", loss ", report.loss) : std::string(),
           std::isnan(report.teacher_loss)
               ? std::string()
               : str_cat(" (with labels ", report.label_loss, ", with the teacher ",
                         report.teacher_loss, ")"),
           ", lr ", report.lr, ", gradient norm ", report.grad_norm);
  if (const std::string line = metrics_.throughput_line(); !line.empty()) {
    log_info("engine", line);
  }
  if (const std::string line = metrics_.extent_line(); !line.empty()) log_info("engine", line);
  if (config_.wall_clock_breakdown) log_info("engine", timers_.line());
  if (config_.memory_breakdown) log_info("engine", metrics_.memory_lines());
}

void StepObserver::write_evaluation(const Progress& progress, double loss) {
  if (monitors_->empty()) return;
  monitors_->write({progress.samples, progress.steps}, {{"Train/Samples/eval_loss", loss}});
}

}  // namespace ds
