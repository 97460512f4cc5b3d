// Saving and loading of checkpoints beside what the disk can do, and what saving in the background
// costs the training, all through the C ABI:
//   checkpoint_bench --folder DIR [--what speed|background|resume] [--rounds N] [--layers N]
//   [--batch N]
//                    [--length N] [--steps N] [--threads N]
// The model is a GPT-2 of width 768 with AdamW in fp32 (12 layers: 124M parameters, 1.5 GB of
// state). `speed`: in turn a write and a read of a plain file of the same size (past the page
// cache, from huge pages, the best of several queue depths), a save, and loads that find nothing in
// the page cache: into an engine that has trained (which reads everything twice), into the same one
// again, and into a new engine of a new process. `resume` is what that process does: it makes an
// engine and loads DIR/save into it. `background`: steps without a save and steps of which the
// first follows a save. Prints a line per measurement, and JSON as the last line. Removes what it
// wrote.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ds.hpp>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/buffer.h"
#include "io/queue.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kVocabulary = 50257;

struct Arguments {
  fs::path folder;
  std::string what = "speed";
  int64_t rounds = 5, layers = 12, batch = 4, length = 256, steps = 6, threads = 0;
};

double timed(const std::function<void()>& body) {
  const auto began = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
      .count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

Arguments parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    const auto number = [&] { return std::atoll(argv[i + 1]); };
    if (key == "--folder") {
      out.folder = argv[i + 1];
    } else if (key == "--what") {
      out.what = argv[i + 1];
    } else if (key == "--rounds") {
      out.rounds = number();
    } else if (key == "--layers") {
      out.layers = number();
    } else if (key == "--batch") {
      out.batch = number();
    } else if (key == "--length") {
      out.length = number();
    } else if (key == "--steps") {
      out.steps = number();
    } else if (key == "--threads") {
      out.threads = number();
    } else {
      throw std::runtime_error("unknown argument " + key);
    }
  }
  const bool known = out.what == "speed" || out.what == "background" || out.what == "resume";
  if (argc % 2 == 0 || out.folder.empty() || !known || out.rounds < 1 || out.steps < 1) {
    throw std::runtime_error(
        "usage: checkpoint_bench --folder DIR [--what speed|background|resume] [--rounds N] "
        "[--layers N] [--batch N] [--length N] [--steps N] [--threads N]");
  }
  return out;
}

// A model with an engine; a step gives every state a value.
class Training {
 public:
  Training(const Arguments& arguments, bool background)
      : arguments_(arguments),
        model_(libds::Model::create(model_config().dump(), 1)),
        engine_(engine_config(background).dump(), model_) {}

  double step() {
    const libds::Tensor ids = tokens(), labels = tokens();
    return timed([&] {
      const libds::Tensor loss = engine_.forward(ids, labels);
      engine_.backward(loss);
      engine_.step();
    });
  }
  libds::Engine& engine() { return engine_; }

 private:
  Json model_config() const {
    return {{"model_type", "gpt2"},
            {"vocab_size", kVocabulary},
            {"n_positions", 1024},
            {"n_embd", 768},
            {"n_layer", arguments_.layers},
            {"n_head", 12},
            {"resid_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0}};
  }
  Json engine_config(bool background) const {
    return {{"train_micro_batch_size_per_gpu", arguments_.batch},
            {"threads", arguments_.threads},
            {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}}}}},
            {"checkpoint", {{"writer", {{"decoupled", background}}}}}};
  }
  libds::Tensor tokens() {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < arguments_.batch * arguments_.length; ++i) {
      random_ = random_ * 1664525u + 1013904223u;
      out.push_back((random_ >> 8) % kVocabulary);
    }
    return libds::Tensor::from(out, std::vector<int64_t>{arguments_.batch, arguments_.length});
  }

  const Arguments& arguments_;
  uint32_t random_ = 1;
  libds::Model model_;
  libds::Engine engine_;
};

// Bytes of a tree, and nothing of it in the page cache afterwards.
int64_t drop_from_cache(const fs::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    bytes += static_cast<int64_t>(entry.file_size());
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
  return bytes;
}

// A plain file of `bytes`, moved from and to one buffer of huge pages: what the disk can do.
class Limit {
 public:
  Limit(const fs::path& folder, int64_t bytes)
      : path_(folder / "limit.bin"),
        bytes_(bytes / ds::io::kAlignment * ds::io::kAlignment),
        buffer_(std::min<int64_t>(bytes_, int64_t{256} << 20)) {
    std::memset(buffer_.data(), 1, static_cast<size_t>(buffer_.size()));
  }
  ~Limit() { ::unlink(path_.c_str()); }

