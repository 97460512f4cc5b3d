// `ds generate`: continues a prompt and prints the text as it comes, or several together.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "command.h"
#include "files.h"
#include "first_rank.h"
#include "format.h"
#include "inference_weights.h"
#include "model_files.h"
#include "signals.h"
#include "token_text.h"

namespace tool {
namespace {

struct GenerateOptions {
  std::string model;
  std::string prompt;
  std::string prompts;  // a file with a prompt in each line; empty = one prompt
  int64_t at_once = 0;
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

// Prints tokens as text.
class TextStream {
 public:
  TextStream(const libds::Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : terminal_(isatty(STDOUT_FILENO) != 0), text_(tokenizer, stops) {}

  // Whether one of the texts that end it has come.
  bool stopped() const { return text_.stopped(); }
  void token(int32_t id) { show(text_.token(id)); }
  void finish() { show(text_.finish()); }

 private:
  // What a model makes up must not steer a terminal.
  static void hide_controls(std::string& text) {
    for (char& c : text) {
      if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
    }
  }

  void show(std::string part) const {
    if (terminal_) hide_controls(part);
    std::fwrite(part.data(), 1, part.size(), stdout);
    std::fflush(stdout);
  }

  const bool terminal_;
  TokenText text_;
};

// A signal asked for the end.
struct Stopped {};

// The lines of a file; what ends it may be missing.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

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
struct Prompts {
  libds::Tokenizer tokenizer;
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;
};

Prompts read_prompts(const GenerateOptions& o, const libds::Model& model) {
  Prompts prompts;
  prompts.tokenizer = tokenizer_for(o.tokenizer, o.model, model);
  if (o.prompts.empty()) {
    prompts.texts = {o.prompt == "-" ? read_text("-") : o.prompt};
  } else {
    prompts.texts = lines_of(read_text(o.prompts));
  }
  for (const std::string& text : prompts.texts) {
    prompts.ids.push_back(prompts.tokenizer.encode(text).to_vector<int32_t>());
    if (!prompts.ids.back().empty()) continue;
    const auto end_of_text = prompts.tokenizer.end_of_text();
    if (!end_of_text) {
      const std::string which =
          o.prompts.empty() ? "the prompt"
                            : "line " + std::to_string(prompts.ids.size()) + " of " + o.prompts;
      throw Failure(which + " is empty and the tokenizer has no end-of-text token to begin with");
    }
    prompts.ids.back() = {*end_of_text};
  }
  return prompts;
}

libds::GenerateOptions how_to(const GenerateOptions& o, const libds::Tokenizer& tokenizer) {
  libds::GenerateOptions how;
  how.max_tokens = o.max_tokens;
  how.temperature = o.temperature;
  how.top_k = o.top_k;
  how.top_p = o.top_p;
  how.seed = o.seed;
  if (!o.ignore_end) how.stop_token = tokenizer.end_of_text();
  how.graphs = !o.no_graphs;
  return how;
}

using Clock = std::chrono::steady_clock;

void print_stats(const libds::Generator& generator, int64_t tokens, Clock::time_point start) {
  const std::chrono::duration<double> seconds = Clock::now() - start;
  std::fprintf(stderr, "%lld tokens in %.2f s, %.1f tokens/s\n", static_cast<long long>(tokens),
               seconds.count(), static_cast<double>(tokens) / std::max(seconds.count(), 1e-9));
  std::fprintf(stderr, "keys and values in %s at most\n", format_bytes(most_cache_bytes()).c_str());
  print_reads(generator.info());
}

// Prints the text and its continuation.
int continue_text(const GenerateOptions& o, libds::Generator& generator, const Prompts& prompts) {
  const std::string& text = prompts.texts.front();
  if (!o.no_prompt) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  const SignalWatch signals(SignalWatch::Loop::kEnds);
  TextStream stream(prompts.tokenizer, o.stops);
  int64_t count = 0;
  const auto start = Clock::now();
  try {
    generator.generate(libds::Tensor::from(prompts.ids.front()), how_to(o, prompts.tokenizer),
                       [&](int32_t id) {
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
  if (o.stats) print_stats(generator, count, start);
  return signals.stop() != 0 ? kSignalBase + signals.stop() : kDone;
}

// Prints each text as a line of JSON, in the order of the prompts.
int continue_texts(const GenerateOptions& o, libds::Generator& generator, const Prompts& prompts) {
  const SignalWatch signals(SignalWatch::Loop::kEnds);
  std::vector<TokenText> streams(prompts.ids.size(), TokenText(prompts.tokenizer, o.stops));
  std::vector<std::string> texts(prompts.ids.size());
  int64_t count = 0;
  const auto start = Clock::now();
  const auto on_token = [&](int64_t i, int32_t id) {
    if (signals.stop() != 0) throw Stopped();
    TokenText& stream = streams[static_cast<size_t>(i)];
    texts[static_cast<size_t>(i)] += stream.token(id);
    ++count;
    return !stream.stopped();
  };
  std::vector<std::vector<int32_t>> tokens;
  try {
    tokens =
        generator.generate_batch(prompts.ids, how_to(o, prompts.tokenizer), o.at_once, on_token);
  } catch (const Stopped&) {
    return kSignalBase + signals.stop();
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    Json line;
    if (!o.no_prompt) line["prompt"] = prompts.texts[i];
    line["text"] = texts[i] + streams[i].finish();
    line["tokens"] = tokens[i].size();
    const std::string out = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    std::fwrite(out.data(), 1, out.size(), stdout);
  }
  std::fflush(stdout);
  if (o.stats) print_stats(generator, count, start);
  return kDone;
}

// Of a rank whose experts serve the text of rank 0, which is the one to end it.
int serve_text(libds::Generator& generator) {
  const SignalWatch signals(SignalWatch::Loop::kEnds);
  generator.take_part();
  return signals.stop() != 0 ? kSignalBase + signals.stop() : kDone;
}

int run_generate(const GenerateOptions& o) {
  libds::Comm comm = make_comm(o.weights);
  libds::Model model = libds::Model::open(o.model);
  Prompts prompts;
  on_first_rank(comm, [&] { prompts = read_prompts(o, model); });
  libds::Generator generator = make_generator(std::move(model), o.weights, comm);
  int status = kDone;
  if (comm.rank() != 0) {
    status = serve_text(generator);
  } else {
    status = o.prompts.empty() ? continue_text(o, generator, prompts)
                               : continue_texts(o, generator, prompts);
  }
  generator.reset();
  comm.finalize();
  return status;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("generate", "Continue a prompt");
  auto options = std::make_shared<GenerateOptions>();
  GenerateOptions& o = *options;
  sub->add_option("--model", o.model, "folder with weights: Hugging Face or a checkpoint")
      ->type_name("FOLDER")
      ->required();
  CLI::Option* const prompt =
      sub->add_option("--prompt", o.prompt, "text to continue; - reads standard input")
          ->type_name("TEXT");
  CLI::Option* const prompts =
      sub->add_option("--prompts", o.prompts,
                      "file with a text to continue in each line, - for standard input: several go "
                      "through the model together, and each becomes a line of JSON")
          ->type_name("FILE")
          ->excludes(prompt);
  sub->add_option("--at-once", o.at_once, "of --prompts, texts in one pass at most; 0 = 16")
      ->check(at_least(0))
      ->needs(prompts)
      ->capture_default_str();
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
  sub->callback([&action, options, prompt, prompts] {
    if (prompt->empty() && prompts->empty()) throw CLI::RequiredError("--prompt or --prompts");
    action = [options] { return run_generate(*options); };
  });
}

}  // namespace tool
