#include "metrics.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <utility>

#include "ds.hpp"
#include "failure.h"
#include "format.h"
#include "progress.h"

namespace tool {
namespace {

constexpr size_t kMostUnwritten = size_t{1} << 20;

// JSON has no NaN and no infinity: null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// What is not finite, by name.
const char* value_name(double value) {
  if (std::isnan(value)) return "NaN";
  return value > 0 ? "Infinity" : "-Infinity";
}

const char* skip_reason_name(int32_t reason) {
  switch (reason) {
    case DS_SKIP_ACCUMULATING:
      return "accumulating";
    case DS_SKIP_NON_FINITE:
      return "non_finite";
    case DS_SKIP_LARGE_NORM:
      return "large_norm";
    default:
      return "unknown";
  }
}

// The step of a line of such a file; nothing for a line of anything else, or half of one.
std::optional<int64_t> step_of(const std::string& line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
    return std::nullopt;
  }
  return json["step"].get<int64_t>();
}

// The most bytes so far by what they are for, and in all; of a GPU with the host's beside it.
Json peak_memory(const libds::Engine& engine) {
  const Json report = parse_json(engine.memory_report(), "the engine's memory report");
  Json memory = Json::object();
  for (const auto& [tag, bytes] : report.at("tags").items()) {
    if (bytes.at("peak") != 0) memory[tag] = bytes.at("peak");
  }
  memory["total"] = report.at("total").at("peak");
  if (!report.contains("host")) return memory;
  for (const auto& [kind, bytes] : report.at("host").items()) {
    if (bytes.at("peak") != 0) memory["host_" + kind] = bytes.at("peak");
  }
  return memory;
}

// Losses of routers, and of each layer with experts how uneven its loads are; null without experts.
Json expert_summary(const libds::Engine& engine) {
  Json experts = parse_json(engine.experts(), "the engine's experts");
  if (experts.is_null()) return experts;
  experts.erase("step");
  for (Json& layer : experts.at("layers")) {
    int64_t routes = 0, most = 0, dropped = 0;
    for (const Json& count : layer.at("chosen")) {
      routes += count.get<int64_t>();
      most = std::max(most, count.get<int64_t>());
    }
    for (const Json& count : layer.at("dropped")) dropped += count.get<int64_t>();
    const auto all = static_cast<double>(std::max<int64_t>(1, routes));
    const auto mean = all / static_cast<double>(layer.at("chosen").size());
    layer = {{"layer", layer.at("layer")},
             {"largest_load", static_cast<double>(most) / mean},
             {"dropped", static_cast<double>(dropped) / all}};
  }
  return experts;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::optional<int64_t> from) : path_(path) {
  if (path_.empty()) return;
  const auto refuse = [&](const std::string& why) {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    throw Failure("cannot open the metrics file " + path_ + " for writing: " + why);
  };
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) refuse(std::strerror(errno));
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return;  // a pipe or a device: nothing to lock or to keep
  is_file_ = true;
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    refuse("another run is writing it");
  }
  if (from) {
    keep_up_to(*from);
  } else if (::ftruncate(fd_, 0) != 0) {
    refuse(std::strerror(errno));
  }
}

MetricsFile::~MetricsFile() {
  if (fd_ < 0) return;
  flush();
  if (!unwritten_.empty()) {
    std::cerr << "ds: warning: the last lines of the metrics file " << path_ << " are lost\n";
  }
  ::close(fd_);
}

// Cuts off the lines at the end whose steps are done again, and half a line that a crash left.
void MetricsFile::keep_up_to(int64_t step) {
  std::ifstream file(path_, std::ios::binary);
  std::string line;
  int64_t end = 0, kept = 0;
  while (std::getline(file, line)) {
    if (file.eof()) break;  // no line feed: half a line
    end += static_cast<int64_t>(line.size()) + 1;
    const std::optional<int64_t> found = step_of(line);
    if (!found || *found <= step) kept = end;
  }
  if (::ftruncate(fd_, kept) != 0) {
    std::cerr << "ds: warning: the metrics file " << path_ << " repeats steps after " << step
              << ": cannot cut it: " << std::strerror(errno) << "\n";
  }
}

