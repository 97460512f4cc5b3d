// Monitors: golden records, files re-read by parsers written for the test, failures.
#include "observe/monitor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "fresh_seed.h"
#include "observe/tensorboard.h"

namespace ds {
namespace {

namespace fs = std::filesystem;

class MonitorTest : public ::testing::Test {
 protected:
  MonitorTest() {
    std::string pattern = (fs::temp_directory_path() / "ds-observe-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~MonitorTest() override {
    std::error_code error;
    fs::remove_all(folder_, error);
  }
  MonitorOptions options() const { return {true, folder_.string(), "job"}; }
  static std::string slurp(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::vector<fs::path> files(const fs::path& folder) const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
  }
  fs::path folder_;
};

std::string from_hex(std::string_view hex) {
  std::string out, digits;
  for (const char c : hex) {
    if (c == ' ') continue;
    digits += c;
    if (digits.size() == 2) {
      out += static_cast<char>(std::stoi(digits, nullptr, 16));
      digits.clear();
    }
  }
  return out;
}

TEST(Tensorboard, GoldenVectors) {
  EXPECT_EQ(masked_crc32c(std::as_bytes(std::span("123456789", 9))), 0xc78ab0e5u);
  EXPECT_EQ(tensorboard_record(tensorboard_version_event(1.0)),
            from_hex("1800000000000000 a37f4b22 09000000000000f03f1a0d627261696e2e4576656e743a32 "
                     "86bf577a"));
  EXPECT_EQ(tensorboard_record(tensorboard_scalar_event(2.0, 7, {{"loss", 0.5}})),
            from_hex("1a00000000000000 129bd82d "
                     "09000000000000004010072a0d0a0b0a046c6f7373150000003f c33fc24a"));
}

// A reader of event files that shares no code with the writer: bitwise CRC, generic protobuf.
uint32_t slow_masked_crc(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int k = 0; k < 8; ++k) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82F63B78u : 0u);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class T>
T take(std::string_view* in) {
  T value;
  if (in->size() < sizeof value) throw std::runtime_error("short");
  std::memcpy(&value, in->data(), sizeof value);
  in->remove_prefix(sizeof value);
  return value;
}

uint64_t take_varint(std::string_view* in) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(in);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
}

struct Field {
  uint64_t number = 0;
  uint64_t integer = 0;
  std::string_view bytes;
};
std::vector<Field> message(std::string_view in) {
  std::vector<Field> out;
  while (!in.empty()) {
    const uint64_t key = take_varint(&in);
    Field field;
    field.number = key >> 3;
    switch (key & 7) {
      case 0:
        field.integer = take_varint(&in);
        break;
      case 1:
        field.bytes = in.substr(0, 8);
        take<uint64_t>(&in);
        break;
      case 2: {
        const uint64_t n = take_varint(&in);
        if (n > in.size()) throw std::runtime_error("short");
        field.bytes = in.substr(0, n);
        in.remove_prefix(n);
        break;
      }
      case 5:
        field.bytes = in.substr(0, 4);
        take<uint32_t>(&in);
        break;
      default:
        throw std::runtime_error("wire type");
    }
    out.push_back(field);
  }
  return out;
}

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  std::vector<std::pair<std::string, float>> values;
};
std::vector<Event> parse_events(const std::string& file) {
  std::vector<Event> out;
  std::string_view in = file;
  while (!in.empty()) {
    const std::string_view length_bytes = in.substr(0, 8);
    const auto length = take<uint64_t>(&in);
    if (take<uint32_t>(&in) != slow_masked_crc(length_bytes)) throw std::runtime_error("crc");
    if (length > in.size()) throw std::runtime_error("short");
    const std::string_view payload = in.substr(0, length);
    in.remove_prefix(length);
    if (take<uint32_t>(&in) != slow_masked_crc(payload)) throw std::runtime_error("crc");
    Event event;
    for (const Field& field : message(payload)) {
      if (field.number == 1) std::memcpy(&event.wall_time, field.bytes.data(), 8);
      if (field.number == 2) event.step = static_cast<int64_t>(field.integer);
      if (field.number == 3) event.version = field.bytes;
      if (field.number != 5) continue;
      for (const Field& value : message(field.bytes)) {
        std::pair<std::string, float> item;
        for (const Field& part : message(value.bytes)) {
          if (part.number == 1) item.first = part.bytes;
          if (part.number == 2) std::memcpy(&item.second, part.bytes.data(), 4);
        }
        event.values.push_back(item);
      }
    }
    out.push_back(event);
  }
  return out;
}

