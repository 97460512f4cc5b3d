#include "view_record.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "ds.hpp"
#include "failure.h"

namespace tool {
namespace {

constexpr size_t kLongestLine = size_t{1} << 20;
constexpr int64_t kMostSteps = int64_t{1} << 53;  // exact as a number of JavaScript
constexpr size_t kMostEvaluations = 500;
constexpr size_t kMostSkips = 100;
constexpr size_t kMostTags = 24;  // of memory
constexpr size_t kMostText = 300;

// The names of a number in the two kinds of files, what it is here, and its unit there.
struct Name {
  const char* line;
  const char* series;
  double scale;
};
constexpr std::array<Name, 27> kNames = {{
    {"loss", "loss", 1},
    {"Train/Samples/train_loss", "loss", 1},
    {"valid_loss", "valid_loss", 1},
    {"Train/Samples/eval_loss", "valid_loss", 1},
    {"lr", "lr", 1},
    {"Train/Samples/lr", "lr", 1},
    {"grad_norm", "grad_norm", 1},
    {"Train/Samples/grad_norm", "grad_norm", 1},
    {"loss_scale", "loss_scale", 1},
    {"Train/Samples/loss_scale", "loss_scale", 1},
    {"tokens", "tokens", 1},
    {"tokens_per_s", "tokens_per_s", 1},
    {"Train/Samples/tokens_per_second", "tokens_per_s", 1},
    {"Train/Samples/samples_per_second", "samples_per_s", 1},
    {"seconds", "seconds", 1},
    {"forward_seconds", "forward", 1},
    {"backward_seconds", "backward", 1},
    {"update_seconds", "update", 1},
    {"Train/Samples/elapsed_time_ms_forward", "forward", 1e-3},
    {"Train/Samples/elapsed_time_ms_backward", "backward", 1e-3},
    {"Train/Samples/elapsed_time_ms_step", "update", 1e-3},
    {"Train/Samples/tflops", "tflops", 1},
    {"Train/Samples/tflops_megatron", "tflops_megatron", 1},
    {"Train/Samples/memory_peak_bytes", "memory/peak of the step", 1},
    {"sent_within_node", "sent_within_node", 1},
    {"sent_across_nodes", "sent_across_nodes", 1},
    {"samples", "samples", 1},
}};

// What other writers of JSON call a number: null in its place, outside of texts. Whether there was
// one.
bool replace_not_finite(std::string& line) {
  bool any = false, in_text = false;
  for (size_t at = 0; at < line.size(); ++at) {
    if (in_text && line[at] == '\\') {
      ++at;
    } else if (line[at] == '"') {
      in_text = !in_text;
    } else if (!in_text) {
      for (const char* word : {"NaN", "-Infinity", "Infinity"}) {
        if (line.compare(at, std::strlen(word), word) != 0) continue;
        line.replace(at, std::strlen(word), "null");
        any = true;
        break;
      }
    }
  }
  return any;
}

// Texts of the file may be of any length and content; the page escapes them.
std::string short_text(const Json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_string()) return {};
  std::string text = found->get<std::string>();
  if (text.size() <= kMostText) return text;
  size_t end = kMostText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

std::optional<int64_t> step_of(const Json& line) {
  const auto found = line.find("step");
  if (found == line.end() || !found->is_number_integer()) return std::nullopt;
  if (found->is_number_unsigned() && found->get<uint64_t>() > uint64_t{kMostSteps}) {
    return std::nullopt;
  }
  const auto step = found->get<int64_t>();
  return step >= 0 && step <= kMostSteps ? std::optional<int64_t>(step) : std::nullopt;
}

bool better(const std::pair<int64_t, double>& a, const std::pair<int64_t, double>& b) {
  return std::isfinite(a.second) && !(a.second >= b.second);
}

std::string count_of(int64_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

}  // namespace

ViewRecord::ViewRecord(const std::string& path) {
  read(path);
  if (rows_ > 0) return;
  std::string why =
      lines_ == 0 ? "it is empty"
                  : "none of its " + count_of(lines_, "line", "lines") + " is the record of a step";
  if (damaged_ > 0) why += " (line " + std::to_string(first_damaged_) + " " + first_reason_ + ")";
  throw Failure("no metrics in " + path + ": " + why +
                ". `ds train --metrics FILE.jsonl` writes such files, and so does jsonl_monitor of "
                "the configuration");
}

void ViewRecord::read(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  if (!file) throw Failure("cannot open " + path + ": " + std::strerror(errno));
  std::string line;
  bool too_long = false;
  std::array<char, 1 << 16> buffer;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    std::string_view rest(buffer.data(), count);
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end);
      too_long = too_long || line.size() + part.size() > kLongestLine;
      if (!too_long) line += part;
      if (end == std::string_view::npos) break;
      rest.remove_prefix(end + 1);
      ++lines_;
      if (std::exchange(too_long, false)) {
        damaged("is longer than 1 MiB");
      } else {
        take_line(line, /*complete=*/true);
      }
      line.clear();
    }
  }
  if (std::ferror(file.get())) throw Failure("cannot read " + path + ": " + std::strerror(errno));
  if (line.empty()) return;
  ++lines_;
  take_line(line, /*complete=*/false);
}

