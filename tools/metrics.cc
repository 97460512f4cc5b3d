#include "metrics.h"

#include <cmath>
#include <utility>

#include "command.h"
#include "format.h"
#include "progress.h"

namespace tool {
namespace {

// JSON has no NaN and no infinity: null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

const char* skip_reason_name(int32_t reason) {
  switch (reason) {
    case DS_SKIP_ACCUMULATING:
      return "accumulating";
    case DS_SKIP_NON_FINITE:
      return "non_finite";
    default:
      return "unknown";
  }
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, bool append) : path_(path) {
  if (path_.empty()) return;
  file_.open(path_, append ? std::ios::app : std::ios::trunc);
  if (!file_) throw Failure("cannot open the metrics file " + path_ + " for writing");
}

void MetricsFile::write(const libds::StepReport& report, std::optional<double> valid_loss,
                        const libds::Comm& comm) {
  if (path_.empty()) return;
  Json line;
  line["step"] = report.step;
  line["loss"] = number(report.loss);
  line["lr"] = number(report.lr);
  line["grad_norm"] = report.grad_norm < 0 ? Json() : number(report.grad_norm);
  line["loss_scale"] = number(report.loss_scale);
  line["applied"] = report.applied != 0;
  line["tokens"] = report.tokens;
  line["tokens_per_s"] = number(tokens_per_second(report));
  line["seconds"] = number(report.seconds);
  line["samples"] = report.samples;
  if (!report.applied) {
    line["skip_reason"] = skip_reason_name(report.skip_reason);
    line["first_bad_tensor"] = report.first_bad_tensor;
  }
  if (valid_loss) line["valid_loss"] = number(*valid_loss);
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
  file_ << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  if (!file_) throw Failure("cannot write the metrics file " + path_);
}

}  // namespace tool
