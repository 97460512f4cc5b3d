// JSON lines: one object per write, {"step": N, "samples": N, "TAG": VALUE, ...} with the
// optimizer's step and the samples seen; a value that is not finite, which JSON cannot say, becomes
// null.
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "observe/monitor.h"

namespace ds {
namespace {

class JsonLinesMonitor : public Monitor {
 public:
  explicit JsonLinesMonitor(const JsonLinesOptions& options) {
    const std::filesystem::path path = options.path;
    DS_CHECK(!path.empty(), Code::kConfig, name(), ": no file is named");
    try {
      if (path.has_parent_path()) make_folders(path.parent_path());
      file_ = File(path, File::Mode::kAppend);
      const int64_t size = file_.size();
      if (size > 0) {  // a line that a crash cut short must not swallow the next one
        std::array<std::byte, 1> last;
        file_.read_at(size - 1, last);
        if (last[0] != std::byte{'\n'}) file_.append("\n");
      }
    } catch (const Error& error) {
      fail(error.code(), name(), ": ", error.message());
    }
  }

  const char* name() const noexcept override { return "json_lines"; }

  void write(const TrainingPoint& at, const std::vector<Metric>& metrics) override {
    Json line;
    line["step"] = at.step;
    line["samples"] = at.samples;
    for (const Metric& metric : metrics) line[metric.tag] = metric.value;
    file_.append(dump_json(line) + "\n");
  }

  void sync() override { file_.sync(); }

 private:
  File file_;
};

}  // namespace

std::unique_ptr<Monitor> make_json_lines_monitor(const JsonLinesOptions& options) {
  return std::make_unique<JsonLinesMonitor>(options);
}

}  // namespace ds