void ViewRecord::take_line(std::string_view text, bool complete) {
  std::string line(text);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line.empty()) return;
  Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() && replace_not_finite(line)) {
    json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_discarded()) ++not_json_numbers_;
  }
  if (json.is_discarded()) {
    // A run that is writing, or that was killed, leaves half of its last line.
    if (complete) {
      damaged("is not JSON");
    } else {
      cut_ = true;
    }
  } else if (!json.is_object()) {
    damaged("is no object");
  } else if (!take(json)) {
    damaged("has no \"step\" that is a number of steps");
  }
}

void ViewRecord::damaged(const char* why) {
  if (damaged_++ > 0) return;
  first_damaged_ = lines_;
  first_reason_ = why;
}

bool ViewRecord::take(const Json& line) {
  const std::optional<int64_t> step = step_of(line);
  if (!step) return false;
  if (rows_++ == 0) first_step_ = *step;
  if (*step < last_step_) rewind(*step);
  first_step_ = std::min(first_step_, *step);
  last_step_ = *step;
  take_numbers(line, *step);
  take_skip(line, *step);
  take_memory(line, *step);
  return true;
}

// A record that goes back: the run went on from an older checkpoint, and what follows replaces what
// was there.
void ViewRecord::rewind(int64_t step) {
  if (rewinds_++ == 0) first_rewind_ = step;
  for (auto& [name, series] : series_) series.rewind(step);
  while (!evaluations_.empty() && evaluations_.back().first >= step) evaluations_.pop_back();
  if (best_ && best_->first >= step) {
    const auto best = std::min_element(evaluations_.begin(), evaluations_.end(), better);
    best_ = best == evaluations_.end() ? std::nullopt : std::optional<Evaluation>(*best);
  }
  while (!skips_.empty() && skips_.back()["step"].get<int64_t>() >= step) {
    skips_.erase(skips_.size() - 1);
  }
}

void ViewRecord::take_numbers(const Json& line, int64_t step) {
  for (const Name& name : kNames) {
    const auto found = line.find(name.line);
    if (found == line.end() || !(found->is_number() || found->is_null())) continue;
    double value = found->is_number() ? found->get<double>() * name.scale : NAN;
    const std::string_view series = name.series;
    // The norm and times have no values below zero: -1 stands for a norm that is not finite.
    if (value < 0 && series != "loss" && series != "valid_loss") value = NAN;
    series_[name.series].add(step, value);
    if (series != "valid_loss") continue;
    evaluations_.emplace_back(step, value);
    if (!best_ || better(evaluations_.back(), *best_)) best_ = evaluations_.back();
    if (evaluations_.size() > kMostEvaluations) evaluations_.pop_front();
  }
}

