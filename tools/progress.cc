#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "format.h"

namespace tool {
namespace {

constexpr double kSmoothing = 0.9;  // weight of the past in the shown speed
constexpr int kBarWidth = 24;

size_t terminal_width() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

double tokens_per_second(const libds::StepReport& report) {
  return report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0;
}

Progress::Progress(int64_t first, int64_t total, int64_t interval, bool quiet,
                   std::optional<MegatronLog> log)
    : first_(first),
      total_(total),
      interval_(std::max<int64_t>(interval, 1)),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) != 0),
      log_(std::move(log)) {}

Progress::~Progress() { clear(); }

void Progress::step(const libds::StepReport& report, const std::string& bad_parameter) {
  const bool first = report.step == first_ + 1;
  const double speed = tokens_per_second(report);
  // The first step of a run also pays for memory and caches: the estimate starts with the second.
  const bool fresh = first || report.step == first_ + 2;
  step_seconds_ =
      fresh ? report.seconds : kSmoothing * step_seconds_ + (1 - kSmoothing) * report.seconds;
  tokens_per_second_ = fresh ? speed : kSmoothing * tokens_per_second_ + (1 - kSmoothing) * speed;

  if (!report.applied) {
    message(format(
        "step %lld: not applied, the gradient is not finite, first in %s (loss scale %g)",
        static_cast<long long>(report.step),
        bad_parameter.empty() ? "an unknown tensor" : bad_parameter.c_str(), report.loss_scale));
  }
  if (quiet_) return;
  if (log_) return log_step(report);
  const auto step = static_cast<long long>(report.step);
  const auto total = static_cast<long long>(total_);
  const std::string loss = format_value("%.4f", report.loss);
  const std::string norm =
      report.grad_norm < 0 ? "not finite" : format_value("%.4f", report.grad_norm);
  if (terminal_) {
    const int filled = static_cast<int>(report.step * kBarWidth / std::max<int64_t>(total_, 1));
    const std::string bar = std::string(static_cast<size_t>(std::clamp(filled, 0, kBarWidth)), '#');
    draw(format("step %lld/%lld [%-*s] loss %s  lr %.2e  %s tokens/s  eta %s", step, total,
                kBarWidth, bar.c_str(), loss.c_str(), report.lr,
                format_count(tokens_per_second_).c_str(), eta(report.step).c_str()));
  } else if (first || report.step == total_ || report.step % interval_ == 0) {
    std::fprintf(stderr, "step %lld/%lld  loss %s  lr %.3e  grad_norm %s  %.0f tokens/s  eta %s\n",
                 step, total, loss.c_str(), report.lr, norm.c_str(), tokens_per_second_,
                 eta(report.step).c_str());
  }
}

void Progress::log_step(const libds::StepReport& report) {
  log_->add(report);
  if (report.step % interval_ == 0) message(log_->line(total_));
}

void Progress::message(const std::string& text) {
  clear();
  if (!quiet_) std::fprintf(stderr, "%s\n", text.c_str());
}

std::string Progress::eta(int64_t step) const {
  return format_seconds(step_seconds_ * static_cast<double>(std::max<int64_t>(total_ - step, 0)));
}

void Progress::draw(const std::string& text) {
  const size_t width = terminal_width();
  std::fprintf(stderr, "\r\033[K%s", text.substr(0, width - 1).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

}  // namespace tool
