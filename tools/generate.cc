// `ds generate`: continues a prompt and prints the text as it comes.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "files.h"
#include "first_rank.h"
#include "format.h"
#include "inference_weights.h"
#include "model_files.h"
#include "signals.h"
#include "stop_text.h"

namespace tool {
namespace {

struct Options {
  std::string model;
  std::string prompt;
  std::string tokenizer;
  int64_t max_tokens = 64;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 0;
  int64_t seed = 0;
  WeightOptions weights;
  std::vector<std::string> stops;
  bool no_prompt = false;
  bool ignore_end = false;
  bool no_graphs = false;
  bool stats = false;
};

// Prints tokens as text. A character may need several tokens: what is not complete waits.
class TextStream {
 public:
  TextStream(const libds::Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : tokenizer_(tokenizer), terminal_(isatty(STDOUT_FILENO) != 0), stop_(stops) {}

  // Whether one of the texts that end it has come.
  bool stopped() const { return stop_.stopped(); }

  void token(int32_t id) {
    waiting_.push_back(id);
    const std::string text = tokenizer_.decode(waiting_);
    const size_t complete = waiting_.size() < kLongestWait ? complete_size(text) : text.size();
    print(text, complete);
    if (complete == text.size()) restart();
  }

  void finish() {
    const std::string text = tokenizer_.decode(waiting_);
    print(text, text.size());
    restart();
    show(stop_.rest());
  }

 private:
  // Tokens that are decoded together at most, however broken their bytes are.
  static constexpr size_t kLongestWait = 64;
  static constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

  // Size without the last characters that a following byte may still repair: at most three bytes
  // of a character are missing its end, each of which decodes to U+FFFD.
  static size_t complete_size(std::string_view text) {
    size_t size = text.size();
    for (int i = 0; i < 3; ++i) {
      if (size < kReplacement.size() ||
          text.substr(size - kReplacement.size(), kReplacement.size()) != kReplacement) {
        break;
      }
      size -= kReplacement.size();
    }
    return size;
  }

  // What a model makes up must not steer a terminal.
  static void hide_controls(std::string& text) {
    for (char& c : text) {
      if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
    }
  }

  void print(const std::string& text, size_t end) {
    if (end <= printed_) return;
    show(stop_.add(std::string_view(text).substr(printed_, end - printed_)));
    printed_ = end;
  }

  void show(std::string part) const {
    if (terminal_) hide_controls(part);
    std::fwrite(part.data(), 1, part.size(), stdout);
    std::fflush(stdout);
  }

  void restart() {
    waiting_.clear();
    printed_ = 0;
  }

  const libds::Tokenizer& tokenizer_;
  const bool terminal_;
  StopText stop_;
  std::vector<int32_t> waiting_;
  size_t printed_ = 0;
};

// Of keys and values so far.
double most_cache_bytes() {
  const Json report = Json::parse(libds::memory_report());
  double bytes = 0;
  for (const char* const where : {"host", "gpus"}) {
    bytes += report.at(where).at("tags").at("kv_cache").at("peak").get<double>();
  }
  return bytes;
}

// Of weights in a file.
void print_reads(const ds_generator_info& info) {
  if (info.bytes_read == 0) return;
  std::fprintf(stderr, "%s of weights read",
               format_bytes(static_cast<double>(info.bytes_read)).c_str());
  if (info.expert_uses > 0) {
    std::fprintf(
        stderr, ", experts in memory %.1f %% of the time",
        100 * static_cast<double>(info.expert_hits) / static_cast<double>(info.expert_uses));
  }
  std::fputc('\n', stderr);
}

// What is continued.
struct Prompt {
  libds::Tokenizer tokenizer;
  std::string text;
  libds::Tensor ids;
};

Prompt read_prompt(const Options& o, const libds::Model& model) {
  Prompt prompt;
  prompt.tokenizer = tokenizer_for(o.tokenizer, o.model, model);
  prompt.text = o.prompt == "-" ? read_text("-") : o.prompt;
  prompt.ids = prompt.tokenizer.encode(prompt.text);
  if (prompt.ids.elements() == 0) {
    const auto end_of_text = prompt.tokenizer.end_of_text();
    if (!end_of_text) {
      throw Failure("the prompt is empty and the tokenizer has no end-of-text token to begin with");
    }
    prompt.ids = libds::Tensor::from(std::vector<int32_t>{*end_of_text});
  }
  return prompt;
}

// Prints the text and its continuation.
int continue_text(const Options& o, libds::Generator& generator, const Prompt& prompt) {
  const libds::Tokenizer& tokenizer = prompt.tokenizer;
  const std::string& text = prompt.text;
  const auto end_of_text = tokenizer.end_of_text();
  libds::GenerateOptions how;
  how.max_tokens = o.max_tokens;
  how.temperature = o.temperature;
  how.top_k = o.top_k;
  how.top_p = o.top_p;
  how.seed = o.seed;
  if (!o.ignore_end) how.stop_token = end_of_text;
  how.graphs = !o.no_graphs;

  if (!o.no_prompt) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  const SignalWatch signals(SignalWatch::Loop::kEnds);
  TextStream stream(tokenizer, o.stops);
  int64_t count = 0;
  const auto start = std::chrono::steady_clock::now();
  try {
    generator.generate(prompt.ids, how, [&](int32_t id) {
      stream.token(id);
      ++count;
      return signals.stop() == 0 && !stream.stopped();
    });
  } catch (const libds::Error& error) {
    if (error.status() != DS_ERR_CALLBACK || (signals.stop() == 0 && !stream.stopped())) {
      // The message begins a line of its own.
      if (!o.no_prompt || count > 0) std::fputc('\n', stdout);
      std::fflush(stdout);
      throw;
    }
  }
  stream.finish();
  std::fputc('\n', stdout);
  std::fflush(stdout);
  if (o.stats) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "%lld tokens in %.2f s, %.1f tokens/s\n", static_cast<long long>(count),
                 seconds.count(), static_cast<double>(count) / std::max(seconds.count(), 1e-9));
    std::fprintf(stderr, "keys and values in %s at most\n",
                 format_bytes(most_cache_bytes()).c_str());
    print_reads(generator.info());
  }
  return signals.stop() != 0 ? kSignalBase + signals.stop() : kDone;
}

// Of a rank whose experts serve the text of rank 0, which is the one to end it.
int serve_text(libds::Generator& generator) {
  const SignalWatch signals(SignalWatch::Loop::kEnds);
  generator.take_part();
  return signals.stop() != 0 ? kSignalBase + signals.stop() : kDone;
}

int run(const Options& o) {
  libds::Comm comm = make_comm(o.weights);
  libds::Model model = libds::Model::open(o.model);
  Prompt prompt;
  on_first_rank(comm, [&] { prompt = read_prompt(o, model); });
  libds::Generator generator = make_generator(std::move(model), o.weights, comm);
  const int status = comm.rank() == 0 ? continue_text(o, generator, prompt) : serve_text(generator);
  generator.reset();
  comm.finalize();
  return status;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("generate", "Continue a prompt");
  auto options = std::make_shared<Options>();
  Options& o = *options;
  sub->add_option("--model", o.model, "folder with weights: Hugging Face or a checkpoint")
      ->type_name("FOLDER")
      ->required();
  sub->add_option("--prompt", o.prompt, "text to continue; - reads standard input")
      ->type_name("TEXT")
      ->required();
  sub->add_option("--max-tokens", o.max_tokens, "new tokens at most")
      ->check(at_least(1))
      ->capture_default_str();
  sub->add_option("--temperature", o.temperature, "0 = always the likeliest token")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  sub->add_option("--top-k", o.top_k, "keep the k likeliest tokens; 0 = all")
      ->check(at_least(0))
      ->capture_default_str();
  sub->add_option("--top-p", o.top_p, "keep the likeliest tokens whose sum reaches p; 0 = all")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--seed", o.seed, "same seed, same text")
      ->check(at_least(0))
      ->capture_default_str();
  sub->add_option("--tokenizer", o.tokenizer,
                  "default: the one in FOLDER, else bytes if the vocabulary is 256")
      ->type_name("FILE");
  add_weight_options(*sub, o.weights, true);
  add_cache_options(*sub, o.weights);
  add_comm_option(*sub, o.weights);
  sub->add_option("--stop", o.stops, "end the text before this one; may be given several times")
      ->type_name("TEXT")
      ->check([](const std::string& text) {
        return text.empty() ? std::string("an empty text ends every text") : std::string();
      });
  sub->add_flag("--no-prompt", o.no_prompt, "print only the new text");
  sub->add_flag("--ignore-end", o.ignore_end, "go on after an end-of-text token");
  sub->add_flag("--no-graphs", o.no_graphs,
                "on a GPU, launch the kernels of each token one by one; the text is the same");
  sub->add_flag("--stats", o.stats,
                "print the speed, the memory of keys and values, and what was read of weights in a "
                "file to standard error");
  sub->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace tool
