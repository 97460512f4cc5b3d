// The record of a run, read from JSON lines: those of `ds train --metrics`, or those of the
// configuration's jsonl_monitor. Any size, in bounded memory; lines that are damaged are left out
// and counted.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "view_series.h"

namespace tool {

class ViewRecord {
 public:
  // Reads the file. Throws Failure naming it when it cannot be read or holds no step at all.
  explicit ViewRecord(const std::string& path);

  const std::map<std::string, Series>& series() const { return series_; }
  int64_t first_step() const { return first_step_; }
  int64_t last_step() const { return last_step_; }

  // {"steps", "loss", ...}: what `ds view --json` says of the steps.
  Json summary() const;
  // What was not applied: {"step", "tensor", "element", "value"}, the first hundred.
  const Json& skips() const { return skips_; }
  // {"step", "loss"} of the last evaluations.
  Json evaluations() const;
  // What a reader of the page shall know of the file, as sentences.
  Json notes() const;

 private:
  using Evaluation = std::pair<int64_t, double>;  // step, loss

  void read(const std::string& path);
  void take_line(std::string_view line, bool complete);
  bool take(const Json& line);
  void take_numbers(const Json& line, int64_t step);
  void take_skip(const Json& line, int64_t step);
  void take_memory(const Json& line, int64_t step);
  void rewind(int64_t step);
  void damaged(const char* why);

  std::map<std::string, Series> series_;
  Json skips_ = Json::array();
  std::deque<Evaluation> evaluations_;  // the last ones
  std::optional<Evaluation> best_;      // of all
  int64_t lines_ = 0;
  int64_t rows_ = 0;  // of steps
  int64_t damaged_ = 0, first_damaged_ = 0;
  std::string first_reason_;
  int64_t not_json_numbers_ = 0;  // lines with NaN or Infinity
  int64_t rewinds_ = 0, first_rewind_ = 0;
  int64_t first_step_ = -1, last_step_ = -1;
  bool cut_ = false;  // the last line is not complete
};

}  // namespace tool