void ViewRecord::take_skip(const Json& line, int64_t step) {
  const auto applied = line.find("applied");
  if (applied == line.end() || !applied->is_boolean()) return;
  const bool skipped = !applied->get<bool>();
  series_["skipped"].add(step, skipped ? 1 : 0);
  if (!skipped || skips_.size() >= kMostSkips) return;
  Json skip = {{"step", step},
               {"reason", short_text(line, "skip_reason")},
               {"tensor", short_text(line, "first_bad_tensor")},
               {"value", short_text(line, "first_bad_value")}};
  const auto element = line.find("first_bad_element");
  if (element != line.end() && element->is_number_integer()) skip["element"] = *element;
  skips_.push_back(std::move(skip));
}

void ViewRecord::take_memory(const Json& line, int64_t step) {
  const auto memory = line.find("memory");
  if (memory == line.end() || !memory->is_object()) return;
  for (const auto& [tag, bytes] : memory->items()) {
    if (!bytes.is_number() || tag.size() > kMostText) continue;
    const std::string name = "memory/" + tag;
    const auto after = series_.lower_bound("memory0");  // '0' follows '/'
    const auto tags = std::distance(series_.lower_bound("memory/"), after);
    if (series_.count(name) == 0 && static_cast<size_t>(tags) >= kMostTags) continue;
    series_[name].add(step, bytes.get<double>());
  }
}

Json ViewRecord::summary() const {
  Json out = {{"first_step", first_step_}, {"last_step", last_step_}, {"rows", rows_}};
  const auto sum = [&](const char* name) {
    const auto found = series_.find(name);
    return found == series_.end() ? Json() : Json(found->second.sum());
  };
  const auto count = [&](const char* name) {
    const Json value = sum(name);
    return value.is_number() && value.get<double>() < 1e18 ? Json(std::llround(value.get<double>()))
                                                           : value;
  };
  const Json tokens = count("tokens"), seconds = sum("seconds"), skipped = count("skipped");
  out["skipped"] = skipped;
  out["tokens"] = tokens;
  out["seconds"] = seconds;
  const bool both = tokens.is_number() && seconds.is_number() && seconds.get<double>() > 0;
  out["tokens_per_s"] = both ? Json(tokens.get<double>() / seconds.get<double>()) : Json();
  Json values = Json::object();
  for (const auto& [name, series] : series_) values[name] = series.summary();
  out["values"] = std::move(values);
  if (best_) {
    out["best_evaluation"] = {
        {"step", best_->first},
        {"loss", std::isfinite(best_->second) ? Json(best_->second) : Json()}};
  }
  return out;
}

Json ViewRecord::evaluations() const {
  Json out = Json::array();
  for (const auto& [step, loss] : evaluations_) {
    out.push_back({{"step", step}, {"loss", std::isfinite(loss) ? Json(loss) : Json()}});
  }
  return out;
}

Json ViewRecord::notes() const {
  Json out = Json::array();
  if (damaged_ > 0) {
    out.push_back(count_of(damaged_, "line", "lines") + " of the metrics " +
                  (damaged_ == 1 ? "is" : "are") + " left out; the first one, line " +
                  std::to_string(first_damaged_) + ", " + first_reason_);
  }
  if (not_json_numbers_ > 0) {
    out.push_back(
        count_of(not_json_numbers_, "line has", "lines have") +
        " NaN or Infinity, which JSON does not know: taken as values that are not finite");
  }
  if (cut_) out.push_back("the last line is not complete: the run is writing it, or was ended");
  if (rewinds_ > 0) {
    out.push_back("the record goes back " + count_of(rewinds_, "time", "times") +
                  ", first to step " + std::to_string(first_rewind_) +
                  ": what follows replaces what was there");
  }
  return out;
}

}  // namespace tool