  double write(int depth) {
    ::unlink(path_.c_str());
    return timed([&] {
      ds::io::File file(path_, ds::io::Access::kCreate);
      direct_ = file.direct();
      file.reserve(0, bytes_);
      run(depth, [&](ds::io::Queue& queue, int64_t at, std::span<std::byte> part) {
        queue.write(file, at, part);
      });
      file.sync();
    });
  }
  double read(int depth) {
    const ds::io::File file(path_, ds::io::Access::kRead);
    return timed([&] {
      run(depth, [&](ds::io::Queue& queue, int64_t at, std::span<std::byte> part) {
        queue.read(file, at, part);
      });
    });
  }
  bool direct() const { return direct_; }
  int64_t bytes() const { return bytes_; }

 private:
  template <class Fn>
  void run(int depth, const Fn& start) {
    ds::io::Queue queue({.depth = depth});
    for (int64_t at = 0; at < bytes_; at += buffer_.size()) {
      const int64_t n = std::min(buffer_.size(), bytes_ - at);
      start(queue, at, buffer_.bytes().first(static_cast<size_t>(n)));
    }
    queue.wait_all();
  }

  const fs::path path_;
  const int64_t bytes_;
  ds::io::Buffer buffer_;
  bool direct_ = false;
};

double gigabytes_per_second(int64_t bytes, double milliseconds) {
  return static_cast<double>(bytes) / milliseconds / 1e6;
}

// In a process that has done nothing before: what a resume costs.
Json measure_resume(const Arguments& arguments) {
  const std::string where = (arguments.folder / "save").string();
  std::optional<Training> training;
  const double create = timed([&] { training.emplace(arguments, false); });
  drop_from_cache(where);
  const double load = timed([&] { training->engine().load(where); });
  return {{"create_ms", create}, {"load_ms", load}};
}

// measure_resume in a process of its own.
Json resume_elsewhere(const Arguments& arguments, const fs::path& folder) {
  std::string command = fs::read_symlink("/proc/self/exe").string();
  const auto add = [&](const std::string& text) { command += " '" + text + "'"; };
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"--what", "resume"},
           {"--folder", folder.string()},
           {"--layers", std::to_string(arguments.layers)},
           {"--threads", std::to_string(arguments.threads)}}) {
    add(key);
    add(value);
  }
  FILE* const out = ::popen(command.c_str(), "r");
  if (out == nullptr) throw std::runtime_error("cannot run " + command);
  std::string text;
  for (int c; (c = std::fgetc(out)) != EOF;) text += static_cast<char>(c);
  if (::pclose(out) != 0) throw std::runtime_error("failed: " + command);
  return Json::parse(text);
}

// A virtual machine may have given memory back that nobody used; having it again takes long.
void make_fresh_memory_ready(int64_t bytes) {
  const ds::io::Buffer buffer(bytes);
  std::memset(buffer.data(), 1, static_cast<size_t>(buffer.size()));
}

