#include "observe/timers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace ds {
namespace {

double rate(int64_t amount, double seconds) {
  return seconds > 0 ? static_cast<double>(amount) / seconds : 0;
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

size_t WallClockTimers::index_of(const std::string& name) const {
  const auto it = std::find_if(timers_.begin(), timers_.end(),
                               [&](const Timer& timer) { return timer.name == name; });
  return static_cast<size_t>(it - timers_.begin());
}

const WallClockTimers::Timer& WallClockTimers::get(const std::string& name) const {
  const size_t i = index_of(name);
  DS_CHECK(i < timers_.size(), Code::kNotFound, "there is no timer '", printable(name), "'");
  return timers_[i];
}

double WallClockTimers::total(const Timer& timer) const {
  return timer.total + (timer.running ? clock_() - timer.started : 0);
}

void WallClockTimers::start(const std::string& name) {
  const size_t i = index_of(name);
  if (i == timers_.size()) timers_.emplace_back().name = name;
  Timer& timer = timers_[i];
  DS_CHECK(!timer.running, Code::kState, "the timer '", printable(name), "' is already running");
  timer.running = true;
  timer.started = clock_();
}

void WallClockTimers::stop(const std::string& name) {
  const double now = clock_();
  const size_t i = index_of(name);
  DS_CHECK(i < timers_.size() && timers_[i].running, Code::kState, "the timer '", printable(name),
           "' is not running");
  Timer& timer = timers_[i];
  timer.running = false;
  timer.total += now - timer.started;
  ++timer.count;
}

int64_t WallClockTimers::count(const std::string& name) const { return get(name).count; }

double WallClockTimers::elapsed(const std::string& name) const { return total(get(name)); }

void WallClockTimers::reset() {
  if (timers_.empty()) return;  // the clock of a device waits for it
  const double now = clock_();
  for (Timer& timer : timers_) {
    timer.total = 0;
    timer.count = 0;
    timer.started = now;
  }
}

std::string WallClockTimers::line(const std::vector<std::string>& names, double normalizer) const {
  DS_CHECK(normalizer > 0, Code::kInvalidArgument, "times divided by ", normalizer);
  std::string out = "time (ms)";
  const auto add = [&](const Timer& timer) {
    std::array<char, 64> text;
    std::snprintf(text.data(), text.size(), "%.2f", total(timer) * 1000 / normalizer);
    out += str_cat(" | ", timer.name, ": ", text.data());
  };
  if (names.empty()) {
    for (const Timer& timer : timers_) add(timer);
  }
  for (const std::string& name : names) {
    if (has(name)) add(get(name));
  }
  return out;
}

ScopedTimer::ScopedTimer(WallClockTimers* timers, std::string name)
    : timers_(timers), name_(std::move(name)) {
  if (timers_ != nullptr) timers_->start(name_);
}

ScopedTimer::~ScopedTimer() {
  if (timers_ == nullptr) return;
  try {
    timers_->stop(name_);
  } catch (const std::exception& error) {  // stopped by hand inside the scope
    log_warning("observe", error.what());
  }
}

void ThroughputMeter::add_step(double seconds, int64_t samples, int64_t tokens) {
  last_seconds_ = seconds;
  last_samples_ = samples;
  last_tokens_ = tokens;
  if (++steps_ <= skip_) return;
  seconds_ += last_seconds_;
  samples_ += samples;
  tokens_ += tokens;
}

double ThroughputMeter::samples_per_second() const { return rate(samples_, seconds_); }
double ThroughputMeter::tokens_per_second() const { return rate(tokens_, seconds_); }
double ThroughputMeter::last_samples_per_second() const {
  return rate(last_samples_, last_seconds_);
}
double ThroughputMeter::last_tokens_per_second() const { return rate(last_tokens_, last_seconds_); }

}  // namespace ds
