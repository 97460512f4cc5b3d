#include "observe/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace ds {
namespace {

constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;  // protobuf wire types

void put_fixed(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

void put_varint(std::string* out, uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void put_key(std::string* out, int field, int wire) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}

void put_bytes(std::string* out, int field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out->append(bytes);
}

void put_double(std::string* out, int field, double value) {
  put_key(out, field, kFixed64);
  put_fixed(out, std::bit_cast<uint64_t>(value), 8);
}

void put_float(std::string* out, int field, float value) {
  put_key(out, field, kFixed32);
  put_fixed(out, std::bit_cast<uint32_t>(value), 4);
}

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  std::string out(name.data());
  for (char& c : out) {
    if (c == '/') c = '_';
  }
  return out;
}

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

  void write(int64_t step, const std::vector<Metric>& metrics) override {
    file_.append(tensorboard_record(tensorboard_scalar_event(wall_time_now(), step, metrics)));
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
  put_fixed(&out, payload.size(), 8);
  put_fixed(&out, masked_crc32c(std::as_bytes(std::span(out))), 4);
  out.append(payload);
  put_fixed(&out, masked_crc32c(std::as_bytes(std::span(payload))), 4);
  return out;
}

std::string tensorboard_version_event(double wall_time) {
  std::string out;
  put_double(&out, 1, wall_time);
  put_bytes(&out, 3, "brain.Event:2");
  return out;
}

std::string tensorboard_scalar_event(double wall_time, int64_t step,
                                     const std::vector<Metric>& metrics) {
  std::string summary;
  for (const Metric& metric : metrics) {
    std::string value;
    put_bytes(&value, 1, metric.tag);
    put_float(&value, 2, static_cast<float>(metric.value));
    put_bytes(&summary, 1, value);
  }
  std::string out;
  put_double(&out, 1, wall_time);
  put_key(&out, 2, kVarint);
  put_varint(&out, static_cast<uint64_t>(step));
  put_bytes(&out, 5, summary);
  return out;
}

std::unique_ptr<Monitor> make_tensorboard_monitor(const MonitorOptions& options) {
  return std::make_unique<TensorboardMonitor>(options);
}

}  // namespace ds
