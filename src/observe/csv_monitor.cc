// CSV as DeepSpeed's csv_monitor writes it: one file per tag, "/" and blanks in its name replaced,
// header `step,LAST_PART_OF_TAG`, rows ended by CR LF, appended to over restarts.
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "observe/monitor.h"

namespace ds {
namespace {

std::string file_name(const std::string& tag) {
  std::string out = tag;
  for (char& c : out) {
    if (c == '/' || c == ' ') c = '_';
  }
  return out + ".csv";
}

// RFC 4180 quoting.
std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::string csv_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return format_number(value);
}

class CsvMonitor : public Monitor {
 public:
  explicit CsvMonitor(const MonitorOptions& options) : folder_(monitor_folder(options, name())) {
    // The files appear with their first values; whether they can is better known now.
    const std::filesystem::path probe = folder_ / str_cat(".probe.", ::getpid());
    try {
      File(probe, File::Mode::kNew).close();
    } catch (const Error& error) {
      fail(error.code(), name(), ": ", error.message());
    }
    ::unlink(probe.c_str());
  }

  const char* name() const noexcept override { return "csv_monitor"; }

  void write(const TrainingPoint& at, const std::vector<Metric>& metrics) override {
    for (const Metric& metric : metrics) {
      // Opened for each row: there may be more tags than descriptors.
      File file(folder_ / file_name(metric.tag), File::Mode::kAppend);
      std::string rows;
      if (file.size() == 0) {  // a resumed run goes on below the rows of the run before
        rows = str_cat("step,", csv_field(metric.tag.substr(metric.tag.rfind('/') + 1)), "\r\n");
      }
      rows += str_cat(at.samples, ",", csv_number(metric.value), "\r\n");
      file.append(rows);
      file.close();
    }
  }

  void sync() override {
    for (const std::string& name : entry_names(folder_)) {
      if (name.ends_with(".csv")) File(folder_ / name, File::Mode::kRead).sync();
    }
    sync_folder(folder_);
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace

std::unique_ptr<Monitor> make_csv_monitor(const MonitorOptions& options) {
  return std::make_unique<CsvMonitor>(options);
}

}  // namespace ds
