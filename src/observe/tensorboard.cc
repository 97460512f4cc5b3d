#include "observe/tensorboard.h"

#include <unistd.h>

#include <bit>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "observe/protobuf.h"

namespace ds {
namespace {

class TensorboardMonitor : public Monitor {
 public:
  explicit TensorboardMonitor(const MonitorOptions& options) {
    const std::filesystem::path folder = monitor_folder(options, name());
    const double now = wall_time_now();
    std::filesystem::path path;
    std::error_code error;
    for (int n = 0;; ++n) {
      path = folder / str_cat("events.out.tfevents.", static_cast<int64_t>(now), ".", host_name(),
                              ".", ::getpid(), ".", n);
      if (!std::filesystem::exists(path, error)) break;
    }
    file_ = File(path, File::Mode::kAppend);
    file_.append(tensorboard_record(tensorboard_version_event(now)));
  }

  const char* name() const noexcept override { return "tensorboard"; }

  void write(const TrainingPoint& at, const std::vector<Metric>& metrics) override {
    file_.append(
        tensorboard_record(tensorboard_scalar_event(wall_time_now(), at.samples, metrics)));
  }

  void sync() override { file_.sync(); }

 private:
  File file_;
};

}  // namespace

uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

std::string tensorboard_record(std::string_view payload) {
  std::string out;
  protobuf::put_fixed(&out, payload.size(), 8);
  protobuf::put_fixed(&out, masked_crc32c(std::as_bytes(std::span(out))), 4);
  out.append(payload);
  protobuf::put_fixed(&out, masked_crc32c(std::as_bytes(std::span(payload))), 4);
  return out;
}

std::string tensorboard_version_event(double wall_time) {
  std::string out;
  protobuf::put_double(&out, 1, wall_time);
  protobuf::put_bytes(&out, 3, "brain.Event:2");
  return out;
}

std::string tensorboard_scalar_event(double wall_time, int64_t step,
                                     const std::vector<Metric>& metrics) {
  std::string summary;
  for (const Metric& metric : metrics) {
    std::string value;
    protobuf::put_bytes(&value, 1, metric.tag);
    protobuf::put_float(&value, 2, static_cast<float>(metric.value));
    protobuf::put_bytes(&summary, 1, value);
  }
  std::string out;
  protobuf::put_double(&out, 1, wall_time);
  protobuf::put_integer(&out, 2, step);
  protobuf::put_bytes(&out, 5, summary);
  return out;
}

std::unique_ptr<Monitor> make_tensorboard_monitor(const MonitorOptions& options) {
  return std::make_unique<TensorboardMonitor>(options);
}

}  // namespace ds