TEST_F(MonitorTest, TensorboardFilesAreReadBackByAnIndependentParser) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 rng(seed);
  std::vector<std::pair<int64_t, std::vector<Metric>>> written;
  {
    const auto monitor = make_tensorboard_monitor(options());
    for (int i = 0; i < 200; ++i) {
      std::vector<Metric> metrics;
      for (uint64_t k = 0; k <= rng() % 4; ++k) {
        const double value = std::ldexp(static_cast<double>(static_cast<int64_t>(rng())), -60);
        metrics.push_back({"Train/Samples/größe" + std::string(k * 50, 'x'), value});
      }
      const auto step = static_cast<int64_t>(rng() >> (1 + rng() % 63));
      monitor->write({step, step}, metrics);
      written.emplace_back(step, metrics);
      // Everything is in the file as soon as write() returns.
      if (i == 0) {
        EXPECT_EQ(parse_events(slurp(files(folder_ / "job")[0])).size(), 2u);
      }
    }
  }
  ASSERT_EQ(files(folder_ / "job").size(), 1u);
  const fs::path path = files(folder_ / "job")[0];
  const std::string name = path.filename().string();
  const std::string tail = "." + std::to_string(::getpid()) + ".0";
  ASSERT_GT(name.size(), 30 + tail.size());
  EXPECT_EQ(name.substr(0, 20), "events.out.tfevents.");
  EXPECT_NEAR(std::stod(name.substr(20, 10)), static_cast<double>(::time(nullptr)), 60);
  EXPECT_EQ(name[30], '.');
  EXPECT_EQ(name.substr(name.size() - tail.size()), tail);
  const std::vector<Event> events = parse_events(slurp(path));
  ASSERT_EQ(events.size(), written.size() + 1);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  for (size_t i = 0; i < written.size(); ++i) {
    const Event& event = events[i + 1];
    EXPECT_EQ(event.step, written[i].first);
    EXPECT_GE(event.wall_time, events[i].wall_time - 1);
    EXPECT_NEAR(event.wall_time, static_cast<double>(::time(nullptr)), 60);
    ASSERT_EQ(event.values.size(), written[i].second.size());
    for (size_t k = 0; k < event.values.size(); ++k) {
      EXPECT_EQ(event.values[k].first, written[i].second[k].tag);
      EXPECT_EQ(event.values[k].second, static_cast<float>(written[i].second[k].value));
    }
  }
}

TEST_F(MonitorTest, ASecondTensorboardWriterGetsItsOwnFile) {
  const auto first = make_tensorboard_monitor(options());
  const auto second = make_tensorboard_monitor(options());
  EXPECT_EQ(files(folder_ / "job").size(), 2u);
}

TEST_F(MonitorTest, CsvHasOneFilePerTagAndOneHeaderOverRestarts) {
  for (int run = 0; run < 2; ++run) {
    const auto monitor = make_csv_monitor(options());
    monitor->write({8 + run, 8 + run}, {{"Train/Samples/train loss", 0.5}, {"lr", 1e-5}});
    monitor->write({16 + run, 16 + run}, {{"Train/Samples/train loss", std::nan("")},
                                          {"lr", -std::numeric_limits<double>::infinity()},
                                          {"odd,\"tag\"", 3}});
    monitor->sync();
  }
  const fs::path job = folder_ / "job";
  EXPECT_EQ(slurp(job / "Train_Samples_train_loss.csv"),
            "step,train loss\r\n8,0.5\r\n16,nan\r\n9,0.5\r\n17,nan\r\n");
  EXPECT_EQ(slurp(job / "lr.csv"), "step,lr\r\n8,1e-05\r\n16,-inf\r\n9,1e-05\r\n17,-inf\r\n");
  EXPECT_EQ(slurp(job / "odd,\"tag\".csv"), "step,\"odd,\"\"tag\"\"\"\r\n16,3\r\n17,3\r\n");
  EXPECT_EQ(files(job).size(), 3u);  // the probe is gone
}