std::string bad_parameter(const libds::StepReport& report, const libds::Model& model) {
  return report.first_bad_parameter < 0 ? std::string()
                                        : model.parameter_name(report.first_bad_parameter);
}

void MetricsFile::write(const libds::StepReport& report, std::optional<double> valid_loss,
                        const libds::Comm& comm, const libds::Engine& engine,
                        const libds::Model& model) {
  if (path_.empty()) return;
  Json line;
  line["step"] = report.step;
  line["loss"] = number(report.loss);
  if (!std::isnan(report.teacher_loss)) {
    line["label_loss"] = number(report.label_loss);
    line["teacher_loss"] = number(report.teacher_loss);
  }
  line["lr"] = number(report.lr);
  line["grad_norm"] = report.grad_norm < 0 ? Json() : number(report.grad_norm);
  line["loss_scale"] = number(report.loss_scale);
  line["applied"] = report.applied != 0;
  line["tokens"] = report.tokens;
  line["tokens_per_s"] = number(tokens_per_second(report));
  line["seconds"] = number(report.seconds);
  if (report.forward_seconds + report.backward_seconds + report.update_seconds > 0) {
    line["forward_seconds"] = number(report.forward_seconds);
    line["backward_seconds"] = number(report.backward_seconds);
    line["update_seconds"] = number(report.update_seconds);
  }
  line["samples"] = report.samples;
  if (!report.applied) {
    line["skip_reason"] = skip_reason_name(report.skip_reason);
    line["first_bad_tensor"] = bad_parameter(report, model);
    if (report.first_bad_element >= 0) {
      line["first_bad_element"] = report.first_bad_element;
      line["first_bad_value"] = value_name(report.first_bad_value);
    }
  }
  if (valid_loss) line["valid_loss"] = number(*valid_loss);
  if (Json experts = expert_summary(engine); !experts.is_null()) {
    line["experts"] = std::move(experts);
  }
  if (comm.size() > 1) {
    int64_t within = 0, across = 0;
    const Json about = parse_json(comm.report(), "the group's report");
    for (const auto& [name, sent] : about.at("total_traffic").items()) {
      within += sent.at("within_node_bytes").get<int64_t>();
      across += sent.at("across_nodes_bytes").get<int64_t>();
    }
    line["sent_within_node"] = within - std::exchange(within_node_, within);
    line["sent_across_nodes"] = across - std::exchange(across_nodes_, across);
  }
  if (Json memory = peak_memory(engine); memory != memory_) {
    line["memory"] = memory;
    memory_ = std::move(memory);
  }
  unwritten_ += line.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  flush();
}

void MetricsFile::flush() {
  while (!unwritten_.empty()) {
    const ssize_t n = ::write(fd_, unwritten_.data(), unwritten_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (!failing_ && errno != EPIPE) {
        std::cerr << "ds: warning: cannot write the metrics file " << path_ << ": "
                  << std::strerror(errno) << "; training goes on, and this is tried again\n";
      }
      failing_ = true;
      break;
    }
    const std::string_view written(unwritten_.data(), static_cast<size_t>(n));
    const size_t last = written.rfind('\n');
    of_line_ =
        last == std::string_view::npos ? of_line_ + written.size() : written.size() - last - 1;
    unwritten_.erase(0, static_cast<size_t>(n));
  }
  if (unwritten_.empty() && failing_) {
    failing_ = false;
    std::cerr << "ds: note: the metrics file " << path_ << " can be written again";
    if (dropped_ > 0) std::cerr << "; " << dropped_ << " lines are lost";
    std::cerr << "\n";
    dropped_ = 0;
  }
  // The line that the file has the beginning of stays, so that no line is ever half of two.
  while (unwritten_.size() > kMostUnwritten) {
    const size_t begin = of_line_ > 0 ? unwritten_.find('\n') + 1 : 0;
    const size_t end = unwritten_.find('\n', begin) + 1;
    if (end == 0 || end <= begin) break;
    unwritten_.erase(begin, end - begin);
    ++dropped_;
  }
}

}  // namespace tool
