#include "observe/wandb.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <random>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "observe/protobuf.h"

namespace ds {
namespace {

using protobuf::put_bytes;
using protobuf::put_integer;

// The log format.
constexpr int64_t kBlock = 32768;
constexpr int64_t kHeader = 7;  // of the file, and of each piece of a record
enum Piece : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

// Field numbers of wandb_internal.proto.
namespace record_field {
constexpr int kNum = 1, kHistory = 2, kSummary = 3, kRun = 17, kExit = 18, kHeader = 21;
}
namespace run_field {
constexpr int kId = 1, kEntity = 2, kProject = 3, kConfig = 4, kGroup = 6, kHost = 13,
              kStartTime = 17;
}
constexpr int kItem = 1;  // of HistoryRecord; update of SummaryRecord and ConfigRecord
constexpr int kHistoryStep = 2;
constexpr int kKey = 1, kValueJson = 16;  // of each item

std::string item(std::string_view key, std::string_view value_json) {
  std::string out;
  put_bytes(&out, kKey, key);
  put_bytes(&out, kValueJson, value_json);
  return out;
}

// What wandb's JSON reader takes, which knows NaN and Infinity.
std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return format_number(value);
}

std::string timestamp(double time) {
  const double seconds = std::floor(time);
  std::string out;
  put_integer(&out, 1, static_cast<int64_t>(seconds));
  const auto nanos = static_cast<int64_t>((time - seconds) * 1e9);
  if (nanos != 0) put_integer(&out, 2, nanos);
  return out;
}

std::string random_id() {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device device;
  std::string out;
  for (int i = 0; i < 8; ++i) out += kDigits[device() % kDigits.size()];
  return out;
}

std::string folder_name(double time, const std::string& id) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &parts);
  return str_cat("offline-run-", text.data(), "-", id);
}

class WandbMonitor : public Monitor {
 public:
  explicit WandbMonitor(const WandbOptions& options) {
    WandbRun run;
    run.id = random_id();
    run.entity = options.team;
    run.project = options.project;
    run.group = options.group;
    run.host = host_name();
    run.start_time = wall_time_now();
    run.config = options.config;
    const std::filesystem::path folder =
        std::filesystem::path(options.output_path) / "wandb" / folder_name(run.start_time, run.id);
    try {
      make_folders(folder / "files");
      file_ = File(folder / str_cat("run-", run.id, ".wandb"), File::Mode::kAppend);
      file_.append(log_.begin(run));
    } catch (const Error& error) {
      fail(error.code(), name(), ": ", error.message());
    }
    log_info("observe", "wandb: offline run; send it with: wandb sync ", folder.string());
  }

  ~WandbMonitor() override {
    try {
      file_.append(log_.end(wall_time_now()));
      file_.close();
    } catch (const std::exception& error) {
      log_warning("observe", "wandb: the run has no end: ", error.what());
    }
  }

  const char* name() const noexcept override { return "wandb"; }

  void write(const TrainingPoint& at, const std::vector<Metric>& metrics) override {
    file_.append(log_.row(at.samples, wall_time_now(), metrics));
  }

  void sync() override { file_.sync(); }

 private:
  WandbLog log_;
  File file_;
};

}  // namespace

std::string WandbLog::frame(std::string_view payload) {
  std::string out;
  const auto put = [&](Piece type, std::string_view part) {
    const auto kind = static_cast<std::byte>(type);
    const uint32_t crc =
        crc32_ieee(std::as_bytes(std::span(part)), crc32_ieee(std::span(&kind, 1)));
    protobuf::put_fixed(&out, crc, 4);
    protobuf::put_fixed(&out, part.size(), 2);
    protobuf::put_fixed(&out, type, 1);
    out.append(part);
    offset_ += kHeader + static_cast<int64_t>(part.size());
  };
  int64_t room = kBlock - offset_ % kBlock;
  if (room < kHeader) {  // too little for a piece: zeros up to the next block
    out.append(static_cast<size_t>(room), '\0');
    offset_ += room;
    room = kBlock;
  }
  bool first = true;
  while (true) {
    const auto fits = static_cast<size_t>(room - kHeader);
    if (payload.size() <= fits) {
      put(first ? kFull : kLast, payload);
      return out;
    }
    put(first ? kFirst : kMiddle, payload.substr(0, fits));
    payload.remove_prefix(fits);
    first = false;
    room = kBlock;
  }
}

std::string WandbLog::record(int field, std::string_view message) {
  // Fields in the order of their numbers, as protobuf's own writers have them.
  std::string out;
  put_integer(&out, record_field::kNum, ++records_);
  put_bytes(&out, field, message);
  return frame(out);
}

std::string WandbLog::begin(const WandbRun& run) {
  start_time_ = run.start_time;
  std::string out = ":W&B";
  protobuf::put_fixed(&out, 0xBEE1, 2);
  protobuf::put_fixed(&out, 0, 1);
  offset_ = kHeader;

  std::string version, header, message, config;
  put_bytes(&version, 1, "ds");      // producer
  put_bytes(&version, 2, "0.12.0");  // the oldest wandb that reads this
  put_bytes(&header, 1, version);
  out += record(record_field::kHeader, header);

  const auto text = [&](int field, const std::string& value) {
    if (!value.empty()) put_bytes(&message, field, value);
  };
  text(run_field::kId, run.id);
  text(run_field::kEntity, run.entity);
  text(run_field::kProject, run.project);
  if (run.config.is_object()) {
    for (const auto& [key, value] : run.config.items()) {
      put_bytes(&config, kItem, item(key, dump_json(value)));
    }
  }
  text(run_field::kConfig, config);
  text(run_field::kGroup, run.group);
  text(run_field::kHost, run.host);
  put_bytes(&message, run_field::kStartTime, timestamp(run.start_time));
  return out + record(record_field::kRun, message);
}

std::string WandbLog::row(int64_t step, double time, const std::vector<Metric>& metrics) {
  last_step_ = std::max(step, last_step_ + 1);
  std::string items;
  for (const Metric& metric : metrics) {
    put_bytes(&items, kItem, item(metric.tag, json_number(metric.value)));
  }
  put_bytes(&items, kItem, item("_timestamp", json_number(time)));
  put_bytes(&items, kItem, item("_runtime", json_number(std::max(0.0, time - start_time_))));
  put_bytes(&items, kItem, item("_step", str_cat(last_step_)));
  std::string number, history = items;
  if (last_step_ != 0) put_integer(&number, 1, last_step_);
  put_bytes(&history, kHistoryStep, number);
  std::string out = record(record_field::kSummary, items);
  out += record(record_field::kHistory, history);
  return out;
}

std::string WandbLog::end(double time) {
  std::string exit;
  const auto seconds = static_cast<int64_t>(std::max(0.0, time - start_time_));
  if (seconds != 0) put_integer(&exit, 2, seconds);  // the exit code 0 goes without saying
  return record(record_field::kExit, exit);
}

std::unique_ptr<Monitor> make_wandb_monitor(const WandbOptions& options) {
  return std::make_unique<WandbMonitor>(options);
}

}  // namespace ds