TEST_F(MonitorTest, JsonLinesAreOneObjectPerWriteWithExactNumbers) {
  const fs::path path = folder_ / "new" / "metrics.jsonl";
  const double odd = 0.1 + 0.2;
  {
    const auto monitor = make_json_lines_monitor({true, path.string()});
    monitor->write({1, 1}, {{"loss", odd}, {"lr", 3e-4}});
    monitor->write({2, 2}, {{"loss", std::nan("")}});
  }
  std::ofstream(path, std::ios::app) << "{\"step\":3,\"lo";  // a crash in the middle of a line
  {
    const auto monitor = make_json_lines_monitor({true, path.string()});
    monitor->write({4, 4}, {{"loss", 1.0}});
  }
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4u);
  const Json first = parse_json(lines[0], "line", Code::kCorrupt);
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["loss"].get<double>(), odd);
  EXPECT_TRUE(parse_json(lines[1], "line", Code::kCorrupt)["loss"].is_null());
  EXPECT_EQ(parse_json(lines[3], "line", Code::kCorrupt)["step"], 4);
}

TEST_F(MonitorTest, PathsThatCannotBeWrittenAreErrorsAtCreation) {
  const std::string file = (folder_ / "file").string();
  std::ofstream(file) << "x";
  const MonitorOptions blocked{true, file, "job"};
  const auto message_of = [](const std::function<void()>& fn) -> std::string {
    try {
      fn();
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  for (const auto& [name, text] : std::map<std::string, std::string>{
           {"tensorboard", message_of([&] { make_tensorboard_monitor(blocked); })},
           {"csv_monitor", message_of([&] { make_csv_monitor(blocked); })},
           {"json_lines", message_of([&] {
              make_json_lines_monitor({true, file + "/x"});
            })},
           {"json_lines", message_of([&] {
              make_json_lines_monitor({true, ""});
            })}}) {
    EXPECT_NE(text.find(name), std::string::npos) << text;
  }
  EXPECT_NE(message_of([&] { make_csv_monitor(blocked); }).find(file), std::string::npos);
  MonitorSetOptions all;
  all.csv = blocked;
  EXPECT_NE(message_of([&] { MonitorSet set(all); }).find("csv_monitor"), std::string::npos);
}

TEST_F(MonitorTest, TheSetWritesToAllThatAreEnabled) {
  EXPECT_TRUE(MonitorSet(MonitorSetOptions{}).empty());
  MonitorSetOptions all;
  all.tensorboard = all.csv = options();
  all.json_lines = {true, (folder_ / "m.jsonl").string()};
  MonitorSet set(all);
  set.write({4, 4}, {{"Train/Samples/lr", 0.25}});
  set.write({8, 8}, {});
  set.sync();
  EXPECT_EQ(slurp(folder_ / "m.jsonl"), "{\"step\":4,\"samples\":4,\"Train/Samples/lr\":0.25}\n");
  EXPECT_EQ(slurp(folder_ / "job/Train_Samples_lr.csv"), "step,lr\r\n4,0.25\r\n");
  EXPECT_EQ(files(folder_ / "job").size(), 2u);
  for (const std::string& tag : {std::string(), std::string(201, 'x'), std::string("a\nb"),
                                 std::string("\xff"), std::string("a\0b", 3)}) {
    EXPECT_THROW(set.write({9, 9}, {{tag, 1}}), Error);
  }
}

TEST_F(MonitorTest, AFailingMonitorIsDroppedAndTheOthersGoOn) {
  // Files may not grow beyond 100 bytes: the long JSON line fails, the short CSV row does not.
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit size{100, 100};
    ::setrlimit(RLIMIT_FSIZE, &size);
    try {
      MonitorSetOptions both;
      both.csv = options();
      both.json_lines = {true, (folder_ / "m.jsonl").string()};
      MonitorSet set(both);
      for (int step = 1; step <= 3; ++step) {
        set.write({step, step}, {{"Train/Samples/some_rather_long_name_of_a_metric", 0.5}});
      }
      ::_exit(set.failures().size() == 1 && !set.empty() &&
                      set.failures()[0].find("m.jsonl") != std::string::npos
                  ? 0
                  : 1);
    } catch (...) {
      ::_exit(2);
    }
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const std::string csv =
      slurp(folder_ / "job/Train_Samples_some_rather_long_name_of_a_metric.csv");
  EXPECT_NE(csv.find("3,0.5\r\n"), std::string::npos) << csv;
}

}  // namespace
}  // namespace ds