Json measure_speed(const Arguments& arguments, const fs::path& folder) {
  Training training(arguments, false);
  training.step();
  const std::string where = (folder / "save").string();
  training.engine().save(where, "first");
  const int64_t bytes = drop_from_cache(where);
  fs::remove_all(where);
  constexpr int kDepths[] = {4, 8, 16, 32};
  std::vector<std::vector<double>> writes(std::size(kDepths)), reads(std::size(kDepths));
  std::vector<double> saves, over_training, over_warm, given_up, loads, creates, resumes;
  Limit limit(folder, bytes);
  for (int64_t round = 0; round < arguments.rounds; ++round) {
    for (size_t i = 0; i < std::size(kDepths); ++i) {
      writes[i].push_back(limit.write(kDepths[i]));
      reads[i].push_back(limit.read(kDepths[i]));
    }
    saves.push_back(timed([&] { training.engine().save(where, "t"); }));
    for (std::vector<double>* times : {&over_training, &over_warm, &given_up, &loads}) {
      if (times != &loads) training.step();
      drop_from_cache(where);
      if (times == &over_warm) make_fresh_memory_ready(bytes);
      const char* const options = times == &given_up ? R"({"restore_on_failure": false})" : "";
      times->push_back(timed([&] { training.engine().load(where, "t", options); }));
    }
    const Json resumed = resume_elsewhere(arguments, folder);
    creates.push_back(resumed.at("create_ms"));
    resumes.push_back(resumed.at("load_ms"));
    fs::remove_all(where);
  }
  double best_write = 0, best_read = 0;
  for (size_t i = 0; i < std::size(kDepths); ++i) {
    const double write = gigabytes_per_second(limit.bytes(), median(writes[i]));
    const double read = gigabytes_per_second(limit.bytes(), median(reads[i]));
    std::cout << "limit, queue depth " << kDepths[i] << ": write " << write << " GB/s, read "
              << read << " GB/s\n";
    best_write = std::max(best_write, write);
    best_read = std::max(best_read, read);
  }
  const auto rate = [&](const std::vector<double>& times) {
    return gigabytes_per_second(bytes, median(times));
  };
  std::cout << bytes << " bytes: save " << rate(saves) << " GB/s; cold load: again " << rate(loads)
            << ", over training " << rate(over_training) << " (" << rate(over_warm)
            << " with fresh memory ready, " << rate(given_up)
            << " without restoring on failure), of a new process " << rate(resumes)
            << " GB/s, whose engine took " << median(creates) << " ms to make\n";
  return {{"bytes", bytes},
          {"direct", limit.direct()},
          {"limit_write_gb_s", best_write},
          {"limit_read_gb_s", best_read},
          {"save_ms", saves},
          {"load_ms", loads},
          {"load_over_training_ms", over_training},
          {"load_over_training_given_up_ms", given_up},
          {"resume_ms", resumes},
          {"resume_create_ms", creates},
          {"save_gb_s", rate(saves)},
          {"load_gb_s", rate(loads)},
          {"resume_gb_s", rate(resumes)},
          {"save_of_limit", rate(saves) / best_write},
          {"load_of_limit", rate(loads) / best_read},
          {"load_over_training_of_limit", rate(over_training) / best_read},
          {"load_over_training_memory_ready_ms", over_warm},
          {"load_over_training_memory_ready_of_limit", rate(over_warm) / best_read},
          {"resume_of_limit", rate(resumes) / best_read}};
}

Json measure_background(const Arguments& arguments, const fs::path& folder) {
  Training training(arguments, true);
  training.step();
  const std::string where = (folder / "save").string();
  training.engine().save(where, "first");  // the memory that is kept
  training.engine().save_wait();
  fs::remove_all(where);
  std::vector<double> plain, calls, beside, totals, plain_totals;
  for (int64_t round = 0; round < arguments.rounds; ++round) {
    double without = 0, with = 0;
    for (int64_t i = 0; i < arguments.steps; ++i) {
      plain.push_back(training.step());
      without += plain.back();
    }
    calls.push_back(timed([&] { training.engine().save(where, "t"); }));
    with += calls.back();
    for (int64_t i = 0; i < arguments.steps; ++i) {
      const double step = training.step();
      if (i == 0) beside.push_back(step);
      with += step;
    }
    with += timed([&] { training.engine().save_wait(); });
    fs::remove_all(where);
    plain_totals.push_back(without);
    totals.push_back(with);
  }
  const double step = median(plain), cost = median(totals) - median(plain_totals);
  std::cout << "step " << step << " ms, the call of a background save " << median(calls)
            << " ms, the step after it " << median(beside) << " ms, all in all " << cost
            << " ms more per save\n";
  return {{"step_ms", step},
          {"save_call_ms", median(calls)},
          {"step_beside_ms", median(beside)},
          {"cost_per_save_ms", cost},
          {"steps_per_save", arguments.steps},
          {"cost_of_step_time", cost / median(plain_totals)},
          {"step_beside_more", median(beside) / step - 1}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    if (arguments.what == "resume") {
      std::cout << measure_resume(arguments) << "\n";
      return 0;
    }
    const fs::path folder = arguments.folder / ("checkpoint_bench." + std::to_string(::getpid()));
    fs::create_directories(folder);
    Json out;
    try {
      out = arguments.what == "speed" ? measure_speed(arguments, folder)
                                      : measure_background(arguments, folder);
    } catch (...) {
      fs::remove_all(folder);
      throw;
    }
    fs::remove_all(folder);
    std::cout << out << "\n";
  } catch (const std::exception& error) {
    std::cerr << "checkpoint_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
