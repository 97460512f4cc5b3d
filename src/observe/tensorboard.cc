#include "observe/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"

namespace ds {
namespace {

template <class T>
void put_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

// Protobuf wire types.
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
void put_key(std::string& out, uint32_t field, Wire wire) { put_varint(out, field << 3 | wire); }

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_wall_time(std::string& out, double wall_time) {
  put_key(out, 1, kFixed64);
  put_little_endian(out, std::bit_cast<uint64_t>(wall_time));
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// events.out.tfevents.<seconds>.<host>.<pid>.<n>, the first n that is free.
std::filesystem::path event_file(const std::filesystem::path& folder) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const std::string stem =
      str_cat("events.out.tfevents.", static_cast<int64_t>(wall_time_now()), ".",
              host[0] == '\0' ? "localhost" : host.data(), ".", ::getpid(), ".");
  int n = 0;
  while (std::filesystem::exists(folder / (stem + std::to_string(n)))) ++n;
  return folder / (stem + std::to_string(n));
}

class TensorboardMonitor : public Monitor {
 public:
  explicit TensorboardMonitor(const MonitorOptions& options) {
    const std::filesystem::path folder =
        std::filesystem::path(options.output_path.empty() ? "." : options.output_path) /
        options.job_name;
    make_folders(folder);
    file_ = File(event_file(folder), File::Mode::kCreate);
    file_.append(tensorboard_record(tensorboard_version_event(wall_time_now())));
  }

  void write(int64_t samples, std::span<const Metric> metrics) override {
    file_.append(tensorboard_record(tensorboard_scalar_event(wall_time_now(), samples, metrics)));
  }

 private:
  File file_;
};

}  // namespace

std::string tensorboard_record(std::string_view payload) {
  std::string length;
  put_little_endian(length, static_cast<uint64_t>(payload.size()));
  std::string out = length;
  put_little_endian(out, masked_crc(length));
  out += payload;
  put_little_endian(out, masked_crc(payload));
  return out;
}

std::string tensorboard_version_event(double wall_time) {
  std::string event;
  put_wall_time(event, wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string tensorboard_scalar_event(double wall_time, int64_t step,
                                     std::span<const Metric> metrics) {
  std::string summary;
  for (const Metric& metric : metrics) {
    std::string value;
    put_bytes(value, 1, metric.tag);
    put_key(value, 2, kFixed32);
    put_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(metric.value)));
    put_bytes(summary, 1, value);
  }
  std::string event;
  put_wall_time(event, wall_time);
  put_key(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  return event;
}

std::unique_ptr<Monitor> make_tensorboard_monitor(const MonitorOptions& options) {
  return std::make_unique<TensorboardMonitor>(options);
}

}  // namespace ds
